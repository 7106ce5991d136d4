"""Shared by all tests: the fast ones run first, and nothing reaches for the network."""

from __future__ import annotations

import os
import signal

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # torch reads it when it is imported: the processes share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# For all tests alike: Ray reads it once in a process, and workers of another mode could not reach their driver.
os.environ["RAY_AUTH_MODE"] = "disabled"
# A shell starts background jobs with Ctrl-C ignored, and the commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast before slow: a broken change says so in seconds. Then the slowest first, so that no process is left with
    minutes of work when the others are done. Otherwise the order stays.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, float]:
    marker = item.get_closest_marker("slow")
    return marker is not None, -marker.kwargs.get("seconds", 0.0) if marker else 0.0
