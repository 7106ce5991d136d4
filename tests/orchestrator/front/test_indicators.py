"""Hypervolume against Optuna's and against counting cells; epsilon and coverage against their
definitions.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.front.compare import additive_epsilon, coverage, hypervolume, reference_point
from orchestrator.front.pareto import nondominated

DOWN = {m: ("minimize",) * m for m in (1, 2, 3)}
cells = st.integers(0, 5).map(float)


def sets(objectives: int, most: int = 8) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, most).flatmap(
        lambda n: arrays(np.float64, (n, objectives), elements=cells)
    )


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_hypervolume_counts_cells(objectives: int) -> None:
    """Points and reference lie on a grid, so that the volume is the number of cells with a point
    below them.
    """

    @settings(max_examples=80, deadline=None)
    @given(sets(objectives), st.integers(1, 5))
    def check(points: np.ndarray, top: int) -> None:
        count = sum(
            any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points)
            for cell in product(range(top), repeat=objectives)
        )
        shifted = np.maximum(points, 0)
        assert hypervolume(shifted, [float(top)] * objectives, DOWN[objectives]) == pytest.approx(
            count
        )

    check()


@pytest.mark.parametrize("objectives", [2, 3])
def test_hypervolume_is_optunas(objectives: int) -> None:
    wfg = pytest.importorskip("optuna._hypervolume")
    rng = np.random.default_rng(objectives)
    for n in (1, 2, 7, 40, 120):
        points = rng.random((n, objectives)).round(2)  # some ties
        corner = np.full(objectives, 0.9)
        inside = points[(points < corner).all(axis=1)]
        expected = wfg.compute_hypervolume(inside, corner) if len(inside) else 0.0
        assert hypervolume(points, corner, DOWN[objectives]) == pytest.approx(expected, rel=1e-12)


def test_directions_mirror() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((20, 3))
    down = hypervolume(points, [1.2, 1.1, 1.0], DOWN[3])
    mixed = hypervolume(
        points * [1, -1, -1], [1.2, -1.1, -1.0], ("minimize", "maximize", "maximize")
    )
    assert mixed == pytest.approx(down, rel=1e-12)


def test_hypervolume_leaves_out_what_was_not_measured_or_lies_beyond() -> None:
    points = [[1.0, math.nan], [0.0, 5.0], [1.0, 1.0], [2.0, 2.0]]
    assert hypervolume(points, [2.0, 2.0], DOWN[2]) == 1.0
    assert hypervolume([], [2.0, 2.0], DOWN[2]) == 0.0


@pytest.mark.parametrize(
    ("ways", "corner"), [(("minimize",) * 4, [1.0] * 4), (("minimize",) * 2, [1.0, math.nan])]
)
def test_hypervolume_refuses(ways: tuple[str, ...], corner: list[float]) -> None:
    with pytest.raises(ValueError, match=r"one to three|finite"):
        hypervolume(np.zeros((1, len(ways))), corner, ways)


@settings(max_examples=80, deadline=None)
@given(sets(2), sets(2), st.sampled_from(list(product(("maximize", "minimize"), repeat=2))))
def test_epsilon_is_the_least_shift_that_covers(
    a: np.ndarray, b: np.ndarray, ways: tuple[str, str]
) -> None:
    epsilon = additive_epsilon(a, b, ways)
    if not len(b):
        assert math.isnan(epsilon)
        return
    if not len(a):
        assert epsilon == math.inf
        return
    improve = np.array([1.0 if way == "maximize" else -1.0 for way in ways])
    assert coverage(a + epsilon * improve, b, ways) == 1
    assert coverage(a + (epsilon - 1e-6) * improve, b, ways) < 1


def test_epsilon_in_units_of_a_scale() -> None:
    a, b = [[1.0, 30.0]], [[2.0, 10.0]]
    assert additive_epsilon(a, b, ("maximize", "minimize"), scale=[2.0, 10.0]) == 2.0
    assert additive_epsilon(b, a, ("maximize", "minimize"), scale=[2.0, 10.0]) == -0.5


@settings(max_examples=80, deadline=None)
@given(sets(3), sets(3))
def test_coverage_is_the_share_not_on_a_joint_front_alone(a: np.ndarray, b: np.ndarray) -> None:
    share = coverage(a, b, DOWN[3])
    if not len(b):
        assert math.isnan(share)
        return
    covered = [any((one <= other).all() for one in a) for other in b]
    assert share == pytest.approx(sum(covered) / len(b))
    if len(a) and share == 0:
        joint = nondominated(np.concatenate([a, b]), DOWN[3])[len(a) :]
        assert joint.tolist() == nondominated(b, DOWN[3]).tolist()


def test_reference_point_lies_beyond_the_worst() -> None:
    found = reference_point([[1.0, 10.0], [3.0, 20.0], [math.nan, 99.0]], ("maximize", "minimize"))
    assert found == pytest.approx([0.8, 21.0])
    assert reference_point([[2.0, 5.0]], ("maximize", "minimize")) == pytest.approx([1.8, 5.5])
    with pytest.raises(ValueError, match="no trial was measured"):
        reference_point([], ("maximize", "minimize"))
