"""Shared by all tests: the fast ones run first, and nothing reaches for the network."""

from __future__ import annotations

import os

import pytest

#: Files that share something costly, by the name of their group.
TOGETHER = {
    "small sweep": ("test_cluster.py", "test_killed.py", "test_mlflow_away.py", "test_open_formats.py"),
    "browser": ("test_mlflow_ui.py", "test_report_page.py"),
    "servers": ("test_tracking_server.py", "test_tracking.py", "test_notebook.py"),
    "pool": ("test_pool.py",),
    "ways": ("test_same_results.py",),
    "checkpoints": ("test_own_checkpoints.py",),
}
GROUPS = {file: group for group, files in TOGETHER.items() for file in files}
if "PYTEST_XDIST_WORKER" in os.environ:  # torch reads it when it is imported: the processes share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# For all tests alike: Ray reads it once in a process, and workers of another mode could not reach their driver.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast before slow: a broken change says so in seconds. Within each half the order stays.

    Where tests are spread over processes, those that share something costly (a sweep that was run, a browser, a Ray
    cluster, an MLflow server) stay together.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    for item in items:
        if group := GROUPS.get(item.path.name):
            item.add_marker(pytest.mark.xdist_group(group))
