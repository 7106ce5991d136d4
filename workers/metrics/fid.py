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
from workers.metrics.metric import BASELINE, FEATURES, REFERENCE, Metric, MetricInputs, register_metrics


def fid(inputs: MetricInputs) -> FrechetEstimate:
    """Distance to the real images."""
    return inputs.cached("fid", _fid)


def fid_debiased(inputs: MetricInputs) -> Estimate:
    """fid without its bias of order 1 / n: the mean of the jackknife's pseudo-values, with their standard error.

    A pseudo-value is G * fid - (G - 1) * fid without a block. Their standard error equals fid's: at the n of a sweep,
    removing the bias does not widen the spread (tests), and the error is conservative.
    """
    estimate = fid(inputs)
    return Estimate(estimate.debiased, estimate.error, estimate.n)


def _fid(inputs: MetricInputs) -> FrechetEstimate:
    return distance_to_reference(inputs.column(FEATURES), _reference(inputs), groups=inputs.images.groups(GROUPS))


def drift(inputs: MetricInputs) -> Estimate:
    """Distance to the baseline's images of the same captions and samples."""
    features, vanilla = inputs.column(FEATURES), inputs.baseline_column(FEATURES)
    if torch.equal(features, vanilla):  # the baseline itself: rounding would give plus or minus 1e-13
        return Estimate(0.0, 0.0, features.shape[0])
    return distance_between(features, vanilla, groups=inputs.images.groups(GROUPS))


def fid_gain(inputs: MetricInputs) -> Estimate:
    """fid minus the baseline's fid on the same captions, with the paired error."""
    features, reference, groups = inputs.column(FEATURES), _reference(inputs), inputs.images.groups(GROUPS)
    return difference(features, inputs.baseline_column(FEATURES), reference, groups=groups)


def _reference(inputs: MetricInputs) -> Gaussian:
    """Of the real images, fitted once."""
    return inputs.reference().cached("gaussian", Gaussian.fit)


FRECHET_METRICS = (
    Metric(
        name="fid",
        direction="minimize",
        unit="features squared",
        about="Frechet distance of the images' features to the real images', at n images: comparable only at equal n",
        needs=(FEATURES, REFERENCE),
        compute=fid,
    ),
    Metric(
        name="fid_debiased",
        direction="minimize",
        unit="features squared",
        about="fid without its bias of order 1/n (jackknife); may be negative when the true distance is near 0",
        needs=(FEATURES, REFERENCE),
        compute=fid_debiased,
    ),
    Metric(
        name="drift",
        direction="minimize",
        unit="features squared",
        about="Frechet distance of the images' features to those of the baseline's images of the same captions",
        needs=(FEATURES, BASELINE),
        compute=drift,
    ),
    Metric(
        name="fid_gain",
        direction="minimize",
        unit="features squared",
        about="fid minus the baseline's fid on the same captions, with the paired error",
        needs=(FEATURES, REFERENCE, BASELINE),
        compute=fid_gain,
    ),
)
register_metrics(*FRECHET_METRICS)
