"""Processes that log to MLflow and may die. They are forked from one process that has imported MLflow already."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from orchestrator.tracking import tracker
from orchestrator.tracking.run_log import RunLog
from workers.data.storage import Storage

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking", __name__])


def run_in_child(function: Callable[..., None], *arguments: str) -> int:
    """Call a function of this module in a child process; its exit code, negative for a signal."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def sync_in_child(storage: Storage, output: Path) -> str:
    """`sync` in a child process, since this one keeps its connections to a database. Everything it printed."""
    assert run_in_child(_sync, storage.uri, str(output)) == 0, output.read_text()
    return output.read_text().strip()


def sync_together(storages: Sequence[Storage], uri: str, folder: Path) -> list[str]:
    """`sync` of several sweeps in as many processes at once; what each printed."""
    barrier, outputs = _CONTEXT.Barrier(len(storages)), [folder / f"output-{i}" for i in range(len(storages))]
    processes = [
        _CONTEXT.Process(target=_sync_after, args=(barrier, storage.uri, str(output), uri))
        for storage, output in zip(storages, outputs, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode is not None, "it hangs"
    return [output.read_text().strip() for output in outputs]


def _sync_after(barrier: Barrier, storage: str, output: str, uri: str) -> None:
    os.chdir(Path(output).parent)  # MLflow puts the pictures of a PostgreSQL database into ./mlruns
    barrier.wait(120)
    _sync(storage, output, uri)


def sync_and_die_early(storage: Storage, database: str, output: Path) -> int:
    """`sync` in a child process that is killed while MLflow creates the tables of a new database; its exit code."""
    return run_in_child(_sync_and_die_early, storage.uri, str(output), database)


def _sync_and_die_early(storage: str, output: str, uri: str) -> None:
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "before_cursor_execute")
    def die(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "_alembic_tmp_" in statement and "INSERT" in statement:  # SQLite's copy of a table that is altered
            os.kill(os.getpid(), signal.SIGKILL)

    _sync(storage, output, uri)


def _sync(uri: str, output: str, tracking: str = "") -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    print(tracker.sync(Storage(uri), tracking or None), flush=True)


def sync_and_die(uri: str, step: str, when: str) -> None:
    """`sync`, killed at the first call of a step: a method of MLflow's client, or `add` of the run log."""
    from mlflow.tracking import MlflowClient

    owner: Any = RunLog if step == "add" else MlflowClient
    original = getattr(owner, step)

    def die(*args: Any, **kwargs: Any) -> None:
        if when == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, step, die)
    tracker.sync(Storage(uri))
