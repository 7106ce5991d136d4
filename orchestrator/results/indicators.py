"""Quality indicators of fronts: hypervolume, additive epsilon, coverage. Arrays only.

Points are [n, m] with a direction for each of m objectives; rows with NaN are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from orchestrator.results.pareto import Floats, costs, nondominated, possible_front

_MARGIN = 0.1  # distance of a reference point from the worst value, as a share of the objective's range


def hypervolume(points: ArrayLike, reference: ArrayLike, directions: Sequence[str]) -> float:
    """The volume that the points dominate, bounded by the reference point [m]; exact, for one to three objectives.

    Its unit is the product of the objectives' units. Compare it only with hypervolumes of the same reference point. A
    point that is not better than the reference in every objective adds nothing.

    Raises:
        ValueError: more than three objectives, or a reference point that is not m finite numbers.
    """
    if len(directions) > 3:
        raise ValueError(f"the hypervolume needs one to three objectives, got {len(directions)}")
    corner = costs(np.array(reference, dtype=np.float64).reshape(1, -1), directions)[0]
    if not np.isfinite(corner).all():
        raise ValueError(f"a reference point must be finite, got {list(np.ravel(reference))}")
    cost = _measured(points, directions)
    cost = cost[(cost < corner).all(axis=1)]
    if not len(cost):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - cost.min())
    if len(corner) == 2:
        return _area(cost, corner)
    return _volume(cost[nondominated(cost, ["minimize"] * 3)], corner)


def drawn_hypervolumes(drawn: Floats, reference: ArrayLike, directions: Sequence[str]) -> Floats:
    """The hypervolume [draws] of the front of each sample of [draws, n, m]."""
    candidates = drawn[:, possible_front(drawn, directions)]
    return np.array([hypervolume(sample, reference, directions) for sample in candidates])


def additive_epsilon(a: ArrayLike, b: ArrayLike, directions: Sequence[str], scale: ArrayLike = 1.0) -> float:
    """The smallest amount by which all of `a` must improve so that every point of `b` is matched by one of `a`.

    0 or less: `a` already covers `b`. The same amount is added to every objective, in units of `scale` (one number per
    objective; 1 mixes the objectives' own units). Infinite if only `a` is empty, NaN if `b` is.
    """
    first, second = _measured(a, directions), _measured(b, directions)
    if not len(second):
        return float("nan")
    if not len(first):
        return float("inf")
    behind = (first[:, None] - second[None]) / np.array(scale, dtype=np.float64)
    return float(behind.max(axis=2).min(axis=0).max())


def coverage(a: ArrayLike, b: ArrayLike, directions: Sequence[str]) -> float:
    """The share of `b`'s points that some point of `a` equals or dominates (the C metric); NaN if `b` is empty.

    Not symmetric: coverage(a, b) and coverage(b, a) need not add up to 1.
    """
    first, second = _measured(a, directions), _measured(b, directions)
    if not len(second):
        return float("nan")
    return float((first[:, None] <= second[None]).all(axis=2).any(axis=0).mean()) if len(first) else 0.0


def reference_point(points: ArrayLike, directions: Sequence[str]) -> Floats:
    """A reference point [m] for these points: the worst value of each objective plus a tenth of its range, or a tenth
    of its size if all values are equal. To compare fronts, pass the points of all of them.

    Raises:
        ValueError: no point was measured.
    """
    cost = _measured(points, directions)
    if not len(cost):
        raise ValueError("no trial was measured in all of these objectives, so there is no reference point")
    low, high = cost.min(axis=0), cost.max(axis=0)
    size = np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    signs = np.array([-1.0 if direction == "maximize" else 1.0 for direction in directions])
    beyond: Floats = (high + _MARGIN * size) * signs
    return beyond


def _measured(points: ArrayLike, directions: Sequence[str]) -> Floats:
    cost = costs(points, directions)
    return cost[~np.isnan(cost).any(axis=1)]


def _area(cost: Floats, corner: Floats) -> float:
    """The area between points [n, 2] and the corner: a strip for each, above the best of those to its left."""
    x, y = cost[np.argsort(cost[:, 0], kind="stable")].T
    least = np.minimum.accumulate(y)
    return float(((corner[0] - x) * (np.concatenate([corner[1:], least[:-1]]) - least)).sum())


def _volume(cost: Floats, corner: Floats) -> float:
    """The volume over a front [n, 3]: slabs along the third objective, each with the area of the front below it."""
    cost = cost[np.argsort(cost[:, 2], kind="stable")]
    tops = np.append(cost[1:, 2], corner[2])
    volume = 0.0
    for number, top in enumerate(tops):
        if top > cost[number, 2]:
            volume += _area(cost[: number + 1, :2], corner[:2]) * float(top - cost[number, 2])
    return volume
