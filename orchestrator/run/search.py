"""The search and its study: Optuna asked for trials and told their results.

The search depends on the trials' results, not on their timing: trial n is proposed when exactly the
trials 0..n-P have been told to Optuna, in order (P = `parallel` trials are in flight), by a new
sampler with a seed of its own. So 1 worker, 30 workers and a resumed sweep propose the same
configs, if the objectives are deterministic.

`Search` keeps its study in memory. `orchestrator.views.study` writes one for Optuna users.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from orchestrator.errors import StudyError
from orchestrator.replay.rounding import RoundingSampler
from orchestrator.replay.sampler import ERRORS, SETTING, SettingsPool
from orchestrator.store.records import TrialRecord
from search_spaces.params import ConfigError
from search_spaces.plugins import load_object
from search_spaces.samplers import GRID, SAMPLERS, PoolOptions
from search_spaces.space import Space
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.definition import Direction

_MAX_ATTEMPTS = 50  # at a setting that no earlier sweep has


class ParameterTPESampler(TPESampler):
    """TPE that uses only the parameters of a running trial.

    Optuna's `TPESampler` also uses the values that it sampled for branches that a running trial did
    not take. A resumed search sets parameters instead of sampling them, so it would propose other
    configs.
    """

    def _get_params(self, trial: FrozenTrial, study: Study) -> dict[str, Any]:
        return trial.params


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed trial."""

    number: int
    label: str
    config: DecodingConfig | None  # None if the search proposed an invalid one
    params: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    problem: str | None = None  # why the config is invalid


class Search:
    """Proposes configs in order and tells their results to Optuna.

    Enqueued configs outside of the space (usually vanilla) are not told to the sampler: samplers
    need parameters that all trials share, and without any they would sample at random from then on.
    A sampler with a pool is told them by their features.

    pool: of a sampler that chooses from one; called when the sampler is asked for the first time.
    An empty one is enough to check the sampler's options. earlier: trials of other sweeps, told
    before the first proposal. Those with values are not proposed again, unless the sampler proposes
    nothing else.

    Raises:
        StudyError: the sampler refuses an option, or cannot search this space.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        directions: Sequence[Direction],
        pool: Callable[[], SettingsPool] = SettingsPool.empty,
        earlier: Sequence[TrialRecord] = (),
    ) -> None:
        self._pool = cache(pool)
        self._space: Space = sweep.space
        self._enqueued = list(sweep.enqueue)
        self._options = sweep.search.options
        self._seed = sweep.search.seed
        self._sampling = sweep.sampling or Sampling()
        self._sampler = sweep.search.sampler
        self._choice = SAMPLERS.lookup(sweep.search.sampler)
        self.directions = tuple(directions)
        self._check_reference()
        self._study = optuna.create_study(
            directions=list(directions), sampler=self._make_sampler(0)
        )
        self._live: dict[int, Trial] = {}
        self._asked = 0
        self._earlier_params: list[Mapping[str, Any]] = []  # of earlier trials with values
        for index, record in enumerate(earlier):
            self._learn(index, record, [objective.metric for objective in sweep.objectives])
        self._points: int | None = None  # of a grid
        self._grid: Iterator[Mapping[str, Any]] | None = None
        if sweep.search.sampler == GRID:
            self._points = self._space.size()
            if self._points is not None:
                self._points -= len(self._earlier_params)
            self._grid = (
                point for point in self._space.grid() if point not in self._earlier_params
            )

    @property
    def is_stateful(self) -> bool:
        """Whether a resumed search asks its sampler for every trial again, so finished trials must
        not change.
        """
        return self._choice.stateful

    @property
    def source(self) -> str:
        """What proposals are chosen from: "space" or "pool"."""
        return "pool" if self._choice.from_pool else "space"

    def is_exhausted(self, number: int) -> bool:
        """Whether trial `number` comes after all enqueued configs and all points of a grid, or of a
        pool.
        """
        sampled = number - len(self._enqueued)
        if self._choice.from_pool:
            return sampled >= 0 and sampled >= len(self._pool()) - self._pool().enqueued
        return self._points is not None and sampled >= self._points

    def propose(self, number: int, stored_params: Mapping[str, Any] | None = None) -> Proposal:
        """The config of trial `number`; numbers must be in order. `stored_params`: of a trial that
        has finished.

        Finished trials keep their parameters. A stateful sampler is asked anyway, and must propose
        the same parameters.

        Raises:
            StudyError: the search proposes other parameters than `stored_params`.
        """
        assert number == self._asked, number
        self._asked += 1
        label = ""
        config = None
        fixed: Mapping[str, Any] | None = None
        if number < len(self._enqueued):
            label = self._enqueued[number].label
            config = self._enqueued[number].config
            fixed = self._space.params_of(config, self._sampling)
            if fixed is None:
                self._ask_outside(number, config)
                return Proposal(number, label, config, {}, {})
        elif self._grid is not None:
            fixed = next(self._grid)
        elif not self.is_stateful:
            fixed = stored_params
        for attempt in range(_MAX_ATTEMPTS):
            trial, proposed, problem = self._ask(number, attempt, fixed)
            is_new = trial.params not in self._earlier_params
            if fixed is not None or is_new or attempt == _MAX_ATTEMPTS - 1:
                break
            # samplers do not read the values of such trials
            self._study.tell(trial, state=TrialState.FAIL)
        if config is None:
            config = proposed
        self._live[number] = trial
        if stored_params is not None and dict(stored_params) != dict(trial.params):
            raise StudyError(
                f"trial {number} ran with {dict(stored_params)}, but this search proposes "
                f"{dict(trial.params)}: the sweep was made with another space, seed or version of "
                "Optuna; launch it under a new name"
            )
        return Proposal(
            number, label, config, dict(trial.params), dict(trial.distributions), problem
        )

    def _ask(
        self, number: int, attempt: int, fixed: Mapping[str, Any] | None
    ) -> tuple[Trial, DecodingConfig | None, str | None]:
        """A trial of Optuna's, its config, and what is wrong with its parameters. fixed: those that
        are set.

        A genetic sampler breeds from trials that have a generation, and gives one to those alone
        that it samples.
        """
        pool = self._pool if fixed is None else SettingsPool.empty
        sampler = self._make_sampler(number, attempt, pool)
        self._study.sampler = RoundingSampler(sampler)
        if fixed is not None:
            self._study.enqueue_trial(dict(fixed))
        trial = self._study.ask()
        if isinstance(sampler, BaseGASampler):
            _ = trial.relative_params
        try:
            return trial, self._space.suggest(trial, self._sampling), None
        except ConfigError as error:
            return trial, None, f"the space proposed an invalid config: {error}"

    def _ask_outside(self, number: int, config: DecodingConfig) -> None:
        """Start a trial without parameters if the sampler can use its features."""
        if self._choice.from_pool:
            trial = self._live[number] = self._study.ask()
            trial.set_user_attr(SETTING, config.digest())

    def _learn(self, index: int, record: TrialRecord, objectives: Sequence[str]) -> None:
        """Tell Optuna a trial of another sweep, unless the space does not have it and the sampler
        cannot use it.
        """
        if record.config is None:
            return
        params = self._space.params_of(record.config, self._sampling)
        if params is None and not self._choice.from_pool:
            return
        if params is None:
            trial = self._study.ask()
            trial.set_user_attr(SETTING, record.digest)
        else:
            trial = self._ask(-1, index, params)[0]
            if record.finite_values(objectives):
                self._earlier_params.append(trial.params)
        self._finish(trial, record, objectives)

    def tell(self, record: TrialRecord, objectives: Sequence[str]) -> None:
        """Tell Optuna the result of a trial. Trials must be told in the order of their numbers."""
        trial = self._live.pop(record.number, None)
        if trial is not None:
            self._finish(trial, record, objectives)

    def _finish(self, trial: Trial, record: TrialRecord, objectives: Sequence[str]) -> None:
        values = record.finite_values(objectives)
        if values is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        for name, violation in record.constraints.items():
            trial.set_constraint(name, violation)
        errors = [record.metrics[name].known_error for name in objectives]
        trial.set_user_attr(ERRORS, [math.nan if error is None else error for error in errors])
        self._study.tell(trial, values)

    def _check_reference(self) -> None:
        """Raise StudyError if a sampler with a pool is given a reference point without a number for
        each objective.
        """
        given = self._options.get("reference")
        count = len(self.directions)
        if not self._choice.from_pool or given is None:
            return
        values = given if isinstance(given, list | tuple) else []
        if len(values) != count or not all(isinstance(value, int | float) for value in values):
            raise StudyError(
                f"search.options.reference: give {count} numbers, one for each objective, got "
                f"{given!r}"
            )

    def _make_sampler(
        self, number: int, attempt: int = 0, pool: Callable[[], SettingsPool] = SettingsPool.empty
    ) -> BaseSampler:
        """The sampler of one ask, seeded by the search's seed, the trial's number and the attempt
        at it. pool: of one that needs it.
        """
        ask = f"{self._seed}:{number}"
        if attempt:
            ask += f":{attempt}"
        digest = hashlib.sha256(ask.encode()).digest()
        seed = int.from_bytes(digest[:4], "big") % (self._choice.max_seed + 1)
        sampler_class = load_object(self._choice.implementation)
        arguments = {**self._choice.defaults, **self._options}
        if self._choice.from_pool:
            arguments = {**PoolOptions.split(arguments)[1], "pool": pool()}
        try:
            sampler: BaseSampler = sampler_class(**arguments, seed=seed)
        except (TypeError, ValueError) as error:
            raise StudyError(
                f"search.options: the {self._sampler} sampler refused them: {error}"
            ) from error
        return sampler
