"""The best trial within each of many limits on a front's second metric, for a slider over these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

from orchestrator.front.choice import DEFAULT_FACTORS, Choice, best_within, default_limit
from orchestrator.front.front import Front
from orchestrator.front.trial import Trial
from workers.metrics.definition import Direction, Metric

_STEPS = 150  # about so many limits
_LEAST_STEP = 1e-3  # times the limit, where limits are in the metric's unit
# the loosest multiple of vanilla's value that the limits reach at least
_REACH = {"minimize": 1.5, "maximize": 0.9}


class _Range(NamedTuple):
    """Limits at equal distances."""

    low: float
    high: float
    start: float  # the one that is shown first
    step: float  # between two limits
    places: int  # decimal places that limits are written with


@dataclass(frozen=True, slots=True)
class QualityBar:
    """The limits `y <= BAR * vanilla` where the front has a default bar, else `y <= BAR`; with `>=`
    for a metric that is maximised.
    """

    metric: Metric
    is_relative: bool  # whether the limits are multiples of vanilla's value
    range: _Range
    # by rising limit, the trial that `pareto --best` finds within it; None: there is none
    best: tuple[Choice | None, ...]
    # the share of draws in which each of these is within its limit; None: unknown, or no trial
    probabilities: tuple[float | None, ...]

    @classmethod
    def of(cls, front: Front) -> Self | None:
        """The bar of a front; None without trials, and for a second metric that is of counts."""
        quality = front.metrics[1]
        if quality.is_of_counts or not front.candidates:
            return None
        is_relative = default_limit(front) is not None
        low, high = _useful_limits(front, is_relative=is_relative)
        limits = _bar_range(low, high, quality.direction, is_relative=is_relative)
        found = []
        probabilities = []
        for number in range(round((limits.high - limits.low) / limits.step) + 1):
            level = limits.low + number * limits.step
            limit = f"{quality.name} {quality.no_worse} {level:.{limits.places}f}"
            if is_relative:
                limit += " * vanilla"
            best = best_within(front, [limit])
            found.append(best)
            probabilities.append(None if best is None else best.limit_probability([limit]))
        return cls(quality, is_relative, limits, tuple(found), tuple(probabilities))


def _useful_limits(front: Front, *, is_relative: bool) -> tuple[float, float]:
    """The lowest and the highest limit of use, in units of vanilla of each trial's own sweep, or of
    the metric: one that a single trial meets; and one that the best trial in the first metric
    meets, and the one that this was preferred to.
    """
    quality = front.metrics[1]

    def level(trial: Trial) -> float:
        vanilla = trial.sweep.baseline
        if not is_relative or vanilla is None:
            return trial[quality.name]
        return trial[quality.name] / vanilla.metrics[quality.name].value

    best = best_within(front)
    leaders = [trial for trial in (best, best and best.preferred_to) if trial is not None]
    levels = [level(trial) for trial in front.candidates]
    if quality.direction == "minimize":
        strictest = min(levels)
        loosest = max(map(level, leaders))
    else:
        strictest = max(levels)
        loosest = min(map(level, leaders))
    return min(strictest, loosest), max(strictest, loosest)


def _bar_range(low: float, high: float, direction: Direction, *, is_relative: bool) -> _Range:
    """Limits that have those from low to high between them. Limits are multiples of a round step,
    or so far from the default bar.
    """
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / _STEPS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= _STEPS)
    least_step = 0.01
    zero = DEFAULT_FACTORS[direction]
    if not is_relative:
        size = max(abs(low), abs(high)) or 1.0
        least_step = 10.0 ** math.floor(math.log10(size * _LEAST_STEP))
        zero = 0.0
    step = max(step, least_step)
    outward = math.ceil if direction == "minimize" else math.floor
    ends = [zero + outward(round((end - zero) / step, 6)) * step for end in (low, high)]
    start = round(sum(ends) / 2 / step) * step
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    if is_relative:  # the default bar is within reach; and no constraint multiplies vanilla by 0
        start = zero
        least = zero - math.ceil(zero / step - 1 - 1e-9) * step
        reach = zero + round((_REACH[direction] - zero) / step) * step
        ends = [max(min(*ends, start, reach), least), max(*ends, start, reach)]
        places = max(places, 2)
    return _Range(
        low=round(ends[0], places),
        high=round(ends[1], places),
        start=round(start, places),
        step=round(step, places),
        places=places,
    )
