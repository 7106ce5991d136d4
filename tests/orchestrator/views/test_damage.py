"""Damaged MLflow files: set aside in words, and what they held is logged again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.results.store import MLFLOW_RUNS
from orchestrator.views.client import TrackingError, default_uri
from orchestrator.views.damage import database_problem, restore_tracking
from orchestrator.views.run_log import RunLog
from orchestrator.views.server import find_location
from orchestrator.views.tracker import SyncResult, sync
from tests.fakes.mlflow_processes import sync_in_child
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

TRIALS = 3


@pytest.fixture
def storage(tmp_path: Path, empty_database: Path) -> Storage:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    write_sweep(tmp_path / "sweep", TRIALS, name="demo", failed=())
    return Storage(tmp_path / "sweep")


def spoil(database: Path) -> None:
    """Overwrite the second half of a database."""
    data = database.read_bytes()
    database.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def test_a_damaged_database_is_set_aside_and_all_trials_are_logged_to_a_new_one(
    storage: Storage, tmp_path: Path
) -> None:
    sync_in_child(storage, tmp_path / "output")  # MLflow keeps connections of its own process open
    before, database, notes = RunLog(storage).runs(), tmp_path / "mlflow.db", list[str]()
    spoil(database)
    damaged = database.read_bytes()
    assert find_location(storage, []).is_behind(TRIALS), "so `ui` logs the sweep again"
    assert sync(storage, note=notes.append) == SyncResult(TRIALS, 0)
    (kept,) = tmp_path.glob("mlflow.db.damaged-*")
    assert kept.read_bytes() == damaged
    assert len(notes) == 1
    assert str(database) in notes[0]
    assert kept.name in notes[0]
    assert database_problem(database) is None
    logged = RunLog(storage).trials(default_uri(storage), "specfrontier/demo").values()
    assert len(logged) == len(before) == TRIALS
    assert {run.run_id for run in before}.isdisjoint(run.run_id for run in logged)
    assert sync(storage, note=notes.append) == SyncResult(0, TRIALS)
    assert len(notes) == 1


def test_a_database_that_the_user_named_is_refused_and_stays(storage: Storage, tmp_path: Path) -> None:
    own = tmp_path / "own.db"
    own.write_bytes(b"no database, but long enough to be told from an empty one" * 20)
    with pytest.raises(TrackingError, match=r"own\.db: damaged .*restore it, or move it away"):
        sync(storage, f"sqlite:///{own}")
    assert own.exists()
    assert not list(tmp_path.glob("*.damaged*"))


def test_a_locked_missing_or_empty_database_is_not_damaged(tmp_path: Path) -> None:
    database = tmp_path / "a b%.db"
    assert database_problem(database) is None
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("CREATE TABLE runs (id)")
        writer.commit()
        writer.execute("BEGIN EXCLUSIVE")
        assert database_problem(database) is None
        writer.rollback()
    assert database_problem(database) is None
    database.write_bytes(b"")
    assert database_problem(database) is None


def test_damaged_lines_of_the_run_log_are_dropped_and_logged_again(storage: Storage) -> None:
    sync(storage)
    runs, path = RunLog(storage).runs(), storage.path(MLFLOW_RUNS)
    assert path is not None
    path.write_bytes(path.read_bytes().replace(runs[1].run_id.encode(), b"0" * 32))
    assert RunLog(storage).runs() == [runs[0], runs[2]], "a changed id is not taken for a run"
    notes: list[str] = []
    assert sync(storage, note=notes.append) == SyncResult(0, TRIALS)
    assert len(notes) == 1
    assert sorted(RunLog(storage).runs(), key=lambda run: run.trial) == runs
    assert restore_tracking(storage, default_uri(storage)) == []
