"""Frechet distances of a trial: to the real images (fid), to the baseline's (drift), and their
difference (fid_gain).

All are computed on the features of the sweep's extractor. They are biased upwards in n: compare
trials at equal n, or by fid_debiased, from which the jackknife has removed the bias of order 1 / n.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from workers.metrics.definition import BASELINE, FEATURES, REFERENCE
from workers.metrics.estimate import Estimate, MetricUnavailable, block_sizes
from workers.metrics.frechet import Gaussian, difference, distance_between, distance_to_reference
from workers.metrics.metric import MetricInputs, register_metric


@register_metric(
    "fid",
    direction="minimize",
    unit="features squared",
    needs=(FEATURES, REFERENCE),
    covariance_of=FEATURES,
)
def fid(inputs: MetricInputs) -> Estimate:
    """Frechet distance of the images' features to the real images', at n images: comparable only at
    equal n.
    """
    features = inputs.column(FEATURES)
    reference = _reference(inputs)
    return inputs.cached("fid", lambda _: distance_to_reference(features, reference, inputs.blocks))


@register_metric(
    "fid_debiased",
    direction="minimize",
    unit="features squared",
    needs=(FEATURES, REFERENCE),
    unbiased=True,
    covariance_of=FEATURES,
)
def fid_debiased(inputs: MetricInputs) -> Estimate:
    """fid without its bias of order 1/n (jackknife); may be negative when the true distance is near
    0.

    Its standard error equals fid's: at the n of a sweep, removing the bias does not widen the
    spread (tests), and the error is conservative. So its replicates are fid's, moved by the bias.

    Raises:
        MetricUnavailable: there are no more images than channels, where the bias is not of order
            1/n.
    """
    estimate = fid(inputs)
    channels = inputs.column(FEATURES).shape[1]
    if estimate.n <= channels:
        raise MetricUnavailable(
            f"{estimate.n} images cannot fill a covariance of {channels} channels: use more"
        )
    bias = estimate.value - estimate.debiased
    return replace(
        estimate, value=estimate.debiased, replicates=tuple(v - bias for v in estimate.replicates)
    )


@register_metric(
    "drift",
    direction="minimize",
    unit="features squared",
    needs=(FEATURES, BASELINE),
    vanilla=0.0,
    covariance_of=FEATURES,
)
def drift(inputs: MetricInputs) -> Estimate:
    """Frechet distance of the images' features to those of the baseline's images of the same
    captions.
    """
    features = inputs.column(FEATURES)
    vanilla = inputs.baseline_column(FEATURES)
    # the baseline itself: rounding would give plus or minus 1e-13
    if torch.equal(features, vanilla):
        return Estimate.from_replicates(
            torch.zeros(1 + block_sizes(inputs.blocks).numel()), features.shape[0]
        )
    return distance_between(features, vanilla, inputs.blocks)


@register_metric(
    "fid_gain",
    direction="minimize",
    unit="features squared",
    needs=(FEATURES, REFERENCE, BASELINE),
    vanilla=0.0,
    is_gain=True,
    covariance_of=FEATURES,
)
def fid_gain(inputs: MetricInputs) -> Estimate:
    """fid minus the baseline's fid on the same captions, with the paired error."""
    features = inputs.column(FEATURES)
    vanilla = inputs.baseline_column(FEATURES)
    reference = _reference(inputs)
    return difference(features, vanilla, reference, inputs.blocks)


def _reference(inputs: MetricInputs) -> Gaussian:
    """The Gaussian of the real images' features, fitted once."""
    return inputs.reference().cached("gaussian", Gaussian.fit)
