"""Databases of MLflow that are damaged or were moved: refused, and what they held is logged to a
new one. A damaged file of the place is written anew.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.store.files import MLFLOW_PLACE
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError, check_database, default_uri
from orchestrator.views.mlflow_place import TrackingPlace
from orchestrator.views.mlflow_sync import SyncResult, find_location, sync
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


def test_a_damaged_database_is_refused_and_a_sync_to_a_new_one_has_everything(
    storage: Storage, tmp_path: Path
) -> None:
    sync_in_child(storage, tmp_path / "output")  # MLflow keeps connections of its own process open
    database = tmp_path / "mlflow.db"
    spoil(database)
    damaged = database.read_bytes()
    view = MlflowView(storage)
    for _ in range(2):  # a view tries again, and still says why
        with pytest.raises(TrackingError, match=r"mlflow\.db: damaged .*move it away, and `spec"):
            view.update(Sweep.open(storage))
    view.close()
    for function in (lambda: sync(storage), lambda: find_location(Sweep.open(storage))):
        with pytest.raises(TrackingError, match=r"mlflow\.db: damaged .*`specfrontier sync SWEEP`"):
            function()
    assert database.read_bytes() == damaged
    database.rename(tmp_path / "away.db")
    done = sync(storage)
    assert (done.logged, done.already) == (TRIALS, 0)
    assert pictures(tmp_path / "mlartifacts", done) == sorted(
        ["heatmap.png", "images.png"] * TRIALS
    )
    again = sync(storage)
    assert (again.logged, again.already) == (0, TRIALS)
    assert again.location.runs == done.location.runs


def test_a_sync_to_a_new_database_elsewhere_has_everything(
    storage: Storage, tmp_path: Path
) -> None:
    sync_in_child(storage, tmp_path / "output")
    spoil(tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/new/other.db"
    done = sync(storage, uri)
    assert (done.logged, done.already) == (TRIALS, 0)
    assert pictures(tmp_path / "new" / "mlartifacts", done) == sorted(
        ["heatmap.png", "images.png"] * TRIALS
    )
    assert sync(storage) == sync_result(0, TRIALS)  # the place is remembered


def pictures(artifacts: Path, done: SyncResult) -> list[str]:
    """Names of the pictures below a folder of artifacts that belong to a sync's trials."""
    runs = set(done.location.runs.values())
    return sorted(p.name for p in artifacts.rglob("*.png") if p.parent.parent.name in runs)


def test_a_locked_missing_or_empty_database_is_not_damaged(tmp_path: Path) -> None:
    database = tmp_path / "a b%.db"
    uri = f"sqlite:///{tmp_path}/a b%25.db"
    check_database(uri)
    assert not database.exists()
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("CREATE TABLE runs (id)")
        writer.commit()
        writer.execute("BEGIN EXCLUSIVE")
        check_database(uri)
        writer.rollback()
    check_database(uri)
    database.write_bytes(b"")
    check_database(uri)


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


def test_a_moved_database_is_refused_and_the_folder_of_its_pictures_stays_as_it_is(
    storage: Storage, tmp_path: Path
) -> None:
    sync(storage)
    shutil.copytree(tmp_path / "sweep", tmp_path / "new" / "sweep")
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "new")
    moved = Storage(tmp_path / "new" / "sweep")
    shutil.rmtree(tmp_path / "mlartifacts")
    assert TrackingPlace.resolve(moved) == TrackingPlace(default_uri(moved), "specfrontier/demo")
    with pytest.raises(
        TrackingError, match=r"new/mlflow\.db: was moved.* `specfrontier sync SWEEP`"
    ):
        sync(moved)
    assert not (tmp_path / "mlartifacts").exists()
    done = sync(moved, f"sqlite:///{tmp_path}/new/other.db")
    assert done == sync_result(TRIALS, 0)
    assert pictures(tmp_path / "new" / "mlartifacts", done) == sorted(
        ["heatmap.png", "images.png"] * TRIALS
    )
