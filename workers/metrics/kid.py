"""Kernel distance (KID): the unbiased squared maximum mean discrepancy under the cubic kernel (x.y / d + 1)^3.

Binkowski et al. 2018, equation 4. The kernel is that of torchmetrics, but not the sums over it, which it takes over
random subsets of one size: here all images are used at once, in float64, so the number is the same every time, and its
error comes from leaving out blocks of captions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, jackknife_error
from workers.metrics.metric import REFERENCE, Metric, MetricInputs

GROUPS = 25
ROWS_AT_ONCE = 2048


def kernel_distance(features: Tensor, reference: Tensor, groups: Tensor, *, within: float | None = None) -> Estimate:
    """KID of features [n, d] against reference [m, d], the rows of a group [n] leaving together.

    `within`: the reference's own mean kernel, if `mean_kernel` has been taken before.

    Raises:
        Unmeasurable: fewer than two groups, or fewer than two images outside of one, or a reference of one image.
    """
    x, y = features.double(), reference.double()
    n, size = x.shape[0], int(groups.max()) + 1 if groups.numel() else 0
    counts = torch.bincount(groups, minlength=size)
    if size < 2 or n - int(counts.max()) < 2 or y.shape[0] < 2:
        raise MetricUnavailable(f"{n} images in {size} groups and {y.shape[0]} real ones are too few for KID")
    own = torch.zeros(size, size, dtype=torch.float64)  # sums over pairs of different images, by group
    cross = torch.zeros(size, dtype=torch.float64)
    for rows in torch.split(torch.arange(n), ROWS_AT_ONCE):
        inner = _kernel(x[rows], x)
        inner[torch.arange(rows.numel()), rows] = 0
        by_group = torch.zeros(rows.numel(), size, dtype=torch.float64).index_add_(1, groups, inner)
        own.index_add_(0, groups[rows], by_group)
        cross.index_add_(0, groups[rows], _kernel(x[rows], y).sum(1))
    constant = mean_kernel(reference) if within is None else within
    left = torch.cat([counts.new_tensor([n]), n - counts]).double()
    zero = own.new_zeros(1)
    inside = own.sum() - torch.cat([zero, 2 * own.sum(1) - own.diagonal()])
    between = cross.sum() - torch.cat([zero, cross])
    values = inside / (left * (left - 1)) + constant - 2 * between / (left * y.shape[0])
    return Estimate(values[0].item(), jackknife_error(values[1:]).item(), n)


def mean_kernel(features: Tensor) -> float:
    """Mean kernel over all pairs of different rows [m, d]."""
    y = features.double()
    total = torch.stack([_kernel(part, y).sum() for part in torch.split(y, ROWS_AT_ONCE)]).sum()
    diagonal = (y.square().sum(1) / y.shape[1] + 1).pow(3).sum()
    return (total - diagonal).item() / (y.shape[0] * (y.shape[0] - 1))


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    from torchmetrics.image.kid import poly_kernel  # some seconds, and most processes measure nothing

    return poly_kernel(x, y)


def _compute(evidence: MetricInputs) -> Estimate:
    features, reference = evidence.column("features"), evidence.against()
    if reference.features.shape[0] < 2:
        raise MetricUnavailable("a kernel distance needs at least 2 real images")
    within = reference.once("kid", mean_kernel)
    return kernel_distance(features, reference.features, evidence.images.groups(GROUPS), within=within)


METRICS = (
    Metric(
        name="kid",
        direction="minimize",
        unit="kernel",
        about="kernel distance (unbiased squared MMD, cubic kernel) of the images' features to the real images'",
        needs=("features", REFERENCE),
        compute=_compute,
    ),
)
