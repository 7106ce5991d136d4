"""Sweeps that several of these tests look at, each run once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator.tracking.outbox import Ledger
from orchestrator.tracking.server import free_port, serving
from tests.fakes.real_sweeps import HOST, SMALL, Launched, Logged, halt, processes, ray_folder
from workers.data.storage import Storage


@pytest.fixture(scope="session")
def ray_files() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def logged(ray_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """The small sweep, undisturbed but for MLflow: the server comes after the first trial and goes half-way.

    It is run once, whichever of the processes that share the tests asks first.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the processes' common one
    with FileLock(folder / "logged.lock"):
        launched, facts = Launched(folder / "logged", SMALL, ray_files), folder / "logged" / "facts.json"
        if not facts.exists():
            assert not launched.folder.exists(), "the small sweep has failed in another process: see there"
            port, in_time = run_logged(launched)
            facts.write_text(json.dumps({"port": port, "in_time": in_time}))
    return Logged(launched, launched.folder / "mlflow.db", **json.loads(facts.read_text()))


def run_logged(launched: Launched) -> tuple[int, int]:
    """Run it to its end; gives the server's port, and how many runs were logged while it was there.

    The workers are halted meanwhile, so that half-way is half-way on every machine.
    """
    ledger, port = Ledger(Storage(str(launched.store))), free_port(HOST, 0)
    launched.start("--workers", "2", "--tracking-uri", f"http://{HOST}:{port}")
    launched.wait_for(lambda: launched.count("trial_finished"))
    assert not ledger.runs()
    workers = processes(launched.ray, "ray::Worker")
    halt(workers, signal.SIGSTOP)
    with serving(Storage(str(launched.folder / "x")), f"sqlite:///{launched.folder}/mlflow.db", HOST, port):
        launched.wait_for(ledger.runs)
    in_time = len(ledger.runs())
    halt(workers, signal.SIGCONT)
    assert launched.ended() == 0, launched.said
    return port, in_time


@pytest.fixture(scope="session")
def small(logged: Logged) -> Launched:
    """The small sweep as it is when nothing happens to it."""
    return logged.launched
