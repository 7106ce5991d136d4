"""Kernel distance (KID): the unbiased squared maximum mean discrepancy under the cubic kernel (x.y
/ d + 1)^3.

Binkowski et al. 2018, equation 4. The kernel is torchmetrics'. Its sums are not: they run over
random subsets of one size. Here all images are used at once, in float64, so the number is
deterministic, and its error comes from leaving out blocks of captions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.definition import FEATURES, REFERENCE
from workers.metrics.estimate import Estimate, MetricUnavailable, block_sizes, with_left_out
from workers.metrics.metric import MetricInputs, register_metric

_ROWS_PER_CHUNK = 2048


def kernel_distance(
    features: Tensor, reference: Tensor, blocks: Tensor, *, within: float | None = None
) -> Estimate:
    """KID of features [n, d] to the reference [m, d]; the jackknife leaves out the rows of each
    block [n] together.

    `within`: the reference's `mean_kernel`, if it is already computed.

    Raises:
        MetricUnavailable: fewer than two blocks, fewer than two images outside of one, or a
            reference of one image.
    """
    x, y = features.double(), reference.double()
    counts = block_sizes(blocks)
    n = x.shape[0]
    size = counts.numel()
    if n - int(counts.max()) < 2 or y.shape[0] < 2:
        raise MetricUnavailable(
            f"{n} images in {size} blocks and {y.shape[0]} real ones are too few for KID"
        )
    # sums over pairs of different images, by block
    own = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, dtype=torch.float64)
    for rows in torch.split(torch.arange(n), _ROWS_PER_CHUNK):
        inner = _kernel(x[rows], x)
        inner[torch.arange(rows.numel()), rows] = 0
        by_block = torch.zeros(rows.numel(), size, dtype=torch.float64).index_add_(1, blocks, inner)
        own.index_add_(0, blocks[rows], by_block)
        cross.index_add_(0, blocks[rows], _kernel(x[rows], y).sum(1))
    constant = mean_kernel(reference) if within is None else within
    remaining = with_left_out(counts.double())
    inside = own.sum() - torch.cat([own.new_zeros(1), 2 * own.sum(1) - own.diagonal()])
    between = with_left_out(cross)
    values = (
        inside / (remaining * (remaining - 1)) + constant - 2 * between / (remaining * y.shape[0])
    )
    return Estimate.from_replicates(values, n)


def mean_kernel(features: Tensor) -> float:
    """Mean kernel over all pairs of different rows [m, d]."""
    y = features.double()
    total = torch.stack([_kernel(part, y).sum() for part in torch.split(y, _ROWS_PER_CHUNK)]).sum()
    diagonal = (y.square().sum(1) / y.shape[1] + 1).pow(3).sum()
    return (total - diagonal).item() / (y.shape[0] * (y.shape[0] - 1))


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    # the import takes seconds, and most processes compute no metric
    from torchmetrics.image.kid import poly_kernel

    return poly_kernel(x, y)


@register_metric("kid", direction="minimize", unit="kernel", needs=(FEATURES, REFERENCE))
def _kid(inputs: MetricInputs) -> Estimate:
    """Kernel distance (unbiased squared MMD, cubic kernel) of the images' features to the real
    images'.
    """
    features = inputs.column(FEATURES)
    reference = inputs.reference()
    if reference.features.shape[0] < 2:
        raise MetricUnavailable("KID needs at least 2 real images")
    within = reference.cached("kid", mean_kernel)
    return kernel_distance(features, reference.features, inputs.blocks, within=within)
