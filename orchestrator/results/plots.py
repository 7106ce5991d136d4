"""The front as a picture: points with their uncertainty, families by colour, the front's line, vanilla as a star."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.results.describe import VANILLA, family
from orchestrator.results.fronts import values_of
from orchestrator.results.store import Axis
from search_spaces.trial import DecodingConfig

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart, darkest first; vanilla has its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#7B4FA3")
VANILLA_COLOUR = "#222222"
MARKERS = {"none": "*", "chain": "o", "static": "s", "dynamic": "^", "adjacency": "D"}
OTHER_MARKER = "v"


def front_png(
    table: pyarrow.Table, settings: Sequence[DecodingConfig], axes: Sequence[Axis], title: str = "", dpi: int = 120
) -> bytes:
    """A PNG of the first two axes, one standard error either way.

    table: as `mark_front` gives it, preferably with `everything`. settings: one for each of its rows. Colour is the
    acceptance rule, shape the tree policy; what is off the front is pale, but for vanilla. With a third axis the front
    has no line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)  # without pyplot there is no state that others could see
    plot = figure.add_subplot()
    _draw(plot, table, settings, axes)
    plot.set_xlabel(_label(axes[0]))
    plot.set_ylabel(_label(axes[1]))
    plot.set_title(title.replace("$", r"\$"), fontsize=11, loc="left")
    plot.grid(alpha=0.25, linewidth=0.6)
    plot.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def _label(axis: Axis) -> str:
    unit = f" [{axis.unit}]" if axis.unit else ""
    return f"{axis.name}{unit}, {'higher' if axis.direction == 'maximize' else 'lower'} is better"


def _draw(plot: Axes, table: pyarrow.Table, settings: Sequence[DecodingConfig], axes: Sequence[Axis]) -> None:
    values, errors = values_of(table, axes[:2]), np.nan_to_num(values_of(table, axes[:2], errors=True))
    on_front = np.array(table["on_front"].to_pylist(), dtype=np.bool_)
    families = [family(setting) for setting in settings]
    trees = [setting.policy.kind for setting in settings]
    palette = colours(families)
    if len(axes) == 2 and on_front.any():
        line = values[on_front][np.lexsort(values[on_front].T[::-1])]
        # The best that was measured at each x or better: between two points the worse of them in y holds.
        steps = "steps-pre" if axes[0].direction == "maximize" else "steps-post"
        plot.plot(line[:, 0], line[:, 1], color="0.55", linewidth=1.2, zorder=1, label="front", drawstyle=steps)
    for name, tree in sorted(set(zip(families, trees, strict=True)), key=lambda pair: (pair[0] != VANILLA, pair)):
        rows = np.array([pair == (name, tree) for pair in zip(families, trees, strict=True)], dtype=np.bool_)
        for member in (False, True):
            chosen = rows & (on_front == member)
            if chosen.any():
                _points(plot, values[chosen], errors[chosen], palette[name], tree, member or name == VANILLA)
        label = name if tree == "none" else f"{name}, {tree}"
        plot.scatter([], [], color=palette[name], marker=_marker(tree), label=label)
    if families:
        plot.legend(frameon=False, fontsize=8, loc="best")
    else:
        plot.text(0.5, 0.5, "no trial was measured yet", ha="center", va="center", transform=plot.transAxes)


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
    """A colour for each family, in alphabetical order, so that it does not depend on who comes first."""
    others = sorted(set(families) - {VANILLA})
    return {VANILLA: VANILLA_COLOUR} | {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(others)}


def _marker(tree: str) -> str:
    return MARKERS.get(tree, OTHER_MARKER)
