"""What to know about speeds: trials of one shape that were timed must agree with each other, because they share step
costs; speeds should not drift from timing to timing; and times depend on when they were measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from orchestrator.results.store import Identity
from orchestrator.results.trials import COMPLETE, TrialRecord
from workers.data.shards import TimingShard, shard_kind
from workers.metrics.definition import OWN_TIMINGS, TIMINGS, Metric
from workers.metrics.estimate import Estimate

LEVEL = 0.01  # chance that any warning of a sweep about disagreement is a false alarm
_DRIFT, _MIN_SHAPES = 0.1, 3  # relative spread of vanilla's time, and shapes that it needs


def speed_warnings(records: Sequence[TrialRecord], timing: Mapping[str, Any]) -> list[str]:
    """A sentence for each trial that was timed itself and disagrees with its shape beyond errors.

    Its `speedup_timed` is compared with its `speedup`, and its `step_cost` with that of the first trial of its shape,
    by Student's t. The level is divided by the number of comparisons (Bonferroni). timing: the section of the sweep. A
    first sentence says how much speeds drifted from timing to timing, if that was much.
    """
    from scipy.special import stdtr  # the import takes a part of a second

    checked = []
    for sentence, difference, error, dof in _comparisons(records, int(timing.get("batch", 1))):
        if error > 0 and dof > 0:
            checked.append((sentence, 2 * float(stdtr(dof, -abs(difference) / error))))
    found = [(sentence, p) for sentence, p in checked if p * len(checked) < LEVEL]
    certain = "speed-ups of its shape are less certain than stated"
    return [*_drift(records), *(f"{sentence} (p = {p:.1g}): {certain}" for sentence, p in found)]


def _drift(records: Sequence[TrialRecord]) -> list[str]:
    """A sentence if vanilla's time differs between shapes by more than the noise of the timings explains."""
    times = {}  # of vanilla beside each shape: what remains of a trial's time without its speed-up; and its noise
    for record in records:
        if record.state == COMPLETE and {"speedup", "latency"} <= record.metrics.keys():
            parts = [record.metrics[name] for name in ("speedup", "latency")]
            noise = math.hypot(*((part.noise or 0.0) / part.value for part in parts))
            times[record.shape] = math.prod(part.value for part in parts), noise
    if len(times) < _MIN_SHAPES:
        return []
    vanilla, noises = zip(*times.values(), strict=True)
    excess = variance(map(math.log, vanilla)) - fmean(noise**2 for noise in noises)
    if excess <= _DRIFT**2:
        return []
    return [
        f"speeds drift: vanilla took {min(vanilla):.3g} to {max(vanilla):.3g} s per image from timing to timing, so "
        "speed-ups vary more than their errors say"
    ]


def _is_ratio(axis: Metric) -> bool:
    """Whether its values compare each trial with vanilla, timed in turn with it or with a trial of its shape."""
    return TIMINGS in axis.needs and OWN_TIMINGS not in axis.needs and not axis.is_time


def time_notes(identities: Sequence[Identity], expressions: Iterable[str]) -> list[str]:
    """A clause on the metrics that are times, if there are any, and on those to use instead. expressions: metrics, and
    limits and filters, which start with a metric.
    """
    axes = {name: axis for identity in identities for name, axis in identity.metrics.items()}
    names = dict.fromkeys(word for text in expressions for word in re.findall(r"^\s*(\w+)", text))
    times = [name for name in names if name in axes and axes[name].is_time]
    ratios = [name for name, axis in axes.items() if _is_ratio(axis)]
    if not times:
        return []
    note = f"{' and '.join(times)} also depends on how busy the machine was when a trial was timed"
    better = f"; {' and '.join(ratios)} is paired with vanilla, timed in turn with the setting" if ratios else ""
    return [note + better]


def _comparisons(records: Sequence[TrialRecord], batch: int) -> Iterator[tuple[str, float, float, int]]:
    """What two values that should agree would say if they do not, their difference, its standard error and its degrees
    of freedom."""
    first: dict[str, tuple[int, Estimate]] = {}
    for record in records:
        metrics, number = record.metrics, record.number
        if record.state != COMPLETE or record.duplicate_of is not None or "speedup_timed" not in metrics:
            continue
        if "speedup" in metrics:
            exact, timed = metrics["speedup"], metrics["speedup_timed"]
            sentence = f"trial {number}: speedup is {exact.value:.3g}, but {timed.value:.3g} where it was timed"
            yield sentence, exact.value - timed.value, *_speed_error(record, exact, timed, timed.n // batch - 1)
        if "step_cost" in metrics:
            cost = metrics["step_cost"]
            other, shared = first.setdefault(record.shape, (number, cost))
            if other != number:
                costs = f"a step costs {cost.value:.3g} of vanilla's, but {shared.value:.3g} in trial {other}"
                sentence = f"trial {number}: {costs}, whose costs it shares"
                error = math.hypot(cost.known_error or 0, shared.known_error or 0)
                yield sentence, cost.value - shared.value, error, min(cost.n, shared.n) - 1


def _speed_error(record: TrialRecord, exact: Estimate, timed: Estimate, dof: int) -> tuple[float, int]:
    """Standard error of speedup - speedup_timed, at most, and its degrees of freedom.

    The timed captions are among those of `speedup`, so only the errors of the timed ones count. The clock's noise is in
    both if both are from the same timing files, and adds if not.
    """
    files = {name for name in record.shards if shard_kind(name) == TimingShard.kind}
    if not exact.noise or files <= set(record.shape.split(",")):
        return timed.known_error or 0, dof
    return math.hypot(exact.noise, timed.known_error or 0), min(dof, exact.noise_dof or dof)
