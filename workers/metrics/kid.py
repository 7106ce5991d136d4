"""Kernel distance (KID): the unbiased squared maximum mean discrepancy under the cubic kernel (x.y
/ d + 1)^3.

Binkowski et al. 2018, equation 4. The kernel is torchmetrics'. Its sums are not: they run over
random subsets of one size. Here all images are used at once, in float64, so the number is
deterministic, and its error comes from leaving out blocks of captions.
"""

from __future__ import annotations

from torch import Tensor

from workers.metrics.definition import FEATURES, REFERENCE
from workers.metrics.discrepancy import discrepancy, mean_within
from workers.metrics.estimate import Estimate, MetricUnavailable
from workers.metrics.metric import MetricInputs, register_metric


def kernel_distance(
    features: Tensor, reference: Tensor, blocks: Tensor, *, within: float | None = None
) -> Estimate:
    """KID of features [n, d] to the reference [m, d]; the jackknife leaves out the rows of each
    block [n] together.

    `within`: the reference's `mean_kernel`, if it is already computed.

    Raises:
        MetricUnavailable: see `discrepancy`.
    """
    return discrepancy(features, reference, blocks, _cubic, with_self=False, within=within)


def mean_kernel(features: Tensor) -> float:
    """Mean kernel over all pairs of different rows [m, d]."""
    return mean_within(features, _cubic, with_self=False)


def _cubic(x: Tensor, y: Tensor) -> Tensor:
    # the import takes seconds, and most processes compute no metric
    from torchmetrics.image.kid import poly_kernel

    return poly_kernel(x, y)


@register_metric(
    "kid", direction="minimize", unit="kernel", needs=(FEATURES, REFERENCE), unbiased=True
)
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
