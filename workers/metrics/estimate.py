"""A number with its standard error, estimated over independent images or by the jackknife."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class MetricUnavailable(ValueError):
    """These images do not give the metric: there are too few, or something that it needs is missing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` is measured on `n` images; `error` is its standard error over images, in the same unit."""

    value: float
    error: float
    n: int


def jackknife_error(left_out: Tensor) -> Tensor:
    """Standard error from values [G] (or [G, ...]) that each leave one of G equal groups out.

    The delete-a-group jackknife (Shao and Tu 1995, section 2.3): sqrt((G - 1) / G * sum_g (v_g - mean v)^2).
    """
    groups = left_out.shape[0]
    return ((groups - 1) / groups * (left_out - left_out.mean(0)).square().sum(0)).sqrt()


def caption_groups(captions: Tensor, groups: int | None = None) -> Tensor:
    """Group [n] of each image from its caption's id [n], sorted: consecutive captions, all images of one together.

    `groups`: the maximum number of groups, whose sizes differ by at most one caption; None: one group per caption.
    """
    index: Tensor = torch.unique_consecutive(captions, return_inverse=True)[1]
    count = count_groups(index)
    return index if groups is None or groups >= count else index * groups // count


def count_groups(groups: Tensor) -> int:
    """The number of groups in group indices [n], which count from 0."""
    return int(groups.max()) + 1 if groups.numel() else 0


def ratio_estimate(numerator: Tensor, denominator: Tensor, groups: Tensor) -> Estimate:
    """sum(numerator) / sum(denominator) over rows [n], with the jackknife over groups [n] of dependent rows.

    With a denominator of ones it is a mean, whose error counts the rows of a group as one.

    Raises:
        MetricUnavailable: there are fewer than two groups.
        ValueError: a row is not finite.
    """
    size = count_groups(groups)
    if size < 2:
        raise MetricUnavailable(f"a standard error needs at least 2 independent measurements, got {size}: measure more")
    rows = torch.stack([numerator.double(), denominator.double()])
    if not rows.isfinite().all():
        raise ValueError("a measurement is not finite, so its mean is undefined: drop its row first")
    sums = torch.zeros(2, size, dtype=torch.float64).index_add_(1, groups, rows)
    total = sums.sum(1, keepdim=True)
    above, below = total - sums
    return Estimate((total[0] / total[1]).item(), jackknife_error(above / below).item(), numerator.numel())


def grouped_mean(scores: Tensor, captions: Tensor) -> Estimate:
    """The mean of per-image scores [n] and its standard error over captions [n] (ids, sorted)."""
    return ratio_estimate(scores, torch.ones_like(scores), caption_groups(captions))
