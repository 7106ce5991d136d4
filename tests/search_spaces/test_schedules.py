"""Schedules: their mean is the budget, their shape is the paper's, and impossible ones are
refused.
"""

from __future__ import annotations

import itertools
import math

import pytest

from search_spaces.params import ConfigError
from search_spaces.schedules import Constant, Exponential, Linear, Schedule

ALL = [
    Constant(1.0),
    Constant(2.5),
    Linear(1.1, 0.0),
    Linear(1.1, 0.1),
    Linear(2.0, 0.35),
    Exponential(1.1, 0.0),
    Exponential(1.1, 0.1),
    Exponential(2.0, 0.5),
    Exponential(1.0, 9.0),
]


@pytest.mark.parametrize("levels", [1, 2, 5, 10])
@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_mean_is_the_budget_and_nothing_rises(schedule: Schedule, levels: int) -> None:
    omegas = schedule.omegas(levels)
    assert len(omegas) == levels
    assert math.fsum(omegas) / levels == pytest.approx(schedule.budget, rel=1e-12)  # type: ignore[attr-defined]
    assert all(later <= earlier for earlier, later in itertools.pairwise(omegas))
    assert all(omega > 0 for omega in omegas)


def test_values_by_hand() -> None:
    assert Constant(1.5).omegas(3) == (1.5, 1.5, 1.5)
    assert Linear(1.1, 0.1).omegas(5) == pytest.approx((1.3, 1.2, 1.1, 1.0, 0.9))
    assert Linear(1.1, 0.1).omegas(2) == pytest.approx((1.15, 1.05))
    halving = Exponential(1.0, math.log(2)).omegas(2)  # exp(-nu i): 1/2, 1/4
    assert halving == pytest.approx((4 / 3, 2 / 3))


def test_exactness_is_known_beforehand() -> None:
    exact = [schedule for schedule in ALL if schedule.exact]
    assert exact == [Constant(1.0)]
    assert Linear(1.0, 0.0).exact
    assert Exponential(1.0, 0.0).exact
    for schedule in ALL:
        if schedule.at_least_one:
            assert min(schedule.omegas(10)) >= 1
    assert Constant(2.5).at_least_one
    assert not Constant(0.9).at_least_one
    assert not Linear(1.1, 0.1).at_least_one


def test_a_slope_too_steep_for_the_depth_is_refused() -> None:
    steep = Linear(1.0, 0.5)
    assert steep.omegas(4)[-1] == pytest.approx(0.25)
    with pytest.raises(ConfigError) as caught:
        steep.omegas(5)
    assert (
        str(caught.value)
        == "slope: must be less than 0.5 for a mean budget of 1 over 5 levels, got 0.5: the last "
        "level's budget would be 0"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0), "budget: must be greater than 0, got 0"),
        (lambda: Constant(float("nan")), "budget: must be a finite number, got nan"),
        (lambda: Linear(1.0, -0.1), "slope: must be at least 0, got -0.1"),
        (lambda: Exponential(1.0, -1), r"nu: must be in \[0, 10\], got -1"),
        (lambda: Exponential(1.0, 11), r"nu: must be in \[0, 10\], got 11"),
        (lambda: Constant(1.0).omegas(0), "a schedule needs at least 1 draft level, got 0"),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()  # type: ignore[operator]
