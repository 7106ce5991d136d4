"""The squared maximum mean discrepancy of two sets of features under a kernel (Gretton et al.
2012), with an uncertainty over images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, block_sizes, with_left_out

Kernel = Callable[[Tensor, Tensor], Tensor]  # [n, m] of features [n, d] and [m, d], in float64
_ROWS_PER_CHUNK = 2048


def discrepancy(
    features: Tensor,
    reference: Tensor,
    blocks: Tensor,
    kernel: Kernel,
    *,
    with_self: bool,
    within: float | None = None,
    scale: float = 1.0,
) -> Estimate:
    """The discrepancy of features [n, d] from the reference [m, d]; the jackknife leaves out the
    rows of each block [n] together.

    Args:
        features: of the images.
        reference: of the real images.
        blocks: each image's block.
        kernel: symmetric.
        with_self: whether the mean kernel within a set counts pairs of a row and itself. Without
            them the estimate has no bias (equation 3), with them it is never negative (equation 5).
        within: the reference's `mean_within`, if it is already computed.
        scale: what values are multiplied by.

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
            f"{n} images in {size} blocks and {y.shape[0]} real ones are too few for a kernel "
            "distance"
        )
    # sums over pairs of images, by block
    own = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, dtype=torch.float64)
    for rows in torch.split(torch.arange(n), _ROWS_PER_CHUNK):
        inner = kernel(x[rows], x)
        if not with_self:
            inner[torch.arange(rows.numel()), rows] = 0
        by_block = torch.zeros(rows.numel(), size, dtype=torch.float64).index_add_(1, blocks, inner)
        own.index_add_(0, blocks[rows], by_block)
        cross.index_add_(0, blocks[rows], kernel(x[rows], y).sum(1))
    constant = within
    if constant is None:
        constant = mean_within(reference, kernel, with_self=with_self)
    remaining = with_left_out(counts.double())
    inside = own.sum() - torch.cat([own.new_zeros(1), 2 * own.sum(1) - own.diagonal()])
    between = with_left_out(cross)
    values = (
        inside / _pairs(remaining, with_self) + constant - 2 * between / (remaining * y.shape[0])
    )
    return Estimate.from_replicates(scale * values, n)


def mean_within(features: Tensor, kernel: Kernel, *, with_self: bool) -> float:
    """Mean kernel over all pairs of rows [m, d], with or without pairs of a row and itself."""
    y = features.double()
    total = y.new_zeros(())
    for rows in torch.split(torch.arange(y.shape[0]), _ROWS_PER_CHUNK):
        inner = kernel(y[rows], y)
        if not with_self:
            inner[torch.arange(rows.numel()), rows] = 0
        total = total + inner.sum()
    return float(total / _pairs(y.new_tensor(float(y.shape[0])), with_self))


def _pairs(count: Tensor, with_self: bool) -> Tensor:
    """How many pairs of so many rows the mean within a set counts."""
    if with_self:
        return count.square()
    return count * (count - 1)
