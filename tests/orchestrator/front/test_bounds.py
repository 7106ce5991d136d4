"""The choice by bounds: in exact small cases, and in random ones against a direct computation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from orchestrator.front.bounds import Bounds, Pick, describe_choice
from orchestrator.front.joint import JointErrors
from orchestrator.store.records import TrialRecord
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import Estimate, Noise

SPEED = Metric("speedup", "maximize", "×", "", needs=("timings",))
COST = Metric("latency", "minimize", "s", "", needs=("timings",))


def bounds(*entries: Estimate, metric: Metric = SPEED) -> Bounds:
    records = [
        TrialRecord(i, "", "complete", None, metrics={metric.name: entry})
        for i, entry in enumerate(entries)
    ]
    joint = JointErrors.of(records, [metric])
    return Bounds.of(joint, joint.samples(), metric.direction)


def pick(lossless: Sequence[int], *entries: Estimate, metric: Metric = SPEED) -> Pick:
    found = bounds(*entries, metric=metric).best(
        range(len(entries)), lambda trial: trial in lossless
    )
    assert found is not None
    return found


def measured(value: float, error: float, dof: int = 0) -> Estimate:
    return Estimate(value, error, 9, error_dof=dof)


@pytest.mark.parametrize(("metric", "sign"), [(SPEED, -1), (COST, 1)])
def test_a_bound_is_what_nine_tenths_of_draws_are_better_than(metric: Metric, sign: int) -> None:
    """1.2816 standard errors of a normal variable, 1.8856 of Student's t with two degrees of
    freedom.
    """
    normal, student, exact, unknown = bounds(
        measured(2.0, 0.1),
        measured(2.0, 0.1, 2),
        measured(1.0, 0.0),
        measured(3.0, math.inf),
        metric=metric,
    ).values
    assert normal == pytest.approx(2.0 + sign * 0.128, abs=0.02)
    assert student == pytest.approx(2.0 + sign * 0.189, abs=0.03)
    assert exact == 1.0
    assert math.isnan(unknown)


def test_a_wild_guess_is_no_match_for_a_sure_value() -> None:
    assert pick([], measured(2.7, 3.8), measured(1.435, 0.022)) == Pick(1, [0])
    assert pick([1], measured(2.10, 0.51), measured(1.98, 0.09)) == Pick(1, [0])
    assert pick([], measured(2.62, 0.96), measured(2.56, 0.22)) == Pick(1, [0]), (
        "though the first is on the front"
    )
    assert pick([], measured(2.7, 0.02), measured(1.435, 0.022)) == Pick(0, [])


def test_a_lossless_setting_within_error_is_preferred() -> None:
    lossy = measured(2.00, 0.05)
    assert pick([1], lossy, measured(1.97, 0.05)) == Pick(1, [0], 0)
    assert pick([], lossy, measured(1.97, 0.05)) == Pick(0, [1])
    assert pick([0, 1], lossy, measured(1.97, 0.05)) == Pick(0, [1])
    assert pick([1], lossy, measured(1.70, 0.05)) == Pick(0, []), "significantly slower"
    assert pick([1, 2], lossy, measured(1.96, 0.08), measured(1.97, 0.05)) == Pick(2, [0, 1], 0)


def test_a_lossless_setting_of_a_large_error_is_not() -> None:
    """Such an error is no evidence that it is as fast; and vanilla needs no draws to lose."""
    assert pick([1], measured(2.00, 0.05), measured(1.20, 0.50)) == Pick(0, [1])
    assert pick([1], measured(1.50, 0.15, 2), measured(1.0, 0.0)) == Pick(0, [1])
    assert pick([1], measured(1.10, 0.15), measured(1.0, 0.0)) == Pick(1, [0]), (
        "its bound is below vanilla's value"
    )


def test_shared_noise_makes_a_small_difference_significant() -> None:
    """Both values move with what vanilla cost in a session; their difference does not."""
    session = Noise("a session", "vanilla", 0.3, 20)
    values = (2.0, 1.9)
    own = [Noise("a session", value, 0.01, 20) for value in values]
    entries = [
        Estimate.from_replicates(np.array([value]), 9, [session, noise])
        for value, noise in zip(values, own, strict=True)
    ]
    assert pick([1], *entries) == Pick(0, [])


def test_an_unknown_error_is_chosen_last() -> None:
    unknown = measured(9.0, math.inf)
    assert pick([], unknown, measured(1.1, 0.2)) == Pick(1, [])
    assert pick([1], measured(8.0, math.inf), unknown) == Pick(1, [])
    assert pick([], unknown) == Pick(0, [])


@pytest.mark.parametrize(("metric", "best"), [(SPEED, 1), (COST, 0)])
def test_ties(metric: Metric, best: int) -> None:
    """Equal bounds: the better value; equal values: the first one."""
    assert (
        pick([], measured(1.0, 0.0), measured(2.0, 0.0), measured(2.0, 0.0), metric=metric).best
        == best
    )
    assert pick([], measured(1.0, math.inf), measured(2.0, math.inf), metric=metric).best == best
    assert pick([], measured(2.0, 0.0), measured(2.0, 0.0)) == Pick(0, [1])
    assert pick([1], measured(2.0, 0.0), measured(2.0, 0.0)) == Pick(1, [0], 0)
    assert bounds(measured(1.0, 0.0)).best([], lambda _: False) is None


def test_only_the_given_trials_count() -> None:
    found = bounds(measured(3.0, 0.1), measured(2.0, 0.1), measured(2.05, 0.1)).best(
        [1, 2], lambda _: False
    )
    assert found == Pick(2, [1])


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_against_a_direct_computation(direction: Direction) -> None:
    rng = np.random.default_rng(0)
    metric = SPEED if direction == "maximize" else COST
    for _ in range(20):
        entries = [
            measured(float(v), float(e))
            for v, e in zip(rng.normal(2, 0.3, 8), rng.random(8), strict=True)
        ]
        found, (best, *_) = (
            bounds(*entries, metric=metric),
            [pick([], *entries, metric=metric).best],
        )
        signed = found.values if direction == "maximize" else -found.values
        assert best == signed.argmax()
        near = {
            i
            for i, entry in enumerate(entries)
            if i != best
            and abs(entry.value - entries[best].value)
            <= 1.959964 * math.hypot(entry.error, entries[best].error)
        }
        assert set(pick([], *entries, metric=metric).alternatives) == near


def test_a_choice_in_words() -> None:
    names = ["3 (gsd chain)", "4 (b)", "5 (c)", "6 (d)", "7 (e)"]
    assert describe_choice(SPEED, 1.8649, [], None, has_best_value=True) == []
    assert describe_choice(COST, 0.5, names[:1], None, has_best_value=False) == [
        "settings are ranked by the latency that is 90 % sure, here 0.5",
        "within error of it in latency: 3 (gsd chain)",
    ]
    assert describe_choice(SPEED, 1.88, names[:2], 1.94, has_best_value=False)[1:] == [
        "preferred, as lossless, to 3 (gsd chain) with 1.94",
        "within error of it in speedup: 3 (gsd chain) and 4 (b)",
    ]
    assert describe_choice(SPEED, 1.88, names, None, has_best_value=True)[-1].endswith(
        ": 3 (gsd chain), 4 (b), 5 (c) and 2 more"
    )
    assert describe_choice(SPEED, None, [], None, has_best_value=True) == [
        "chosen by its value, because no error is known"
    ]
