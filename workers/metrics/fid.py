"""Frechet distances of a trial: to the real images (fid), to the baseline's (drift), and what it gained (fid_gain).

All on the features that the sweep's extractor gives. They are biased upwards in n: compare trials at equal n, or by
fid_debiased, from which the jackknife has taken what falls with 1 / n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate
from workers.metrics.frechet import (
    GROUPS,
    FeatureStatistics,
    FrechetEstimate,
    difference,
    distance_between,
    distance_to_reference,
)
from workers.metrics.metric import BASELINE, REFERENCE, Metric, MetricInputs


def reference_statistics(evidence: MetricInputs) -> FeatureStatistics:
    """Of the real images, taken once."""
    return evidence.against().once("frechet", FeatureStatistics.of)


def fid(evidence: MetricInputs) -> FrechetEstimate:
    """Distance to the real images; `debiased` has what n images add to it removed."""
    return evidence.once("fid", _fid)


def fid_debiased(evidence: MetricInputs) -> Estimate:
    """fid without its bias of order 1 / n: the mean of the jackknife's pseudo-values, and the standard error of it.

    A pseudo-value is G * fid - (G - 1) * fid without a block. Their standard error is the very number that is fid's: to
    take the bias away costs no spread at the n of a sweep (tests), and the error stays on the safe side.
    """
    found = fid(evidence)
    return Estimate(found.debiased, found.error, found.n)


def _fid(evidence: MetricInputs) -> FrechetEstimate:
    features, reference = evidence.column("features"), reference_statistics(evidence)
    return distance_to_reference(features, reference, groups=evidence.images.groups(GROUPS))


def drift(evidence: MetricInputs) -> Estimate:
    """Distance to the baseline's images of the same captions and samples."""
    features, vanilla = evidence.column("features"), evidence.vanilla("features")
    if torch.equal(features, vanilla):  # the baseline itself: rounding would leave it at plus or minus 1e-13
        return Estimate(0.0, 0.0, features.shape[0])
    return distance_between(features, vanilla, groups=evidence.images.groups(GROUPS))


def fid_gain(evidence: MetricInputs) -> Estimate:
    """fid minus the baseline's fid at the same captions, with the error of the pairs."""
    features: Tensor = evidence.column("features")
    reference, groups = reference_statistics(evidence), evidence.images.groups(GROUPS)
    found: FrechetEstimate = difference(features, evidence.vanilla("features"), reference, groups=groups)
    return found


METRICS = (
    Metric(
        name="fid",
        direction="minimize",
        unit="features squared",
        about="Frechet distance of the images' features to the real images', at n images: comparable only at equal n",
        needs=("features", REFERENCE),
        compute=fid,
    ),
    Metric(
        name="fid_debiased",
        direction="minimize",
        unit="features squared",
        about="fid without its bias of order 1/n (jackknife); may fall below 0 where the true distance is near 0",
        needs=("features", REFERENCE),
        compute=fid_debiased,
    ),
    Metric(
        name="drift",
        direction="minimize",
        unit="features squared",
        about="Frechet distance of the images' features to those of the baseline's images of the same captions",
        needs=("features", BASELINE),
        compute=drift,
    ),
    Metric(
        name="fid_gain",
        direction="minimize",
        unit="features squared",
        about="fid minus the baseline's fid on the same captions; the error is that of the pairs",
        needs=("features", REFERENCE, BASELINE),
        compute=fid_gain,
    ),
)
