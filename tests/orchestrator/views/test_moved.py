"""A sweep that was moved or copied: its runs are found, and their artifacts."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts

from orchestrator.results.store import read_trials
from orchestrator.views.client import default_uri
from orchestrator.views.moved import repair_artifacts
from orchestrator.views.run_log import RunLog
from orchestrator.views.server import find_location
from orchestrator.views.tracker import sync
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

TRIALS = 3


@pytest.fixture
def logged(tmp_path: Path, empty_database: Path) -> Path:
    """The folder of a sweep and its database."""
    folder = tmp_path / "old"
    write_sweep(folder / "demo", TRIALS, name="demo", failed=())
    shutil.copy(empty_database, folder / "mlflow.db")
    sync(Storage(str(folder / "demo")))
    return folder


def test_a_folder_moved_with_its_database_keeps_its_runs_and_pictures(logged: Path, tmp_path: Path) -> None:
    runs = {run.run_id for run in RunLog(Storage(str(logged / "demo"))).runs()}
    logged.rename(tmp_path / "new")
    storage = Storage(str(tmp_path / "new" / "demo"))
    found = find_location(storage, read_trials(storage))
    assert found.uri == default_uri(storage)
    assert (found.trials, set(found.front) <= runs) == (TRIALS, True)
    assert not found.is_behind(TRIALS)
    synced = specfrontier("sync", storage.uri, "--json")
    assert (synced.json["logged"], synced.json["already"]) == (0, TRIALS)
    assert synced.json["links"].keys() == {"mlflow", "sweep", "trials", "front", "compare"}
    got = download_artifacts(run_id=found.front[0], dst_path=str(tmp_path / "got"), tracking_uri=found.uri)
    assert (Path(got) / "images.png").exists()
    assert repair_artifacts(found.uri) == 0, "once"


def test_an_experiment_of_somebody_else_keeps_its_address(logged: Path, tmp_path: Path) -> None:
    theirs = str(logged / "mlartifacts" / "theirs")
    Path(theirs).mkdir()
    with closing(sqlite3.connect(logged / "mlflow.db")) as connection, connection:
        columns = "name, artifact_location, lifecycle_stage, workspace"
        connection.execute(f"INSERT INTO experiments ({columns}) VALUES ('theirs', ?, 'active', 'default')", (theirs,))
    shutil.copytree(logged, tmp_path / "new")
    assert repair_artifacts(f"sqlite:///{tmp_path}/new/mlflow.db") == 1
    with closing(sqlite3.connect(tmp_path / "new" / "mlflow.db")) as connection:
        rows = connection.execute("SELECT name, artifact_location FROM experiments").fetchall()
    assert dict(rows)["theirs"] == theirs
    assert dict(rows)["specfrontier/demo"] == str(tmp_path / "new" / "mlartifacts" / "specfrontier-demo")


def test_a_copy_without_the_database_still_finds_the_old_one(logged: Path, tmp_path: Path) -> None:
    shutil.copytree(logged / "demo", tmp_path / "new" / "demo")
    storage = Storage(str(tmp_path / "new" / "demo"))
    assert find_location(storage, read_trials(storage)).uri == default_uri(Storage(str(logged / "demo")))


def test_a_sweep_whose_database_is_gone_is_logged_anew(logged: Path, tmp_path: Path) -> None:
    shutil.move(logged / "demo", tmp_path / "new" / "demo")
    shutil.rmtree(logged)
    storage = Storage(str(tmp_path / "new" / "demo"))
    found = find_location(storage, read_trials(storage))
    assert (found.uri, found.parent, found.trials) == (default_uri(storage), "", 0)
    assert found.is_behind(TRIALS)
