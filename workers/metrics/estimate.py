"""A number with its standard error, from the jackknife over blocks of captions.

The captions of a sweep are divided into `BLOCKS` fixed blocks, the same for all of its trials and
for any number of captions: a caption's block is its position in the sweep's list modulo `BLOCKS`,
and all samples of a caption are in its block. Every jackknife leaves out one of these blocks, so
the replicates of two estimates (of two trials, or of two metrics) move together where the estimates
depend on the same captions.

torch is imported where it is used: the results of a sweep are read without it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

AnyFloats = TypeVar("AnyFloats", "Tensor", "NDArray[np.float64]")

# The relative error of the error is 1 / sqrt(2 (G - 1)) = 15%; a Frechet distance costs an
# eigenproblem for each block.
BLOCKS = 24
_ROUNDING = 1e-12  # relative to values above 1
_MAX_NUMBER = 1e100  # limit of numbers in a file: sums of squares stay finite


class MetricUnavailable(ValueError):
    """These images do not give the metric: there are too few, or something that it needs is
    missing.
    """


class Noise(NamedTuple):
    """A source of error that is not the captions. Values with the same source share it."""

    group: Hashable  # names the sources whose standard deviations were estimated together
    source: Hashable
    effect: float  # change of the value per standard deviation of the source
    dof: int  # degrees of freedom from which the group's standard deviations are estimated


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value that is measured on `n` images."""

    value: float
    # Standard error in the unit of the value, infinite if unknown:
    # hypot(jackknife_error(replicates), noise).
    error: float
    n: int
    # The values with one block of captions left out, in the order of the blocks; empty if there are
    # none.
    replicates: tuple[float, ...] = ()
    noise: float = 0.0  # standard error from what is not the captions
    noise_dof: int = 0  # degrees of freedom from which `noise` is estimated; 0: there is no noise
    # Degrees of freedom of an error that has neither replicates nor noise; 0: many.
    error_dof: int = 0
    noises: tuple[Noise, ...] = ()  # the sources of `noise`, where they are known; files lack them

    @classmethod
    def from_replicates(cls, values: AnyFloats, n: int, noises: Sequence[Noise] = ()) -> Self:
        """An estimate from values [1 + G]: first that of all blocks, then those with each block
        left out. With G = 0 the error has only the part from `noises`.
        """
        value, *left_out = values.tolist()
        variance, dof = _sum_of_noises(noises)
        noise = math.sqrt(variance)
        sampling_error = 0.0
        if left_out:
            sampling_error = float(jackknife_error(values[1:]))
        error = math.hypot(sampling_error, noise)
        return cls(value, error, n, tuple(left_out), noise, dof, noises=tuple(noises))

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote. Raises ValueError for anything else."""
        try:
            found = cls(**{**given, "replicates": tuple(given.get("replicates", ())), "noises": ()})
            if found.error is None:
                found = replace(found, error=math.inf)
            counts: tuple[Any, ...] = (found.n, found.noise_dof, found.error_dof)
            numbers: tuple[Any, ...] = (found.value, found.error, found.noise, *found.replicates)
            is_sound = all(isinstance(count, int) and count >= 0 for count in counts)
            is_sound &= all(issubclass(kind, int | float) for kind in {*map(type, numbers)})
            values = [*map(float, numbers)]
            _, error, noise, *_ = values
            is_sound &= not (error < 0 or noise < 0)
            # NaN and infinity are for the driver, which fails the trial
            is_sound &= max(map(abs, filter(math.isfinite, values)), default=0.0) < _MAX_NUMBER
        except (TypeError, ValueError, AttributeError, OverflowError) as problem:
            raise ValueError(f"not a metric's value: {problem}") from problem
        if not is_sound or len(found.replicates) > BLOCKS:
            raise ValueError(f"not a metric's value with at most {BLOCKS} replicates")
        return found

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON, which has no infinity: an unknown error is None."""
        plain = asdict(replace(self, noises=())) | {
            "error": self.known_error,
            "replicates": list(self.replicates),
        }
        del plain["noises"]
        return plain

    def __str__(self) -> str:
        """The value and its standard error (see `measured`)."""
        return measured(self.value, self.error)

    @property
    def known_error(self) -> float | None:
        """The standard error, as files have it: None where it is unknown."""
        if math.isfinite(self.error):
            return self.error
        return None

    @property
    def debiased(self) -> float:
        """The value without its bias of order 1/n: the mean of the pseudo-values G * value - (G -
        1) * replicate.
        """
        groups = len(self.replicates)
        return groups * self.value - (groups - 1) * math.fsum(self.replicates) / groups


def measured(value: float | None, error: float | None = None) -> str:
    """`2.135 ± 0.041`: two digits of the error, and the value to the same place; four digits
    without an error.

    An error at the level of rounding is left out.
    """
    if value is None or math.isnan(value):
        return "-"
    if error is None or not math.isfinite(error) or error <= _ROUNDING * max(1.0, abs(value)):
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _sum_of_noises(noises: Sequence[Noise]) -> tuple[float, int]:
    """Variance of all sources together, and its degrees of freedom (Welch 1947, Satterthwaite 1946;
    0: no noise).
    """
    groups = defaultdict[Hashable, float](float)
    dof = {noise.group: noise.dof for noise in noises}
    for noise in noises:
        groups[noise.group] += noise.effect**2
    variance = math.fsum(groups.values())
    spread = math.fsum(part**2 / dof[group] for group, part in groups.items())
    return variance, round(variance**2 / spread) if spread else 0


def jackknife_error(left_out: AnyFloats) -> AnyFloats:
    """Standard error from values [G] (or [G, ...]) that each leave one of G blocks of nearly equal
    size out.

    The delete-a-group jackknife (Shao and Tu 1995, section 2.3): sqrt((G - 1) / G * sum_g (v_g -
    mean v)^2).
    """
    groups = left_out.shape[0]
    found: AnyFloats = ((groups - 1) / groups * ((left_out - left_out.mean(0)) ** 2).sum(0)) ** 0.5
    return found


def block_sizes(blocks: Tensor) -> Tensor:
    """The number of rows [G] in each block, from the rows' blocks [n], which count from 0.

    Raises:
        MetricUnavailable: there are fewer than two blocks.
    """
    sizes = blocks.bincount()
    if sizes.numel() < 2:
        raise MetricUnavailable(
            f"a standard error needs at least 2 independent measurements, got {sizes.numel()}: "
            "measure more captions"
        )
    return sizes


def with_left_out(sums: Tensor) -> Tensor:
    """Sums [1 + G, ...] over all blocks, and over all but each, from sums [G, ...] over each
    block.
    """
    import torch

    total = sums.sum(0, keepdim=True)
    return torch.cat([total, total - sums])


def ratio_estimate(numerator: Tensor, denominator: Tensor, blocks: Tensor) -> Estimate:
    """sum(numerator) / sum(denominator) over rows [n], with the jackknife over their blocks [n].

    With a denominator of ones it is a mean, whose error counts the rows of a block as dependent.

    Raises:
        MetricUnavailable: there are fewer than two blocks.
        ValueError: a row is not finite.
    """
    import torch

    sizes = block_sizes(blocks)
    rows = torch.stack([numerator.double(), denominator.double()], dim=1)
    if not rows.isfinite().all():
        raise ValueError(
            "a measurement is not finite, so its mean is undefined: drop its row first"
        )
    sums = with_left_out(
        torch.zeros(sizes.numel(), 2, dtype=torch.float64).index_add_(0, blocks, rows)
    )
    return Estimate.from_replicates(sums[:, 0] / sums[:, 1], numerator.numel())


def block_mean(scores: Tensor, blocks: Tensor) -> Estimate:
    """The mean of per-image scores [n], with the jackknife over the images' blocks [n] of
    captions.
    """
    return ratio_estimate(scores, scores.new_ones(scores.shape), blocks)
