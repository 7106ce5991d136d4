"""A sweep whose folder was moved or copied together with the default database: where its runs and artifacts are now."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from orchestrator.views.client import artifact_folder, default_uri, local_database
from orchestrator.views.run_log import LoggedRun
from orchestrator.views.runs import SWEEP_ID
from workers.data.storage import Storage

_EXPERIMENTS = (
    "SELECT experiment_id, artifact_location FROM experiments WHERE experiment_id IN "
    "(SELECT experiment_id FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid WHERE tags.key = ?)"
)


def current_uri(storage: Storage, run: LoggedRun) -> str:
    """The URI under which a logged run is found now: that of the default database beside the sweep if it has the run,
    or if the database that it was logged to is gone.
    """
    default, logged = default_uri(storage), local_database(run.uri)
    beside = local_database(default)
    if logged is None or beside is None or logged == beside:
        return run.uri
    return default if has_run(beside, run.parent) or not has_run(logged, run.parent) else run.uri


def has_run(database: Path, run_id: str) -> bool:
    """Whether a local database has a run; False if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT 1 FROM runs WHERE run_uuid = ?", (run_id,)).fetchone() is not None
    except sqlite3.Error:
        return False


def repair_artifacts(uri: str) -> int:
    """Make the sweeps' experiments of a local database that was moved find the artifacts that were moved with it.
    Returns their number. Experiments without a sweep stay as they are.
    """
    database, folder = local_database(uri), artifact_folder(uri)
    if database is None or folder is None or not database.exists() or not folder.is_dir():
        return 0
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            rows = connection.execute(_EXPERIMENTS, (SWEEP_ID,)).fetchall()
            moved = [(id_, old, str(folder / Path(old).name)) for id_, old in rows if old and "://" not in old]
            moved = [entry for entry in moved if entry[1] != entry[2] and _came_along(entry[1], entry[2], folder)]
            for experiment, old, new in moved:
                connection.execute(
                    "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (new, experiment)
                )
                connection.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                    "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                    (new, len(old) + 1, experiment, len(old), old),
                )
            return len(moved)
    except sqlite3.Error:  # another process writes, or MLflow's tables differ: the links to pictures stay as they are
        return 0


def _came_along(old: str, new: str, folder: Path) -> bool:
    """Whether the artifacts of another folder of the same name are in this one."""
    return Path(old).parent.name == folder.name and Path(new).is_dir()
