"""Strategies of this project that `benchmarks.search` replays: the replay sampler, the order of its
predictions alone, racing, and racing with either.

A search has a proposer (random order, predicted order, or the replay sampler) and a rule that
decides after each rung whether a setting goes on. A proposer that has predictions pays for the
images that were recorded for them. As in a sweep, the sampler gets a stopped setting's values as
vanilla's on all captions plus its difference to vanilla on those that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution

from benchmarks.atlas_replay import described_settings
from benchmarks.atlas_table import DIRECTIONS, Floats
from benchmarks.search_problem import Problem, Purchases, Strategy, reference_point
from orchestrator.replay.sampler import (
    ERRORS,
    FEATURES,
    QualityFeatures,
    ReplaySampler,
    SettingsPool,
)
from orchestrator.run.race import Race, Scores

ERROR_RATE = 0.05  # of a race
_SAMPLES = 64  # of the sampler's posterior
# (purchases, row, rung, place in the search): the setting stops
Stops = Callable[[Purchases, int, int, int], bool]


def search_with(
    propose: Callable[[Purchases, int], Iterator[int]], stops: Stops | None
) -> Strategy:
    """A search that measures each proposal rung by rung until it stops, and in the end what has
    stopped.
    """

    def search(purchases: Purchases, seed: int) -> None:
        top = len(purchases.problem.rungs) - 1
        for place, row in enumerate(propose(purchases, seed)):
            for level in range(0 if stops else top, top + 1):
                purchases.measure(row, level)
                if stops and level < top and stops(purchases, row, level, place):
                    break
        for level in range(top + 1):
            for row in np.flatnonzero(purchases.rung < level).tolist():
                purchases.measure(row, level)

    return search


def random_order(purchases: Purchases, seed: int) -> Iterator[int]:
    yield from np.random.default_rng(seed).permutation(purchases.unmeasured).tolist()


def predicted_order(purchases: Purchases, seed: int) -> Iterator[int]:
    """The settings by the rank of what replay predicts of them, without a model of what was
    measured; then in random order those that it cannot describe.
    """
    purchases.record()
    pool, _ = _described_pool(purchases.problem)
    yield from (int(pool.params[place]["row"]) for place in pool.by_rank())
    yield from random_order(purchases, seed)


def _described_pool(problem: Problem) -> tuple[SettingsPool, Floats]:
    """The settings that replay describes without vanilla, and vanilla's features."""
    rows, features, guesses = described_settings(problem.atlas)
    first = features.shape[1] // 2
    quality: QualityFeatures | None = QualityFeatures(first, frozenset({1}), frozenset())
    if not len(problem.group):
        features = features[:, :first]
        quality = None
    params = [{"row": int(row)} for row in rows[1:]]
    return SettingsPool(params, features[1:], guesses[1:], quality=quality), features[0]


def race_at(error_rate: float | None) -> Stops:
    """The race of `orchestrator.run.racing`, at an error rate for the whole search."""

    def stops(purchases: Purchases, row: int, level: int, place: int) -> bool:
        race = Race(DIRECTIONS, error_rate, len(purchases.problem.rungs))
        rivals = np.flatnonzero(purchases.rung >= level).tolist()
        scores = {rival: scores_of(purchases.problem, rival, level) for rival in rivals}
        own = scores.pop(row)
        return race.decide(place, own, scores, int((purchases.rung >= 0).sum()) - 1) is not None

    return stops


def scores_of(problem: Problem, row: int, level: int) -> Scores:
    """One setting's objectives at a rung."""
    seen = problem.seen[level, row]
    known = {1: "lossless"} if row in problem.group else None
    return Scores.from_replicates(seen[:, 0], seen[:, 1:], known=known)


@dataclass(frozen=True)
class ReplayProposals:
    """Proposals of the replay sampler, then in random order the settings that replay cannot
    describe.

    paired: the sampler gets the errors of differences to vanilla, not of the values themselves.
    startup: trials before its model proposes; None: the sampler's default.
    """

    paired: bool = False
    startup: int | None = None

    def __call__(self, purchases: Purchases, seed: int) -> Iterator[int]:
        problem = purchases.problem
        purchases.record()
        pool, features = _described_pool(problem)
        study = optuna.create_study(directions=list(DIRECTIONS))
        reference = reference_point(problem.seen[-1, ..., 0]).tolist()
        distribution: dict[str, BaseDistribution] = {"row": IntDistribution(0, len(problem) - 1)}
        vanilla = optuna.trial.create_trial(
            values=problem.seen[-1, 0, :, 0].tolist(),
            user_attrs={FEATURES: features.tolist(), ERRORS: self._errors(purchases, 0)},
        )
        study.add_trial(vanilla)
        for number in range(len(pool)):
            study.sampler = ReplaySampler(
                pool,
                startup=self.startup,
                samples=_SAMPLES,
                reference=reference,
                seed=1000 * seed + number,
            )
            trial = study.ask(distribution)
            row = int(trial.params["row"])
            yield row
            trial.set_user_attr(ERRORS, self._errors(purchases, row))
            study.tell(trial, _at_full_size(purchases, row)[:, 0].tolist())
        yield from np.random.default_rng(seed).permutation(purchases.unmeasured).tolist()

    def _errors(self, purchases: Purchases, row: int) -> list[float]:
        seen = purchases.problem.seen
        level = purchases.rung[row]
        if self.paired and row:
            return list(_jackknife(seen[level, row] - seen[level, 0]))
        return list(_jackknife(_at_full_size(purchases, row)))


def _at_full_size(purchases: Purchases, row: int) -> Floats:
    """A setting's values [m, 1 + G] as expected on all captions."""
    seen, level = purchases.problem.seen, purchases.rung[row]
    moved: Floats = seen[level, row] - seen[level, 0] + seen[-1, 0]
    return moved


def _jackknife(values: Floats) -> Floats:
    """Standard errors [m] from values [m, 1 + G]."""
    left_out = values[:, 1:]
    errors: Floats = np.sqrt((left_out.shape[1] - 1) * left_out.var(axis=1))
    return errors


MODELLED_STRATEGIES: dict[str, Strategy] = {
    "replay sampler": search_with(ReplayProposals(), None),
    "replay sampler and racing": search_with(ReplayProposals(), race_at(ERROR_RATE)),
    "replay sampler and racing, with paired errors": search_with(
        ReplayProposals(paired=True), race_at(ERROR_RATE)
    ),
    "replay sampler, stops dominated trials": search_with(ReplayProposals(), race_at(None)),
    "replay sampler, stops dominated trials, with paired errors": search_with(
        ReplayProposals(paired=True), race_at(None)
    ),
    "replay sampler, its model after 4 trials, stops dominated trials": search_with(
        ReplayProposals(startup=4), race_at(None)
    ),
}
OWN_STRATEGIES: dict[str, Strategy] = {
    "racing": search_with(random_order, race_at(ERROR_RATE)),
    "random order, stops dominated trials": search_with(random_order, race_at(None)),
    "predicted order": search_with(predicted_order, None),
    "predicted order, stops dominated trials": search_with(predicted_order, race_at(None)),
    **MODELLED_STRATEGIES,
}
