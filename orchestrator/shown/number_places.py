"""Positions of numbers beside their points: clear of marks, lines and one another. All lengths are
in 1/72 inch.

The library adjustText was tried in its place: in small plots it put numbers on lines and on marks,
and some outside of the plot.
"""

from __future__ import annotations

import numpy as np

from orchestrator.front.pareto import Floats

# the first is preferred: above, to the right
_DIRECTIONS = np.linspace(0, 2 * np.pi, 16, endpoint=False) + np.pi / 4
# between a mark and its number's frame
_DISTANCES = np.array([1.0, 4.0, 8.0, 13.0, 19.0, 26.0, 34.0])
_ROUNDS = 3  # in all but the first, numbers move in knowledge of all others
# costs, once for each
_ON_NUMBER, _OUTSIDE, _ON_MARK, _OVER_MARK, _ON_LINE = 100.0, 60.0, 12.0, 3.0, 2.0
_FAR = 0.12  # the cost of a unit of length
_MAX_COST = 5.0  # of a place of a number that is not required
_MAX_ON_LINE = 4  # points of lines that count


def place_numbers(
    points: Floats,
    sizes: Floats,
    marks: Floats,
    lines: Floats,
    frame: tuple[float, float],
    required: int,
) -> Floats:
    """The centres [n, 2] of numbers; NaN for those without a free place.

    points: that they name [n, 2], the most important first. sizes: width and height of each [n, 2].
    marks: x, y and radius of all marks [m, 3]; numbers at a point in the middle of some clear the
    largest of these. lines: points along lines that numbers should not lie on [p, 2]. frame: width
    and height of the whole, from 0. required: of the first numbers, which are placed where it is
    least bad if no place is free.
    """
    centres = np.full((len(points), 2), np.nan)
    radii = [mark_radius(point, marks) for point in points]
    for _ in range(_ROUNDS):
        for i, size in enumerate(sizes):
            places = points[i] + _offsets(size, radii[i])
            placed = np.isfinite(centres[:, 0])
            placed[i] = False
            costs = _on_numbers(places, points[i], size, centres[placed], sizes[placed])
            costs += _OUTSIDE * ((places < size / 2) | (places > np.array(frame) - size / 2)).any(
                axis=1
            )
            costs += _ON_MARK * (_distances(places, size, marks[:, :2]) < marks[:, 2] + 0.6).sum(
                axis=1
            )
            costs += _OVER_MARK * _crossed(places, points[i], radii[i], marks)
            costs += _ON_LINE * (_distances(places, size, lines) < 0.4).sum(axis=1).clip(
                max=_MAX_ON_LINE
            )
            costs += _FAR * np.hypot(*(places - points[i]).T)
            best = int(np.argmin(costs))
            centres[i] = places[best] if i < required or costs[best] < _MAX_COST else np.nan
    return centres


def mark_radius(point: Floats, marks: Floats) -> float:
    """The largest radius of the marks [m, 3] at a point [2]; 0 if there is none."""
    return float(marks[np.hypot(*(marks[:, :2] - point).T) < 0.5, 2].max(initial=0.0))


def _offsets(size: Floats, radius: float) -> Floats:
    """Centres [c, 2] of a number around its point, the preferred ones first."""
    distances, directions = (
        grid.ravel() for grid in np.meshgrid(_DISTANCES, _DIRECTIONS, indexing="ij")
    )
    unit = np.stack([np.cos(directions), np.sin(directions)], axis=1)
    # from a frame's centre to its edge
    reach = (size / 2 / np.maximum(np.abs(unit), 1e-9)).min(axis=1)
    found: Floats = unit * (radius + distances + reach)[:, None]
    return found


def _on_numbers(
    places: Floats, point: Floats, size: Floats, others: Floats, sizes: Floats
) -> Floats:
    """The cost of each place [c] that covers other numbers, or whose line to the point crosses
    them.
    """
    gaps = np.abs(places[:, None] - others[None]) - (size + sizes)[None] / 2
    covers = (gaps < 0.5).all(axis=2)
    steps = np.linspace(0, 1, 9)[:, None, None, None]
    along = point + steps * (places - point)[None, :, None]  # [9, c, 1, 2]
    crosses = (np.abs(along - others) < sizes / 2).all(axis=3).any(axis=0)
    cost: Floats = _ON_NUMBER * (covers | crosses).sum(axis=1)
    return cost


def _crossed(places: Floats, point: Floats, radius: float, marks: Floats) -> Floats:
    """How many marks lie under the line from the point, whose own mark has this radius, to each
    place [c].
    """
    others = marks[np.hypot(*(marks[:, :2] - point).T) > radius]
    along = point + np.linspace(0, 1, 9)[:, None, None] * (places - point)  # [9, c, 2]
    gaps = np.hypot(*np.moveaxis(along[:, :, None] - others[:, :2], -1, 0))  # [9, c, m]
    found: Floats = (gaps < others[:, 2]).any(axis=0).sum(axis=1)
    return found


def _distances(places: Floats, size: Floats, points: Floats) -> Floats:
    """From the frame of a number at each place to each point [c, n]; 0 within it."""
    gaps = np.maximum(np.abs(places[:, None] - points[None]) - size / 2, 0.0)
    found: Floats = np.hypot(gaps[..., 0], gaps[..., 1])
    return found
