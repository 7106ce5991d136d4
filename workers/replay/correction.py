"""Corrects predicted accepted lengths by trials that have run.

A relaxed rule accepts other tokens, and so meets other states than the exact rule that was
recorded. Its log accepted length is off by about a multiple of its excess; the recorded captions
add an offset that a recording's predictions share. Both are estimated by Bayesian linear
regression: offset and slope of each kind of setting (drafter and tree) vary about common ones, so
that few trials of a kind move it little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.trial import DecodingConfig
from workers.metrics.estimate import Estimate
from workers.replay.prediction import LENGTH, Prediction

Array = NDArray[np.float64]
Kind = tuple[str, str]  # kinds of drafter and tree

# Standard deviations among which cross-validation chooses.
_OFFSETS = (0.003, 0.01, 0.03, 0.1)
_SLOPES = (0.03, 0.1, 0.3)
_NOISES = (0.003, 0.01, 0.02, 0.04)  # see `Scales`


class Observation(NamedTuple):
    """A setting that has run."""

    config: DecodingConfig
    prediction: Prediction
    measured: Estimate  # the mean accepted length that its trial measured


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """Standard deviations of the regression's parts."""

    offset: float
    slope: float
    noise: float  # what offset and slope do not explain


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The regression on n observations."""

    kinds: tuple[Kind, ...]  # [n]
    excess: Array  # [n]
    scales: Scales
    inverse: Array  # [n, n] inverse of the observations' covariance
    weights: Array  # [n] weights of the observations' covariances with a prediction
    left_out: Array  # [n] log measured - log predicted, each corrected by the other observations

    @classmethod
    def fit(cls, observations: Sequence[Observation]) -> Correction:
        """The correction with the scales of the best leave-one-out log likelihood.

        Raises:
            ValueError: there are no observations.
        """
        if not observations:
            raise ValueError("a correction needs trials that have run: at least one with a drafter")
        kinds, excess, ratio = cls.columns(observations)
        noise = np.array([entry.measured.error / entry.measured.value for entry in observations])
        fits = [
            cls.with_scales(kinds, excess, ratio, noise, Scales(*deviations))
            for deviations in product(_OFFSETS, _SLOPES, _NOISES)
        ]
        return max(fits, key=lambda fitted: fitted[0])[1]

    @staticmethod
    def columns(observations: Sequence[Observation]) -> tuple[tuple[Kind, ...], Array, Array]:
        """Kinds [n], excess [n], and log measured - log predicted accepted length [n]."""
        kinds = tuple(_kind(entry.config) for entry in observations)
        excess = [entry.prediction.values["excess"].value for entry in observations]
        ratio = [
            math.log(entry.measured.value / entry.prediction.mean_accepted_length.value)
            for entry in observations
        ]
        return kinds, np.array(excess), np.array(ratio)

    @classmethod
    def with_scales(
        cls, kinds: tuple[Kind, ...], excess: Array, ratio: Array, noise: Array, scales: Scales
    ) -> tuple[float, Correction]:
        """The leave-one-out log likelihood of some scales, and the fit.

        Args:
            kinds: [n] kinds of the observed settings.
            excess: [n] their predicted excess.
            ratio: [n] log measured - log predicted accepted length.
            noise: [n] relative errors of the measured lengths.
            scales: the scales.
        """
        covariance = _covariance(kinds, excess, kinds, excess, scales) + np.diag(
            scales.noise**2 + noise**2
        )
        inverse = np.linalg.inv(covariance).astype(np.float64)
        weights: Array = inverse @ ratio
        variance = 1 / np.diag(inverse)
        left_out: Array = weights * variance  # each residual from the fit to the others
        likelihood = -0.5 * float(np.sum(left_out**2 / variance + np.log(variance)))
        return likelihood, cls(kinds, excess, scales, inverse, weights, left_out)

    def __call__(self, config: DecodingConfig, prediction: Prediction) -> Prediction:
        """The prediction with a corrected mean accepted length and its error. Vanilla's is
        known.
        """
        if config.is_vanilla:
            return prediction
        length = prediction.mean_accepted_length
        excess = np.array([prediction.values["excess"].value])
        kind = (_kind(config),)
        shared = _covariance(kind, excess, self.kinds, self.excess, self.scales)[0]
        own = float(_covariance(kind, excess, kind, excess, self.scales)[0, 0])
        variance = own - float(shared @ self.inverse @ shared) + self.scales.noise**2
        value = length.value * math.exp(float(shared @ self.weights))
        corrected = Estimate(value, value * math.sqrt(variance), length.n)
        return replace(prediction, values={**prediction.values, LENGTH: corrected})


def _kind(config: DecodingConfig) -> Kind:
    return config.drafter.kind, config.policy.kind


def _covariance(
    kinds: Sequence[Kind],
    excess: Array,
    other_kinds: Sequence[Kind],
    other_excess: Array,
    scales: Scales,
) -> Array:
    """Prior covariance of log ratios: offsets and slopes have a common part and one of each kind,
    equally large.
    """
    same = np.array([[1.0 + (kind == other) for other in other_kinds] for kind in kinds])
    return same * (scales.offset**2 + scales.slope**2 * np.outer(excess, other_excess))
