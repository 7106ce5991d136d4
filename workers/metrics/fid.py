"""Frechet distances of a trial: to the real images (fid), to the baseline's (drift), and their difference (fid_gain).

All are computed on the features of the sweep's extractor. They are biased upwards in n: compare trials at equal n, or
by fid_debiased, from which the jackknife has removed the bias of order 1 / n.
"""

from __future__ import annotations

import torch

from workers.metrics.estimate import Estimate
from workers.metrics.frechet import (
    GROUPS,
    FrechetEstimate,
    Gaussian,
    difference,
    distance_between,
    distance_to_reference,
)
from workers.metrics.metric import BASELINE, FEATURES, REFERENCE, MetricInputs, register_metric

FRECHET_METRICS = ("fid", "fid_debiased", "drift", "fid_gain")


@register_metric("fid", direction="minimize", unit="features squared", needs=(FEATURES, REFERENCE))
def fid(inputs: MetricInputs) -> FrechetEstimate:
    """Frechet distance of the images' features to the real images', at n images: comparable only at equal n."""
    features, reference, groups = inputs.column(FEATURES), _reference(inputs), inputs.images.groups(GROUPS)
    return inputs.cached("fid", lambda _: distance_to_reference(features, reference, groups=groups))


@register_metric("fid_debiased", direction="minimize", unit="features squared", needs=(FEATURES, REFERENCE))
def fid_debiased(inputs: MetricInputs) -> Estimate:
    """fid without its bias of order 1/n (jackknife); may be negative when the true distance is near 0.

    The mean of the jackknife's pseudo-values G * fid - (G - 1) * fid without a block. Their standard error equals
    fid's: at the n of a sweep, removing the bias does not widen the spread (tests), and the error is conservative.
    """
    estimate = fid(inputs)
    return Estimate(estimate.debiased, estimate.error, estimate.n)


@register_metric("drift", direction="minimize", unit="features squared", needs=(FEATURES, BASELINE))
def drift(inputs: MetricInputs) -> Estimate:
    """Frechet distance of the images' features to those of the baseline's images of the same captions."""
    features, vanilla = inputs.column(FEATURES), inputs.baseline_column(FEATURES)
    if torch.equal(features, vanilla):  # the baseline itself: rounding would give plus or minus 1e-13
        return Estimate(0.0, 0.0, features.shape[0])
    return distance_between(features, vanilla, groups=inputs.images.groups(GROUPS))


@register_metric("fid_gain", direction="minimize", unit="features squared", needs=(FEATURES, REFERENCE, BASELINE))
def fid_gain(inputs: MetricInputs) -> Estimate:
    """fid minus the baseline's fid on the same captions, with the paired error."""
    features, reference, groups = inputs.column(FEATURES), _reference(inputs), inputs.images.groups(GROUPS)
    return difference(features, inputs.baseline_column(FEATURES), reference, groups=groups)


def _reference(inputs: MetricInputs) -> Gaussian:
    """Of the real images, fitted once."""
    return inputs.reference().cached("gaussian", Gaussian.fit)
