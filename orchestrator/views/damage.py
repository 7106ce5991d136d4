"""Damaged files of MLflow beside a sweep: set aside or cleaned, because the trials' records hold all that they held."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.results.databases import sole_creator
from orchestrator.results.json_lines import drop_damaged_lines
from orchestrator.results.store import MLFLOW_RUNS
from orchestrator.results.text import counted
from orchestrator.views.client import TrackingError, default_uri, local_database, public_uri
from orchestrator.views.moved import repair_artifacts
from workers.data.storage import Storage

_COMPANIONS = ("", "-journal", "-wal", "-shm")  # SQLite's files of a database


def restore_tracking(storage: Storage, uri: str) -> list[str]:
    """Make a sweep's run log and its local database usable, so that an update logs what they lost. Returns a sentence
    about each that was damaged. Call it as the sole writer (see `sole_writer`).

    Raises:
        TrackingError: the database is damaged, and not the default one, which may hold more than sweeps.
    """
    notes = []
    if repaired := repair_artifacts(uri):
        moved = counted(repaired, "experiment")
        notes.append(f"{public_uri(uri)}: artifacts of {moved} were moved; their addresses are updated")
    if lines := drop_damaged_lines(storage, MLFLOW_RUNS):
        notes.append(f"{MLFLOW_RUNS}: {lines} damaged lines removed; their runs are looked up in MLflow")
    database = local_database(uri)
    if database is not None and database_problem(database):
        with sole_creator(uri):
            notes += _replace_damaged(database, is_default=uri == default_uri(storage))
    return notes


def _replace_damaged(database: Path, *, is_default: bool) -> list[str]:
    """Set a database aside, unless another process has done so meanwhile; returns a sentence about it."""
    if (problem := database_problem(database)) is None:
        return []
    if not is_default:
        raise TrackingError(f"{database}: damaged ({problem}); restore it, or move it away and log the sweep again")
    kept = _set_aside(database)
    return [
        f"{database}: damaged ({problem}); kept as {kept.name}, and this sweep is logged to a new database. "
        "Log the other sweeps of the folder with `specfrontier sync`"
    ]


def database_problem(database: Path) -> str | None:
    """Why SQLite cannot read a database; None if it can, if another process locks it, or if there is none."""
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else found


def _set_aside(database: Path) -> Path:
    """Rename a database and its companions; returns its new path."""
    suffix = f".damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    for companion in _COMPANIONS:
        path = database.with_name(database.name + companion)
        if path.exists():
            path.rename(path.with_name(path.name + suffix))
    return database.with_name(database.name + suffix)
