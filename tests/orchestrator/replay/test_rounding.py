"""Proposals with short numbers: their digits, their bounds, and that the study has them too."""

from __future__ import annotations

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.replay.rounding import RoundingSampler, rounded


@pytest.mark.parametrize(
    ("low", "high", "sampled", "value"),
    [
        (0.05, 0.6, 0.370712, 0.371),
        (0.05, 0.6, 0.0512345, 0.0512),
        (1, 200, 150.3, 150.0),
        (-1, 1, -0.01234567, -0.0123),
        (-1, 1, 0.0, 0.0),
        (0.99, 0.999, 0.9954321, 0.99543),  # in a narrow interval, a part in a hundred of it
        (0.12345, 1, 0.1234501, 0.12345),  # never beyond a bound
    ],
)
def test_three_significant_digits(low: float, high: float, sampled: float, value: float) -> None:
    assert rounded(sampled, FloatDistribution(low, high)) == value


def test_other_values_stay() -> None:
    assert rounded(12345, IntDistribution(1, 20000)) == 12345
    assert rounded("l2", CategoricalDistribution(["l2"])) == "l2"
    assert rounded(0.12345, FloatDistribution(0.0, 1.0, step=0.00001)) == 0.12345
    assert rounded(0.12345, FloatDistribution(0.12345, 0.12345)) == 0.12345


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e4), st.floats(0, 1))
def test_rounding_moves_little_and_only_once(low: float, width: float, share: float) -> None:
    interval = FloatDistribution(low, low + width)
    sampled = min(low + share * width, interval.high)
    value = rounded(sampled, interval)
    assert interval.low <= value <= interval.high
    assert rounded(value, interval) == value
    assert abs(value - sampled) <= 0.005001 * min(abs(sampled) or width, width)


@pytest.mark.parametrize("sampler", [optuna.samplers.TPESampler(seed=1, n_startup_trials=2, multivariate=True),
                                     optuna.samplers.QMCSampler(seed=1, warn_independent_sampling=False)])  # fmt: skip
def test_the_study_has_the_rounded_numbers(sampler: optuna.samplers.BaseSampler) -> None:
    study = optuna.create_study(sampler=RoundingSampler(sampler))
    for number in range(6):
        trial = study.ask()
        value = trial.suggest_float("x", 0.1, 0.9) + trial.suggest_float("y", 0.1, 0.9, log=True)
        study.tell(trial, value + number)
    params = [value for trial in study.trials for value in trial.params.values()]
    assert params == [round(value, 3) for value in params]
    assert len(set(params)) > 6
