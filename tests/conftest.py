"""Shared by all tests: fast ones run first, nothing reaches for the network, an empty database is
made once.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from filelock import FileLock

from tests.fakes.waiting import HANG_S
from workers.runtime.process import use_threads

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from search_spaces.trial import DecodingConfig
    from workers.loading.dry_run import Footprint
    from workers.loading.models import Models

# processes share the cores, and results of sweeps that are compared must not depend on their number
use_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if shutil.which("nvidia-smi") is None:  # Triton reads it when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
# The same examples in every run, and no limit of time: a slow machine is no fault.
hypothesis.settings.register_profile(
    "deterministic",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("deterministic")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_BROWSER_ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=AutofillServerCommunication",
]
_LONG_S = 30.0
_DRY_RUNS: dict[tuple[object, ...], Footprint] = {}
# For all tests alike: Ray reads it once in a process, and workers of another mode could not reach
# their driver.
os.environ["RAY_AUTH_MODE"] = "disabled"
# an idle process per core, which no test uses
os.environ |= {"RAY_prestart_worker_first_driver": "0"}
# else other programs' memory could end the workers of a test
os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}
# A shell starts background jobs with Ctrl-C ignored, and the commands under test would inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast before slow: a broken change says so in seconds. Then the slowest first. Otherwise the
    order stays.

    Where several processes share the tests, files that mostly wait (for Ray, servers, browsers) are
    spread among the others: they overlap with tests that compute, and no process is left with
    minutes of work when the others are done.
    """
    items.sort(key=_place)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _spread(items)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at those million objects
    again and again.
    """
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> tuple[bool, float]:
    return item.get_closest_marker("slow") is not None, -_seconds(item)


def _seconds(item: pytest.Item) -> float:
    """How long the item's file takes, as its mark says."""
    marker = item.get_closest_marker("slow")
    return float(marker.kwargs.get("seconds", 0.0)) if marker else 0.0


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The files of at least _LONG_S, the longest first, at equal distances among the others."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    lengths = {path: max(map(_seconds, found)) for path, found in files.items()}
    long = sorted((path for path in files if lengths[path] >= _LONG_S), key=lengths.__getitem__)
    others = [path for path in files if lengths[path] < _LONG_S]
    distance = max(1, len(others) // (len(long) + 1))
    order: list[Path] = []
    for index, path in enumerate(others):
        if index % distance == 0 and long:
            order.append(long.pop())
        order.append(path)
    return [item for path in (*order, *reversed(long)) for item in files[path]]


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Commands set the threads of this process, by `--threads` or a sweep's own. Every fixture
    begins with one thread, whatever ran before it.
    """
    use_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """And so does every test."""
    use_threads(1)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all test processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def equal_dry_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs of equal models and configs are made once for all tests of a process: one takes a
    second.
    """
    from orchestrator.doctor import checkup, plan
    from workers.loading.dry_run import footprint
    from workers.runtime import peak_memory

    def remembered(models: Models, config: DecodingConfig, batch: int, pictures: int) -> Footprint:
        size = sum(parameter.numel() for parameter in models.target.parameters())
        key = (models.target.name, size, models.target.dtype, config, batch, pictures)
        if key not in _DRY_RUNS:
            _DRY_RUNS[key] = footprint(models, config, batch, pictures)
        return _DRY_RUNS[key]

    for module in (checkup, plan, peak_memory):
        monkeypatch.setattr(module, "footprint", remembered)


@pytest.fixture(scope="session")
def empty_database(shared_folder: Path) -> Path:
    """An empty MLflow database to copy: creating its tables takes seconds. The `sync` that does it
    prints nothing.
    """
    from tests.fakes.mlflow_processes import sync_in_child
    from tests.fakes.synthetic_sweeps import write_sweep
    from workers.data.storage import Storage

    folder = shared_folder / "empty"
    with FileLock(shared_folder / "empty.lock"):
        if not folder.exists():
            write_sweep(folder / "none", 0, name="none", failed=())
            printed = sync_in_child(Storage(str(folder / "none")), folder / "output")
            assert printed == "SyncResult(logged=0, already=0)"
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def mlflow_server(shared_folder: Path, empty_database: Path) -> Iterator[str]:
    """The address of an MLflow server, one for all test processes: a start costs 12 seconds of CPU
    time.

    The first process that asks for it starts it, and stops it when no other needs it.
    """
    from orchestrator.views.mlflow_client import serving

    folder, lock = shared_folder / "server", FileLock(shared_folder / "server.lock")
    folder.mkdir(exist_ok=True)
    address = folder / "address"

    def remove_address() -> None:
        with lock:
            address.unlink()

    with (folder / "users").open("w") as users, ExitStack() as owned:
        with lock:
            if not address.exists():
                database = shutil.copy(empty_database, folder / "mlflow.db")
                base, _ = owned.enter_context(serving(f"sqlite:///{database}", "127.0.0.1", 0))
                address.write_text(base)
                owned.callback(fcntl.flock, users, fcntl.LOCK_EX)  # waits for the other processes
                owned.callback(remove_address)
            fcntl.flock(users, fcntl.LOCK_SH)
            base = address.read_text()
        yield base


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by playwright, started once; skips, with the reason, where there
    is no browser or nothing to drive it with.
    """
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    path = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(
            f"no browser: none of {', '.join(_BROWSERS)} is on the path (apt-get install chromium)"
        )
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=_BROWSER_ARGUMENTS, timeout=1000 * HANG_S
        )
        for name in ("new_context", "new_page"):
            setattr(started, name, _patient(getattr(started, name)))
        yield started
        started.close()


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes contexts or pages that wait for a slow machine."""

    def made(**options: Any) -> Any:
        opened = make(**options)
        opened.set_default_timeout(1000 * HANG_S)
        return opened

    return made
