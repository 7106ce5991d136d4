"""Search strategies that `benchmarks.search` replays on a table: random, Optuna's samplers, and
MO-ASHA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler
from optuna.study import Study
from optuna.trial import Trial, TrialState, create_trial

from benchmarks.atlas_table import DIRECTIONS, Floats
from benchmarks.racing_strategies import MODELLED_STRATEGIES, OWN_STRATEGIES
from benchmarks.search_problem import Purchases, Strategy
from orchestrator.front.pareto import nondominated
from orchestrator.run.search import ParameterTPESampler
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig

_ETA = 2  # of MO-ASHA: rungs double
# of NSGA-II; Optuna's default of 50 would be a random search for a seventh of the table
_POPULATION = 16
Params = dict[str, Any]


def random_search(purchases: Purchases, seed: int) -> None:
    """Settings in random order, each on all captions."""
    for row in np.random.default_rng(seed).permutation(purchases.unmeasured):
        purchases.measure(row)


def mo_asha(purchases: Purchases, seed: int) -> None:
    """Asynchronous successive halving for several objectives, with epsilon-net selection (Schmucker
    et al. 2021, arXiv 2106.12639).

    A setting is promoted if it is among the first 1/eta of its rung, ordered by non-dominated
    sorting and then by an epsilon-net; if none can be, a new random one starts. Once all have
    started, the best of the highest rung goes on.
    """
    rng = np.random.default_rng(seed)
    fresh = list(rng.permutation(purchases.unmeasured))
    top = len(purchases.problem.rungs) - 1
    while True:
        row, level = _promotion(purchases, top, _ETA, rng)
        if row is None and fresh:
            row, level = fresh.pop(), 0
        elif row is None:
            row, level = _promotion(purchases, top, 1, rng)
        if row is None:
            return
        purchases.measure(row, level)


def _promotion(
    purchases: Purchases, top: int, eta: int, rng: np.random.Generator
) -> tuple[int | None, int]:
    """A setting to promote, and the rung that it rises to."""
    for level in reversed(range(top)):
        rows = np.flatnonzero(purchases.rung >= level)
        if not (purchases.rung[rows] == level).any():
            continue
        values = purchases.problem.seen[level, rows, :, 0]
        best = rows[epsilon_net(values, len(rows) // eta, rng)]
        waiting = best[purchases.rung[best] == level]
        if len(waiting):
            return int(waiting[0]), level + 1
    return None, 0


def epsilon_net(values: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The `count` best rows of values [n, m], best first: by non-dominated front, and in each one a
    random row first, then always the farthest from those before it.
    """
    order: list[int] = []
    remaining = np.arange(len(values))
    while len(order) < count:
        front = nondominated(values[remaining], DIRECTIONS)
        members, remaining = remaining[front], remaining[~front]
        place, gaps = int(rng.integers(len(members))), np.full(len(members), np.inf)
        for _ in range(min(len(members), count - len(order))):
            order.append(int(members[place]))
            gaps = np.minimum(
                gaps, np.linalg.norm(values[members] - values[members[place]], axis=1)
            )
            gaps[place] = -1
            place = int(gaps.argmax())
    return np.array(order, dtype=np.int64)


@dataclass(frozen=True)
class Encoding:
    """How Optuna sees the settings: parameters and distributions of each row, and how a trial asks
    for them.

    A proposal stands for the nearest row that was not measured: by the number of categories that
    differ, or that only one of the two has, plus the differences of numbers as shares of their
    ranges (Gower's distance).
    """

    params: Sequence[Params]
    distributions: Sequence[Mapping[str, BaseDistribution]]
    ask: Callable[[Study], Trial]

    def nearest(self, params: Params, rows: NDArray[np.int64]) -> int:
        """The one of these rows that is nearest to the parameters."""
        point, table = self._vector(params), self._table[rows]
        present, alone = ~np.isnan(table) & ~np.isnan(point), np.isnan(table) != np.isnan(point)
        gaps = np.abs(table - point)
        gaps = np.where(self._is_categorical, gaps > 0, gaps)
        return int(rows[(np.where(present, gaps, 0.0) + alone).sum(axis=1).argmin()])

    @cached_property
    def _all(self) -> dict[str, Any]:
        """The distributions by name."""
        return {name: entry for entries in self.distributions for name, entry in entries.items()}

    @cached_property
    def _is_categorical(self) -> NDArray[np.bool_]:
        return np.array(
            [isinstance(entry, CategoricalDistribution) for entry in self._all.values()]
        )

    @cached_property
    def _table(self) -> Floats:
        """Rows as vectors [S, names]."""
        return np.array([self._vector(params) for params in self.params])

    def _vector(self, params: Params) -> Floats:
        """Numbers as shares of their ranges, categories by their index, NaN for what is missing."""
        return np.array(
            [
                _share(entry, params[name]) if name in params else np.nan
                for name, entry in self._all.items()
            ]
        )


def _share(distribution: Any, value: Any) -> float:
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.to_internal_repr(value))
    scale = np.log if distribution.log else float
    low, high = scale(distribution.low), scale(distribution.high)
    return float((scale(value) - low) / (high - low)) if high > low else 0.0


def optuna_search(
    make_sampler: Callable[[int], BaseSampler],
    encode: Callable[[Sequence[DecodingConfig]], Encoding],
) -> Strategy:
    """A strategy that asks an Optuna sampler, and tells it the row that stands for each
    proposal.
    """

    def search(purchases: Purchases, seed: int) -> None:
        encoding = _encoding(encode, purchases.problem.atlas.configs)
        study = optuna.create_study(directions=list(DIRECTIONS), sampler=make_sampler(seed))
        while len(rows := purchases.unmeasured):
            trial = encoding.ask(study)
            row = encoding.nearest(trial.params, rows)
            # NSGA-II keeps its generation there
            attributes = study._storage.get_trial_system_attrs(trial._trial_id)
            study.tell(trial, state=TrialState.FAIL)
            values = purchases.measure(row)[:, 0].tolist()
            frozen = create_trial(
                params=encoding.params[row],
                distributions=dict(encoding.distributions[row]),
                values=values,
                system_attrs=attributes,
            )
            study.add_trial(frozen)

    return search


@lru_cache(maxsize=8)
def _encoding(
    encode: Callable[[Sequence[DecodingConfig]], Encoding], configs: tuple[DecodingConfig, ...]
) -> Encoding:
    return encode(configs)


def conditional(configs: Sequence[DecodingConfig]) -> Encoding:
    """The sweep's own conditional space."""
    sweep = SweepConfig.read(str(Path(__file__).with_name("atlas.yaml")))
    scratch = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    params: list[Params] = [{}]  # vanilla is not in the space
    distributions: list[Mapping[str, BaseDistribution]] = [{}]
    for config in configs[1:]:
        found = sweep.space.params_of(config, sweep.sampling)
        assert found is not None, config
        scratch.enqueue_trial(found)
        trial = scratch.ask()
        sweep.space.suggest(trial, sweep.sampling)
        params.append(trial.params)
        distributions.append(trial.distributions)

    def ask(study: Study) -> Trial:
        trial = study.ask()
        with suppress(ConfigError):  # the nearest row is a setting that exists
            sweep.space.suggest(trial, sweep.sampling)
        return trial

    return Encoding(params, distributions, ask)


def flat(configs: Sequence[DecodingConfig]) -> Encoding:
    """Every key of a config as a parameter of all settings, in the middle of its range where a
    setting lacks it.

    Optuna's Gaussian process models only parameters that all trials have.
    """
    settings = [config.flat() for config in configs]
    names = sorted({name for setting in settings for name in setting})
    distributions: dict[str, BaseDistribution] = {}
    middle: Params = {}
    for name in names:
        values = [setting[name] for setting in settings if name in setting]
        if isinstance(values[0], str):
            choices = sorted(map(str, set(values)))
            distributions[name], middle[name] = CategoricalDistribution(choices), choices[0]
        else:
            numbers = np.array(values, dtype=np.float64)
            log = bool(numbers.min() > 0)
            distributions[name] = FloatDistribution(numbers.min(), numbers.max(), log=log)
            middle[name] = float(np.sqrt(numbers.min() * numbers.max()) if log else numbers.mean())
    varying = {name: dist for name, dist in distributions.items() if not dist.single()}
    params: list[Params] = [
        {name: type(middle[name])(setting.get(name, middle[name])) for name in varying}
        for setting in settings
    ]
    return Encoding(params, [varying] * len(settings), lambda study: study.ask(varying))


STRATEGIES: dict[str, Strategy] = {
    "random": random_search,
    "TPE": optuna_search(
        lambda seed: ParameterTPESampler(multivariate=True, group=True, seed=seed), conditional
    ),
    "NSGA-II": optuna_search(
        lambda seed: NSGAIISampler(population_size=_POPULATION, seed=seed), conditional
    ),
    "Optuna's GP": optuna_search(lambda seed: GPSampler(seed=seed), flat),
    "MO-ASHA": mo_asha,
    **OWN_STRATEGIES,
}
# a replay of the whole table would take an hour
MODELLED = frozenset({"Optuna's GP", *MODELLED_STRATEGIES})
