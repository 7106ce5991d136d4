"""A number with its uncertainty, and the ways to get one: over independent images, and by the jackknife."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class MetricUnavailable(ValueError):
    """A number that these images cannot give: too few of them, or something that it is measured against is absent."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` is measured on `n` images; `error` is one standard error of it over images, in the same unit."""

    value: float
    error: float
    n: int

    def interval(self, width: float = 1.96) -> tuple[float, float]:
        """`value` minus and plus `width` standard errors (1.96: 95% where the estimate is close to normal)."""
        return self.value - width * self.error, self.value + width * self.error


def mean_estimate(scores: Tensor) -> Estimate:
    """The mean of per-image scores [n] and its standard error, sd / sqrt(n).

    Scores of parts of one image (its attributes) must be averaged first: they are not independent.
    Raises ValueError with fewer than two images, or when a score is not finite.
    """
    if scores.dim() != 1 or scores.numel() < 2:
        raise ValueError(f"a mean with its error needs scores of at least 2 images, got shape {tuple(scores.shape)}")
    wide = scores.double()
    broken = int((~wide.isfinite()).sum())
    if broken:
        raise ValueError(f"{broken} of {wide.numel()} image scores are not finite: drop those images first")
    return Estimate(wide.mean().item(), (wide.std() / wide.numel() ** 0.5).item(), wide.numel())


def jackknife_error(left_out: Tensor) -> Tensor:
    """Standard error from values [G] (or [G, ...]) that each leave one of G equal groups out.

    The delete-a-group jackknife (Shao and Tu 1995, section 2.3): sqrt((G - 1) / G * sum_g (v_g - mean v)^2).
    """
    groups = left_out.shape[0]
    return ((groups - 1) / groups * (left_out - left_out.mean(0)).square().sum(0)).sqrt()


def block_groups(n: int, groups: int, device: torch.device | str = "cpu") -> Tensor:
    """Group [n] of each image: `groups` consecutive blocks whose sizes differ by at most one.

    Blocks, not stripes: several images of one caption lie next to each other and should leave together.
    """
    return torch.arange(n, device=device) * groups // n


def caption_groups(captions: Tensor, groups: int | None = None) -> Tensor:
    """Group [n] of each image from its caption's id [n], sorted: consecutive captions, all images of one together.

    `groups`: at most so many, whose sizes differ by at most one caption; None makes every caption a group.
    """
    place: Tensor = torch.unique_consecutive(captions, return_inverse=True)[1]
    count = int(place[-1]) + 1 if place.numel() else 0
    return place if groups is None or groups >= count else place * groups // count


def ratio_estimate(above: Tensor, below: Tensor, groups: Tensor) -> Estimate:
    """sum(above) / sum(below) over rows [n], with the jackknife over groups [n] of rows that belong together.

    With `below` all ones it is a mean, whose error counts the rows of a group as one.

    Raises:
        Unmeasurable: there are fewer than two groups.
        ValueError: a row is not finite.
    """
    size = int(groups.max()) + 1 if groups.numel() else 0
    if size < 2:
        raise MetricUnavailable(f"an error needs at least 2 independent measurements, there is {size}: measure more")
    wide = torch.stack([above.double(), below.double()])
    if not wide.isfinite().all():
        raise ValueError("a measurement is not finite, so there is no mean of them: drop its row first")
    parts = torch.zeros(2, size, dtype=torch.float64).index_add_(1, groups, wide)
    total = parts.sum(1, keepdim=True)
    top, bottom = total - parts
    return Estimate((total[0] / total[1]).item(), jackknife_error(top / bottom).item(), above.numel())


def grouped_mean(scores: Tensor, captions: Tensor) -> Estimate:
    """The mean of per-image scores [n] and its standard error over captions [n] (ids, sorted)."""
    return ratio_estimate(scores, torch.ones_like(scores), caption_groups(captions))
