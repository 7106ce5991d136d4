"""An Optuna sampler that chooses from a pool of described settings: `search: {sampler: replay}`.

    pool = SettingsPool(params, features)
    sampler = ReplaySampler(pool, seed=0)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    trial = study.ask()  # suggests one setting of the pool, which no other trial gets

A choice depends on the finished trials, on the parameters of the running ones, and on the seed. It
is kept in the trial's attributes, so that other processes with the same study see it before all
parameters are suggested. If two choose the same setting at the same moment, each one that sees it
chooses again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from orchestrator.front.pareto import Floats, nondominated

if TYPE_CHECKING:
    from orchestrator.replay.surrogate import Observations

ERRORS = "errors"  # attribute of a trial: standard errors of its values, in their order
FEATURES = "features"  # attribute of a trial whose setting is not in the pool
SETTING = "setting"  # instead of its features: the digest by which `outside` has them
_CHOICE = "replay:setting"  # system attribute: the row of the pool
# Finished trials before the model proposes. Until so many, the order of the guesses needs no more
# images than the model on a table of measured settings (docs/samplers.md).
_STARTUP = 64
_STARTUP_WITHOUT_GUESSES = 4


class PoolExhausted(ValueError):
    """Every setting of the pool has been proposed."""


@dataclass(frozen=True, slots=True)
class QualityFeatures:
    """Which features of a pool describe the quality of images, and what depends on nothing else.

    Settings whose images have one distribution have the same ones. So their quality is predicted as
    one number, and what several of them were told to have is one observation.
    """

    first: int  # these features are those from this one on; the others describe everything else
    objectives: frozenset[int]  # places of objectives that are metrics of the distribution
    constraints: frozenset[str]  # names of constraints on such metrics


@dataclass(frozen=True, slots=True, eq=False)
class SettingsPool:
    """N settings that a sampler chooses from.

    In a conditional space settings of different branches share few parameters. What replay predicts
    of them is the same for all: how many passes an image takes, how much is drafted in them, and
    how far the emitted tokens are from the target's. Measured objectives are smooth functions of
    these numbers.

    Raises:
        ValueError: the lengths differ, a feature is not finite, or two settings have the same
            parameters.
    """

    params: Sequence[Mapping[str, Any]]  # each setting's parameters in an Optuna study
    features: Floats  # [N, d] the numbers that describe a setting
    # [N, g] guesses of the objectives, less is better, which order the first trials.
    guesses: Floats | None = None
    # Features [d] of settings that no parameters describe, by their digest.
    outside: Mapping[str, Floats] = field(default_factory=dict)
    enqueued: int = 0  # number of settings of the pool that run in any case
    quality: QualityFeatures | None = None  # None: everything depends on all features
    _rows: dict[Hashable, int] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (
            self.features.ndim != 2
            or len(self.features) != len(self.params)
            or not np.isfinite(self.features).all()
        ):
            raise ValueError(
                f"a pool of {len(self.params)} settings needs a row of finite features for each, "
                f"got an array of shape {self.features.shape}"
            )
        for row, params in enumerate(self.params):
            first = self._rows.setdefault(_key(params), row)
            if first != row:
                raise ValueError(
                    f"settings {first} and {row} of the pool have the same parameters "
                    f"{dict(params)}"
                )

    @classmethod
    def empty(cls) -> SettingsPool:
        return cls((), np.zeros((0, 1)))

    def __len__(self) -> int:
        return len(self.params)

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The row of the setting with these parameters; None if the pool does not have it."""
        return self._rows.get(_key(params))

    def by_rank(self) -> Iterator[int]:
        """The rows by the non-dominated rank of their guesses, or else of their features. Each rank
        begins with its middle, its quarters, its eighths.
        """
        guesses = self.features if self.guesses is None else self.guesses
        rows = np.arange(len(guesses))
        while len(rows):
            is_next = nondominated(guesses[rows], ["minimize"] * guesses.shape[1])
            rank = rows[is_next]
            rank = rank[np.lexsort(guesses[rank].T[::-1])]
            yield from (int(rank[place]) for place in _spread(len(rank)))
            rows = rows[~is_next]


class ReplaySampler(BaseSampler):
    """Chooses settings of a pool in the order of its guesses, then by noisy expected hypervolume
    improvement.

    Trials may carry the standard errors of their values
    (`trial.set_user_attr("errors", [0.02, 0.8])`), and constraints (`trial.set_constraint`).

    Args:
        pool: the settings.
        startup: finished trials before the model proposes; until then proposals are in the order of
            `SettingsPool.by_rank` (default: 64, or 4 for a pool without guesses).
        samples: number of samples of the posterior.
        reference: the point that bounds the hypervolume, a value for each objective (default: a
            little worse than the worst finished trial).
        seed: of the random numbers.

    Raises:
        ValueError: `startup` or `samples` is below 1; `reference` is not a list of numbers.
    """

    def __init__(
        self,
        pool: SettingsPool,
        *,
        startup: int | None = None,
        samples: int = 128,
        reference: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        if startup is None:
            startup = _STARTUP_WITHOUT_GUESSES if pool.guesses is None else _STARTUP
        counts: dict[str, Any] = {"startup": startup, "samples": samples}
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self._pool = pool
        self._startup = startup
        self._samples = samples
        self._seed = seed
        self._reference = None if reference is None else np.array(reference, dtype=np.float64)
        self._lock = threading.Lock()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The parameter's value in the setting that was chosen for this trial.

        Raises:
            PoolExhausted: no setting is left.
            ValueError: the pool's setting has no such parameter, or a value that the distribution
                does not contain.
        """
        with self._lock:
            row = trial.system_attrs.get(_CHOICE)
            if row is None:
                row = self._claim(study, trial)
        params = self._pool.params[row]
        if param_name in params and param_distribution._contains(
            param_distribution.to_internal_repr(params[param_name])
        ):
            return params[param_name]
        raise ValueError(
            f"the pool was not sampled from this space: {param_name} in {param_distribution} was "
            f"asked for, and its setting is {dict(params)}"
        )

    def _claim(self, study: Study, trial: FrozenTrial) -> int:
        """A row of the pool that no other trial keeps.

        Of two trials that write the same row, the one that reads later sees the other. Every trial
        that sees one gives the row up. The k-th of them takes its k-th best other row, so that they
        do not meet again.
        """
        given_up: set[int] = set()
        places = 1
        while True:
            for _ in range(places):
                row = self._choose(study, trial, given_up)
                given_up.add(row)
            study._storage.set_trial_system_attr(trial._trial_id, _CHOICE, row)
            same = [other.number for other in _others(study, trial) if self._row(other) == row]
            if not same:
                return row
            places = 1 + sum(number < trial.number for number in same)

    def _choose(self, study: Study, trial: FrozenTrial, given_up: Collection[int]) -> int:
        """The best row that is neither another trial's nor given up."""
        others = _others(study, trial)
        taken = [row for other in others if (row := self._row(other)) is not None]
        free = np.setdiff1d(np.arange(len(self._pool)), [*taken, *given_up])
        if not len(free):
            raise PoolExhausted(
                f"all {len(self._pool)} settings of the pool have been proposed; sample a larger "
                "pool"
            )
        finished = [
            t for t in others if t.state == TrialState.COMPLETE and self._describe(t) is not None
        ]
        running = [t for t in others if t.state in (TrialState.RUNNING, TrialState.WAITING)]
        pending = _stack([self._describe(t) for t in running], self._pool.features.shape[1])
        if len(finished) < self._startup:
            left = set(free.tolist())
            return next(row for row in self._pool.by_rank() if row in left)
        from orchestrator.replay.surrogate import most_promising

        observations = self._observe(study, finished)
        candidates = self._pool.features[free]
        row = most_promising(
            observations, pending, candidates, samples=self._samples, seed=self._seed
        )
        return int(free[row])

    def _row(self, trial: FrozenTrial) -> int | None:
        """The pool's row of a trial: chosen here, or of its parameters; those of a waiting trial
        are not set yet.
        """
        row = trial.system_attrs.get(_CHOICE)
        if row is None:
            return self._pool.find(trial.params or trial.system_attrs.get("fixed_params", {}))
        return int(row)

    def _describe(self, trial: FrozenTrial) -> Floats | None:
        """Features [d]; None if nothing describes the trial."""
        row = self._row(trial)
        own = trial.user_attrs.get(FEATURES)
        if own is None:
            own = self._pool.outside.get(trial.user_attrs.get(SETTING, ""))
        if row is not None:
            own = self._pool.features[row]
        if own is None:
            return None
        return np.array(own, dtype=np.float64)

    def _observe(self, study: Study, finished: Sequence[FrozenTrial]) -> Observations:
        from orchestrator.replay.surrogate import Observations

        count = len(study.directions)
        names = sorted({name for trial in finished for name in trial.constraints})
        columns = None
        if (quality := self._pool.quality) is not None:
            parts = (slice(quality.first), slice(quality.first, None))
            columns = [parts[place in quality.objectives] for place in range(count)]
            columns += [parts[name in quality.constraints] for name in names]
        return Observations(
            features=_stack(
                [self._describe(trial) for trial in finished], self._pool.features.shape[1]
            ),
            values=np.array([trial.values for trial in finished], dtype=np.float64),
            errors=np.array(
                [trial.user_attrs.get(ERRORS, [math.nan] * count) for trial in finished],
                dtype=np.float64,
            ),
            violations=np.array(
                [[trial.constraints.get(name, 0.0) for name in names] for trial in finished]
            ),
            directions=[direction.name.lower() for direction in study.directions],
            reference=self._reference,
            columns=columns,
        )


def _others(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """The study's other trials as they are now, without a cache."""
    return [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]


def _spread(count: int) -> Iterable[int]:
    """The places below `count`: the middle, the quarters, the eighths, and so on."""
    places = (
        count * odd // 2**level
        for level in range(1, count.bit_length() + 1)
        for odd in range(1, 2**level, 2)
    )
    return dict.fromkeys(places)


def _stack(rows: Sequence[Floats | None], width: int) -> Floats:
    """The rows that exist, [n, width]."""
    return np.array([row for row in rows if row is not None], dtype=np.float64).reshape(-1, width)


def _key(params: Mapping[str, Any]) -> Hashable:
    return tuple(sorted(params.items()))
