"""Fronts against brute force, on random sets with ties, gaps and three objectives; the laws of what
goes with them.
"""

from __future__ import annotations

import math
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike

from orchestrator.front import pareto
from orchestrator.front.pareto import (
    Bools,
    Floats,
    dominated,
    front_confidence,
    knee,
    knee_confidence,
    nondominated,
    possible_front,
)

WAYS = ("maximize", "minimize")
few = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, math.nan])  # few values, so that ties are common


def sets(objectives: int) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, 14).flatmap(lambda n: arrays(np.float64, (n, objectives), elements=few))


def better(a: np.ndarray, b: np.ndarray, ways: tuple[str, ...]) -> bool:
    """Whether a dominates b, said as plainly as can be."""
    pairs = [(x, y) if way == "maximize" else (y, x) for x, y, way in zip(a, b, ways, strict=True)]
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def brute_force(values: np.ndarray, ways: tuple[str, ...]) -> list[bool]:
    there = [row for row in values if not np.isnan(row).any()]
    return [
        not np.isnan(row).any() and not any(better(other, row, ways) for other in there)
        for row in values
    ]


FOUR_OBJECTIVES = [2 * WAYS, 4 * WAYS[:1], 4 * WAYS[1:], (*WAYS, *WAYS[::-1])]


@pytest.mark.parametrize(
    "ways", [*(ways for m in (1, 2, 3) for ways in product(WAYS, repeat=m)), *FOUR_OBJECTIVES]
)
def test_front_is_the_brute_force_front(ways: tuple[str, ...]) -> None:
    @settings(max_examples=60, deadline=None)
    @given(sets(len(ways)))
    def check(values: np.ndarray) -> None:
        assert nondominated(values, ways).tolist() == brute_force(values, ways)

    check()


def test_none_is_not_measured_and_equal_points_all_stay() -> None:
    values: list[list[float | None]] = [[1, 5], [None, 0], [1, 5], [0, 9], [2, None]]
    assert nondominated(values, ("maximize", "minimize")).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_no_points() -> None:
    assert nondominated([], ("maximize", "minimize")).shape == (0,)
    assert front_confidence(np.empty((10, 0, 2)), ("maximize", "minimize")).shape == (0,)
    assert knee(np.empty((0, 2)), ("maximize", "minimize")) is None


def test_infinite_values_count_as_what_they_are() -> None:
    values: list[list[float | None]] = [[math.inf, 3.0], [1.0, -math.inf], [1.0, 3.0]]
    assert nondominated(values, WAYS).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("values", "ways", "words"),
    [
        ([[1, 2]], ("maximize",), "one direction for each"),
        ([[1, 2]], ("maximize", "up"), "'maximize' or 'minimize'"),
    ],
)
def test_wrong_use_is_refused(values: list[list[float]], ways: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        nondominated(values, ways)


def test_two_objectives_are_sorted_not_compared_in_pairs() -> None:
    """100,000 points are 10 billion pairs."""
    points = np.random.default_rng(0).random((100_000, 2))
    with mock.patch.object(pareto, "_dominates", side_effect=AssertionError("pairs")):
        mask = nondominated(points, WAYS)
    front = points[mask][np.argsort(points[mask][:, 0])]
    assert (np.diff(front[:, 1]) > 0).all()


def dominated_by_brute_force(samples: Floats, rivals: Floats, ways: tuple[str, ...]) -> Bools:
    """Every point against every rival, in every sample."""
    signs = np.array([-1.0 if way == "maximize" else 1.0 for way in ways])
    own, other = (samples * signs)[:, :, None], (rivals * signs)[:, None]
    found: Bools = (np.all(other <= own, axis=3) & np.any(other < own, axis=3)).any(axis=2)
    return found


@pytest.mark.parametrize("ways", [ways for m in (1, 2, 3) for ways in product(WAYS, repeat=m)])
def test_points_that_rivals_dominate_are_those_of_brute_force(ways: tuple[str, ...]) -> None:
    """Ties, equal points, values that are missing or infinite, no points and no rivals."""
    values = st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, math.inf, -math.inf])

    @settings(max_examples=100, deadline=None)
    @given(st.data(), st.integers(1, 3), st.integers(0, 9), st.integers(0, 9))
    def check(data: st.DataObject, count: int, points: int, rivals: int) -> None:
        own, other = (
            data.draw(arrays(np.float64, (count, size, len(ways)), elements=values))
            for size in (points, rivals)
        )
        assert (dominated(own, other, ways) == dominated_by_brute_force(own, other, ways)).all()

    check()


def test_of_two_objectives_no_pairs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every trial stopped or complete, the pairs of each sample made the end of a racing sweep
    cubic.
    """
    compared = []
    monkeypatch.setattr(
        pareto, "_dominates", lambda points, others: compared.append(len(points) * len(others))
    )
    rng = np.random.default_rng(0)
    own, rivals = rng.random((20, 300, 2)), rng.random((20, 200, 2))
    assert (dominated(own, rivals, WAYS) == dominated_by_brute_force(own, rivals, WAYS)).all()
    assert compared == []


def drawn(values: ArrayLike, errors: ArrayLike, count: int = 1000) -> Floats:
    """Samples with independent errors."""
    noise = np.random.default_rng(0).standard_normal((count, *np.shape(values)))
    samples: Floats = (
        np.array(values, dtype=np.float64) + np.array(errors, dtype=np.float64) * noise
    )
    return samples


def test_confidence_is_the_share_of_brute_force_draws() -> None:
    """Fifty draws by hand: also for three objectives, where hopeless points are skipped."""
    rng = np.random.default_rng(1)
    for ways in (("maximize", "minimize"), ("maximize", "minimize", "minimize")):
        values = rng.normal(size=(30, len(ways)))
        values[3, 0] = np.nan
        samples = drawn(values, rng.random((30, len(ways))) * 0.3, 50)
        expected = np.mean([brute_force(one, ways) for one in samples], axis=0)
        np.testing.assert_allclose(front_confidence(samples, ways), expected)
        assert {row for row in range(30) if expected[row]} <= set(
            possible_front(samples, ways).tolist()
        )


def test_confidence_of_a_coin_toss_and_of_certainty() -> None:
    """Two points alike in y, one error apart in x: the better is better with chance Phi(1 / sqrt 2)
    = 0.760.
    """
    samples = drawn([[1.0, 0.0], [0.0, 0.0], [-50.0, -5.0]], [[1, 0], [1, 0], [1, 0]], 20_000)
    share = front_confidence(samples, WAYS)
    assert share[0] == pytest.approx(0.760, abs=0.01)
    assert share[0] + share[1] == pytest.approx(1, abs=1e-9)
    assert share[2] == 1  # the others are worse in y, and their y is certain
    sure = front_confidence(drawn([[1.0, 0.0], [0.0, 0.0]], np.zeros((2, 2))), WAYS)
    assert sure.tolist() == [1, 0]


def test_confidence_of_a_large_sweep_compares_few_points() -> None:
    """Of 1,000 points, those that are dominated in every sample are compared with no other in the
    samples.
    """
    rng = np.random.default_rng(0)
    samples = drawn(rng.random((1000, 3)), np.full((1000, 3), 0.01))
    with mock.patch.object(pareto, "_dominates", side_effect=pareto._dominates) as compared:
        share = front_confidence(samples, ("maximize", "minimize", "minimize"))
    assert max(len(call.args[0]) for call in compared.call_args_list) < 500
    assert 0 < share.max() <= 1


def test_a_knee_is_as_sure_as_the_share_of_draws_with_it() -> None:
    """The middle point is on the chord's near side, on the chord, and beyond it: a knee in one draw
    of three.
    """
    ends = [[0.0, 0.0], [10.0, 10.0]]
    samples = np.array([[ends[0], [5.0, y], ends[1]] for y in (2.0, 5.0, 8.0)])
    assert knee_confidence(samples, WAYS, 1) == pytest.approx(1 / 3)
    assert knee_confidence(samples, WAYS, 0) == 0


def test_knee_is_furthest_from_the_chord() -> None:
    front = [[1.0, 0.0], [2.0, 1.0], [2.8, 2.0], [3.0, 10.0]]  # speed up, distance down
    assert knee(front, ("maximize", "minimize")) == 2
    scaled = np.array(front) * [1, 1000] + [5, -3]  # units do not matter
    assert knee(scaled, ("maximize", "minimize")) == 2
    turned = np.array(front) * [-1, 1]
    assert knee(turned, ("minimize", "minimize")) == 2


def test_straight_and_hollow_fronts_have_no_knee() -> None:
    fronts: list[list[list[float]]] = [
        [[0, 0], [1, 1], [2, 2]],
        [[0, 0], [1, 1.5], [2, 2]],
        [[0, 0], [2, 2]],
        [[1, 1]],
    ]
    for front in fronts:
        assert knee(front, ("maximize", "minimize")) is None


def test_knee_in_three_dimensions() -> None:
    front: list[list[float]] = [[0, 1, 1], [1, 0, 1], [1, 1, 0], [0.2, 0.2, 0.2], [0.4, 0.3, 0.3]]
    assert knee(front, ("minimize",) * 3) == 3
