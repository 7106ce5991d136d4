"""Where numbers stand: off marks and lines, apart, within the frame."""

from __future__ import annotations

import numpy as np

from orchestrator.shown.number_places import place_numbers

FRAME, SIZE, NO_LINES = (200.0, 100.0), np.array([8.0, 5.0]), np.empty((0, 2))


def placed(
    points: np.ndarray, required: int, radius: float = 3.0, lines: np.ndarray = NO_LINES
) -> np.ndarray:
    marks = np.column_stack([points, np.full(len(points), radius)])
    return place_numbers(points, np.tile(SIZE, (len(points), 1)), marks, lines, FRAME, required)


def gaps(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Of each frame from each point: [n, m]."""
    beside = np.maximum(np.abs(centres[:, None] - points[None]) - SIZE / 2, 0)
    return np.asarray(np.hypot(beside[..., 0], beside[..., 1]))


def test_numbers_are_beside_their_points_apart_and_off_all_marks() -> None:
    points = np.random.default_rng(0).uniform([20, 20], [180, 80], (20, 2))
    centres = placed(points, required=20)
    assert (gaps(centres, points) >= 3.0).all()
    assert (np.hypot(*(centres - points).T) < 45).all()
    apart = np.abs(centres[:, None] - centres[None]) >= SIZE
    assert (apart.any(axis=2) | np.eye(20, dtype=bool)).all()


def test_numbers_at_an_edge_stay_inside_and_off_lines() -> None:
    points = np.array([[1.0, 1.0], [199.0, 99.0], [100.0, 50.0]])
    line = np.column_stack([np.arange(100.0, 160.0, 2), np.full(30, 55.0)])
    centres = placed(points, required=3, lines=line)
    assert (centres >= SIZE / 2).all()
    assert (centres <= np.array(FRAME) - SIZE / 2).all()
    assert gaps(centres[2:], line).min() > 0


def test_in_a_crowd_only_the_first_are_forced() -> None:
    columns, rows = np.arange(20, 180, 7.0), np.arange(20, 80, 7.0)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    order = np.argsort(np.hypot(*(grid - [100, 50]).T))
    centres = placed(grid[order], required=2)
    assert np.isfinite(centres[:2]).all()
    assert np.isnan(centres[2:, 0]).sum() > 100
