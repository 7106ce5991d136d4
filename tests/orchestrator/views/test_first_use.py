"""The first use of an MLflow database: by several processes at once, and by one that is killed
meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.store.launches import load_identity
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.views import follower
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError
from orchestrator.views.mlflow_sync import sync
from orchestrator.views.study import open_storage
from tests.fakes.mlflow_processes import (
    sync_and_die_early,
    sync_in_child,
    sync_result,
    sync_together,
)
from tests.fakes.postgresql import PostgreSQL, postgresql
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S, wait_until
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=60)
TRIALS = 2
NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


def sweeps(folder: Path) -> list[Storage]:
    for name in NAMES:
        write_sweep(folder / name, TRIALS, name=name, failed=())
    return [Storage(folder / name) for name in NAMES]


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {*NAMES, "mlartifacts"}


def experiments(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM experiments")}


def test_sweeps_that_are_logged_at_once_share_a_new_file(tmp_path: Path) -> None:
    folder, output = tmp_path / "sweeps", tmp_path
    assert sync_together(sweeps(folder), "", output) == [str(sync_result(TRIALS, 0))] * len(NAMES)
    assert experiments(folder / "mlflow.db") >= {f"specfrontier/{name}" for name in NAMES}
    assert files_in(folder) == {"mlflow.db"}


def test_sweeps_that_are_logged_at_once_share_a_new_database(
    server: PostgreSQL, tmp_path: Path
) -> None:
    printed = sync_together(sweeps(tmp_path / "sweeps"), server.create("together"), tmp_path)
    assert printed == [str(sync_result(TRIALS, 0))] * len(NAMES)


@pytest.mark.parametrize(
    "url", [lambda folder: "", lambda folder: f"sqlite:///{folder}/deep/own.db?timeout=30"]
)
def test_a_process_that_is_killed_leaves_no_half_made_file(
    url: Callable[[Path], str], tmp_path: Path
) -> None:
    storage = sweeps(tmp_path / "sweeps")[0]
    assert sync_and_die_early(storage, url(tmp_path), tmp_path / "output") == -9
    assert not list(tmp_path.rglob("[!.]*.db")), "it has its name only when it is complete"
    assert sync_together([storage], url(tmp_path), tmp_path) == [str(sync_result(TRIALS, 0))]
    (database,) = tmp_path.rglob("*.db")
    assert [path.name for path in database.parent.glob(".*")] == []


def test_an_empty_file_becomes_the_database(tmp_path: Path) -> None:
    storage = sweeps(tmp_path / "sweeps")[0]
    (tmp_path / "sweeps" / "mlflow.db").touch()
    assert sync_in_child(storage, tmp_path / "output") == str(sync_result(TRIALS, 0))


@pytest.mark.parametrize("content", ["optuna", "other"])
def test_a_database_of_another_program_gets_no_tables(content: str, tmp_path: Path) -> None:
    storage, url = sweeps(tmp_path / "sweeps")[0], f"sqlite:///{tmp_path}/own.db"
    if content == "optuna":
        open_storage(url)
    else:
        with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
            connection.executescript(
                "CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES (7)"
            )
    before = (tmp_path / "own.db").read_bytes()
    with pytest.raises(TrackingError, match="tables of"):
        sync(storage, url)
    assert (tmp_path / "own.db").read_bytes() == before


def test_a_database_with_tables_of_no_program_gets_mlflows(tmp_path: Path) -> None:
    storage = sweeps(tmp_path / "sweeps")[0]
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.execute("CREATE TABLE readings (id)")
    assert sync_together([storage], f"sqlite:///{tmp_path}/own.db", tmp_path) == [
        str(sync_result(TRIALS, 0))
    ]
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        assert connection.execute("SELECT count(*) FROM readings").fetchone() == (0,)


def test_a_database_that_ends_in_the_middle_of_a_sweep_is_one_sentence(
    server: PostgreSQL,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """MLflow and SQLAlchemy log a traceback for each attempt, besides the error that they raise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follower, "RETRY_S", (0.05, 0.05))
    write_sweep(tmp_path / "sweeps" / "one", TRIALS, failed=())
    storage = Storage(tmp_path / "sweeps" / "one")
    records, url = read_trials(storage), server.create("dying")
    view = MlflowView(storage, url)
    view.update(Sweep(storage, load_identity(storage), tuple(records[:1])))
    server.stop()
    try:
        views = follower.Views(storage, [view])
        views.start(load_identity(storage), records)
        wait_until(lambda: views._followers[0].problem is not None)
        (problem,) = views.end("finished")
        views._followers[0]._thread.join(HANG_S)
    finally:
        server.start()
    assert len(problem.splitlines()) == 1
    assert "Connection refused" in problem
    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")
