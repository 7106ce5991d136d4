"""Racing over simulated sweeps with known truth: a short version of the benchmark, with fixed
seeds.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.racing import (
    CAPTIONS,
    ERROR_RATE,
    IN_ORDER,
    RUNGS,
    SCENARIOS,
    interval,
    run_race,
    run_sweeps,
    simulate,
)
from orchestrator.run.race import Race, Scores, Stop

SWEEPS = 25


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario != IN_ORDER])
def test_at_most_the_stated_share_of_sweeps_stops_a_trial_wrongly(scenario: str) -> None:
    """With a true rate of 5 %, more than 7 of 25 are wrong with a probability of 3e-5."""
    assert sum(outcome.is_wrong for outcome in run_sweeps(scenario, SWEEPS)) <= 7


def test_the_front_of_an_earlier_sweep_does_not_raise_the_rate() -> None:
    """Its settings were chosen from 400 by their luck on the same captions. With a true rate of 5
    %, more than 8 of 40 sweeps are wrong with a probability of 1.3e-4. A rule that does not count
    the 400 is wrong in 4 sweeps, and at an error rate of 50 % in 12.
    """
    simulations = [simulate("half tied", seed, earlier=400) for seed in range(40)]
    assert np.mean([len(simulation.earlier_front) for simulation in simulations]) > 3
    wrong = {}
    for error_rate in (ERROR_RATE, 0.5):
        race = Race(("minimize", "minimize"), error_rate, len(RUNGS))
        wrong[error_rate] = sum(run_race(simulation, race).is_wrong for simulation in simulations)
    assert wrong[ERROR_RATE] <= 8
    assert wrong[0.5] <= 4


def test_items_in_the_order_of_their_times_break_the_error_rate() -> None:
    """The same items in random order, the scenario `shuffled`, keep it."""
    assert sum(outcome.is_wrong for outcome in run_sweeps(IN_ORDER, SWEEPS)) > 7


def test_trials_far_behind_stop_and_save_images() -> None:
    outcomes = list(run_sweeps("front", 12))
    gaps = np.concatenate([outcome.simulation.gaps() for outcome in outcomes])
    stopped = np.concatenate([outcome.stopped for outcome in outcomes])
    assert (stopped[gaps > 16] > 0).mean() > 0.8
    assert (stopped[gaps < 2] > 0).mean() < 0.02
    assert set(stopped) == {0, *RUNGS}
    assert np.mean([outcome.saved for outcome in outcomes]) > 0.05


def test_a_race_that_ignores_the_number_of_comparisons_is_wrong_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulation tells a wrong rule from the right one."""

    def uncorrected(
        self: Race, _: int, scores: Scores, rivals: dict[int, Scores], eligible: int
    ) -> Stop | None:
        for rival, chance in zip(
            rivals, self.p_values(scores, list(rivals.values())) if rivals else (), strict=True
        ):
            if chance <= self.error_rate:
                return Stop(rival, float(chance))
        return None

    monkeypatch.setattr(Race, "decide", uncorrected)
    assert sum(outcome.is_wrong for outcome in run_sweeps("half tied", 10)) >= 8


def test_the_truth_of_the_simulations() -> None:
    for scenario in SCENARIOS:
        simulation = simulate(scenario, 0)
        values = np.stack(
            [simulation.scores(trial, CAPTIONS).blocks.mean(axis=0) for trial in range(8)]
        )
        errors = np.stack(
            [
                simulation.scores(trial, CAPTIONS).blocks.std(axis=0) / np.sqrt(24)
                for trial in range(8)
            ]
        )
        assert (np.abs(values - simulation.truth[:8]) < 6 * errors).all(), scenario
        assert simulation.better.any() == (scenario == "front")
    with pytest.raises(ValueError, match="half tied"):
        simulate("none", 0)


def test_an_interval_of_a_share_is_clopper_and_pearsons() -> None:
    assert interval(0, 100) == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)))
    assert interval(100, 100) == pytest.approx((0.025 ** (1 / 100), 1.0))
    low, high = interval(5, 100)
    assert (low, high) == pytest.approx((0.01643, 0.11283), abs=1e-5)
    assert 0 < ERROR_RATE < 1
