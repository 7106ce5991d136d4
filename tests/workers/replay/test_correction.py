"""The correction of predictions: against plain linear algebra, and on synthetic trials with a known
drift.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.estimate import Estimate
from workers.replay.correction import Correction, Observation
from workers.replay.prediction import LENGTH, MEASURES, Prediction

TREES = {
    "chain": {"policy": "chain", "length": 3},
    "dynamic": {"policy": "dynamic", "depth": 2, "width": 2, "nodes": 3},
}
OFFSET, SLOPES = 0.03, {"chain": -0.5, "dynamic": -0.2}


def config(tree: str) -> DecodingConfig:
    return DecodingConfig.from_mapping({"drafter": "eagle", "tree": TREES[tree]}).with_sampling(
        Sampling()
    )


def prediction(length: float, excess: float) -> Prediction:
    measures = dict.fromkeys(MEASURES, Estimate(excess, 0.0, 24))
    return Prediction({LENGTH: Estimate(length, 0.05 * length, 24), **measures})


def observe(count: int, noise: float, seed: int = 0) -> list[Observation]:
    """Trials whose log accepted length is off by OFFSET and a slope of each tree."""
    generator = np.random.default_rng(seed)
    found = []
    for index in range(count):
        tree, excess = list(TREES)[index % 2], float(generator.uniform(0, 0.4))
        length = float(generator.uniform(1.5, 4))
        drift = OFFSET + SLOPES[tree] * excess + noise * float(generator.standard_normal())
        measured = Estimate(length * math.exp(drift), 0.0, 192)
        found.append(Observation(config(tree), prediction(length, excess), measured))
    return found


def relative_errors(correction: Correction | None, trials: list[Observation]) -> np.ndarray:
    corrected = [correction(o.config, o.prediction) if correction else o.prediction for o in trials]
    return np.array(
        [
            c.mean_accepted_length.value / o.measured.value - 1
            for c, o in zip(corrected, trials, strict=True)
        ]
    )


def test_a_linear_drift_is_removed_and_stated_errors_cover() -> None:
    """Noise of 1 %: other trials of the same drift come within it, and 95 % of 300 within 2 errors
    (+- 4 %).
    """
    correction, others = Correction.fit(observe(60, 0.01)), observe(300, 0.01, seed=1)
    before, after = relative_errors(None, others), relative_errors(correction, others)
    assert np.sqrt((before**2).mean()) > 0.04
    assert np.sqrt((after**2).mean()) < 0.0115
    errors = [correction(o.config, o.prediction).mean_accepted_length for o in others]
    covered = np.mean(np.abs(after) < [2 * e.error / e.value for e in errors])
    assert 0.91 < covered < 0.99


def test_left_out_residuals_are_those_of_fits_without_the_trial() -> None:
    trials = observe(9, 0.01)
    correction = Correction.fit(trials)
    for index, left_out in enumerate(trials):
        others = trials[:index] + trials[index + 1 :]
        kinds, excess, ratio = Correction.columns(others)
        without = Correction.with_scales(
            kinds, excess, ratio, np.zeros(len(others)), correction.scales
        )[1]
        corrected = without(left_out.config, left_out.prediction).mean_accepted_length.value
        assert correction.left_out[index] == pytest.approx(
            math.log(left_out.measured.value / corrected)
        )


def test_one_trial_moves_its_own_kind_more_than_others() -> None:
    (trial,) = observe(1, 0.0)
    correction = Correction.fit([trial])
    own, other = (
        correction(config(tree), trial.prediction).mean_accepted_length.value
        / trial.prediction.mean_accepted_length.value
        for tree in ("chain", "dynamic")
    )
    full = trial.measured.value / trial.prediction.mean_accepted_length.value
    assert abs(math.log(other)) < abs(math.log(own)) < abs(math.log(full))


def test_a_noisy_trial_counts_less() -> None:
    sure, *rest = observe(7, 0.0)
    wrong = sure.measured.value * 1.2
    moved = []
    for error in (0.001, 0.5):
        trial = sure._replace(measured=replace(sure.measured, value=wrong, error=error))
        fitted = Correction.fit([trial, *rest])
        moved.append(fitted(sure.config, sure.prediction).mean_accepted_length.value)
    assert abs(moved[1] - sure.measured.value) < abs(moved[0] - sure.measured.value)


def test_no_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="trials"):
        Correction.fit([])
