"""Frechet distance between two sets of image features, with an uncertainty over images.

d^2 = |m_a - m_b|^2 + Tr A + Tr B - 2 Tr (A^.5 B A^.5)^.5 (Dowson and Landau 1982; Heusel et al. 2017), in float64 and
by symmetric eigensolvers only. "Distance" is this squared form, as in every FID table. torchmetrics' FID serves as a
parity test alone: it takes the roots of a product that is not symmetric, and leaves no blocks of captions out.

The distance is biased upwards in n: with n images it exceeds its limit by about c / n, and c depends on the set. So
compare distances only at equal n (`difference` insists on it), or compare the `debiased` values, from which the
jackknife has taken the c / n of the sets that were resampled. A set of no more images than feature channels has a
singular covariance and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, block_groups, jackknife_error

GROUPS = 25  # the error itself is then known to 1 / sqrt(2 (G - 1)) = 14%; each costs one d x d eigenproblem
CHUNK_ELEMENTS = 1 << 24  # float64 matrices decomposed at once: 128 MiB


@dataclass(frozen=True, slots=True, eq=False)
class FeatureStatistics:
    """Sufficient statistics of features: `n` images, `total` [d] and `outer` [d, d] in float64.

    Sums, so that shards add up in any order to the same number (to rounding).
    """

    n: int
    total: Tensor
    outer: Tensor

    @classmethod
    def of(cls, features: Tensor) -> FeatureStatistics:
        """Statistics of features [n, d]. Raises ValueError when one is not finite."""
        wide = _checked(features)
        return cls(wide.shape[0], wide.sum(0), wide.mT @ wide)

    @classmethod
    def merge(cls, parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
        """The statistics of all the parts' images together. Raises ValueError when there is no part."""
        every = list(parts)
        if not every:
            raise ValueError("no feature statistics to merge: the set of images is empty")
        return sum(every[1:], start=every[0])

    def __add__(self, other: FeatureStatistics) -> FeatureStatistics:
        _same_net(self.dim, other.dim)
        return FeatureStatistics(self.n + other.n, self.total + other.total, self.outer + other.outer)

    @property
    def dim(self) -> int:
        return self.total.numel()

    @property
    def mean(self) -> Tensor:
        """[d]."""
        return self.total / self.n

    @property
    def covariance(self) -> Tensor:
        """Unbiased covariance [d, d]. Raises Unmeasurable when n <= d: it would be singular."""
        if self.n <= self.dim:
            raise MetricUnavailable(
                f"{self.n} images cannot fill a covariance of {self.dim} channels: use more than {self.dim} images"
            )
        return _covariance(torch.tensor(float(self.n)), self.total, self.outer)


@dataclass(frozen=True, slots=True)
class FrechetEstimate(Estimate):
    """A distance (or a difference of two) over `n` images a side.

    `debiased` has the first-order bias of the resampled sets removed. The standard error comes from leaving out each of
    `groups` blocks of images. It holds where the distance is well above its noise floor; at the floor itself (two draws
    of one law) the distance is quadratic in the noise, and the error tells only its size.
    """

    debiased: float
    groups: int


def frechet_distance(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """Frechet distance (squared form, in units of the features squared) between the Gaussians fitted to two sets."""
    _same_net(a.dim, b.dim)
    return _distance(b.mean, b.covariance, _Side(a.mean, a.covariance)).item()


def distance_to_reference(
    features: Tensor, reference: FeatureStatistics, *, groups: int | Tensor = GROUPS
) -> FrechetEstimate:
    """Distance of images' features [n, d] to a fixed reference, whose own sampling noise is not counted ("fid").

    `groups`: how many blocks of images the jackknife leaves out in turn, or each image's block [n] (0, 0, 1, ...).
    """
    blocks = _Blocks(features, groups)
    side = _Side(reference.mean, reference.covariance)
    return blocks.estimate(blocks.distances(side))


def distance_between(a: Tensor, b: Tensor, *, groups: int | Tensor = GROUPS) -> FrechetEstimate:
    """Distance between the images [n, d] of two settings for the same captions in the same order ("drift").

    A group leaves out the same captions on both sides, so what the pairing shares does not count as noise.
    """
    _paired(a, b)
    one, two = _Blocks(a, groups), _Blocks(b, groups)
    found = []
    for row in range(one.groups + 1):
        (mean, covariance), (other, spread) = one.gaussian(row), two.gaussian(row)
        found.append(_distance(other, spread, _Side(mean, covariance)))
    return one.estimate(torch.stack(found))


def difference(a: Tensor, b: Tensor, reference: FeatureStatistics, *, groups: int | Tensor = GROUPS) -> FrechetEstimate:
    """Distance of a's images minus distance of b's, both to one reference; a, b [n, d] in the same order of captions.

    The paired error is what tells two settings apart: difficult captions move both distances alike and cancel.
    """
    _paired(a, b)
    side = _Side(reference.mean, reference.covariance)
    one, two = _Blocks(a, groups), _Blocks(b, groups)
    return one.estimate(one.distances(side) - two.distances(side))


class _Side:
    """One Gaussian with the root of its covariance, taken once for many distances."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        values, vectors = torch.linalg.eigh(covariance)
        self.mean, self.trace = mean, covariance.trace()
        self.root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT


class _Blocks:
    """Gaussians of all images (row 0), and of all but one block of them (rows 1..G), made when they are asked for.

    Only sums over the blocks are kept: of Inception's 2048 channels, all the covariances at once would take gigabytes.
    """

    def __init__(self, features: Tensor, blocks: int | Tensor) -> None:
        wide = _checked(features)
        n, dim = wide.shape
        if isinstance(blocks, int):
            groups, blocks = blocks, block_groups(n, blocks) if blocks > 1 else blocks
        else:
            groups = int(blocks[-1]) + 1
        if isinstance(blocks, int) or groups < 2:
            raise MetricUnavailable(f"a jackknife needs at least 2 groups, got {groups}")
        counts = torch.bincount(blocks, minlength=groups)
        if n - int(counts.max()) <= dim:
            raise MetricUnavailable(
                f"{n} images less one of {groups} groups cannot fill a covariance of {dim} channels: use at least "
                f"{(dim + 1) * groups // (groups - 1) + 2} images"
            )
        self.n, self.groups = n, groups
        parts = torch.split(wide, counts.tolist())
        totals = torch.stack([part.sum(0) for part in parts])
        self._outers = wide.new_empty(groups, dim, dim)
        for part, outer in zip(parts, self._outers, strict=True):
            torch.matmul(part.mT, part, out=outer)
        self._outer = self._outers.sum(0)
        self._left = torch.cat([totals.new_tensor([n]), n - counts.to(totals)])
        self._totals = torch.cat([totals.sum(0, keepdim=True), totals.sum(0) - totals])

    def gaussian(self, row: int) -> tuple[Tensor, Tensor]:
        """Mean [d] and covariance [d, d] of a row."""
        means, covariances = self._gaussians(range(row, row + 1))
        return means[0], covariances[0]

    def distances(self, side: _Side) -> Tensor:
        """Distances [G + 1] to one Gaussian, as many at a time as a bounded amount of memory takes."""
        dim, rows = self._totals.shape[1], range(self.groups + 1)
        _same_net(dim, side.mean.numel())
        at_once = max(1, CHUNK_ELEMENTS // dim**2)
        chunks = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
        return torch.cat([_distance(*self._gaussians(chunk), side) for chunk in chunks])

    def _gaussians(self, rows: range) -> tuple[Tensor, Tensor]:
        """Means [r, d] and covariances [r, d, d] of some rows."""
        part = slice(rows.start, rows.stop)
        left, totals = self._left[part], self._totals[part]
        outers = torch.stack([self._outer - self._outers[row - 1] if row else self._outer for row in rows])
        return totals / left[:, None], _covariance(left, totals, outers)

    def estimate(self, values: Tensor) -> FrechetEstimate:
        """The estimate from values [G + 1]: of all images first, then of all but one block."""
        full, left_out = values[0], values[1:]
        debiased = full - (self.groups - 1) * (left_out.mean() - full)
        return FrechetEstimate(full.item(), jackknife_error(left_out).item(), self.n, debiased.item(), self.groups)


def _distance(mean: Tensor, covariance: Tensor, side: _Side) -> Tensor:
    """Distances [...] of means [..., d] and covariances [..., d, d] to one Gaussian."""
    inner = side.root @ covariance @ side.root
    cross = torch.linalg.eigvalsh((inner + inner.mT) / 2).clamp_min(0).sqrt().sum(-1)
    traces = covariance.diagonal(dim1=-2, dim2=-1).sum(-1) + side.trace
    distances: Tensor = (mean - side.mean).square().sum(-1) + traces - 2 * cross
    return distances


def _covariance(n: Tensor, total: Tensor, outer: Tensor) -> Tensor:
    """Unbiased covariances [..., d, d] from counts [...], sums [..., d] and sums of outer products [..., d, d]."""
    count = n.to(total)[..., None, None]
    return (outer - total[..., :, None] * total[..., None, :] / count) / (count - 1)


def _checked(features: Tensor) -> Tensor:
    if features.dim() != 2 or not features.shape[0]:
        raise ValueError(f"features must have shape [images, channels], got {tuple(features.shape)}")
    wide = features.double()
    broken = int((~wide.isfinite()).any(1).sum())
    if broken:
        raise ValueError(
            f"{broken} of {features.shape[0]} images have features that are not finite: drop those images first"
        )
    return wide


def _same_net(a: int, b: int) -> None:
    if a != b:
        raise ValueError(f"features of {a} and of {b} channels come from different feature nets")


def _paired(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(
            "two settings are compared on the same captions and at equal n, got features of shape "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )
