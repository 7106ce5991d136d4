"""Where an Optuna study is kept: a journal file, or a database. A study of another sweep or program is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from orchestrator.results.databases import OPTUNA, engine_options, has_tables, may_create_tables
from orchestrator.results.store import STUDY
from orchestrator.results.text import counted, without_credentials
from workers.data.storage import Storage
from workers.data.uris import check_credentials
from workers.metrics.definition import Direction

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # pinned, and tested as it is

SWEEP = "sweep"  # a user attribute of a study: the sweep that it belongs to
TRIAL = "specfrontier.trial"  # a user attribute of a trial: its number in the sweep
_SETTING, _IMAGES = "setting", "images"  # user attributes of every trial of a sweep
_METRIC_NAMES = "study:metric_names"  # an attribute of Optuna's own


class StudyError(ValueError):
    """The study cannot be opened or belongs to another sweep; the message names the fix."""


def default_journal(storage: Storage, name: str) -> Path:
    """The journal of a sweep's study where no storage is given: in its folder, or of remote storage in this one."""
    return storage.path(STUDY) or Path(f"{name}-study.log")


def check_study(url: str, name: str, directions: Sequence[Direction], sweep_id: str | None) -> None:
    """Refuse a storage that cannot hold a sweep's study, or holds another study of that name. See `check_owner`.

    Writes nothing: files and tables are not created.

    Raises:
        ValueError: what the URL, the storage or the study is instead, and the fix.
    """
    check_url(url)
    try:
        storage = _open_existing(url)
        if storage is not None:
            check_owner(storage, url, name, directions, sweep_id)
    except StudyError:
        raise
    except Exception as error:  # any exception of the database's driver
        raise StudyError(storage_problem(url, error)) from error


def _open_existing(url: str) -> BaseStorage | None:
    """The storage if it has Optuna's tables or is a journal; None if it is new."""
    if "://" not in url:
        path = Path(url).expanduser()
        if not path.exists() and path.parent.is_dir():
            return None
        path.open("ab").close()  # a folder, or no permission
        if line := damaged_line(path):
            raise StudyError(f"{url}: line {line} is not of an Optuna journal; give another file")
        return open_storage(url)
    if not has_tables(url, OPTUNA):
        if not may_create_tables(url):
            raise ValueError("its user may not create tables there")
        return None
    return RDBStorage(url, engine_options(url), skip_table_creation=True)


def check_owner(
    storage: BaseStorage, url: str, name: str, directions: Sequence[Direction], sweep_id: str | None
) -> None:
    """Refuse a study that is neither the sweep's own nor empty with the same directions. sweep_id: of the sweep that it
    must belong to; None for a new sweep, which has no study yet.

    Raises:
        StudyError: names the study and what differs.
    """
    try:
        study = storage.get_study_id_from_name(name)
    except KeyError:
        return
    attributes = storage.get_study_user_attrs(study)
    owner, trials = attributes.get(SWEEP), storage.get_n_trials(study)
    if owner is not None and owner == sweep_id:
        return
    found = [direction.name.lower() for direction in storage.get_study_directions(study)]
    others = [*attributes, *(key for key in storage.get_study_system_attrs(study) if key != _METRIC_NAMES)]
    differences = [
        f"belongs to another sweep, which started {str(owner).rpartition(' ')[2]}" if owner is not None else "",
        f"has {counted(trials, 'trial')}" if trials and owner is None else "",
        f"has the attributes {', '.join(others)}" if others and owner is None else "",
        f"has the directions {', '.join(found)}, and this sweep {', '.join(directions)}"
        if found != list(directions)
        else "",
    ]
    if any(differences):
        raise StudyError(
            f"{without_credentials(url)}: the study {name!r} there {'; it '.join(filter(None, differences))}; launch "
            "under another --name, or give another --study"
        )


def own_trials(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """A sweep's finished trials in its study by their numbers in the sweep. Trials that others added are left out.

    In studies of earlier versions a trial's number in the study is that in the sweep, and trials that were running when
    the sweep was killed have no images.
    """
    found: dict[int, FrozenTrial] = {}
    for trial in trials:
        number = number_of(trial)
        is_whole = trial.state == TrialState.COMPLETE or (trial.state.is_finished() and _IMAGES in trial.user_attrs)
        if number is not None and is_whole:
            found.setdefault(number, trial)
    return found


def number_of(trial: FrozenTrial) -> int | None:
    """The number in the sweep of one of its trials in a study; None for a trial that others added."""
    number = trial.user_attrs.get(TRIAL, trial.number if _SETTING in trial.user_attrs else None)
    return number if isinstance(number, int) else None


def damaged_line(path: Path) -> int | None:
    """The number of the first line of a file that is not one of an Optuna journal, None if there is none."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict) or "op_code" not in entry:
                return number
    return None


def check_url(url: str) -> None:
    """Check that a database's URL is read as it is meant: a ? or a character of a password can cut it.

    Raises:
        ValueError: names the characters.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "databricks":  # a file; a profile and a prefix
        return
    check_credentials(url)
    file, mark, query = rest.partition("?")
    if scheme.startswith("sqlite") and mark and "=" not in query:
        raise ValueError(f"{scheme}://{file}{mark}{query}: write ? in the path of a SQLite file as %3F")


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
        return JournalStorage(JournalFileBackend(str(Path(url).expanduser())))
    return RDBStorage(url, engine_kwargs=engine_options(url))
