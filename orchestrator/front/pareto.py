"""Pareto fronts of arrays: their points, the confidence in each, and the knee.

Values are [n, m]: n points, m objectives, each to be maximised or minimised. A row with NaN was not
measured: it is never on a front and dominates no point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = ArrayLike | Sequence[Sequence[float | None]]

LEVEL = 0.05  # significance level of two-sided tests for a difference
SAMPLES = 1000  # of all values, from their errors
_BLOCK = 2_000_000  # numbers in memory at once while sampling or comparing pairs


def costs(values: Rows, directions: Sequence[str]) -> Floats:
    """The values [n, m], negated where they are maximised, so that less is better; None becomes
    NaN.

    Raises:
        ValueError: the shape does not match the directions, or a direction is unknown.
    """
    array = np.array(values, dtype=np.float64)
    if array.size == 0:
        array = array.reshape(0, len(directions))
    if array.ndim != 2 or array.shape[1] != len(directions) or not directions:
        raise ValueError(
            f"values must be [n, m] with one direction for each of m columns, got {array.shape}"
        )
    if unknown := set(directions) - {"maximize", "minimize"}:
        raise ValueError(f"a direction must be 'maximize' or 'minimize', got {sorted(unknown)}")
    signed: Floats = array * np.array(
        [-1.0 if direction == "maximize" else 1.0 for direction in directions]
    )
    return signed


def nondominated(values: Rows, directions: Sequence[str]) -> Bools:
    """Find the points [n] on the front: no other point is at least as good everywhere and better
    somewhere.

    Equal points are all kept. O(n log n) for one and two objectives, O(n²) for more.
    """
    cost = costs(values, directions)
    mask = np.zeros(len(cost), dtype=np.bool_)
    measured = np.flatnonzero(~np.isnan(cost).any(axis=1))
    mask[measured] = _minimal(cost[measured][None])[0]
    return mask


def front_confidence(samples: Floats, directions: Sequence[str]) -> Floats:
    """The share of samples [n] in which each point is on the front, 0 for points that were not
    measured.

    samples: of the values, [samples, n, m] (see `JointErrors.samples`).
    """
    counts = np.zeros(samples.shape[1])
    for points, _, on_front in _sampled_fronts(samples, directions):
        counts[points] += on_front.sum(axis=0)
    return counts / max(1, len(samples))


def possible_front(samples: Floats, directions: Sequence[str]) -> NDArray[np.intp]:
    """The points that may be on the front of some sample [samples, n, m]: their fronts are the
    fronts of all points.
    """
    return _sampled_costs(samples, directions)[1]


def dominated(samples: Floats, rivals: Floats, directions: Sequence[str]) -> Bools:
    """Find the points that a rival dominates in each sample: [samples, n, m] and [samples, r, m] ->
    [samples, n].

    A sample takes O((n + r) log r) for two objectives, O(n r) for more.
    """
    count, n, m = samples.shape
    own, against = (
        costs(part.reshape(-1, m), directions).reshape(count, -1, m) for part in (samples, rivals)
    )
    against[np.isnan(against).any(axis=2)] = np.inf  # dominates no point
    found = np.zeros((count, n), dtype=np.bool_)
    if not found.size or not against.size:
        return found
    # each of the others is dominated by one of these
    against = against[:, _minimal_somewhere(against)]
    hopeless = _dominated_everywhere(own, against)
    found[:, hopeless] = True
    left = np.flatnonzero(~hopeless)
    own = own[:, left]
    if m == 2:
        against = np.take_along_axis(against, np.argsort(against[..., :1], axis=1), axis=1)
    for index, (points, rows) in enumerate(zip(own, against, strict=True)):
        found[index, left] = (
            _dominated_by_sorted(points, rows) if m == 2 else _dominates(rows, points).any(axis=1)
        )
    return found


def _dominated_by_sorted(points: Floats, rivals: Floats) -> Bools:
    """Find the points [n, 2] that a rival [r, 2] dominates; rivals are sorted by x.

    Those of less x need a y of at most the point's, those of equal x one below it.
    """
    x, y = points.T
    # of the first 0, 1, ... rivals
    least = np.concatenate([[np.nan], np.minimum.accumulate(rivals[:, 1])])
    less, at_most = (least[np.searchsorted(rivals[:, 0], x, side)] for side in ("left", "right"))
    found: Bools = ((less <= y) | (at_most < y)) & ~np.isnan(x)
    return found


def knee(front: Rows, directions: Sequence[str]) -> int | None:
    """The knee's row in a front [n, m]: beyond it, improving one objective costs much of another.
    None: no knee.

    Every objective is scaled to its range over the front, 0 at its best and 1 at its worst. The
    chord is the line (or plane) on which the scaled objectives sum to 1; with two objectives it
    joins the ends of the front. The knee is the point farthest from the chord on the ideal point's
    side, the first one on a tie. A straight front and one that bulges away from the ideal point
    have no knee.
    """
    cost = costs(front, directions)
    if len(cost) == 0 or np.isnan(cost).any():
        return None
    (found,) = _knees(cost[None], np.ones((1, len(cost)), dtype=np.bool_))
    return None if found < 0 else int(found)


def knee_confidence(samples: Floats, directions: Sequence[str], row: int) -> float:
    """The share of samples [samples, n, m] on whose front this point is the knee."""
    count = 0
    for points, cost, on_front in _sampled_fronts(samples, directions):
        knees = _knees(cost, on_front)
        count += int((points[knees[knees >= 0]] == row).sum())
    return count / len(samples)


def _knees(cost: Floats, on_front: Bools) -> NDArray[np.intp]:
    """The knee of each set of costs [sets, n, m], by index in the set; -1: it has none. on_front:
    [sets, n], at least one in each set.
    """
    sets, members = np.nonzero(on_front)
    starts = np.flatnonzero(np.diff(sets, prepend=-1))
    points = cost[sets, members]
    low = np.minimum.reduceat(points, starts)
    span = np.maximum.reduceat(points, starts) - low
    scaled = (points - low[sets]) / np.where(span > 0, span, 1.0)[sets]
    distance = (1 - scaled.sum(axis=1)) / np.sqrt(cost.shape[2])
    top = np.maximum.reduceat(distance, starts)
    farthest = np.flatnonzero(distance == top[sets])
    first = farthest[np.searchsorted(farthest, starts)]
    return np.where((span > 0).all(axis=1) & (top > 1e-9), members[first], -1)


def _sampled_costs(samples: Floats, directions: Sequence[str]) -> tuple[Floats, NDArray[np.intp]]:
    """Costs [samples, p, m] of the p points of samples [samples, n, m] that may be on a front, and
    their indices.
    """
    count, n, m = samples.shape
    cost = costs(samples.reshape(count * n, m), directions).reshape(count, n, m)
    measured = np.flatnonzero(~np.isnan(cost).any(axis=(0, 2)))
    kept = _minimal_somewhere(cost[:, measured])
    return cost[:, measured[kept]], measured[kept]


def _sampled_fronts(
    samples: Floats, directions: Sequence[str]
) -> Iterator[tuple[NDArray[np.intp], Floats, Bools]]:
    """The fronts of samples [samples, n, m], some samples at a time: the p points that may be on
    one, their costs [samples, p, m], and which are on the sample's front [samples, p].
    """
    cost, points = _sampled_costs(samples, directions)
    size = max(1, _BLOCK // max(1, cost[0].size))
    for start in range(0, len(cost) if len(points) else 0, size):
        part = cost[start : start + size]
        yield points, part, _minimal(part)


def _minimal(cost: Floats) -> Bools:
    """Find the points of each set that are not dominated, [sets, n, m] -> [sets, n]. Costs have no
    NaN.
    """
    if cost.shape[2] == 1:
        best: Bools = cost[..., 0] == cost[..., 0].min(axis=1, keepdims=True, initial=np.inf)
        return best
    return _minimal_pairs(cost) if cost.shape[2] > 2 else _minimal_sorted(cost)


def _minimal_sorted(cost: Floats) -> Bools:
    """`_minimal` for two objectives: sorted by x, then y, a point is minimal if its y is below all
    before it, or if it equals the last such point.
    """
    sets, n, _ = cost.shape
    mask = np.zeros((sets, n), dtype=np.bool_)
    if n == 0:
        return mask
    order = np.lexsort((cost[..., 1], cost[..., 0]), axis=-1)
    x, y = (np.take_along_axis(cost[..., axis], order, axis=1) for axis in (0, 1))
    least = np.minimum.accumulate(y, axis=1)
    beats = np.ones((sets, n), dtype=np.bool_)
    beats[:, 1:] = y[:, 1:] < least[:, :-1]
    last = np.maximum.accumulate(np.where(beats, np.arange(n), 0), axis=1)
    equal = (x == np.take_along_axis(x, last, axis=1)) & (y == np.take_along_axis(y, last, axis=1))
    np.put_along_axis(mask, order, equal, axis=1)
    return mask


def _minimal_pairs(cost: Floats) -> Bools:
    """`_minimal` for any number of objectives: compares every pair, one block of points at a
    time.
    """
    sets, n, m = cost.shape
    mask = np.ones((sets, n), dtype=np.bool_)
    rows = max(1, _BLOCK // max(1, n * m))
    for index, points in enumerate(cost):
        for start in range(0, n, rows):
            mask[index, start : start + rows] = ~_dominates(
                points, points[start : start + rows]
            ).any(axis=1)
    return mask


def _dominates(points: Floats, others: Floats) -> Bools:
    """Find which points dominate which others: [others, points]."""
    nowhere_worse = np.ones((len(others), len(points)), dtype=np.bool_)
    better = np.zeros_like(nowhere_worse)
    # by objective: short last axes are slow to reduce
    for other, point in zip(others.T, points.T, strict=True):
        nowhere_worse &= point <= other[:, None]
        better |= point < other[:, None]
    return nowhere_worse & better


def _minimal_somewhere(samples: Floats) -> NDArray[np.intp]:
    """The points that may be on the front of some sample [samples, n, m]: no other point's worst is
    below their best.

    Each of the other points is dominated by one of these in every sample, so the fronts of these
    are the fronts of all.
    """
    return np.flatnonzero(~_dominated_everywhere(samples, samples))


def _dominated_everywhere(samples: Floats, rivals: Floats) -> Bools:
    """Find the points of samples [samples, n, m] of which the best is worse in all objectives than
    a rival's worst.
    """
    found = np.zeros(samples.shape[1], dtype=np.bool_)
    if not samples.size or not rivals.size:
        return found
    best = samples.min(axis=0)
    worst = rivals.max(axis=0)
    rows = max(1, _BLOCK // worst.size)
    for start in range(0, len(best), rows):
        found[start : start + rows] = (
            (worst < best[start : start + rows, None]).all(axis=2).any(axis=1)
        )
    return found
