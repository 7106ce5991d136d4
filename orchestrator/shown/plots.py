"""The front as a picture: points with error bars, coloured by acceptance rule, the front's points
and choices named.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.front.choice import (
    DEFAULT_FACTORS,
    Choice,
    ChoiceKind,
    default_limit,
    recommend,
)
from orchestrator.front.front import Front
from orchestrator.shown.plot_labels import named_trials, write_names, write_numbers
from orchestrator.shown.plot_style import (
    ACCENT,
    INK,
    LEGEND_SIZE,
    SMALL_LEGEND,
    ink,
    points_of,
    styled,
)
from orchestrator.store.names import VANILLA, family
from orchestrator.text import clean
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from orchestrator.front.pareto import Floats

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#bf5f97", "#6b3a10", "#55178a", "#5a5a5a", "#916b38")
_BAR = ((-0.6, -1.2), (0.6, -1.2), (0.6, 1.2), (-0.6, 1.2), (-0.6, -1.2))
_MARKERS: tuple[Any, ...] = ("o", "s", "D", "^", "v", "X", _BAR, "P", "*")
_RINGS: dict[ChoiceKind, dict[str, Any]] = {
    "best": {"s": 250, "edgecolors": ACCENT, "linewidths": 1.8},
    "knee": {"s": 150, "linewidths": 1.2, "linestyle": (0, (2, 1.6))},
    "best_lossless": {"s": 105, "edgecolors": "#1d7a4e", "linewidths": 1.5},
}
_MAX_PALE_BARS = 100  # trials; with more, only the front has error bars
_MAX_LEGEND_COLUMNS = 6
_LEGEND_BELOW_PT = 38
FIGURE_SIZE = (7.6, 5.6)
_DPI = 120
_TRUETYPE = 42  # the type of fonts in a PDF
_NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_AREA = 62  # of a marker
_PALE_AREA = 26
_STAR_AREA = 2.2  # times the area of another marker
# inches; narrower or lower axes have small letters, and numbers next to points instead of names
_SMALL = (4.2, 2.4)
_SMALL_TICKS = 7.0
_SMALL_LABELS = 8.0
_SMALL_AREAS = 0.45  # times the areas of markers


class Look(NamedTuple):
    """The marks of a family of settings, here and in the report."""

    colour: str  # c0 to c7, and ink for vanilla
    shape: int  # 0 to 7, and 8, a star, for vanilla

    @property
    def rgb(self) -> str:
        """The colour on white."""
        return INK if self.colour == "ink" else _COLOURS[int(self.colour[1:])]


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
    style, if it sets one. A PNG says the front's values in its metadata.
    """
    facts = {"Description": _describe(front)} if ending == ".png" else None
    return _render(lambda plot: plot_front(plot, front, title), ending, size, facts)


def _describe(front: Front) -> str:
    """The values of the trials on the front, a line for each: what a picture's metadata say."""
    lines = []
    for trial in front.members:
        values = (f"{metric.name} {trial.metrics[metric.name]}" for metric in front.metrics)
        lines.append(f"trial {trial.name}: {', '.join(values)}")
    return "\n".join(lines)


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
    draw: Callable[[Axes], None],
    ending: str,
    size: tuple[float, float] | None = None,
    facts: Mapping[str, str] | None = None,
) -> bytes:
    """The file, with facts as its metadata; equal plots are equal bytes. In PDF and SVG, text is
    text, and a PDF has its fonts, as TrueType.
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
        metadata = facts or _NO_DATE.get(ending)
        figure.savefig(buffer, format=ending[1:], dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _colour(look: Look) -> str:
    """The colour of a family: of the style's cycle, if it sets one."""
    if look.colour == "ink":
        return ink()
    cycle = styled("axes.prop_cycle", None)
    if cycle is not None and (colours := cycle.by_key().get("color")):
        return str(colours[int(look.colour[1:]) % len(colours)])
    return look.rgb


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
    """Write the labels of the axes, the title and the legend."""
    small = _is_small(plot)
    label_size = styled("axes.labelsize", _SMALL_LABELS if small else "medium")
    plot.set_xlabel(clean(x), fontsize=label_size, parse_math=False)
    plot.set_ylabel(clean(y), fontsize=label_size, parse_math=False)
    if small:
        plot.tick_params("x", labelsize=styled("xtick.labelsize", _SMALL_TICKS))
        plot.tick_params("y", labelsize=styled("ytick.labelsize", _SMALL_TICKS))
    else:  # a paper's figure has a caption
        plot.set_title(
            clean(title), fontsize=styled("axes.titlesize", 11), loc="left", parse_math=False
        )
    plot.grid(alpha=0.25, linewidth=0.6)
    plot.spines[["top", "right"]].set_visible(False)
    if plot.get_legend_handles_labels()[0]:
        _add_legend(plot, small=small)


def _add_legend(plot: Axes, *, small: bool) -> None:
    """Add a legend below the axes, in as many columns as there is room for."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.transforms import ScaledTranslation

    figure: Any = plot.get_figure(root=True)
    size = styled("legend.fontsize", SMALL_LEGEND if small else LEGEND_SIZE)
    scale = FontProperties(size=size).get_size_in_points() / LEGEND_SIZE
    left = 0.0
    options: dict[str, Any] = {}
    if small:
        if (outer := plot.get_tightbbox()) is not None:
            left = outer.x0 - plot.bbox.x0  # from below the label of the y axis on
        options = {
            "handlelength": 1.2,
            "columnspacing": 0.8,
            "labelspacing": 0.2,
            "handletextpad": 0.4,
        }
    down = -scale * _LEGEND_BELOW_PT / 72
    below = ScaledTranslation(left / figure.dpi, down, figure.dpi_scale_trans)
    for columns in range(_MAX_LEGEND_COLUMNS, 0, -1):
        legend = plot.legend(
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=plot.transAxes + below,
            frameon=False,
            fontsize=size,
            ncols=columns,
            borderaxespad=0,
            **options,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        if legend.get_window_extent().width <= plot.bbox.width - left:
            break


def _axis_label(metric: Metric, *, small: bool = False) -> str:
    """A metric as the label of an axis: `fid, lower is better`; `fid ↓` on small axes."""
    arrow, better = ("↑", "higher") if metric.direction == "maximize" else ("↓", "lower")
    if small:
        return f"{metric.name} {arrow}"
    name = f"{metric.name} [{metric.unit}]" if metric.unit else metric.name
    return f"{name}, {better} is better"


def plot_front(plot: Axes, front: Front, title: str = "") -> None:
    """Draw a front on matplotlib axes. Points that are not on the front are pale, except vanilla.
    Those on it have names, up to a dozen, or numbers if the axes are narrow, and rings mark the
    choices (see `recommend`). With three metrics the front has no line. Fonts, colours and
    sizes are those of matplotlib's style, where it sets any.
    """
    candidates = front.candidates
    (x, y, *_) = front.metrics
    values, errors = points_of(candidates, front)
    on_front = np.array([trial.on_front for trial in candidates], dtype=np.bool_)
    families = [family(trial.config) for trial in candidates]
    small = _is_small(plot)
    labels = {family(trial.config): family(trial.config, short=small) for trial in candidates}
    line = _front_line(values[on_front & (len(front.metrics) == 2)], x.direction)
    label = "front" if len(line) and not small else None
    plot.plot(*line.T, color=ACCENT, linewidth=1.4, zorder=1, label=label)
    has_pale_bars = len(candidates) <= _MAX_PALE_BARS
    for name, look in _front_looks(front).items():
        rows = np.array([own == name for own in families], dtype=np.bool_)
        strong = rows & (on_front | (name == VANILLA))
        pale = rows & ~strong
        _points(plot, values[pale], errors[pale] if has_pale_bars else None, look, strong=False)
        _points(plot, values[strong], errors[strong], look, strong=True)
        if rows.any():
            plot.scatter(
                [],
                [],
                s=36 * _areas(plot),
                color=_colour(look),
                marker=_MARKERS[look.shape],
                label=labels[name],
            )
    choices = recommend(front).choices
    _mark_choices(plot, front, choices)
    _style(plot, _axis_label(x, small=small), _axis_label(y, small=small), title)
    if not candidates:
        plot.text(
            0.5, 0.5, "no measured trial yet", ha="center", va="center", transform=plot.transAxes
        )
        return
    named = named_trials(front, choices.values())
    if small:
        write_numbers(plot, front, named)
    else:
        write_names(plot, points_of(named, front)[0], named)


def _front_looks(front: Front) -> dict[str, Look]:
    """The look of each family of the sweeps' trials, whichever of them the front shows."""
    records = [record for sweep in front.sweeps.values() for record in sweep.records]
    return looks([family(record.config) for record in records if record.config is not None])


def _front_line(points: Floats, x_direction: str) -> Floats:
    """The corners [n, 2] of the front's stairs: at each x the best y measured at that x or a better
    one.
    """
    line = points[np.lexsort(points.T[::-1])]
    if not len(line):
        return line
    corners = [line[1:, 0], line[:-1, 1]]
    if x_direction == "maximize":
        corners = [line[:-1, 0], line[1:, 1]]
    return np.insert(line, np.arange(1, len(line)), np.stack(corners, axis=1), axis=0)


def _points(plot: Axes, values: Floats, errors: Floats | None, look: Look, *, strong: bool) -> None:
    """Draw points with their errors; pale unless they are strong."""
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
    area = (_AREA if strong else _PALE_AREA) * _areas(plot)
    if look.shape == len(_MARKERS) - 1:
        area *= _STAR_AREA
    ground = styled("axes.facecolor", "white")
    colour = _colour(look)
    face, edge = (colour, ground) if strong else (ground, colour)
    plot.scatter(
        x, y, s=area, marker=_MARKERS[look.shape], facecolors=face, edgecolors=edge, linewidths=0.8,
        alpha=1 if strong else 0.7, zorder=3,
    )  # fmt: skip


def _mark_choices(plot: Axes, front: Front, choices: Mapping[ChoiceKind, Choice]) -> None:
    """Draw rings around the choices, and a line at the quality bar of a single sweep."""
    vanilla = next(iter(front.sweeps.values())).baseline
    quality = front.metrics[1]
    if default_limit(front) and len(front.sweeps) == 1 and vanilla is not None:
        factor = DEFAULT_FACTORS[quality.direction]
        level = factor * vanilla.metrics[quality.name].value
        low, high = plot.get_ylim()
        if low < level < high:
            name = f"{factor:g} × vanilla"
            if not _is_small(plot):
                name += f"'s {quality.name}"
            plot.axhline(level, color=ACCENT, linewidth=1.0, dashes=(5, 4), zorder=1, label=name)
    for kind, trial in choices.items():
        x, y = (trial[metric.name] for metric in front.metrics[:2])
        plot.scatter([x], [y], facecolors="none", zorder=4, **_ring(plot, kind))
        name = kind.replace("_", " ") if _is_small(plot) else trial.choice
        plot.scatter(
            [], [], facecolors="none", label=name, **(_ring(plot, kind) | {"s": 60 * _areas(plot)})
        )


def _ring(plot: Axes, kind: ChoiceKind) -> dict[str, Any]:
    ring = {"edgecolors": ink(), **_RINGS[kind]}
    return ring | {"s": ring["s"] * _areas(plot)}
