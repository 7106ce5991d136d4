"""Starts of Ray that a busy machine makes fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil
import ray

ATTEMPTS = 8  # half a minute each
Started = TypeVar("Started")


def start_ray(start: Callable[[], Started]) -> Started:
    """The result of `start`, which starts a node of Ray. It is called again, after what it left was
    killed, if the node was not up in time: whatever a test does, a raylet aborts if its agents take
    15 s. (`connected` does the same.)
    """
    before = set(psutil.Process().children(recursive=True))
    for _ in range(ATTEMPTS - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
        ray.shutdown()
        for process in set(psutil.Process().children(recursive=True)) - before:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    return start()
