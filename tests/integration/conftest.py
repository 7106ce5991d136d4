"""Sweeps that several integration tests examine; each runs once in a test session."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator.tracking.run_log import RunLog
from orchestrator.tracking.server import free_port, serving
from tests.fakes.real_sweeps import HOST, SWEEP, SweepRun, TrackedSweep, processes, ray_folder, send_signal
from workers.data.storage import Storage


@pytest.fixture(scope="session")
def ray_files() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def tracked(ray_files: Path, shared_folder: Path, empty_database: Path) -> TrackedSweep:
    """The small sweep with two workers; its MLflow server starts after the first trial and stops half-way.

    The first test process that asks for it runs it for all of them.
    """
    folder = shared_folder / "tracked"
    with FileLock(shared_folder / "tracked.lock"):
        run, facts = SweepRun(folder, SWEEP, ray_files), folder / "facts.json"
        if not facts.exists():
            assert not run.folder.exists(), "the small sweep failed in another test process; see its error"
            folder.mkdir()
            shutil.copy(empty_database, folder / "mlflow.db")
            port, logged = _run_tracked(run)
            facts.write_text(json.dumps({"port": port, "logged_in_time": logged}))
    return TrackedSweep(run, run.folder / "mlflow.db", **json.loads(facts.read_text()))


@pytest.fixture(scope="session")
def small(tracked: TrackedSweep) -> SweepRun:
    """The small sweep, not interrupted."""
    return tracked.run


def _run_tracked(run: SweepRun) -> tuple[int, int]:
    """Run the sweep to its end; gives the server's port, and the number of trials logged while it was up.

    The workers are stopped while the server is up, so that the sweep cannot finish meanwhile.
    """
    log, port = RunLog(Storage(str(run.store))), free_port(HOST, 0)
    run.start("--workers", "2", "--tracking-uri", f"http://{HOST}:{port}")
    run.wait_for(lambda: run.count("trial_finished"))
    assert not log.runs()
    workers = processes(run.ray, "ray::Worker")
    send_signal(workers, signal.SIGSTOP)
    with serving(Storage(str(run.folder / "x")), f"sqlite:///{run.folder}/mlflow.db", HOST, port):
        run.wait_for(log.runs)
    logged = len(log.runs())
    send_signal(workers, signal.SIGCONT)
    assert run.wait() == 0, run.output
    return port, logged
