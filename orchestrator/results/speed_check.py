"""Checks the step costs that trials share: trials of one shape that were timed must agree with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.results.trials import COMPLETE, Measured, TrialRecord

LEVEL = 0.01  # chance that any warning of a sweep is a false alarm


def speed_warnings(records: Sequence[TrialRecord], timing: Mapping[str, Any]) -> list[str]:
    """A sentence for each trial that was timed itself and disagrees with its shape beyond errors.

    Its `speedup_timed` is compared with its `speedup`, and its `step_cost` with that of the first trial of its shape,
    by Student's t. The level is divided by the number of comparisons (Bonferroni). timing: the section of the sweep.
    """
    from scipy.special import stdtr  # the import takes a part of a second

    checked = []
    for sentence, a, b, freedom in _comparisons(records, int(timing.get("batch", 1))):
        error = math.hypot(a.error or 0, b.error or 0)
        if error > 0 and freedom > 0:
            checked.append((sentence, 2 * float(stdtr(freedom, -abs(a.value - b.value) / error))))
    found = [(sentence, p) for sentence, p in checked if p * len(checked) < LEVEL]
    return [f"{sentence} (p = {p:.1g}): speed-ups of its shape are less certain than stated" for sentence, p in found]


def _comparisons(records: Sequence[TrialRecord], batch: int) -> Iterator[tuple[str, Measured, Measured, int]]:
    """What two values that should agree would say if they do not, both values, and their degrees of freedom."""
    first: dict[str, tuple[int, Measured]] = {}
    for record in records:
        metrics, number = record.metrics, record.number
        if record.state != COMPLETE or record.duplicate_of is not None or "speedup_timed" not in metrics:
            continue
        if "speedup" in metrics:  # the error of the few timed captions is the larger by far
            exact, timed = metrics["speedup"], metrics["speedup_timed"]
            sentence = f"trial {number}: speedup is {exact.value:.3g}, but {timed.value:.3g} where it was timed"
            yield sentence, exact, timed, timed.n // batch - 1
        if "step_cost" in metrics:
            cost = metrics["step_cost"]
            other, shared = first.setdefault(record.shape, (number, cost))
            if other != number:
                costs = f"a step costs {cost.value:.3g} of vanilla's, but {shared.value:.3g} in trial {other}"
                yield f"trial {number}: {costs}, whose costs it shares", cost, shared, min(cost.n, shared.n) - 1
