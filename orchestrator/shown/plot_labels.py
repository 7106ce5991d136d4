"""Names and numbers of the points of a plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.front.choice import Choice
from orchestrator.front.front import Front
from orchestrator.front.trial import Candidate, Trial
from orchestrator.shown.number_places import mark_radius, place_numbers
from orchestrator.shown.plot_style import (
    LEADER,
    LEGEND_SIZE,
    SMALL_LEGEND,
    SOFT,
    ink,
    points_of,
    styled,
)
from orchestrator.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from orchestrator.front.pareto import Floats

_MAX_NAMES = 12
_MAX_LINE = 24  # characters of a name
_NAME_LINE = 1.32  # height of a line of a name in the margin, in heights of letters
_NAME_GAP = 3.0  # between two names, in 1/72 inch
# heights of letters between the edge of a mark and the middle of a number that needs no line to it
_NEAR = 1.3
_MAX_NUMBERS = 40  # trials; with more, only those on the front or with a label have numbers
_DIGITS = 0.75  # height of digits, in heights of a line of text
_LINE_STEP = 2.0  # between the points by which numbers are kept off a line, in 1/72 inch
_NAME_PLACE = 1.015  # of the names, in widths of the plot


def write_numbers(plot: Axes, front: Front, named: Sequence[Candidate]) -> None:
    """Write the trials' names in tables next to their points: of the `named` ones, and of others
    where there is room.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

    figure: Any = plot.get_figure(root=True)
    figure.draw_without_rendering()  # sets the limits and the size of the plot
    names = {trial.name for trial in named}
    others = [trial for trial in front.candidates if trial.name not in names]
    if len(front.candidates) > _MAX_NUMBERS:
        others = [trial for trial in others if trial.on_front or trial.record.label.strip()]
    trials = [*named, *others]
    unit = 72 / figure.dpi  # of a dot, in 1/72 inch
    size = FontProperties(size=styled("legend.fontsize", SMALL_LEGEND)).get_size_in_points()
    texts = [
        Text(text=trial.name, fontsize=size, parse_math=False, figure=figure) for trial in trials
    ]
    frames = [text.get_window_extent() for text in texts]
    sizes = np.array([(frame.width, _DIGITS * frame.height) for frame in frames]) * unit
    corner = np.array(plot.bbox.p0)
    values = points_of(trials, front)[0]
    points = (plot.transData.transform(values) - corner) * unit
    marks, lines = _drawn(plot)
    centres = place_numbers(
        points, sizes, marks, lines, (plot.bbox.width * unit, plot.bbox.height * unit), len(named)
    )
    for trial, value, offset, point in zip(trials, values, centres - points, points, strict=True):
        if np.isnan(offset).any():
            continue
        colour = ink() if trial.on_front else styled("text.color", SOFT)
        ground = styled("axes.facecolor", "white")
        clear = mark_radius(point, marks)
        leader = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.5,
            "shrinkA": 0,
            "shrinkB": clear,
        }
        plot.annotate(
            trial.name,
            (value[0], value[1]),
            offset,
            textcoords="offset points",
            color=colour,
            zorder=2.5,
            fontsize=size,
            ha="center",
            va="center_baseline",
            parse_math=False,
            bbox={"facecolor": ground, "edgecolor": "none", "pad": 0.3, "alpha": 0.8},
            arrowprops=leader if np.hypot(*offset) > clear + _NEAR * size else None,
        )


def _drawn(plot: Axes) -> tuple[Floats, Floats]:
    """The marks of a plot, x, y and radius of each [m, 3], and points along its lines and error
    bars [p, 2]: in 1/72 inch from its lower left corner.
    """
    from matplotlib.collections import LineCollection, PathCollection
    from matplotlib.path import Path

    figure: Any = plot.get_figure(root=True)
    marks = [np.empty((0, 3))]
    paths = [line.get_transform().transform(line.get_xydata()) for line in plot.lines]
    for drawn in plot.collections:
        if isinstance(drawn, PathCollection):
            places = drawn.get_offset_transform().transform(np.asarray(drawn.get_offsets()))
            radii = np.sqrt(np.resize(drawn.get_sizes(), len(places))) / 2 * figure.dpi / 72
            marks.append(np.column_stack([places, radii]))
        elif isinstance(drawn, LineCollection):
            paths += [drawn.get_transform().transform(segment) for segment in drawn.get_segments()]
    corner = np.array(plot.bbox.p0)
    unit = 72 / figure.dpi
    lines = [np.empty((0, 2))]
    for path in paths:  # its part within the plot, without gaps
        seen: Any = Path(path).cleaned(remove_nans=True, clip=plot.bbox.extents)
        for begin, end, kind in zip(seen.vertices, seen.vertices[1:], seen.codes[1:], strict=False):
            if kind == Path.LINETO:
                count = 2 + int(np.hypot(*(end - begin)) * unit / _LINE_STEP)
                lines.append(np.linspace(begin, end, count))
    found = np.concatenate(marks)
    found[:, :2] -= corner
    return found * unit, (np.concatenate(lines) - corner) * unit


def write_names(plot: Axes, points: Floats, named: Sequence[Candidate]) -> None:
    """Write names in the right margin, as many of the first ones as there is room for: each as near
    to the height of its point as the others allow, with a line to it.

    points: of the trials [n, 2].
    """
    from matplotlib.font_manager import FontProperties

    figure: Any = plot.get_figure(root=True)
    figure.draw_without_rendering()  # sets the limits and the size of the plot
    size = FontProperties(size=styled("legend.fontsize", LEGEND_SIZE)).get_size_in_points()
    texts = [short_title(trial) for trial in named]
    unit = figure.dpi / 72 / plot.get_window_extent().height  # 1/72 inch in heights of the plot
    sizes = np.array(
        [unit * (_NAME_GAP + _NAME_LINE * size * len(text.splitlines())) for text in texts]
    )
    # more would push the plot out of the figure
    sizes = sizes[: max(1, int((np.cumsum(sizes) <= 1).sum()))]
    heights = plot.transAxes.inverted().transform(plot.transData.transform(points))[: len(sizes), 1]
    order = np.argsort(heights)
    for i, height in zip(order, _apart(heights[order], sizes[order]), strict=True):
        plot.annotate(
            texts[i],
            (points[i, 0], points[i, 1]),
            (_NAME_PLACE, height),
            textcoords="axes fraction",
            ha="left",
            va="center",
            fontsize=size,
            color=ink() if named[i].on_front else styled("text.color", SOFT),
            zorder=5,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": LEADER,
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 4,
            },
        )


def _apart(heights: Floats, sizes: Floats) -> Floats:
    """Centres [n], near the rising heights [n], of names of these sizes [n] that lie above one
    another from 0 on.
    """
    gaps = (sizes[1:] + sizes[:-1]) / 2
    offsets = np.concatenate([[0.0], np.cumsum(gaps)])
    lowest = np.maximum.accumulate(np.maximum(heights, sizes[0] / 2) - offsets)
    highest = max(1 - sizes[-1] / 2 - offsets[-1], sizes[0] / 2)
    centres: Floats = np.minimum(lowest, highest) + offsets
    return centres


def named_trials(front: Front, choices: Iterable[Choice]) -> list[Candidate]:
    """The candidates to name, the most important first: choices, vanilla, others on the front,
    others with a label.
    """
    vanilla = [trial for trial in front.candidates if trial.is_vanilla]
    named: dict[str, Candidate] = {trial.name: trial for trial in [*choices, *vanilla]}
    labelled = [trial for trial in front.candidates if trial.record.label.strip()]
    for group in (front.members, labelled):
        others = [trial for trial in group if trial.name not in named]
        count = min(_MAX_NAMES - len(named), len(others))
        if count > 0:
            places = np.linspace(0, len(others) - 1, count).round().astype(int)
            named |= {others[place].name: others[place] for place in places}
    return list(named.values())


def short_title(trial: Trial) -> str:
    """Its label, else its setting's name, in lines."""
    name = clean(trial.record.label)
    if not name.strip(" �"):
        name = trial.setting
    return "\n".join(wrap(name, _MAX_LINE, break_long_words=False))
