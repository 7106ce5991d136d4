"""Sweeps that several of these tests look at, each run once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from real_sweeps import HOST, SMALL, Launched, Logged, processes, ray_folder

from orchestrator.tracking_ledger import Ledger
from orchestrator.tracking_server import free_port, serving
from workers.data.storage import Storage


@pytest.fixture(scope="session")
def ray_files() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def logged(ray_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """The small sweep, undisturbed but for MLflow: the server comes after the first trial and goes half-way.

    The workers are halted meanwhile, so that half-way is half-way on every machine.
    """
    folder = tmp_path_factory.mktemp("logged")
    database, port = folder / "mlflow.db", free_port(HOST, 0)
    launched = Launched(folder, SMALL, ray_files)
    ledger = Ledger(Storage(str(launched.store)))
    launched.start("--workers", "2", "--tracking-uri", f"http://{HOST}:{port}")
    launched.wait_for(lambda: launched.count("told"))
    assert not ledger.runs()
    workers = processes(ray_files, "ray::Worker")
    halt(workers, signal.SIGSTOP)
    with serving(Storage(str(folder / "x")), f"sqlite:///{database}", HOST, port):
        launched.wait_for(ledger.runs)
    in_time = len(ledger.runs())
    halt(workers, signal.SIGCONT)
    assert launched.ended() == 0, launched.said
    return Logged(launched, database, port, in_time)


@pytest.fixture(scope="session")
def small(logged: Logged) -> Launched:
    """The small sweep as it is when nothing happens to it."""
    return logged.launched


def halt(workers: list[psutil.Process], sign: signal.Signals) -> None:
    assert workers
    for worker in workers:
        worker.send_signal(sign)
