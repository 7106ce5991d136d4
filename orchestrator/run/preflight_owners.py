"""Checks before a launch that what it will write to is the sweep's own: its store, its study, and the databases."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results.axes import Direction
from orchestrator.results.databases import MLFLOW, has_tables, is_same_database
from orchestrator.results.redaction import without_credentials
from orchestrator.results.store import Identity, check_unused
from orchestrator.run.preflight_models import prefix_errors
from orchestrator.views.client import default_uri, is_database, local_database
from orchestrator.views.damage import database_problem
from orchestrator.views.study_storage import check_study, damaged_line, default_journal
from workers.data.storage import Storage


def check_owners(
    name: str,
    directions: Sequence[Direction],
    storage: Storage,
    identity: Identity | None,
    study: str | None,
    tracking: str,
) -> None:
    """Refuse anything that another sweep or program has. Writes nothing.

    identity: of the sweep, None if it is new. study: as given, None for the default journal. tracking: MLflow's URI, ""
    for none.

    Raises:
        ValueError, OSError: names what is there and the option that avoids it.
    """
    if identity is None:
        check_unused(storage)
    if study is not None and is_database(tracking) and is_same_database(study, tracking):
        options = f"--study {without_credentials(study)} and --tracking-uri {without_credentials(tracking)}"
        raise ValueError(f"{options} are one database; Optuna and MLflow need one each")
    sweep_id, journal = identity.id if identity else None, default_journal(storage, name)
    if study is not None:
        with prefix_errors("--study"):
            check_study(study, name, directions, sweep_id)
    elif journal.exists() and not (identity is not None and journal.is_file() and damaged_line(journal)):
        check_study(str(journal), name, directions, sweep_id)  # a damaged one is rebuilt from the trials' records
    _check_tracking_database(tracking, storage)


def _check_tracking_database(uri: str, storage: Storage) -> None:
    """Refuse a database of another program than MLflow. Whether a server responds does not matter yet."""
    from sqlalchemy.exc import SQLAlchemyError

    if not is_database(uri):
        return
    try:
        has_tables(uri, MLFLOW)
    except (SQLAlchemyError, ImportError):  # logging is delayed, the sweep is not
        return
    except ValueError as error:
        if uri == default_uri(storage) and (database := local_database(uri)) and database_problem(database):
            return  # set aside when the sweep is logged
        raise ValueError(f"--tracking-uri {without_credentials(uri)}: {error}") from error
