"""Shared by all tests: fast ones run first, nothing reaches for the network, an empty database is made once."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from filelock import FileLock

if "PYTEST_XDIST_WORKER" in os.environ:  # torch reads it when it is imported: the processes share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# For all tests alike: Ray reads it once in a process, and workers of another mode could not reach their driver.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ |= {"RAY_prestart_worker_first_driver": "0"}  # an idle process per core, which no test uses
# A shell starts background jobs with Ctrl-C ignored, and the commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast before slow: a broken change says so in seconds. Then the slowest first, so that no process is left with
    minutes of work when the others are done. Otherwise the order stays.
    """
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at those million objects again and again."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> tuple[bool, float]:
    marker = item.get_closest_marker("slow")
    return marker is not None, -marker.kwargs.get("seconds", 0.0) if marker else 0.0


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all test processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def empty_database(shared_folder: Path) -> Path:
    """An empty MLflow database to copy: creating its tables takes seconds. The `sync` that does it prints nothing."""
    from tests.fakes.mlflow_processes import sync_in_child
    from tests.fakes.synthetic_sweeps import write_sweep
    from workers.data.storage import Storage

    folder = shared_folder / "empty"
    with FileLock(shared_folder / "empty.lock"):
        if not folder.exists():
            write_sweep(folder / "none", 0, failed=())
            printed = sync_in_child(Storage(str(folder / "none")), folder / "output")
            assert printed == "SyncResult(logged=0, already=0)"
    return folder / "mlflow.db"
