"""The one door to Optuna: what to try next, and the study in the sweep's storage that shows what was tried.

The search is a function of its results, not of their timing: trial n is asked when exactly 0..n-P have been told (P =
`parallel` trials are in flight), in order, by a sampler that is made anew for every ask with a seed of its own. So 1
worker, 30 workers and a resumed sweep propose the same settings, if the objectives are deterministic.

It thinks in memory (`Search`) and writes down whole trials (`Record`), so that a crash never leaves half of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIIISampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from orchestrator.results.redaction import without_credentials
from orchestrator.results.trials import COMPLETE, TrialRecord
from search_spaces.params import ConfigError
from search_spaces.space import Space, resolve_config
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # pinned, and tested as it is

Direction = Literal["maximize", "minimize"]
Make = Callable[[int, Mapping[str, Any]], BaseSampler]


class PlainTPE(TPESampler):
    """TPE that sees a running trial by its parameters alone.

    Optuna's own also keeps what it drew for the branches that a running trial did not take; a resumed search, which
    sets parameters instead of drawing them, would not have that.
    """

    def _get_params(self, trial: FrozenTrial, study: Study) -> dict[str, Any]:
        return trial.params


QUIET = {"warn_independent_sampling": False}  # of what only some branches have they draw at random, trial after trial
SAMPLERS: Mapping[str, Make] = {
    "tpe": lambda seed, options: PlainTPE(**{"multivariate": True, "group": True, **options}, seed=seed),
    "nsga2": lambda seed, options: NSGAIISampler(**options, seed=seed),
    "nsga3": lambda seed, options: NSGAIIISampler(**options, seed=seed),
    "gp": lambda seed, options: GPSampler(**{**QUIET, **options}, seed=seed),
    "random": lambda seed, options: RandomSampler(**options, seed=seed),
    "qmc": lambda seed, options: QMCSampler(**{**QUIET, **options}, seed=seed % (1 << 31)),
    "grid": lambda seed, options: RandomSampler(**options, seed=seed),  # never asked: points are set
}
#: They keep generations, or how far a sequence has come, beside the trials: a resumed search replays its asks.
REMEMBERING = frozenset({"nsga2", "nsga3", "qmc"})


class StudyError(ValueError):
    """The study cannot be opened or does not belong to this sweep; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A setting to try. `config` is None if the search proposed what cannot be, for the reason in `problem`."""

    number: int
    label: str
    config: DecodingConfig | None
    params: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    problem: str | None = None


class Search:
    """Proposes settings in order and learns from what they gave.

    Settings outside of the space (vanilla, as a rule) are none of its trials: samplers that look for the parameters
    which all trials share would find none, and draw at random from then on.

    Raises:
        StudyError: the sampler does not know an option, or cannot search this space.
    """

    def __init__(self, sweep: SweepConfig, directions: Sequence[Direction]) -> None:
        self.space: Space = sweep.space
        self.fixed = list(sweep.enqueue)
        self.kind, self.options, self.seed = sweep.search.sampler, sweep.search.options, sweep.search.seed
        self.sampling = sweep.sampling or Sampling()
        if self.kind == "grid" and self.space.size() is None:
            raise StudyError("search.sampler: a grid needs a space of `values` only; give each searched key values")
        self._grid = self.space.grid() if self.kind == "grid" else None
        self._study = optuna.create_study(directions=list(directions), sampler=self._sampler(0))
        self._live: dict[int, Trial] = {}
        self._asked = 0

    @property
    def remembers(self) -> bool:
        """Whether a resumed search replays its asks, so that a told trial must stay as it was told."""
        return self.kind in REMEMBERING

    @property
    def size(self) -> int | None:
        """How many trials there can be at most: enqueued ones and a grid's points; None without limit."""
        points = self.space.size() if self.kind == "grid" else None
        return None if points is None else len(self.fixed) + points

    def propose(self, number: int, known: Mapping[str, Any] | None = None) -> Proposal:
        """The setting of trial `number`. Numbers come in order. `known`: the parameters of a trial that has finished.

        A finished trial is not thought over again, except by samplers that remember more than trials.

        Raises:
            StudyError: a finished trial is not what this search proposes at its place.
        """
        assert number == self._asked, number
        self._asked += 1
        entry = self.fixed[number] if number < len(self.fixed) else None
        label, setting = (entry.label, entry.config) if entry else ("", None)
        fixed = self._params_to_set(setting)
        if known is not None and fixed is None and setting is None and not self.remembers:
            fixed = known
        if setting is not None and fixed is None:
            return Proposal(number, label, setting, {}, {})
        self._study.sampler = self._sampler(number) if fixed is None else RandomSampler(seed=0)
        if fixed is not None:
            self._study.enqueue_trial(dict(fixed))
        trial = self._live[number] = self._study.ask()
        problem = None
        try:
            proposed = resolve_config(self.space.suggest(trial), self.sampling)
            setting = setting or proposed
        except ConfigError as error:
            problem = f"the space proposed what cannot be: {error}"
        if known is not None and dict(known) != dict(trial.params):
            raise StudyError(
                f"trial {number} ran with {dict(known)}, but this search proposes {dict(trial.params)}: the sweep was "
                "made with another space, seed or version of Optuna; launch it under a new name"
            )
        return Proposal(number, label, setting, dict(trial.params), dict(trial.distributions), problem)

    def tell(self, record: TrialRecord, objectives: Sequence[str]) -> None:
        """Learn what a trial gave. Trials are told in order of their numbers."""
        trial = self._live.pop(record.number, None)
        if trial is None:
            return
        values = objective_values(record, objectives)
        if values is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for name, violation in record.constraints.items():
            trial.set_constraint(name, violation)
        self._study.tell(trial, values)

    def _params_to_set(self, setting: DecodingConfig | None) -> Mapping[str, Any] | None:
        """Parameters that this ask must take: an enqueued setting's, where the space holds it, or the grid's next."""
        if setting is not None:
            return self.space.params_of(setting.to_mapping(), self.sampling)
        return next(self._grid) if self._grid is not None else None

    def _sampler(self, number: int) -> BaseSampler:
        digest = hashlib.sha256(f"{self.seed}:{number}".encode()).digest()
        try:
            return SAMPLERS[self.kind](int.from_bytes(digest[:4], "big"), self.options)
        except (TypeError, ValueError) as error:
            raise StudyError(f"search.options: the {self.kind} sampler refused them: {error}") from error


def objective_values(record: TrialRecord, objectives: Sequence[str]) -> list[float] | None:
    """The values to tell, or None if the trial has none (Optuna would take an infinite one for a result)."""
    if record.state != COMPLETE:
        return None
    values = [record.metrics[name].value if name in record.metrics else math.nan for name in objectives]
    return values if all(math.isfinite(value) for value in values) else None


class Record:
    """The sweep's study as any Optuna user opens it: every trial with parameters, values and constraints.

    A view: it is filled up from the trials' files at the start and never read to decide anything. Storage that fails
    later stops no sweep: `problem` says why, and the next start fills in what is missing.

    Raises:
        StudyError: the storage cannot be opened, or holds another sweep's study of that name.
    """

    problem: str | None = None

    def __init__(
        self, name: str, url: str, directions: Sequence[Direction], objectives: Sequence[str], digest: str
    ) -> None:
        self.objectives = list(objectives)
        try:
            storage = open_storage(url)
            self.study: Study = optuna.create_study(
                study_name=name,
                storage=storage,
                directions=list(directions),
                load_if_exists=True,
                sampler=RandomSampler(),
            )
        except Exception as error:  # whatever the database's driver raises
            raise StudyError(_unopened(url, error)) from error
        theirs = self.study.user_attrs.get("sweep")
        if theirs not in (None, digest):
            where = without_credentials(url)
            raise StudyError(f"{where}: study {name!r} belongs to another sweep; choose another name or storage")
        if theirs is None:
            self.study.set_user_attr("sweep", digest)
            self.study.set_metric_names(self.objectives)
        self._states = [trial.state for trial in self.study.get_trials(deepcopy=False)]

    def asked(self, proposal: Proposal) -> None:
        """Write down a trial that starts, unless it stands there already."""
        with self._noted():
            self._ask(proposal)

    def told(self, record: TrialRecord) -> None:
        """Write down what a trial gave, unless it stands there already."""
        with self._noted():
            self._tell(record)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the database's driver raises
            self.problem = without_credentials(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def _ask(self, proposal: Proposal) -> None:
        if proposal.number != len(self._states):  # it stands there, or one before it could not be written
            return
        attrs: dict[str, Any] = {"label": proposal.label}
        if proposal.config is not None:
            attrs |= {"config": json.dumps(proposal.config.to_mapping()), "digest": proposal.config.digest()}
        self.study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(proposal.params),
                distributions=dict(proposal.distributions),
                user_attrs=attrs,
            )
        )
        self._states.append(TrialState.RUNNING)

    def _tell(self, record: TrialRecord) -> None:
        if record.number >= len(self._states) or self._states[record.number] != TrialState.RUNNING:
            return
        frozen = self.study.get_trials(deepcopy=False)[record.number]
        trial = Trial(self.study, frozen._trial_id)
        trial.set_user_attr("metrics", {name: entry.value for name, entry in record.metrics.items()})
        if record.cause:
            trial.set_user_attr("cause", record.cause)
        values = objective_values(record, self.objectives)
        for name, violation in record.constraints.items() if values else ():
            trial.set_constraint(name, violation)
        self.study.tell(trial, values, state=None if values else TrialState.FAIL)
        self._states[record.number] = TrialState.COMPLETE


def check_storage(url: str) -> None:
    """Refuse a storage that no study can be kept in. A database gets Optuna's tables; of a file, nothing is made.

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
    except Exception as error:  # whatever the database's driver raises
        raise StudyError(_unopened(url, error)) from error


def _unopened(url: str, error: Exception) -> str:
    """What went wrong with a storage, in one line and without credentials."""
    shown, reason = without_credentials(url), getattr(error, "strerror", None) or str(error).partition("\n")[0]
    why = without_credentials(reason.replace(url, shown)) or type(error).__name__
    return f"{shown}: the study cannot be opened ({why}); give a file in a folder that is there, or a database's URL"


def open_storage(url: str) -> BaseStorage:
    """A journal file for a path, else a database by its URL."""
    if "://" not in url:
        return JournalStorage(JournalFileBackend(url))
    return RDBStorage(url)
