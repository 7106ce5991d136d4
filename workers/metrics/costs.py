"""Step costs from paired timings: the seconds of a batch are its prefill's plus its passes times the cost of a pass.

The counts of passes are known exactly from every image drawn; only the costs need a clock. A timed unit is one batch of
captions in one repetition. Setting and baseline are timed in turn in each unit, so that both keep the same units in
every replicate and a drift of the machine cancels in their ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.metrics.estimate import MetricUnavailable, jackknife_error, with_left_out

TIMED_COLUMNS = ("seconds", "prefill", "passes")  # of a unit, by side: the baseline's have the suffix VANILLA
VANILLA = "_vanilla"


@dataclass(frozen=True, slots=True, eq=False)
class BatchCosts:
    """Seconds of a batch: `prefill` once, `per_pass` for each engine step after it; both [1 + U].

    The first entry is from all U timed units, the others each leave one out.
    """

    prefill: Tensor
    per_pass: Tensor

    def seconds(self, passes: Tensor) -> tuple[Tensor, Tensor]:
        """Seconds of a batch: [1 + G] for its passes [1 + G] at the costs of all units, and [1 + U] for the first of
        them at all costs.
        """
        return self.prefill[0] + passes * self.per_pass[0], self.prefill + passes[0] * self.per_pass


def batch_costs(units: Mapping[str, Tensor], side: str = "") -> BatchCosts:
    """The costs of the setting, or of the baseline (side VANILLA), from columns [U] (see TIMED_COLUMNS).

    Raises:
        MetricUnavailable: fewer than two units.
    """
    columns = [units[name + side].double() for name in TIMED_COLUMNS]
    if len(columns[0]) < 2:
        raise MetricUnavailable(
            "a single batch of captions was timed once, but a standard error needs at least 2 measurements: raise "
            "timing.repetitions, or timing.images above timing.batch"
        )
    seconds, prefill, passes, count = with_left_out(torch.stack([*columns, torch.ones_like(columns[0])], dim=1)).T
    return BatchCosts(prefill / count, (seconds - prefill) / passes)


def relative_noise(units: Mapping[str, Tensor]) -> float:
    """Standard error of the baseline's seconds over the setting's at the timed passes, relative to that ratio.

    It is infinite for a single unit.
    """
    if len(units["passes"]) < 2:
        return math.inf
    baseline, setting = (batch_costs(units, side).seconds(mean_passes(units, side))[1] for side in (VANILLA, ""))
    ratio = baseline / setting
    return (jackknife_error(ratio[1:]) / ratio[0]).item()


def mean_passes(units: Mapping[str, Tensor], side: str = "") -> Tensor:
    """Passes [1] of a timed batch, the mean over units."""
    return units["passes" + side].double().mean()[None]


def expected_max(values: Tensor, size: int) -> Tensor:
    """Mean over all ways to draw `size` of the values [n] (at most n) of the largest one drawn.

    Of the sorted values, the i-th of n is the largest in C(i - 1, size - 1) of C(n, size) draws.
    """
    ordered, size = values.double().sort().values, min(size, values.numel())
    rank = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    rank, ordered = rank[size - 1 :], ordered[size - 1 :]
    weights = (rank.lgamma() - (rank - size + 1).lgamma()).softmax(0)
    return ordered[-1] - (weights * (ordered[-1] - ordered)).sum()  # exact if all values are equal
