"""Processes that log to MLflow or open studies, several at once, and may die.

They are forked from one process that has imported MLflow already.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from orchestrator.errors import StudyError
from orchestrator.store.sweep import Sweep
from orchestrator.views import mlflow_sync
from orchestrator.views.mlflow_page import MlflowLocation
from tests.fakes.studies import named_config, study_identity, study_view
from tests.fakes.synthetic_sweeps import identity
from tests.fakes.waiting import HANG_S
from workers.data.storage import Storage

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking", __name__]
)


def sync_result(logged: int, already: int) -> mlflow_sync.SyncResult:
    """A result to compare with: its location does not count."""
    return mlflow_sync.SyncResult(logged, already, MlflowLocation(identity("any"), ""))


def run_in_child(function: Callable[..., None], *arguments: str) -> int:
    """Call a function of this module in a child process; its exit code, negative for a signal."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(HANG_S)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def sync_in_child(storage: Storage, output: Path) -> str:
    """`sync` in a child process, since this one keeps its connections to a database. Everything it
    printed.
    """
    assert run_in_child(_sync, str(output), storage.uri) == 0, output.read_text()
    return output.read_text().strip()


def sync_together(storages: Sequence[Storage], uri: str, folder: Path) -> list[str]:
    """`sync` of several sweeps in as many processes at once; what each printed."""
    return _together(_sync, folder, [(storage.uri, uri) for storage in storages])


def open_studies_together(studies: Sequence[tuple[str, int]], url: str, folder: Path) -> list[str]:
    """Open studies in as many processes at once; what each printed. studies: name, and the sweep's
    second of start.
    """
    return _together(_open_study, folder, [(url, name, str(second)) for name, second in studies])


def _open_study(output: str, url: str, name: str, second: str) -> None:
    _redirect(output)
    try:
        config = named_config(name)
        started = f"2026-01-02T03:00:{int(second):02}+00:00"
        study_view(config, url, is_own=False).update(
            Sweep(Storage("."), study_identity(config, started=started), ())
        )
        print("opened", flush=True)
    except StudyError as error:
        print(error, flush=True)


def _together(
    function: Callable[..., None], folder: Path, calls: Sequence[tuple[str, ...]]
) -> list[str]:
    """Call a function of this module in processes that start at one moment; what each printed."""
    barrier, outputs = (
        _CONTEXT.Barrier(len(calls)),
        [str(folder / f"output-{i}") for i in range(len(calls))],
    )
    processes = [
        _CONTEXT.Process(target=_after, args=(barrier, function, output, *call))
        for call, output in zip(calls, outputs, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
        assert process.exitcode is not None, "it hangs"
    return [Path(output).read_text().strip() for output in outputs]


def _after(barrier: Barrier, function: Callable[..., None], output: str, *arguments: str) -> None:
    os.chdir(Path(output).parent)  # MLflow puts the pictures of a PostgreSQL database into ./mlruns
    barrier.wait(HANG_S)
    function(output, *arguments)


def sync_and_die_early(storage: Storage, database: str, output: Path) -> int:
    """`sync` in a child process that is killed while MLflow creates the tables of a new database;
    its exit code.
    """
    return run_in_child(_sync_and_die_early, str(output), storage.uri, database)


def _sync_and_die_early(output: str, storage: str, uri: str) -> None:
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "before_cursor_execute")
    def die(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        # SQLite's copy of a table that is altered
        if "_alembic_tmp_" in statement and "INSERT" in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    _sync(output, storage, uri)


def _sync(output: str, storage: str, uri: str = "") -> None:
    _redirect(output)
    print(mlflow_sync.sync(Storage(storage), uri or None), flush=True)


def _redirect(output: str) -> None:
    """All that this process prints goes to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


def sync_and_die(uri: str, step: str, when: str) -> None:
    """`sync`, killed at the first call of a step, a method of MLflow's client."""
    from mlflow.tracking import MlflowClient

    original = getattr(MlflowClient, step)

    def die(*args: Any, **kwargs: Any) -> None:
        if when == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(MlflowClient, step, die)
    mlflow_sync.sync(Storage(uri))
