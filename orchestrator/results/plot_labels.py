"""Names beside the points of a plot: each where it covers least; one that would cover another is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

    from orchestrator.results.pareto import Floats

STRONG, SOFT, LEADER = "#1f2328", "#5b636d", "#8b8f94"  # colours
_SIDES = ((1, 0), (0, 1), (1, 1), (1, -1), (0, -1), (-1, 1), (-1, 0), (-1, -1))
_DISTANCES = (9.0, 16.0, 26.0, 40.0, 58.0)  # from the point, in points of 1/72 inch
_DOT, _NEAR = 5.0, 12.0  # half the width of a point, and where a label may be taken for that point's
_OUTSIDE, _ON_LABEL, _ON_DOT, _NEAR_DOT, _ON_LINE, _FAR, _TURN = 200.0, 100.0, 12.0, 2.0, 3.0, 2.5, 0.1  # costs
_MAX_COST = 60.0
_LEADER_STEPS = 24
_FONT_SIZE = 8.0


class Label(NamedTuple):
    text: str
    is_strong: bool


class Place(NamedTuple):
    """Of a label's centre, from its point. is_far: whether a line should lead to the point."""

    x: float
    y: float
    is_far: bool


class Obstacles(NamedTuple):
    """What is drawn. dots: points [n, 2] that a label should not cover. marks: those [m, 3] that none may cover, with
    half their width in 1/72 inch. lines: segments [s, 2, 2] along an axis that a label should not cover.
    """

    dots: Floats
    marks: Floats
    lines: Floats


def place_labels(points: Floats, sizes: Floats, obstacles: Obstacles, area: Floats, scale: float) -> list[Place | None]:
    """Where labels of these sizes [k, 2] stand beside their points [k, 2], the first ones first; None: nowhere.

    area: the plot's left, lowest, right and highest end. All in pixels; scale: pixels in 1/72 inch.
    """
    dots, marks, lines = obstacles
    around, near = (_boxes(dots, np.full_like(dots, 2 * reach * scale)) for reach in (_DOT, _NEAR))
    along = np.concatenate([lines.min(axis=1) - 1, lines.max(axis=1) + 1], axis=1)
    fixed, places = _boxes(marks[:, :2], 2 * scale * marks[:, 2:]), list[Place | None]()
    names, leaders = np.empty((0, 4)), np.empty((0, 4))
    for point, size in zip(points, sizes, strict=True):
        found, taken = [], np.concatenate([fixed, names, leaders])
        for ring, distance in enumerate(_DISTANCES):
            for turn, side in enumerate(_SIDES):
                away = distance * scale * (0.75 if all(side) else 1.0)
                shift = np.array(side) * (away + size / 2)
                (at,) = _boxes((point + shift)[None], size[None])
                is_outside = bool((at[:2] < area[:2]).any() or (at[2:] > area[2:]).any())
                cost = _OUTSIDE * is_outside + _FAR * ring + _TURN * turn
                leader = _leader(point, shift) if ring else np.empty((0, 4))
                cost += _ON_LABEL * any(_meets(name, leader) for name in names)
                for price, others in ((_ON_LABEL, taken), (_ON_DOT, around), (_NEAR_DOT, near), (_ON_LINE, along)):
                    cost += price * _meets(at, others)
                found.append((cost, Place(float(shift[0]), float(shift[1]), ring > 0), at, leader))
        cost, place, at, leader = min(found, key=lambda entry: entry[0])
        places.append(place if cost <= _MAX_COST else None)
        if cost <= _MAX_COST:
            names, leaders = np.vstack([names, at]), np.concatenate([leaders, leader])
    return places


def label_points(plot: Axes, points: Floats, labels: Sequence[Label], obstacles: Obstacles) -> None:
    """Write labels beside their points on matplotlib axes (see `place_labels`)."""
    figure: Any = plot.get_figure(root=True)
    figure.draw_without_rendering()  # sets the limits and the place of the plot
    scale, to_pixels = figure.dpi / 72, plot.transData.transform
    notes = [_annotation(plot, point, label) for point, label in zip(points, labels, strict=True)]
    sizes = np.array([[box.width, box.height] for box in (note.get_window_extent() for note in notes)]) + 2 * scale
    dots, marks, lines = obstacles
    marks = np.column_stack([to_pixels(marks[:, :2]), marks[:, 2]])
    obstacles = Obstacles(to_pixels(dots), marks, to_pixels(lines.reshape(-1, 2)).reshape(-1, 2, 2))
    area = np.array(plot.get_window_extent().extents)
    places = place_labels(to_pixels(points), sizes, obstacles, area, scale)
    for note, place in zip(notes, places, strict=True):
        if place is None:
            note.remove()
            continue
        note.xyann = place.x / scale, place.y / scale
        if note.arrow_patch is not None:
            note.arrow_patch.set_visible(place.is_far)


def _annotation(plot: Axes, point: Floats, label: Label) -> Annotation:
    from matplotlib.patheffects import withStroke

    return plot.annotate(
        label.text, (point[0], point[1]), (0, 0), textcoords="offset points", ha="center",
        va="center", fontsize=_FONT_SIZE, color=STRONG if label.is_strong else SOFT, zorder=5, in_layout=False,
        parse_math=False,
        arrowprops={"arrowstyle": "-", "color": LEADER, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5},
        path_effects=[withStroke(linewidth=2.0, foreground="white")],
    )  # fmt: skip


def _leader(point: Floats, shift: Floats) -> Floats:
    """Boxes [n, 4] along the line from a point to its label's centre."""
    steps = point + np.linspace(0, 1, _LEADER_STEPS)[:, None] * shift
    return _boxes(steps, np.zeros_like(steps))


def _boxes(centres: Floats, sizes: Floats) -> Floats:
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


def _meets(at: Floats, others: Floats) -> int:
    """How many of the boxes [n, 4] a box [4] overlaps."""
    apart = (others[:, :2] > at[2:]) | (others[:, 2:] < at[:2])
    return int((~apart.any(axis=1)).sum())
