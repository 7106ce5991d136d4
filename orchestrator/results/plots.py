"""The front as a picture: points with error bars, coloured by acceptance rule, the front's points and choices named."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.results.axes import Axis
from orchestrator.results.choices import BEST, DEFAULT_FACTORS, KNEE, LOSSLESS, Choice, choose, default_limit
from orchestrator.results.describe import VANILLA, family
from orchestrator.results.fronts import Candidate, values_of
from orchestrator.results.plot_labels import Label, Obstacles, label_points
from orchestrator.results.sweep import Front
from orchestrator.results.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from orchestrator.results.pareto import Floats

# Colours and shapes are those of the HTML report.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#bf5f97", "#a86f00", "#2b86c0", "#8c6d1f", "#7b4fa3")
_INK, ACCENT = "#1f2328", "#1f6f78"
_BAR = ((-0.6, -1.2), (0.6, -1.2), (0.6, 1.2), (-0.6, 1.2), (-0.6, -1.2))
_MARKERS: tuple[Any, ...] = ("o", "s", "D", "^", "v", "H", _BAR, "P", "*")
RINGS: dict[str, dict[str, Any]] = {  # by kind of choice
    BEST: {"s": 250, "edgecolors": ACCENT, "linewidths": 1.8},
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
_REACH = 6.0  # half the width of the front's markers, in 1/72 inch
_RING_REACHES = {kind: ring["s"] ** 0.5 / 2 + ring["linewidths"] for kind, ring in RINGS.items()}


class Look(NamedTuple):
    """Of a family of settings. shape: 0 to 7, and 8, a star, for vanilla."""

    colour: str
    shape: int


def looks(families: Sequence[str]) -> dict[str, Look]:
    """The look of each family. Alphabetical order makes it independent of the trials' order."""
    others = sorted(set(families) - {VANILLA})
    shapes = len(_MARKERS) - 1
    found = {name: Look(_COLOURS[place % len(_COLOURS)], place % shapes) for place, name in enumerate(others)}
    return {VANILLA: Look(_INK, shapes)} | found


def front_plot(front: Front, title: str = "", ending: str = ".png") -> bytes:
    """A file of the first two axes with one standard error in each direction (see `draw_front`).

    ending: one of `orchestrator.outputs.PLOTS`.
    """
    return _render(lambda plot: draw_front(plot, front, title), ending)


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
                    values[rows, 0], values[rows, 1], s=size, color=look.colour, marker=marker, alpha=0.7, label=name
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


def axis_label(axis: Axis) -> str:
    """An axis in words: `fid, lower is better`."""
    unit = f" [{axis.unit}]" if axis.unit else ""
    return f"{axis.name}{unit}, {'higher' if axis.direction == 'maximize' else 'lower'} is better"


def draw_front(plot: Axes, front: Front, title: str = "", choices: Mapping[str, Choice] | None = None) -> None:
    """Draw a front on matplotlib axes. Points off the front are pale, except vanilla. Those on it have names, up to a
    dozen, and rings mark the choices (default: `marked_choices`). With three axes the front has no line.
    """
    candidates, (x, y, *_) = front.candidates, front.axes
    values, errors = values_of([candidate.record for candidate in candidates], (x, y))
    errors = np.nan_to_num(errors)
    on_front = np.array([candidate.on_front for candidate in candidates], dtype=np.bool_)
    families = [family(candidate.config) for candidate in candidates]
    lines = _front_line(values[on_front & (len(front.axes) == 2)], x.direction)
    plot.plot(*lines.T, color=ACCENT, linewidth=1.4, zorder=1, label="front" if len(lines) else None)
    for name, look in looks(families).items():
        rows = np.array([own == name for own in families], dtype=np.bool_)
        for member in (False, True):
            chosen = rows & (on_front | (name == VANILLA)) if member else rows & ~on_front & (name != VANILLA)
            with_errors = member or len(candidates) <= _MAX_PALE_BARS
            _points(plot, values[chosen], errors[chosen] if with_errors else None, look, strong=member)
        if rows.any():
            plot.scatter([], [], color=look.colour, marker=_MARKERS[look.shape], label=name)
    found = marked_choices(front) if choices is None else choices
    bar = _mark_choices(plot, front, found, values)
    _style(plot, axis_label(x), axis_label(y), title)
    if not candidates:
        plot.text(0.5, 0.5, "no measured trial yet", ha="center", va="center", transform=plot.transAxes)
        return
    named = named_candidates(front, found)
    with_bars = on_front | (len(candidates) <= _MAX_PALE_BARS)
    stairs = np.stack([lines[:-1], lines[1:]], axis=1)
    covered = np.concatenate([_error_lines(values[with_bars], errors[with_bars]), stairs, bar])
    points, _ = values_of([candidate.record for candidate in named], (x, y))
    texts = [Label(short_title(trial), is_strong=trial.on_front) for trial in named]
    marks = marked_points(front, found, _REACH, _RING_REACHES)
    label_points(plot, points, texts, Obstacles(values, marks, covered))


def _front_line(points: Floats, x_direction: str) -> Floats:
    """The corners [n, 2] of the front's stairs: at each x the best y measured at that x or a better one."""
    line = points[np.lexsort(points.T[::-1])]
    between = np.stack(
        [line[:-1, 0], line[1:, 1]] if x_direction == "maximize" else [line[1:, 0], line[:-1, 1]], axis=1
    )
    return np.insert(line, np.arange(1, len(line)), between, axis=0) if len(line) else line


def _error_lines(values: Floats, errors: Floats) -> Floats:
    """The segments [2 n, 2, 2] of the error bars."""
    reach = [errors * axis for axis in ((1.0, 0.0), (0.0, 1.0))]
    return np.concatenate([np.stack([values - each, values + each], axis=1) for each in reach])


def _points(plot: Axes, values: Floats, errors: Floats | None, look: Look, *, strong: bool) -> None:
    if not len(values):
        return
    x, y = values.T
    if errors is not None:
        plot.errorbar(
            x, y, xerr=errors[:, 0], yerr=errors[:, 1], fmt="none", ecolor=look.colour, elinewidth=1.0,
            alpha=0.85 if strong else 0.3, zorder=2,
        )  # fmt: skip
    size = (_STAR if look.shape == len(_MARKERS) - 1 else 1.0) * (_SIZE if strong else _PALE_SIZE)
    face, edge = (look.colour, "white") if strong else ("white", look.colour)
    plot.scatter(
        x, y, s=size, marker=_MARKERS[look.shape], facecolors=face, edgecolors=edge, linewidths=0.8,
        alpha=1 if strong else 0.7, zorder=3,
    )  # fmt: skip


def _mark_choices(plot: Axes, front: Front, found: Mapping[str, Choice], values: Floats) -> Floats:
    """Rings around the choices, and a line at the quality bar of a single sweep: returns its segments [n, 2, 2]."""
    vanilla, quality = next(iter(front.sweeps.values())).baseline, front.axes[1]
    bar = np.empty((0, 2, 2))
    if default_limit(front) and len(front.sweeps) == 1 and vanilla is not None:
        factor = DEFAULT_FACTORS[quality.direction]
        level = factor * vanilla.metrics[quality.name].value
        (left, right), (low, high) = plot.get_xlim(), plot.get_ylim()
        if low < level < high:
            name = f"{factor:g} × vanilla's {quality.name}"
            plot.axhline(level, color=ACCENT, linewidth=1.0, dashes=(5, 4), zorder=1, label=name)
            bar = np.array([[[left, level], [right, level]]])
    for kind, choice in found.items():
        x, y = values[front.candidates.index(choice.trial)]
        plot.scatter([x], [y], facecolors="none", zorder=4, **RINGS[kind])
        plot.scatter([], [], facecolors="none", label=choice.heading, **(RINGS[kind] | {"s": 60}))
    return bar


def marked_choices(front: Front) -> dict[str, Choice]:
    """The choices within the default bar that have rings, by kind."""
    limit = default_limit(front)
    return choose(front, [limit] if limit else [])


def named_candidates(front: Front, found: Mapping[str, Choice]) -> list[Candidate]:
    """The candidates to name, the most important first: choices, vanilla, others on the front, others with a label."""
    baselines = [sweep.baseline for sweep in front.sweeps.values()]
    vanilla = [candidate for candidate in front.candidates if candidate.record in baselines]
    named = {trial.name: trial for trial in [*(choice.trial for choice in found.values()), *vanilla]}
    labelled = [candidate for candidate in front.candidates if candidate.record.label.strip()]
    for group in (front.members, labelled):
        others = [candidate for candidate in group if candidate.name not in named]
        count = min(_MAX_NAMES - len(named), len(others))
        places = np.linspace(0, len(others) - 1, count).round().astype(int) if count > 0 else ()
        named |= {others[place].name: others[place] for place in places}
    return list(named.values())


def marked_points(front: Front, found: Mapping[str, Choice], reach: float, ring_reaches: Mapping[str, float]) -> Floats:
    """The markers [n, 3] that no name may cover, points of the front and rings: x, y and half the width."""
    marks = [(member, reach) for member in front.members]
    marks += [(choice.trial, ring_reaches[kind]) for kind, choice in found.items()]
    values, _ = values_of([trial.record for trial, _ in marks], front.axes[:2])
    return np.column_stack([values, [width for _, width in marks]])


def short_title(candidate: Candidate) -> str:
    """Its label, else its setting's name, in lines."""
    name = clean(candidate.record.label)
    return "\n".join(wrap(name if name.strip(" �") else candidate.setting, _MAX_LINE, break_long_words=False))
