"""Interpolation between recorded Jacobi windows."""

from __future__ import annotations

import math

import pytest

from search_spaces.params import ConfigError
from workers.metrics.estimate import Estimate
from workers.replay.prediction import LENGTH, Prediction, interpolate
from workers.replay.windows import neighbours, relaxed_weight, window_lengths


@pytest.mark.parametrize(
    ("lengths", "recorded"),
    [([5], (5,)), ([3, 6], (3, 6)), ([3, 4, 11], (3, 6, 11)), ([15, 3], (3, 5, 9, 15))],
)
def test_recorded_lengths_span_all_and_at_most_double(
    lengths: list[int], recorded: tuple[int, ...]
) -> None:
    assert window_lengths(lengths) == recorded


def test_a_length_is_between_its_neighbours() -> None:
    assert neighbours(6, [3, 6, 11]) == (6, 6, 0.0)
    low, high, weight = neighbours(8, [11, 6, 3])
    assert (low, high) == (6, 11)
    assert weight == pytest.approx(math.log(8 / 6) / math.log(11 / 6))
    with pytest.raises(ConfigError) as refused:
        neighbours(12, [3, 11])
    assert refused.value.path == ("tree", "length")


def test_a_rule_s_own_speed_is_what_it_emits_there() -> None:
    """The recorded rules are at their own speeds; another one is where its line meets the
    diagonal.
    """
    speeds = (2.0, 5.0)
    assert relaxed_weight(speeds, (2.0, 1.5)) == 0
    assert relaxed_weight(speeds, (6.0, 5.0)) == 1
    emitted = (4.0, 3.0)
    weight = relaxed_weight(speeds, emitted)
    speed = speeds[0] * (speeds[1] / speeds[0]) ** weight
    assert emitted[0] * (emitted[1] / emitted[0]) ** weight == pytest.approx(speed)


def test_speeds_are_hardly_extrapolated() -> None:
    assert relaxed_weight((2.0, 2.2), (9.0, 8.9)) == 1.5
    assert relaxed_weight((2.0, 2.2), (0.9, 0.8)) == -0.5
    assert relaxed_weight((2.0, 3.0), (2.1, 4.0)) == 1, (
        "emits more the faster it slides, at any speed"
    )
    assert relaxed_weight((2.0, 2.0), (2.0, 2.0)) == 1


def test_predictions_are_interpolated_with_their_replicates() -> None:
    """Two blocks; lengths in logs. What both recordings share does not average out."""
    slow, fast = Estimate(2.0, 0.1, 12, (1.9, 2.1)), Estimate(8.0, 0.4, 12, (7.6, 8.4))
    first = Prediction({LENGTH: slow, "excess": Estimate(0.0, 0.0, 12, (0.0, 0.0))})
    second = Prediction(
        {LENGTH: fast, "excess": Estimate(0.2, 0.1, 12, (0.1, 0.3))}, approximate=True
    )
    found = interpolate(first, second, 0.5)
    assert found.mean_accepted_length.value == pytest.approx(4.0)
    assert found.mean_accepted_length.replicates == pytest.approx((3.8, 4.2))
    assert found.mean_accepted_length.error == pytest.approx(0.2)
    assert found.values["excess"].value == pytest.approx(0.1)
    assert found.values["excess"].replicates == pytest.approx((0.05, 0.15))
    assert found.approximate
    assert interpolate(first, second, 0.0).mean_accepted_length.value == pytest.approx(2.0)
