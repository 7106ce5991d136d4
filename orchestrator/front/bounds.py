"""The choice of the best of several trials whose values have errors.

The best measured value is often that of the largest error. So the trials are compared by their
bounds: what 90 % of draws from all errors together exceed, or stay below if less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.front.joint import JointErrors
from orchestrator.front.pareto import Floats
from orchestrator.text import percent
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import measured

_SHARE = 0.9  # of draws that are better than a bound
MAX_NAMED = 3  # settings within error of the chosen one


@dataclass(frozen=True, slots=True)
class Pick:
    """The trial that is chosen. Trials are given by their indices."""

    best: int
    alternatives: Sequence[int]  # the others that are within error of it, the best bound first
    # the lossy one of these that has the best bound, if the chosen one was preferred as lossless
    preferred_to: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """The bounds of n trials in one metric."""

    joint: JointErrors  # their values in several metrics, of which this is the first
    sign: float  # 1 if less is better, else -1
    values: Floats  # the bounds [n]; NaN where an error is unknown

    @classmethod
    def of(cls, joint: JointErrors, samples: Floats, direction: Direction) -> Bounds:
        """samples: of `joint` [count, n, m]."""
        sign = 1.0
        share = _SHARE
        if direction == "maximize":
            sign = -1.0
            share = 1 - _SHARE
        values = np.zeros(0)
        if len(joint.values):
            values = np.quantile(samples[..., 0], share, axis=0)
        values = np.where(np.isnan(joint.own[:, 0]), np.nan, values)
        return cls(joint, sign, values)

    def best(self, trials: Sequence[int], is_lossless: Callable[[int], bool]) -> Pick | None:
        """The trial with the best bound; None without trials.

        A lossless one takes the place of a lossy one that it is within error of, if its value is
        not worse than the lossy one's bound. Values decide between equal bounds, and where no error
        is known; then the order of `trials`.
        """
        costs = self.sign * self.joint.values[:, 0]
        bounds = self.sign * self.values
        if not trials:
            return None
        given = np.array(trials)
        own = bounds[given]
        # by the last key first
        order = np.lexsort((costs[given], np.nan_to_num(own), np.isnan(own)))
        ranked = given[order].tolist()
        leader, *_ = ranked
        near = self._within_error(leader, ranked)
        if not is_lossless(leader):
            close = (trial for trial in near if costs[trial] <= bounds[leader])
            best = next(filter(is_lossless, close), leader)
            if best != leader:
                return Pick(best, self._within_error(best, ranked), leader)
        return Pick(leader, near)

    def _within_error(self, chosen: int, trials: Sequence[int]) -> list[int]:
        """The other trials that are within error of the chosen one; an unknown error tells
        nothing.
        """
        known = [
            trial
            for trial in trials
            if trial != chosen and not np.isnan(self.values[[trial, chosen]]).any()
        ]
        if not known:
            return []
        differ = self.joint.differ(chosen, np.array(known))[:, 0]
        return [trial for trial, differs in zip(known, differ, strict=True) if not differs]


def describe_choice(
    metric: Metric,
    bound: float | None,
    alternatives: Sequence[str],
    preferred_to: float | None,
    *,
    has_best_value: bool,
) -> list[str]:
    """How a trial was chosen, in parts of a sentence. Its bound is left out if it has the best
    value too, because then nobody asks why another one was not chosen.

    Args:
        metric: in which it is the best.
        bound: of the trial; None if it is unknown.
        alternatives: names of the trials within error of it.
        preferred_to: the bound of the first of these, if the trial was preferred to it as lossless.
        has_best_value: whether none of these has a better value.
    """
    parts = []
    if bound is None:
        parts.append("chosen by its value, because no error is known")
    elif not has_best_value:
        parts.append(
            f"settings are ranked by the {metric.name} that is {percent(_SHARE)} sure, here "
            f"{measured(bound)}"
        )
    if preferred_to is not None:
        parts.append(f"preferred, as lossless, to {alternatives[0]} with {measured(preferred_to)}")
    named = [*alternatives[:MAX_NAMED]]
    if len(alternatives) > MAX_NAMED:
        named.append(f"{len(alternatives) - MAX_NAMED} more")
    if named:
        *others, last = named
        listed = f"{', '.join(others)} and {last}" if others else last
        parts.append(f"within error of it in {metric.name}: {listed}")
    return parts
