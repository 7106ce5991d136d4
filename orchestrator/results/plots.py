"""The front as a PNG: points with error bars, colour by acceptance rule, shape by tree policy, vanilla as a star."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.results.axes import Axis
from orchestrator.results.describe import VANILLA, family
from orchestrator.results.fronts import values_of
from orchestrator.results.sweep import Front

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colour-blind safe palette, darkest first; vanilla has its own colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7B4FA3")
_VANILLA_COLOUR = "#222222"
_MARKERS = {"none": "*", "chain": "o", "static": "s", "dynamic": "^", "adjacency": "D"}
_OTHER_MARKER = "v"


def front_png(front: Front, title: str = "", dpi: int = 120) -> bytes:
    """A PNG of the first two axes with one standard error in each direction.

    Points off the front are pale, except vanilla. With three axes the front has no line.
    """
    return _png(lambda plot: draw_front(plot, front, title), dpi)


def scatter_png(
    points: Sequence[tuple[float, float]], kinds: Sequence[tuple[str, str]], labels: tuple[str, str], dpi: int = 120
) -> bytes:
    """A PNG of points without errors. kinds: family and tree policy of each."""

    def draw(plot: Axes) -> None:
        palette, values = colours([name for name, _ in kinds]), np.array(points)
        for name, tree in sorted(set(kinds), key=lambda kind: (kind[0] != VANILLA, kind)):
            rows = np.array([kind == (name, tree) for kind in kinds], dtype=np.bool_)
            size = 150 if name == VANILLA else 12
            label = name if tree == "none" else f"{name}, {tree}"
            plot.scatter(
                values[rows, 0],
                values[rows, 1],
                s=size,
                color=palette[name],
                marker=_marker(tree),
                alpha=0.7,
                label=label,
            )
        plot.legend(frameon=False, fontsize=8, loc="best")
        _style(plot, *labels)

    return _png(draw, dpi)


def _png(draw: Callable[[Axes], None], dpi: int) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep global state
    draw(figure.add_subplot())
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def _style(plot: Axes, x: str, y: str, title: str = "") -> None:
    plot.set_xlabel(x)
    plot.set_ylabel(y)
    plot.set_title(title.replace("$", r"\$"), fontsize=11, loc="left")
    plot.grid(alpha=0.25, linewidth=0.6)
    plot.spines[["top", "right"]].set_visible(False)


def axis_label(axis: Axis) -> str:
    """An axis in words: `fid, lower is better`."""
    unit = f" [{axis.unit}]" if axis.unit else ""
    return f"{axis.name}{unit}, {'higher' if axis.direction == 'maximize' else 'lower'} is better"


def draw_front(plot: Axes, front: Front, title: str = "") -> None:
    """Draw a front on matplotlib axes (see `front_png`)."""
    axes = front.axes
    values, errors = values_of([candidate.record for candidate in front.candidates], axes[:2])
    errors = np.nan_to_num(errors)
    on_front = np.array([candidate.on_front for candidate in front.candidates], dtype=np.bool_)
    kinds = [(family(candidate.config), candidate.config.policy.kind) for candidate in front.candidates]
    palette = colours([name for name, _ in kinds])
    if len(axes) == 2 and on_front.any():
        line = values[on_front][np.lexsort(values[on_front].T[::-1])]
        # At each x the line shows the best y measured at that x or a better one.
        steps = "steps-pre" if axes[0].direction == "maximize" else "steps-post"
        plot.plot(line[:, 0], line[:, 1], color="0.55", linewidth=1.2, zorder=1, label="front", drawstyle=steps)
    for name, tree in sorted(set(kinds), key=lambda kind: (kind[0] != VANILLA, kind)):
        rows = np.array([kind == (name, tree) for kind in kinds], dtype=np.bool_)
        for member in (False, True):
            chosen = rows & (on_front == member)
            if chosen.any():
                _points(plot, values[chosen], errors[chosen], palette[name], tree, member or name == VANILLA)
        label = name if tree == "none" else f"{name}, {tree}"
        plot.scatter([], [], color=palette[name], marker=_marker(tree), label=label)
    if kinds:
        plot.legend(frameon=False, fontsize=8, loc="best")
    else:
        plot.text(0.5, 0.5, "no measured trial yet", ha="center", va="center", transform=plot.transAxes)
    _style(plot, axis_label(axes[0]), axis_label(axes[1]), title)


def _points(plot: Axes, values: Any, errors: Any, colour: str, tree: str, strong: bool) -> None:
    plot.errorbar(
        values[:, 0], values[:, 1], xerr=errors[:, 0], yerr=errors[:, 1],
        fmt="none", ecolor=colour, elinewidth=0.9, capsize=2, alpha=0.8 if strong else 0.25, zorder=2,
    )  # fmt: skip
    size = (150 if tree == "none" else 44) * (1.0 if strong else 0.6)
    plot.scatter(
        values[:, 0], values[:, 1], s=size, color=colour, marker=_marker(tree),
        edgecolors="white", linewidths=0.6, alpha=1.0 if strong else 0.35, zorder=3,
    )  # fmt: skip


def colours(families: Sequence[str]) -> dict[str, str]:
    """A colour for each family. Alphabetical order makes it independent of the trials' order."""
    others = sorted(set(families) - {VANILLA})
    return {VANILLA: _VANILLA_COLOUR} | {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(others)}


def _marker(tree: str) -> str:
    return _MARKERS.get(tree, _OTHER_MARKER)
