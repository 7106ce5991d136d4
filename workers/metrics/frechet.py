"""Frechet distance between two sets of image features, with an uncertainty over images.

d^2 = |m_a - m_b|^2 + Tr A + Tr B - 2 Tr (A^.5 B A^.5)^.5 (Dowson and Landau 1982; Heusel et al.
2017), in float64 and with symmetric eigensolvers only. "Distance" is this squared form, as in every
FID table. torchmetrics' FID is only a parity test: it takes the root of a product that is not
symmetric, and has no jackknife over captions.

The distance is biased upwards: with n images it exceeds its limit by about c / n, where c depends
on the set. So compare distances only at equal n (`difference` requires it), or compare the
`debiased` values, from which the jackknife has removed the c / n of the resampled sets.

A set with no more images than feature channels has a singular covariance. The distance is defined
all the same, since only roots of the covariances enter it and no inverse, and its bias is shared by
settings at equal n; so early rungs of a race have a value and a jackknife error. What is refused is
a singular reference (`Gaussian.fit`), which would be a wrong yardstick for every setting, and
`debiased` values, because the bias is not c / n there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, block_sizes, with_left_out

_CHUNK_ELEMENTS = 1 << 24  # float64 elements of matrices decomposed at a time: 128 MiB


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Mean [d] and covariance [d, d], in float64."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def fit(cls, features: Tensor) -> Gaussian:
        """The Gaussian of features [n, d], with the unbiased covariance.

        Raises:
            MetricUnavailable: n <= d, so the covariance would be singular.
            ValueError: a feature is not finite.
        """
        rows = _check_features(features)
        n, dim = rows.shape
        if n <= dim:
            raise MetricUnavailable(
                f"{n} images cannot fill a covariance of {dim} channels: use more than {dim} images"
            )
        total = rows.sum(0)
        return cls(total / n, _covariance(torch.tensor(float(n)), total, rows.mT @ rows))

    @cached_property
    def root(self) -> Tensor:
        """Symmetric root [d, d] of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
        return root


def frechet_distance(a: Gaussian, b: Gaussian) -> float:
    """Frechet distance (squared form, in units of the features squared) between two Gaussians."""
    return _distances(b.mean, b.covariance, a).item()


def distance_to_reference(features: Tensor, reference: Gaussian, blocks: Tensor) -> Estimate:
    """Distance of images' features [n, d] to a fixed reference, whose own sampling noise does not
    count ("fid").

    The jackknife leaves out the blocks in turn, of which each image has one: `blocks` [n]. Its
    error holds where the distance is well above its noise floor; at the floor itself (two samples
    of one distribution) the distance is quadratic in the noise, and the error is only its order of
    magnitude.
    """
    gaussians = _LeftOutGaussians(features, blocks)
    return Estimate.from_replicates(gaussians.distances(reference), features.shape[0])


def distance_between(a: Tensor, b: Tensor, blocks: Tensor) -> Estimate:
    """Distance between the images [n, d] of two settings for the same captions in the same order
    ("drift").

    A replicate leaves out the same captions on both sides, so variation that both sides share does
    not count as noise.
    """
    _check_paired(a, b)
    first, second = _LeftOutGaussians(a, blocks), _LeftOutGaussians(b, blocks)
    distances = [
        frechet_distance(first.gaussian(row), second.gaussian(row)) for row in range(first.count)
    ]
    return Estimate.from_replicates(torch.tensor(distances, dtype=torch.float64), a.shape[0])


def difference(a: Tensor, b: Tensor, reference: Gaussian, blocks: Tensor) -> Estimate:
    """Distance of a's images minus distance of b's, both to one reference; a, b [n, d] in the same
    order of captions.

    The paired error separates two settings: difficult captions shift both distances equally and
    cancel.
    """
    _check_paired(a, b)
    first, second = _LeftOutGaussians(a, blocks), _LeftOutGaussians(b, blocks)
    return Estimate.from_replicates(
        first.distances(reference) - second.distances(reference), a.shape[0]
    )


class _LeftOutGaussians:
    """Gaussians of all images (row 0), and of all but one block of them (rows 1..G), computed on
    request.

    Only sums over the blocks are kept: all covariances of Inception's 2048 channels at once would
    take gigabytes.
    """

    def __init__(self, features: Tensor, blocks: Tensor) -> None:
        rows = _check_features(features)
        counts = block_sizes(blocks)
        n, dim = rows.shape
        if n - int(counts.max()) < 2:
            raise MetricUnavailable(
                f"{n} images in {counts.numel()} blocks are too few for covariances without one"
            )
        parts = [rows[blocks == block] for block in range(counts.numel())]
        self.count = 1 + counts.numel()
        self._outers = rows.new_empty(counts.numel(), dim, dim)
        for part, outer in zip(parts, self._outers, strict=True):
            torch.matmul(part.mT, part, out=outer)
        self._outer = self._outers.sum(0)
        self._counts = with_left_out(counts.to(rows))
        self._totals = with_left_out(torch.stack([part.sum(0) for part in parts]))

    def gaussian(self, row: int) -> Gaussian:
        """The Gaussian of a row."""
        means, covariances = self._gaussians(range(row, row + 1))
        return Gaussian(means[0], covariances[0])

    def distances(self, to: Gaussian) -> Tensor:
        """Distances [1 + G] to one Gaussian, computed in chunks of bounded memory."""
        rows = range(self.count)
        size = max(1, _CHUNK_ELEMENTS // self._totals.shape[1] ** 2)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        return torch.cat([_distances(*self._gaussians(chunk), to) for chunk in chunks])

    def _gaussians(self, rows: range) -> tuple[Tensor, Tensor]:
        """Means [r, d] and covariances [r, d, d] of some rows."""
        part = slice(rows.start, rows.stop)
        counts = self._counts[part]
        totals = self._totals[part]
        outers = torch.stack(
            [self._outer - self._outers[row - 1] if row else self._outer for row in rows]
        )
        return totals / counts[:, None], _covariance(counts, totals, outers)


def _distances(mean: Tensor, covariance: Tensor, to: Gaussian) -> Tensor:
    """Distances [...] of means [..., d] and covariances [..., d, d] to one Gaussian."""
    if mean.shape[-1] != to.mean.numel():
        raise ValueError(
            f"features have {mean.shape[-1]} and {to.mean.numel()} channels: their extractors "
            "differ"
        )
    inner = to.root @ covariance @ to.root
    cross = torch.linalg.eigvalsh((inner + inner.mT) / 2).clamp_min(0).sqrt().sum(-1)
    traces = covariance.diagonal(dim1=-2, dim2=-1).sum(-1) + to.covariance.trace()
    distances: Tensor = (mean - to.mean).square().sum(-1) + traces - 2 * cross
    return distances


def _covariance(n: Tensor, total: Tensor, outer: Tensor) -> Tensor:
    """Unbiased covariances [..., d, d] from counts [...], sums [..., d] and sums of outer products
    [..., d, d].
    """
    count = n.to(total)[..., None, None]
    return (outer - total[..., :, None] * total[..., None, :] / count) / (count - 1)


def _check_features(features: Tensor) -> Tensor:
    """The features in float64. Raises ValueError when their shape is wrong or one is not finite."""
    if features.dim() != 2 or not features.shape[0]:
        raise ValueError(
            f"features must have shape [images, channels], got {tuple(features.shape)}"
        )
    rows = features.double()
    broken = int((~rows.isfinite()).any(1).sum())
    if broken:
        raise ValueError(
            f"{broken} of {features.shape[0]} images have features that are not finite: drop those "
            "images first"
        )
    return rows


def _check_paired(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise ValueError(
            "two settings must be compared on the same captions and at equal n, got features of "
            f"shape {tuple(a.shape)} and {tuple(b.shape)}"
        )
