"""Where an Optuna study is kept: a journal file, or a database."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from orchestrator.results.redaction import without_credentials

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # pinned, and tested as it is

# A database that was restarted or is away is noticed. libpq waits for a dead machine for hours; times in s, one in ms.
_POSTGRESQL = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_POSTGRESQL |= {"tcp_user_timeout": 20_000}
_ENGINES: Mapping[str, dict[str, Any]] = {
    "postgresql": {"pool_pre_ping": True, "connect_args": _POSTGRESQL},
    "mysql": {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}},
}


class StudyError(ValueError):
    """The study cannot be opened or belongs to another sweep; the message names the fix."""


def check_storage(url: str) -> None:
    """Refuse a storage that cannot hold a study. A database gets Optuna's tables; a file is not created.

    Raises:
        StudyError: it cannot be opened.
    """
    path = Path(url).expanduser()
    if "://" not in url and not path.exists() and path.parent.is_dir():
        return
    try:
        if "://" not in url:
            path.open("ab").close()
        open_storage(url).get_all_studies()
    except Exception as error:  # any exception of the database's driver
        raise StudyError(storage_problem(url, error)) from error


def storage_problem(url: str, error: Exception) -> str:
    """Why a storage cannot be opened, and the fix, in one line and with credentials redacted."""
    public_url = without_credentials(url)
    why = reason(error).replace(url, public_url)
    fix = "give a file in an existing folder, or a database URL"
    if isinstance(error, ImportError):
        fix = "install its driver (for postgresql://: pip install 'psycopg[binary]')"
    return f"{public_url}: the study cannot be opened ({why}); {fix}"


def reason(error: BaseException) -> str:
    """The first cause of an error, in one line and with credentials redacted. Optuna and SQLAlchemy wrap their drivers'
    errors in their own.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    line = (getattr(error, "strerror", None) or str(error)).strip().partition("\n")[0]
    return without_credentials(line) or type(error).__name__


def open_storage(url: str) -> BaseStorage:
    """A journal file for a path, a database for a URL."""
    if "://" not in url:
        return JournalStorage(JournalFileBackend(url))
    return RDBStorage(url, engine_kwargs=_ENGINES.get(url.partition("://")[0].partition("+")[0]))
