"""Waiting for events. The limits only bound a hang: they are far beyond what the slowest machine
needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

HANG_S = 600.0


def wait_until(condition: Callable[[], object], interval_s: float = 0.01) -> None:
    """Return as soon as the condition holds."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, f"this does not hold after {HANG_S:g} s"
        time.sleep(interval_s)


def give_time(patch: pytest.MonkeyPatch, *views: type[Any]) -> None:
    """Let these views end however slow the machine is."""
    for view in views:
        for name in ("end_timeout_s", "short_timeout_s"):
            patch.setattr(view, name, HANG_S)
