"""The study of a sweep for Optuna users: every finished trial. The sweep never reads it.

A trial is added in one step, with everything that is known of it, so the study has it whole or not
at all. A user attribute says which trial of the sweep it is. Trials that others add stay there.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, create_study, load_study
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from orchestrator.errors import StudyError
from orchestrator.store import databases, files
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, without_credentials
from orchestrator.views.follower import View
from search_spaces.params import ConfigError
from search_spaces.paths import local_path
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage
from workers.data.uris import check_credentials
from workers.metrics.definition import Direction

_STOPPED_EARLY = "stopped early"  # the constraint that trials stopped by racing violate
_BRANCH = re.compile(r"([^.=]+)=([^.]+)")

# By URL. An abandoned view may still be writing a trial, because Optuna itself retries. The next
# view in this process waits until that has ended, and then finds the trial.
_WRITERS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

Entry = TypeVar("Entry")
optuna.logging.set_verbosity(optuna.logging.WARNING)
# constraints.txt pins Optuna
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

SWEEP = "sweep"  # a user attribute of a study: the sweep that it belongs to
TRIAL = "specfrontier.trial"  # a user attribute of a trial: its number in the sweep
_METRIC_NAMES = "study:metric_names"  # an attribute of Optuna's own


class StudyView(View[Sweep]):
    """The study of a sweep in an Optuna storage.

    config: the sweep's. reports: a function of a trial's record and the sweep, which returns the
    record as the search sees it, and that record with the values that the study gets. is_own: the
    storage is a journal that the sweep made; if it is damaged or differs from the records, it is
    kept as FILE.damaged and the study is rebuilt.

    Optuna has no pruning for several objectives: a stopped trial is complete there. Its user
    attribute `stopped` has the reason, the metrics are values on its `images`, and it violates the
    constraint `stopped early`, so it is not among the study's best trials. Optuna changes no
    finished trial: results of revived trials are attributes of the study, and speeds stay as they
    were told to the search, whatever sessions come later.
    """

    end_timeout_s = 30.0
    is_priced = False

    def __init__(
        self,
        config: SweepConfig,
        url: str,
        reports: Callable[[TrialRecord, Sweep], tuple[TrialRecord, TrialRecord]],
        *,
        is_own: bool = False,
    ) -> None:
        super().__init__()
        self._config = config
        self._url = url
        self._reports = reports
        self._is_own = is_own
        self._journal = None if "://" in url else local_path(url)
        self._study: Study | None = None
        self._short: Mapping[str, str] = {}
        # trials that the study has; None if it must be opened again
        self._known: set[int] | None = None

    def update(self, source: Sweep) -> None:
        """Add the trials that the study lacks, and new results of revived ones.

        Raises:
            StudyError: the storage cannot be opened, or has the study of another sweep.
        """
        with _WRITERS[self._url]:
            if self._study is None or self._known is None:
                self._study = self._open(source)
                self._known = self._known_trials(self._study)
            # unknown until all is written: a failed call may have written
            known = self._known
            self._known = None
            for record in self.in_turn(source.records, known):
                if self.is_abandoned:  # another launch may be adding trials already
                    return
                self._study.add_trial(self._make_trial(source, record))
                known.add(record.number)
            for record in source.records:
                if record.is_revived:
                    self._add_revival(self._study, source, record)
            self._known = known

    def explain(self, error: Exception) -> str:
        return _first_cause(error)

    def describe(self, problem: str) -> str:
        place = without_credentials(self._url)
        return (
            f"{place}: the study lacks trials or results ({problem}); the next --resume adds them"
        )

    def _open(self, sweep: Sweep) -> Study:
        """Open the study, or create it. A journal of the sweep's own that cannot be used is set
        aside.
        """
        try:
            with databases.sole_creator(self._url):
                if self._is_own and self._study is None:
                    self._set_damaged_journal_aside(sweep)
                return self._load_or_create(sweep)
        except StudyError:
            raise
        except Exception as error:  # any exception of the database's driver
            raise StudyError(_storage_problem(self._url, error)) from error

    def _set_damaged_journal_aside(self, sweep: Sweep) -> None:
        """Rename the journal if it cannot be continued, with a note."""
        assert self._journal is not None
        if problem := self._journal_problem(sweep):
            kept = self._journal.with_name(f"{self._journal.name}.damaged")
            self._journal.replace(kept)
            self.notes.append(
                f"{self._url}: {problem}; rebuilt from the trials' records, the old file is kept "
                f"as {kept.name}"
            )

    def _load_or_create(self, sweep: Sweep) -> Study:
        """The study in the storage; a new one gets the sweep's id and its metrics' names."""
        identity = sweep.identity
        name = self._config.name
        directions = [metric.direction for metric in identity.objectives]
        storage = open_storage(self._url)
        _check_owner(storage, self._url, name, directions, identity.id)
        try:
            study = load_study(study_name=name, storage=storage, sampler=RandomSampler())
        except KeyError:
            study = create_study(
                study_name=name, storage=storage, directions=directions, sampler=RandomSampler()
            )
        # a new study, or one whose first launch was killed
        if not own_trials(study.get_trials(deepcopy=False)):
            study.set_user_attr(SWEEP, identity.id)
            study.set_metric_names([metric.name for metric in identity.objectives])
        self._short = short_names(self._config.space.parameters())
        return study

    def _known_trials(self, study: Study) -> set[int]:
        """The numbers of the sweep's trials in the study."""
        return set(own_trials(study.get_trials(deepcopy=False)))

    def _journal_problem(self, sweep: Sweep) -> str | None:
        """Why the journal cannot be continued; None if it can. Trials of others do not matter.
        Creates the study in a journal that has none.
        """
        assert self._journal is not None
        if not self._journal.exists():
            return None
        if line := damaged_line(self._journal):
            return f"line {line} is damaged"
        records = {record.number: record for record in sweep.records}
        try:
            trials = own_trials(self._load_or_create(sweep).get_trials(deepcopy=False))
        except StudyError:
            raise
        except Exception as error:  # whatever Optuna raises for an entry that it did not write
            reason = str(error).partition("\n")[0]
            return f"Optuna cannot read it ({type(error).__name__}: {reason})"
        for number, trial in trials.items():
            record = records.get(number)
            expected = () if record is None else _facts(self._make_trial(sweep, record))
            if _facts(trial) != expected:
                return f"trial {number} differs from its record"
        return None

    def _make_trial(self, sweep: Sweep, record: TrialRecord) -> FrozenTrial:
        """A finished trial of the study."""
        finished, reported = self._reports(record, sweep)
        attrs: dict[str, Any] = {
            TRIAL: record.number,
            "setting": sweep.names.name(record.config),
            "label": record.label,
        }
        if record.config is not None:
            attrs |= record.config.flat() | {"digest": record.digest}
        attrs |= {name: entry.value for name, entry in finished.metrics.items()}
        attrs["images"] = finished.images
        if finished.cause:
            attrs["stopped" if finished.is_stopped else "cause"] = finished.cause
        constraints = dict(finished.constraints)
        if finished.is_stopped:
            constraints[_STOPPED_EARLY] = 1.0
        values = reported.finite_values([metric.name for metric in sweep.identity.objectives])
        trial = create_trial(
            state=TrialState.FAIL if values is None else TrialState.COMPLETE,
            values=values,
            params=self._shorten(record.params),
            distributions=self._shorten(self._distributions(record)),
            user_attrs=attrs,
            constraints=None if values is None else constraints,
        )
        if times := _times(record):
            trial.datetime_start = times[0]
            trial.datetime_complete = times[-1]
        return trial

    def _distributions(self, record: TrialRecord) -> Mapping[str, BaseDistribution]:
        """Where the trial's parameters come from; nothing if the space does not contain its
        setting.
        """
        trial = FixedTrial(dict(record.params))
        if record.params:
            # of an invalid config; the parameters were suggested before
            with suppress(ConfigError):
                self._config.space.suggest(trial)
        return trial.distributions

    def _shorten(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """The entries by the parameters' short names."""
        return {self._short.get(name, name): entry for name, entry in entries.items()}

    def _add_revival(self, study: Study, sweep: Sweep, record: TrialRecord) -> None:
        """Write a revived trial's result as an attribute of the study."""
        names = [
            metric.name for metric in sweep.identity.objectives if metric.name in record.metrics
        ]
        values = ", ".join(f"{name} {record.metrics[name].value:.6g}" for name in names)
        key = f"revived {record.number}"
        text = f"{record.state} at {record.images} images: {values}"
        if study.user_attrs.get(key) != text:
            study.set_user_attr(key, text)


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """A short name for each parameter of a space, all different: `budget (exponential)`, `delta`.

    The last key of a parameter, followed by the branch that it belongs to if another parameter has
    the same key, by all of its branches, or by these with their choices; else the name itself.
    """
    left = list(names)
    found = dict[str, str]()
    for depth, choices in ((0, False), (1, False), (None, False), (None, True)):
        shorter = {name: _shorten_name(name, depth, choices) for name in left}
        counts = Counter(shorter.values())
        found |= {name: short for name, short in shorter.items() if counts[short] == 1}
        left = [name for name in left if name not in found]
    return found | {name: name for name in left}


def _shorten_name(name: str, depth: int | None, choices: bool) -> str:
    """`space=eagle.acceptance=constant.budget` as `budget`, `budget (constant)`, `budget (eagle,
    constant)` or `budget (space eagle, acceptance constant)`. depth: number of branches (None:
    all). choices: whether each has its choice.
    """
    path, _, key = name.rpartition(".")
    branches = _BRANCH.findall(path)
    if depth is not None:
        branches = branches[len(branches) - depth :]
    labels = [f"{choice} {label}" if choices else label for choice, label in branches]
    return f"{key} ({', '.join(labels)})" if labels else key


def _times(record: TrialRecord) -> list[datetime]:
    """When the trial started and finished, as far as it is known, in local time as Optuna has
    it.
    """
    moments = [datetime.fromisoformat(text) for text in (record.started, record.finished) if text]
    return [moment.astimezone().replace(tzinfo=None) for moment in moments]


def _facts(trial: FrozenTrial) -> tuple[object, ...]:
    """A study's trial without its states and times."""
    return (trial.params, trial.values, trial.user_attrs)


def default_journal(storage: Storage, name: str) -> Path:
    """The journal of a sweep's study where no storage is given: in its folder, or of remote storage
    in this one.

    Raises:
        OSError: a link, a device or a pipe is in its place.
    """
    path = storage.path(files.STUDY)
    if path is None:
        return Path(f"{name}-study.log")
    # Optuna opens it by its name
    if storage.exists(files.STUDY) and (file := storage.open(files.STUDY, "ab+")):
        file.close()
    return path


def check_study(url: str, name: str, directions: Sequence[Direction], sweep_id: str | None) -> None:
    """Refuse a storage that cannot hold a sweep's study, or holds another study of that name. See
    `_check_owner`.

    Writes nothing: files and tables are not created.

    Raises:
        ValueError: what the URL, the storage or the study is instead, and the fix.
    """
    check_url(url)
    try:
        storage = _open_existing(url)
        if storage is not None:
            _check_owner(storage, url, name, directions, sweep_id)
    except StudyError:
        raise
    except Exception as error:  # any exception of the database's driver
        raise StudyError(_storage_problem(url, error)) from error


def _open_existing(url: str) -> BaseStorage | None:
    """The storage if it has Optuna's tables or is a journal; None if it is new."""
    if "://" not in url:
        path = local_path(url)
        if not path.exists() and path.parent.is_dir():
            return None
        path.open("ab").close()  # raises OSError for a folder or without permission
        if line := damaged_line(path):
            raise StudyError(f"{url}: line {line} is not of an Optuna journal; give another file")
        return open_storage(url)
    if not databases.has_tables(url, databases.OPTUNA):
        if not databases.may_create_tables(url):
            raise ValueError("its user may not create tables there")
        return None
    return RDBStorage(url, databases.engine_options(url), skip_table_creation=True)


def _check_owner(
    storage: BaseStorage,
    url: str,
    name: str,
    directions: Sequence[Direction],
    sweep_id: str | None,
) -> None:
    """Refuse a study unless it is the sweep's own, or is empty and has the same directions.

    sweep_id: the sweep that the study must belong to; None for a new sweep, which has no study yet.

    Raises:
        StudyError: names the study and what differs.
    """
    try:
        study = storage.get_study_id_from_name(name)
    except KeyError:
        return
    attributes = storage.get_study_user_attrs(study)
    owner = attributes.get(SWEEP)
    trials = storage.get_n_trials(study)
    if owner is not None and owner == sweep_id:
        return
    found = [direction.name.lower() for direction in storage.get_study_directions(study)]
    others = [*attributes, *storage.get_study_system_attrs(study)]
    if _METRIC_NAMES in others:
        others.remove(_METRIC_NAMES)
    if owner is not None:
        problem = f"belongs to another sweep, which started {str(owner).rpartition(' ')[2]}"
    elif trials:
        problem = f"has {counted(trials, 'trial')}"
    elif others:
        problem = f"has the attributes {', '.join(others)}"
    elif found != list(directions):
        problem = f"has the directions {', '.join(found)}, and this sweep {', '.join(directions)}"
    else:
        return
    fix = "launch under another --name, or give another --study"
    raise StudyError(f"{without_credentials(url)}: the study {name!r} there {problem}; {fix}")


def own_trials(trials: Iterable[FrozenTrial]) -> dict[int, FrozenTrial]:
    """A sweep's trials in its study by their numbers in the sweep. Trials that others added are
    left out.
    """
    found: dict[int, FrozenTrial] = {}
    for trial in trials:
        number = trial.user_attrs.get(TRIAL)
        if isinstance(number, int) and trial.state.is_finished():
            found.setdefault(number, trial)
    return found


def damaged_line(path: Path) -> int | None:
    """The number of the first line of a file that is not one of an Optuna journal, None if there is
    none.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return number
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                return number
            if not isinstance(entry, dict) or "op_code" not in entry:
                return number
    return None


def check_url(url: str) -> None:
    """Check the URL of a database: an unquoted ? or a character of a password would cut it.

    Raises:
        ValueError: names the characters.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme == "databricks":  # a file; a profile and a prefix
        return
    check_credentials(url)
    file, mark, query = rest.partition("?")
    if scheme.startswith("sqlite") and mark and "=" not in query:
        raise ValueError(
            f"{scheme}://{file}{mark}{query}: write ? in the path of a SQLite file as %3F"
        )


def _storage_problem(url: str, error: Exception) -> str:
    """Why a storage cannot be opened, and the fix, in one line and with credentials redacted."""
    public_url = without_credentials(url)
    why = _first_cause(error).replace(url, public_url)
    fix = "give a file in an existing folder, or a database URL"
    if isinstance(error, ImportError):
        fix = "install its driver (for postgresql://: pip install 'psycopg[binary]')"
    return f"{public_url}: the study cannot be opened ({why}); {fix}"


def _first_cause(error: BaseException) -> str:
    """The first cause of an error, in one line and with credentials redacted. Optuna and SQLAlchemy
    wrap their drivers' errors in their own.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    line = (getattr(error, "strerror", None) or str(error)).strip().partition("\n")[0]
    return without_credentials(line) or type(error).__name__


def open_storage(url: str) -> BaseStorage:
    """A journal file for a path, a database for a URL."""
    if "://" not in url:
        return JournalStorage(JournalFileBackend(str(local_path(url))))
    return RDBStorage(url, engine_kwargs=databases.engine_options(url))
