"""Improved precision and recall (Kynkaanniemi et al. 2019): do images look real, and are all kinds of real ones drawn?

A set's manifold is the union of balls around its features, each reaching to the k-th nearest other one. Precision is
the share of images inside the real images' manifold, recall the share of real images inside the images'. Both depend
on the sizes of the sets: compare at equal n and against one reference. They are measured on the sweep's features, or
on VGG-16's, as the paper does, where its weights are given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean, jackknife_error
from workers.metrics.metric import MANIFOLD, REFERENCE, Metric, MetricInputs, Reference

NEAREST, GROUPS = 3, 25
DISTANCES_AT_ONCE = 1 << 23  # float64: 64 MiB
ROUNDING = 1e-7  # of a distance by products, by the lengths of its two ends


def radii(features: Tensor, k: int = NEAREST) -> Tensor:
    """Distance [n] of each row [n, d] to its k-th nearest other row.

    Raises:
        Unmeasurable: there are at most k rows.
    """
    return _nearest(features, k)[0][:, k - 1]


def inside(points: Tensor, centres: Tensor, reach: Tensor) -> Tensor:
    """Which points [n, d] lie in a ball around one of the centres [m, d]; bool [n, s] for s sets of radii [m, s]."""
    found = []
    for part in torch.split(points.double(), max(1, DISTANCES_AT_ONCE // centres.shape[0])):
        distances = _distances(part, centres)
        found.append(torch.stack([(distances <= column).any(1) for column in reach.unbind(1)], dim=1))
    return torch.cat(found)


def precision(features: Tensor, captions: Tensor, reference: Tensor, reach: Tensor) -> Estimate:
    """Share of images [n, d] inside the manifold of the reference [m, d] with radii [m]; the error is over captions."""
    real = inside(features, reference, reach[:, None])[:, 0]
    return grouped_mean(real.double(), captions)


def recall(features: Tensor, groups: Tensor, reference: Tensor, k: int = NEAREST) -> Estimate:
    """Share of the reference [m, d] inside the manifold of images [n, d], with the jackknife over groups [n].

    Raises:
        Unmeasurable: fewer than two groups, or too few images outside of one to have k neighbours.
    """
    size = int(groups.max()) + 1 if groups.numel() else 0
    if size < 2:
        raise MetricUnavailable(f"recall with its error needs images of at least 2 captions, got {size}")
    largest = int(torch.bincount(groups).max())
    distances, neighbours = _nearest(features, k + largest)
    columns = [distances[:, k - 1]]
    for group in range(size):
        rank = (groups[neighbours] != group).cumsum(1) == k  # at most `largest` neighbours leave, so k remain
        reach = distances.gather(1, rank.int().argmax(1, keepdim=True))[:, 0]
        columns.append(torch.where(groups == group, -1.0, reach))  # a ball that holds nothing
    shares = inside(reference, features.double(), torch.stack(columns, dim=1)).double().mean(0)
    return Estimate(shares[0].item(), jackknife_error(shares[1:]).item(), features.shape[0])


def _nearest(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances and indices [n, count] of each row's nearest other rows, ascending."""
    x = features.double()
    if x.shape[0] <= count:
        raise MetricUnavailable(f"{x.shape[0]} images are too few for manifolds of {NEAREST} nearest neighbours")
    found = []
    for rows in torch.split(torch.arange(x.shape[0]), max(1, DISTANCES_AT_ONCE // x.shape[0])):
        distances = _distances(x[rows], x)
        distances[torch.arange(rows.numel()), rows] = torch.inf
        found.append(distances.topk(count, dim=1, largest=False, sorted=True))
    return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """[n, m]; by products, which are many times faster than differences. What is within their rounding is 0, because
    equal features must have the distance 0.
    """
    centre = b.double().mean(0)
    a, b = a.double() - centre, b.double() - centre
    distances = torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")
    return distances.masked_fill_(distances < ROUNDING * (a.norm(dim=1)[:, None] + b.norm(dim=1)), 0.0)


def _sides(evidence: MetricInputs) -> tuple[Tensor, Reference]:
    """Features of the images and of the real ones, by the net that is there for manifolds, else by the sweep's."""
    if evidence.manifold is None:
        return evidence.column("features"), evidence.against()
    return evidence.column(MANIFOLD), evidence.manifold


def _precision(evidence: MetricInputs) -> Estimate:
    features, reference = _sides(evidence)
    return precision(features, evidence.column("caption_id"), reference.features, reference.once("radii", radii))


def _recall(evidence: MetricInputs) -> Estimate:
    features, reference = _sides(evidence)
    return recall(features, evidence.images.groups(GROUPS), reference.features)


METRICS = (
    Metric(
        name="precision",
        direction="maximize",
        unit="share",
        about="share of images whose features lie among the real images' (k = 3 nearest neighbours)",
        needs=("features", REFERENCE),
        compute=_precision,
    ),
    Metric(
        name="recall",
        direction="maximize",
        unit="share",
        about="share of real images whose features lie among the images' (k = 3 nearest neighbours)",
        needs=("features", REFERENCE),
        compute=_recall,
    ),
)
