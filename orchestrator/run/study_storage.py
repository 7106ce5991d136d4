"""Where an Optuna study is kept: a journal file, or a database."""

from __future__ import annotations

import warnings
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from orchestrator.results.redaction import without_credentials

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # pinned, and tested as it is


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
    """The reason why a storage cannot be opened, in one line and with credentials redacted."""
    public_url, reason = without_credentials(url), getattr(error, "strerror", None) or str(error).partition("\n")[0]
    why = without_credentials(reason.replace(url, public_url)) or type(error).__name__
    return f"{public_url}: the study cannot be opened ({why}); give a file in an existing folder, or a database URL"


def open_storage(url: str) -> BaseStorage:
    """A journal file for a path, a database for a URL."""
    if "://" not in url:
        return JournalStorage(JournalFileBackend(url))
    return RDBStorage(url)
