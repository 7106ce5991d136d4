"""The front as a picture: points with error bars, coloured by acceptance rule, the front's points and choices named."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.results.choices import BEST, DEFAULT_FACTORS, LOSSLESS, default_choices, default_limit
from orchestrator.results.front import Front
from orchestrator.results.front_trial import KNEE, Trial
from orchestrator.results.names import VANILLA, family
from orchestrator.results.text import clean
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from orchestrator.results.pareto import Floats

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#bf5f97", "#a86f00", "#2b86c0", "#8c6d1f", "#7b4fa3")
_INK, _SOFT, _LEADER, _ACCENT = "#1f2328", "#5b636d", "#c3c6ca", "#1f6f78"
_BAR = ((-0.6, -1.2), (0.6, -1.2), (0.6, 1.2), (-0.6, 1.2), (-0.6, -1.2))
_MARKERS: tuple[Any, ...] = ("o", "s", "D", "^", "v", "H", _BAR, "P", "*")
_RINGS: dict[str, dict[str, Any]] = {  # by kind of choice
    BEST: {"s": 250, "edgecolors": _ACCENT, "linewidths": 1.8},
    KNEE: {"s": 150, "edgecolors": _INK, "linewidths": 1.2, "linestyle": (0, (2, 1.6))},
    LOSSLESS: {"s": 105, "edgecolors": "#1d7a4e", "linewidths": 1.5},
}
_MAX_NAMES = 12
_MAX_PALE_BARS = 100  # trials; with more, only the front has error bars
_MAX_LINE = 24  # characters of a name
_LEGEND_COLUMNS, _LEGEND_BELOW_PT = 4, 38
FIGURE_SIZE = (7.6, 5.6)
_DPI, _TRUETYPE = 120, 42
_NO_DATE = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
_SIZE, _PALE_SIZE, _STAR = 62, 26, 2.2  # areas of markers; of a star, times this
_NAME_SIZE, _NAME_LINE, _NAME_GAP = 8.0, 10.5, 3.0  # of names in the margin, their lines, the gaps; in 1/72 inch
_NAME_PLACE = 1.015  # of the names, in widths of the plot


class Look(NamedTuple):
    """The marks of a family of settings, here and in the report. colour: c0 to c7, and ink for vanilla. shape: 0 to 7,
    and 8, a star, for vanilla."""

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
    found = {name: Look(f"c{place % len(_COLOURS)}", place % shapes) for place, name in enumerate(others)}
    return {VANILLA: Look("ink", shapes)} | found


def front_plot(front: Front, title: str = "", ending: str = ".png") -> bytes:
    """A file of the first two metrics with one standard error in each direction (see `plot_front`).

    ending: one of `orchestrator.outputs.PLOTS`.
    """
    return _render(lambda plot: plot_front(plot, front, title), ending)


def scatter_plot(
    points: Sequence[tuple[float, float]], families: Sequence[str], labels: tuple[str, str], ending: str = ".png"
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
                    values[rows, 0], values[rows, 1], s=size, color=look.rgb, marker=marker, alpha=0.7, label=name
                )
        _style(plot, *labels)

    return _render(draw, ending)


def _render(draw: Callable[[Axes], None], ending: str) -> bytes:
    """The file: equal plots are equal bytes. In PDF and SVG, text is text."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=FIGURE_SIZE, layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep global state
    draw(figure.add_subplot())
    buffer = io.BytesIO()
    with rc_context({"pdf.fonttype": _TRUETYPE, "svg.fonttype": "none", "svg.hashsalt": "specfrontier"}):
        figure.savefig(buffer, format=ending[1:], dpi=_DPI, metadata=_NO_DATE.get(ending))
    return buffer.getvalue()


def _style(plot: Axes, x: str, y: str, title: str = "") -> None:
    from matplotlib.transforms import ScaledTranslation

    plot.set_xlabel(x)
    plot.set_ylabel(y)
    plot.set_title(clean(title), fontsize=11, loc="left", parse_math=False)
    plot.grid(alpha=0.25, linewidth=0.6)
    plot.spines[["top", "right"]].set_visible(False)
    figure: Any = plot.get_figure(root=True)
    below = plot.transAxes + ScaledTranslation(0, -_LEGEND_BELOW_PT / 72, figure.dpi_scale_trans)
    if plot.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below}
        plot.legend(frameon=False, fontsize=8, ncols=_LEGEND_COLUMNS, borderaxespad=0, **place)


def axis_label(metric: Metric) -> str:
    """A metric as the label of an axis: `fid, lower is better`."""
    unit = f" [{metric.unit}]" if metric.unit else ""
    return f"{metric.name}{unit}, {'higher' if metric.direction == 'maximize' else 'lower'} is better"


def plot_front(plot: Axes, front: Front, title: str = "", choices: Mapping[str, Trial] | None = None) -> None:
    """Draw a front on matplotlib axes. Points off the front are pale, except vanilla. Those on it have names, up to a
    dozen, and rings mark the choices (default: `default_choices`). With three metrics the front has no line.
    """
    candidates, (x, y, *_) = front.candidates, front.metrics
    values, errors = _points_of(candidates, front)
    on_front = np.array([trial.on_front for trial in candidates], dtype=np.bool_)
    families = [family(trial.config) for trial in candidates]
    line = _front_line(values[on_front & (len(front.metrics) == 2)], x.direction)
    plot.plot(*line.T, color=_ACCENT, linewidth=1.4, zorder=1, label="front" if len(line) else None)
    for name, look in looks(families).items():
        rows = np.array([own == name for own in families], dtype=np.bool_)
        for member in (False, True):
            chosen = rows & (on_front | (name == VANILLA)) if member else rows & ~on_front & (name != VANILLA)
            with_errors = member or len(candidates) <= _MAX_PALE_BARS
            _points(plot, values[chosen], errors[chosen] if with_errors else None, look, strong=member)
        if rows.any():
            plot.scatter([], [], color=look.rgb, marker=_MARKERS[look.shape], label=name)
    found = default_choices(front) if choices is None else choices
    _mark_choices(plot, front, found)
    _style(plot, axis_label(x), axis_label(y), title)
    if not candidates:
        plot.text(0.5, 0.5, "no measured trial yet", ha="center", va="center", transform=plot.transAxes)
        return
    named = named_trials(front, found)
    _write_names(plot, _points_of(named, front)[0], named)


def _points_of(trials: Sequence[Trial], front: Front) -> tuple[Floats, Floats]:
    """The trials' values in the front's first two metrics, and their errors, 0 if unknown: each [trials, 2]."""
    entries = [[trial.metrics[metric.name] for metric in front.metrics[:2]] for trial in trials]
    values = np.array([[entry.value for entry in row] for row in entries], dtype=np.float64)
    errors = np.array([[entry.known_error or 0.0 for entry in row] for row in entries], dtype=np.float64)
    return values.reshape(-1, 2), errors.reshape(-1, 2)


def _write_names(plot: Axes, points: Floats, named: Sequence[Trial]) -> None:
    """Write names in the right margin, each as near to the height of its point as the others allow, with a line to it.

    points: of the trials [n, 2].
    """
    figure: Any = plot.get_figure(root=True)
    figure.draw_without_rendering()  # sets the limits and the size of the plot
    texts = [short_title(trial) for trial in named]
    unit = figure.dpi / 72 / plot.get_window_extent().height  # 1/72 inch in heights of the plot
    heights = plot.transAxes.inverted().transform(plot.transData.transform(points))[:, 1]
    order = np.argsort(heights)
    sizes = np.array([unit * (_NAME_GAP + _NAME_LINE * len(text.splitlines())) for text in texts])
    for i, height in zip(order, _apart(heights[order], sizes[order]), strict=True):
        plot.annotate(
            texts[i], (points[i, 0], points[i, 1]), (_NAME_PLACE, height), textcoords="axes fraction", ha="left",
            va="center", fontsize=_NAME_SIZE, color=_INK if named[i].on_front else _SOFT, zorder=5, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": _LEADER, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4},
        )  # fmt: skip


def _apart(heights: Floats, sizes: Floats) -> Floats:
    """Centres [n], near the rising heights [n], of names of these sizes [n] that lie above one another from 0 on."""
    gaps = (sizes[1:] + sizes[:-1]) / 2
    offsets = np.concatenate([[0.0], np.cumsum(gaps)])
    lowest = np.maximum.accumulate(np.maximum(heights, sizes[0] / 2) - offsets)
    highest = max(1 - sizes[-1] / 2 - offsets[-1], sizes[0] / 2)
    centres: Floats = np.minimum(lowest, highest) + offsets
    return centres


def _front_line(points: Floats, x_direction: str) -> Floats:
    """The corners [n, 2] of the front's stairs: at each x the best y measured at that x or a better one."""
    line = points[np.lexsort(points.T[::-1])]
    between = np.stack(
        [line[:-1, 0], line[1:, 1]] if x_direction == "maximize" else [line[1:, 0], line[:-1, 1]], axis=1
    )
    return np.insert(line, np.arange(1, len(line)), between, axis=0) if len(line) else line


def _points(plot: Axes, values: Floats, errors: Floats | None, look: Look, *, strong: bool) -> None:
    if not len(values):
        return
    x, y = values.T
    if errors is not None:
        plot.errorbar(
            x, y, xerr=errors[:, 0], yerr=errors[:, 1], fmt="none", ecolor=look.rgb, elinewidth=1.0,
            alpha=0.85 if strong else 0.3, zorder=2,
        )  # fmt: skip
    size = (_STAR if look.shape == len(_MARKERS) - 1 else 1.0) * (_SIZE if strong else _PALE_SIZE)
    face, edge = (look.rgb, "white") if strong else ("white", look.rgb)
    plot.scatter(
        x, y, s=size, marker=_MARKERS[look.shape], facecolors=face, edgecolors=edge, linewidths=0.8,
        alpha=1 if strong else 0.7, zorder=3,
    )  # fmt: skip


def _mark_choices(plot: Axes, front: Front, found: Mapping[str, Trial]) -> None:
    """Draw rings around the choices, and a line at the quality bar of a single sweep."""
    vanilla, quality = next(iter(front.sweeps.values())).baseline, front.metrics[1]
    if default_limit(front) and len(front.sweeps) == 1 and vanilla is not None:
        factor = DEFAULT_FACTORS[quality.direction]
        level = factor * vanilla.metrics[quality.name].value
        low, high = plot.get_ylim()
        if low < level < high:
            name = f"{factor:g} × vanilla's {quality.name}"
            plot.axhline(level, color=_ACCENT, linewidth=1.0, dashes=(5, 4), zorder=1, label=name)
    for kind, trial in found.items():
        x, y = (trial[metric.name] for metric in front.metrics[:2])
        plot.scatter([x], [y], facecolors="none", zorder=4, **_RINGS[kind])
        plot.scatter([], [], facecolors="none", label=trial.choice, **(_RINGS[kind] | {"s": 60}))


def named_trials(front: Front, found: Mapping[str, Trial]) -> list[Trial]:
    """The candidates to name, the most important first: choices, vanilla, others on the front, others with a label."""
    vanilla = [trial for trial in front.candidates if trial.is_vanilla]
    named = {trial.name: trial for trial in [*found.values(), *vanilla]}
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
    return "\n".join(wrap(name if name.strip(" �") else trial.setting, _MAX_LINE, break_long_words=False))
