"""The front as a picture: points with error bars, coloured by acceptance rule, the front's points
and choices named.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.front.choice import (
    BEST,
    DEFAULT_FACTORS,
    KNEE,
    LOSSLESS,
    Choice,
    default_limit,
    recommend,
)
from orchestrator.front.front import Front
from orchestrator.front.trial import Candidate, Trial
from orchestrator.shown.number_places import mark_radius, place_numbers
from orchestrator.store.names import VANILLA, family
from orchestrator.text import clean
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from orchestrator.front.pareto import Floats

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#bf5f97", "#6b3a10", "#55178a", "#5a5a5a", "#916b38")
_INK, _SOFT, _LEADER, _ACCENT = "#1f2328", "#5b636d", "#c3c6ca", "#1f6f78"
_BAR = ((-0.6, -1.2), (0.6, -1.2), (0.6, 1.2), (-0.6, 1.2), (-0.6, -1.2))
_MARKERS: tuple[Any, ...] = ("o", "s", "D", "^", "v", "X", _BAR, "P", "*")
_RINGS: dict[str, dict[str, Any]] = {  # by kind of choice
    BEST: {"s": 250, "edgecolors": _ACCENT, "linewidths": 1.8},
    KNEE: {"s": 150, "linewidths": 1.2, "linestyle": (0, (2, 1.6))},
    LOSSLESS: {"s": 105, "edgecolors": "#1d7a4e", "linewidths": 1.5},
}
_MAX_NAMES = 12
_MAX_PALE_BARS = 100  # trials; with more, only the front has error bars
_MAX_LINE = 24  # characters of a name
_MAX_LEGEND_COLUMNS, _LEGEND_BELOW_PT, _LEGEND_SIZE = 6, 38, 8.0
FIGURE_SIZE = (7.6, 5.6)
_DPI, _TRUETYPE = 120, 42
_NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_SIZE, _PALE_SIZE, _STAR = 62, 26, 2.2  # areas of markers; of a star, times this
# lines of names in the margin, in heights of letters; gaps between, in 1/72 inch
_NAME_LINE, _NAME_GAP = 1.32, 3.0
# inches; narrower or lower axes have numbers beside points in the place of names, small letters
_SMALL = (4.2, 2.4)
# heights of letters between the edge of a mark and the middle of a number that needs no line to it
_NEAR = 1.3
_MAX_NUMBERS = 40  # trials; with more, those off the front without a label have no numbers
_DIGITS = 0.75  # height of digits, in heights of a line of text
_LINE_STEP = 2.0  # between the points by which numbers are kept off a line, in 1/72 inch
_SMALL_TICKS, _SMALL_LABELS, _SMALL_LEGEND, _SMALL_AREAS = 7.0, 8.0, 6.5, 0.45
_NAME_PLACE = 1.015  # of the names, in widths of the plot


class Look(NamedTuple):
    """The marks of a family of settings, here and in the report. colour: c0 to c7, and ink for
    vanilla. shape: 0 to 7, and 8, a star, for vanilla.
    """

    colour: str
    shape: int

    @property
    def rgb(self) -> str:
        """The colour on white."""
        return _INK if self.colour == "ink" else _COLOURS[int(self.colour[1:])]


def looks(families: Sequence[str]) -> dict[str, Look]:
    """The look of each family. Alphabetical order makes it independent of the trials' order."""
    others = sorted(set(families) - {VANILLA})
    shapes = len(_MARKERS) - 1
    found = {
        name: Look(f"c{place % len(_COLOURS)}", place % shapes) for place, name in enumerate(others)
    }
    return {VANILLA: Look("ink", shapes)} | found


def front_plot(
    front: Front, title: str = "", ending: str = ".png", size: tuple[float, float] | None = None
) -> bytes:
    """A file of the first two metrics with one standard error in each direction (see `plot_front`).

    ending: one of `orchestrator.outputs.PLOTS`. size: in inches; by default that of matplotlib's
    style, if it sets one.
    """
    return _render(lambda plot: plot_front(plot, front, title), ending, size)


def scatter_plot(
    points: Sequence[tuple[float, float]],
    families: Sequence[str],
    labels: tuple[str, str],
    ending: str = ".png",
) -> bytes:
    """A file of points without errors. families: of each point. ending: as in `front_plot`."""

    def draw(plot: Axes) -> None:
        values = np.array(points)
        for name, look in looks(families).items():
            rows = np.array([family == name for family in families], dtype=np.bool_)
            if rows.any():
                size = 150 if name == VANILLA else 12
                marker = _MARKERS[look.shape]
                plot.scatter(
                    values[rows, 0],
                    values[rows, 1],
                    s=size,
                    color=_colour(look),
                    marker=marker,
                    alpha=0.7,
                    label=name,
                )
        _style(plot, *labels)

    return _render(draw, ending)


def figure_size() -> tuple[float, float]:
    """The size in inches of a figure of its own: that of matplotlib's style, if it sets one."""
    from matplotlib import rcParams, rcParamsDefault

    own = rcParams["figure.figsize"]
    default = rcParamsDefault["figure.figsize"]
    return FIGURE_SIZE if list(own) == list(default) else (own[0], own[1])


def _render(
    draw: Callable[[Axes], None], ending: str, size: tuple[float, float] | None = None
) -> bytes:
    """The file: equal plots are equal bytes. In PDF and SVG, text is text, and a PDF has its fonts,
    as TrueType.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size or figure_size(), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep global state
    draw(figure.add_subplot())
    buffer = io.BytesIO()
    with rc_context(
        {"pdf.fonttype": _TRUETYPE, "svg.fonttype": "none", "svg.hashsalt": "specfrontier"}
    ):
        figure.savefig(buffer, format=ending[1:], dpi=_DPI, metadata=_NO_DATE.get(ending))
    return buffer.getvalue()


def _styled(key: str, ours: Any) -> Any:
    """matplotlib's setting, if its style sets one, else ours."""
    import matplotlib

    own, default = (
        dict(params.items())[key] for params in (matplotlib.rcParams, matplotlib.rcParamsDefault)
    )
    return ours if own == default else own


def _ink() -> str:
    return str(_styled("text.color", _INK))


def _colour(look: Look) -> str:
    """The colour of a family: of the style's cycle, if it sets one."""
    if look.colour == "ink":
        return _ink()
    cycle = _styled("axes.prop_cycle", None)
    colours = cycle.by_key().get("color") if cycle is not None else None
    return str(colours[int(look.colour[1:]) % len(colours)]) if colours else look.rgb


def _inches(plot: Axes) -> tuple[float, float]:
    """The width and height of the axes."""
    figure: Any = plot.get_figure(root=True)
    return plot.bbox.width / figure.dpi, plot.bbox.height / figure.dpi


def _is_small(plot: Axes) -> bool:
    return any(side < limit for side, limit in zip(_inches(plot), _SMALL, strict=True))


def _areas(plot: Axes) -> float:
    """The factor of all areas of markers."""
    return _SMALL_AREAS if _is_small(plot) else 1.0


def _style(plot: Axes, x: str, y: str, title: str = "") -> None:
    from matplotlib.font_manager import FontProperties
    from matplotlib.transforms import ScaledTranslation

    small = _is_small(plot)
    label_size = _styled("axes.labelsize", _SMALL_LABELS if small else "medium")
    plot.set_xlabel(clean(x), fontsize=label_size, parse_math=False)
    plot.set_ylabel(clean(y), fontsize=label_size, parse_math=False)
    for axis in ("x", "y") if small else ():
        plot.tick_params(axis, labelsize=_styled(f"{axis}tick.labelsize", _SMALL_TICKS))
    if not small:  # a paper's figure has a caption
        plot.set_title(
            clean(title), fontsize=_styled("axes.titlesize", 11), loc="left", parse_math=False
        )
    plot.grid(alpha=0.25, linewidth=0.6)
    plot.spines[["top", "right"]].set_visible(False)
    figure: Any = plot.get_figure(root=True)
    legend_size = _styled("legend.fontsize", _SMALL_LEGEND if small else _LEGEND_SIZE)
    scale = FontProperties(size=legend_size).get_size_in_points() / _LEGEND_SIZE
    outer = plot.get_tightbbox()
    # from below the label of the y axis on
    left = outer.x0 - plot.bbox.x0 if small and outer is not None else 0.0
    down = -scale * _LEGEND_BELOW_PT / 72
    below = plot.transAxes + ScaledTranslation(left / figure.dpi, down, figure.dpi_scale_trans)
    if plot.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (0, 0),
            "bbox_transform": below,
        }
        if small:
            place |= {
                "handlelength": 1.2,
                "columnspacing": 0.8,
                "labelspacing": 0.2,
                "handletextpad": 0.4,
            }
        for columns in range(_MAX_LEGEND_COLUMNS, 0, -1):
            legend = plot.legend(
                frameon=False, fontsize=legend_size, ncols=columns, borderaxespad=0, **place
            )
            for text in legend.get_texts():
                text.set_parse_math(False)
            if legend.get_window_extent().width <= plot.bbox.width - left:
                break


def axis_label(metric: Metric, *, small: bool = False) -> str:
    """A metric as the label of an axis: `fid, lower is better`; `fid ↓` on small axes."""
    if small:
        return f"{metric.name} {'↑' if metric.direction == 'maximize' else '↓'}"
    unit = f" [{metric.unit}]" if metric.unit else ""
    return (
        f"{metric.name}{unit}, {'higher' if metric.direction == 'maximize' else 'lower'} is better"
    )


def plot_front(
    plot: Axes, front: Front, title: str = "", choices: Mapping[str, Choice] | None = None
) -> None:
    """Draw a front on matplotlib axes. Points off the front are pale, except vanilla. Those on it
    have names, up to a dozen, or numbers if the axes are narrow, and rings mark the choices
    (default: see `recommend`). With three metrics the front has no line. Fonts, colours and sizes
    are those of matplotlib's style, where it sets any.
    """
    candidates = front.candidates
    (x, y, *_) = front.metrics
    values, errors = _points_of(candidates, front)
    on_front = np.array([trial.on_front for trial in candidates], dtype=np.bool_)
    families = [family(trial.config) for trial in candidates]
    line = _front_line(values[on_front & (len(front.metrics) == 2)], x.direction)
    plot.plot(*line.T, color=_ACCENT, linewidth=1.4, zorder=1, label="front" if len(line) else None)
    for name, look in looks(families).items():
        rows = np.array([own == name for own in families], dtype=np.bool_)
        for member in (False, True):
            chosen = (
                rows & (on_front | (name == VANILLA))
                if member
                else rows & ~on_front & (name != VANILLA)
            )
            with_errors = member or len(candidates) <= _MAX_PALE_BARS
            _points(
                plot, values[chosen], errors[chosen] if with_errors else None, look, strong=member
            )
        if rows.any():
            plot.scatter(
                [],
                [],
                s=36 * _areas(plot),
                color=_colour(look),
                marker=_MARKERS[look.shape],
                label=name,
            )
    found = recommend(front).choices if choices is None else choices
    _mark_choices(plot, front, found)
    small = _is_small(plot)
    _style(plot, axis_label(x, small=small), axis_label(y, small=small), title)
    if not candidates:
        plot.text(
            0.5, 0.5, "no measured trial yet", ha="center", va="center", transform=plot.transAxes
        )
        return
    named = named_trials(front, found)
    if small:
        _write_numbers(plot, front, named)
    else:
        _write_names(plot, _points_of(named, front)[0], named)


def _points_of(trials: Sequence[Trial], front: Front) -> tuple[Floats, Floats]:
    """The trials' values in the front's first two metrics, and their errors, 0 if unknown: each
    [trials, 2].
    """
    entries = [[trial.metrics[metric.name] for metric in front.metrics[:2]] for trial in trials]
    values = np.array([[entry.value for entry in row] for row in entries], dtype=np.float64)
    errors = np.array(
        [[entry.known_error or 0.0 for entry in row] for row in entries], dtype=np.float64
    )
    return values.reshape(-1, 2), errors.reshape(-1, 2)


def _write_numbers(plot: Axes, front: Front, named: Sequence[Candidate]) -> None:
    """Write the trials' names in tables beside their points: of the `named` ones, and of others
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
    trials, unit = [*named, *others], 72 / figure.dpi  # of a dot, in 1/72 inch
    size = FontProperties(size=_styled("legend.fontsize", _SMALL_LEGEND)).get_size_in_points()
    texts = [
        Text(text=trial.name, fontsize=size, parse_math=False, figure=figure) for trial in trials
    ]
    frames = [text.get_window_extent() for text in texts]
    sizes = np.array([(frame.width, _DIGITS * frame.height) for frame in frames]) * unit
    corner = np.array(plot.bbox.p0)
    values = _points_of(trials, front)[0]
    points = (plot.transData.transform(values) - corner) * unit
    marks, lines = _drawn(plot)
    centres = place_numbers(
        points, sizes, marks, lines, (plot.bbox.width * unit, plot.bbox.height * unit), len(named)
    )
    for trial, value, offset, point in zip(trials, values, centres - points, points, strict=True):
        if np.isnan(offset).any():
            continue
        colour = _ink() if trial.on_front else _styled("text.color", _SOFT)
        ground = _styled("axes.facecolor", "white")
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


def _write_names(plot: Axes, points: Floats, named: Sequence[Candidate]) -> None:
    """Write names in the right margin, each as near to the height of its point as the others allow,
    with a line to it: the first ones, as many as the plot is high.

    points: of the trials [n, 2].
    """
    from matplotlib.font_manager import FontProperties

    figure: Any = plot.get_figure(root=True)
    figure.draw_without_rendering()  # sets the limits and the size of the plot
    size = FontProperties(size=_styled("legend.fontsize", _LEGEND_SIZE)).get_size_in_points()
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
            color=_ink() if named[i].on_front else _styled("text.color", _SOFT),
            zorder=5,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _LEADER,
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


def _front_line(points: Floats, x_direction: str) -> Floats:
    """The corners [n, 2] of the front's stairs: at each x the best y measured at that x or a better
    one.
    """
    line = points[np.lexsort(points.T[::-1])]
    between = np.stack(
        [line[:-1, 0], line[1:, 1]] if x_direction == "maximize" else [line[1:, 0], line[:-1, 1]],
        axis=1,
    )
    return np.insert(line, np.arange(1, len(line)), between, axis=0) if len(line) else line


def _points(plot: Axes, values: Floats, errors: Floats | None, look: Look, *, strong: bool) -> None:
    if not len(values):
        return
    x, y = values.T
    if errors is not None:
        plot.errorbar(
            x,
            y,
            xerr=errors[:, 0],
            yerr=errors[:, 1],
            fmt="none",
            ecolor=_colour(look),
            elinewidth=1.0,
            alpha=0.85 if strong else 0.3,
            zorder=2,
        )
    size = (
        (_STAR if look.shape == len(_MARKERS) - 1 else 1.0)
        * (_SIZE if strong else _PALE_SIZE)
        * _areas(plot)
    )
    ground = _styled("axes.facecolor", "white")
    colour = _colour(look)
    face, edge = (colour, ground) if strong else (ground, colour)
    plot.scatter(
        x, y, s=size, marker=_MARKERS[look.shape], facecolors=face, edgecolors=edge, linewidths=0.8,
        alpha=1 if strong else 0.7, zorder=3,
    )  # fmt: skip


def _mark_choices(plot: Axes, front: Front, found: Mapping[str, Choice]) -> None:
    """Draw rings around the choices, and a line at the quality bar of a single sweep."""
    vanilla = next(iter(front.sweeps.values())).baseline
    quality = front.metrics[1]
    if default_limit(front) and len(front.sweeps) == 1 and vanilla is not None:
        factor = DEFAULT_FACTORS[quality.direction]
        level = factor * vanilla.metrics[quality.name].value
        low, high = plot.get_ylim()
        if low < level < high:
            name = f"{factor:g} × vanilla" + ("" if _is_small(plot) else f"'s {quality.name}")
            plot.axhline(level, color=_ACCENT, linewidth=1.0, dashes=(5, 4), zorder=1, label=name)
    for kind, trial in found.items():
        x, y = (trial[metric.name] for metric in front.metrics[:2])
        plot.scatter([x], [y], facecolors="none", zorder=4, **_ring(plot, kind))
        name = kind.replace("_", " ") if _is_small(plot) else trial.choice
        plot.scatter(
            [], [], facecolors="none", label=name, **(_ring(plot, kind) | {"s": 60 * _areas(plot)})
        )


def _ring(plot: Axes, kind: str) -> dict[str, Any]:
    ring = {"edgecolors": _ink(), **_RINGS[kind]}
    return ring | {"s": ring["s"] * _areas(plot)}


def named_trials(front: Front, found: Mapping[str, Choice]) -> list[Candidate]:
    """The candidates to name, the most important first: choices, vanilla, others on the front,
    others with a label.
    """
    vanilla = [trial for trial in front.candidates if trial.is_vanilla]
    named: dict[str, Candidate] = {trial.name: trial for trial in [*found.values(), *vanilla]}
    labelled = [trial for trial in front.candidates if trial.record.label.strip()]
    for group in (front.members, labelled):
        others = [trial for trial in group if trial.name not in named]
        count = min(_MAX_NAMES - len(named), len(others))
        places = np.linspace(0, len(others) - 1, count).round().astype(int) if count > 0 else ()
        named |= {others[place].name: others[place] for place in places}
    return list(named.values())


def short_title(trial: Trial) -> str:
    """Its label, else its setting's name, in lines."""
    name = clean(trial.record.label)
    return "\n".join(
        wrap(name if name.strip(" �") else trial.setting, _MAX_LINE, break_long_words=False)
    )
