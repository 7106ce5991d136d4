"""Damaged MLflow files: set aside in words, and what they held is logged again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.store.files import MLFLOW_PLACE
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError, database_problem, default_uri
from orchestrator.views.mlflow_place import TrackingPlace
from orchestrator.views.mlflow_sync import sync
from tests.fakes.mlflow_processes import sync_in_child, sync_result
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
    database, notes = tmp_path / "mlflow.db", list[str]()
    spoil(database)
    damaged = database.read_bytes()
    done = sync(storage, note=notes.append)
    assert (done.logged, done.already) == (TRIALS, 0)
    (kept,) = tmp_path.glob("mlflow.db.damaged-*")
    assert kept.read_bytes() == damaged
    assert len(notes) == 1
    assert str(database) in notes[0]
    assert kept.name in notes[0]
    assert database_problem(database) is None
    again = sync(storage, note=notes.append)
    assert (again.logged, again.already) == (0, TRIALS)
    assert again.location.runs == done.location.runs
    assert len(notes) == 1


def test_a_database_that_the_user_named_is_refused_and_stays(
    storage: Storage, tmp_path: Path
) -> None:
    own = tmp_path / "own.db"
    own.write_bytes(b"no database, but long enough to be told from an empty one" * 20)
    with pytest.raises(TrackingError, match=r"own\.db: damaged .*restore it, or move it away"):
        sync(storage, f"sqlite:///{own}")
    assert own.exists()
    view = MlflowView(storage, f"sqlite:///{own}")
    for _ in range(2):  # a view tries again, and still says why
        with pytest.raises(TrackingError, match="restore it, or move it away"):
            view.update(Sweep.open(storage))
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_file_of_the_place_is_written_anew(storage: Storage, content: bytes) -> None:
    sync(storage)
    written = storage.read(MLFLOW_PLACE)
    storage.write(MLFLOW_PLACE, content)
    place = TrackingPlace.resolve(storage)
    assert (place.uri, place.experiment) == (default_uri(storage), "")
    (note,) = place.notes
    assert MLFLOW_PLACE in note
    assert sync(storage) == sync(storage)
    assert storage.read(MLFLOW_PLACE) == written


def test_a_moved_database_keeps_its_runs_and_leaves_the_old_folder_alone(
    storage: Storage, tmp_path: Path
) -> None:
    before = sync(storage).location.runs
    for name in ("sweep", "mlflow.db", "mlartifacts"):
        shutil.copytree(
            tmp_path / name, tmp_path / "new" / name
        ) if name != "mlflow.db" else shutil.copy(tmp_path / name, tmp_path / "new" / name)
    moved, notes = Storage(tmp_path / "new" / "sweep"), list[str]()
    shutil.rmtree(tmp_path / "mlartifacts")
    assert TrackingPlace.resolve(moved) == TrackingPlace(default_uri(moved), "specfrontier/demo")
    done = sync(moved, note=notes.append)
    assert done == sync_result(0, TRIALS)
    assert done.location.runs == before
    assert not (tmp_path / "mlartifacts").exists()
    assert ["was moved" in note for note in notes] == [True]
