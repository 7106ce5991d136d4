"""The front as a Plotly figure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np
import plotly.graph_objects as go

from orchestrator.results.choices import BEST, KNEE, LOSSLESS, Choice
from orchestrator.results.describe import family
from orchestrator.results.fronts import Candidate, values_of
from orchestrator.results.pareto import Floats
from orchestrator.results.plot_labels import LEADER, SOFT, STRONG, Obstacles, place_labels
from orchestrator.results.plots import (
    ACCENT,
    RINGS,
    axis_label,
    looks,
    marked_points,
    named_candidates,
    short_title,
)
from orchestrator.results.sweep import Front
from orchestrator.results.text import clean, measured

# by shape (see `orchestrator.results.plots.Look`)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "hexagon2", "hourglass", "cross", "star")
_WIDTH, _HEIGHT, _MARGIN = 860, 520, {"l": 70, "r": 250, "t": 50, "b": 60}
_ROOM = 0.06  # around the points, of their range
_SCALE = 96 / 72  # pixels in 1/72 inch
_FONT, _LETTER, _LINE = 11, 6.2, 15.0  # size of names, and about how wide a letter and how high a line is
_SIZE = 11  # of markers, in pixels
_RING_SIZES = {BEST: 28, KNEE: 22, LOSSLESS: 18}  # by kind of choice


def front_figure(front: Front, found: Mapping[str, Choice], title: str) -> go.Figure:
    """All candidates with error bars of one standard error, and the choices `found` by kind; those off the front are
    pale. Colours, shapes, names and rings are those of `orchestrator.results.plots.draw_front`.
    """
    figure = go.Figure()
    members = sorted(front.members, key=lambda member: [member.record.metrics[axis.name].value for axis in front.axes])
    if len(front.axes) == 2 and members:
        points, _ = values_of([member.record for member in members], front.axes)
        shape = "vh" if front.axes[0].direction == "maximize" else "hv"
        line = {"color": ACCENT, "width": 1.6, "shape": shape}
        figure.add_scatter(x=points[:, 0], y=points[:, 1], mode="lines", line=line, name="front", hoverinfo="skip")
    for name, look in looks([family(candidate.config) for candidate in front.candidates]).items():
        group = [candidate for candidate in front.candidates if family(candidate.config) == name]
        if not group:
            continue
        values, errors = values_of([candidate.record for candidate in group], front.axes)
        figure.add_scatter(
            x=values[:, 0],
            y=values[:, 1],
            error_x={"array": np.nan_to_num(errors[:, 0]), "thickness": 0.9, "width": 0},
            error_y={"array": np.nan_to_num(errors[:, 1]), "thickness": 0.9, "width": 0},
            mode="markers",
            marker={
                "color": look.colour,
                "symbol": _SYMBOLS[look.shape],
                "size": _SIZE,
                "opacity": [1.0 if candidate.on_front else 0.35 for candidate in group],
            },
            name=name,
            text=[_hover(front, candidate) for candidate in group],
            hovertemplate="%{text}<extra></extra>",
        )
    for kind, choice in found.items():
        values, _ = values_of([choice.trial.record], front.axes)
        ring = {"color": RINGS[kind]["edgecolors"], "size": _RING_SIZES[kind], "symbol": "circle-open"}
        ring["line"] = {"width": 1.0 if kind == KNEE else 2.0}
        style = {"mode": "markers", "marker": ring, "name": choice.heading, "hoverinfo": "skip"}
        figure.add_scatter(x=values[:, 0], y=values[:, 1], **style)
    if front.candidates:
        _add_names(figure, front, found)
    figure.update_layout(title=_plain(title), template="plotly_white", width=_WIDTH, height=_HEIGHT, margin=_MARGIN)
    return figure.update_xaxes(title=axis_label(front.axes[0])).update_yaxes(title=axis_label(front.axes[1]))


def _add_names(figure: go.Figure, front: Front, found: Mapping[str, Choice]) -> None:
    """Names beside points, placed for the figure's own size and ranges."""
    named = named_candidates(front, found)
    values, errors = (part[:, :2] for part in values_of([trial.record for trial in front.candidates], front.axes))
    errors = np.nan_to_num(errors)
    low, high = (values - errors).min(axis=0), (values + errors).max(axis=0)
    room = np.where(high > low, high - low, 1.0) * _ROOM
    low, high = low - room, high + room
    figure.update_xaxes(range=[low[0], high[0]]).update_yaxes(range=[low[1], high[1]])
    area = np.array([_WIDTH - _MARGIN["l"] - _MARGIN["r"], _HEIGHT - _MARGIN["t"] - _MARGIN["b"]], dtype=float)

    def to_pixels(points: Floats) -> Floats:
        pixels: Floats = (points - low) / (high - low) * area
        return pixels

    points = to_pixels(values_of([trial.record for trial in named], front.axes[:2])[0])
    marks = marked_points(
        front, found, _SIZE / 2 / _SCALE, {kind: size / 2 / _SCALE for kind, size in _RING_SIZES.items()}
    )
    marks = np.column_stack([to_pixels(marks[:, :2]), marks[:, 2]])
    texts = [short_title(trial).split("\n") for trial in named]
    obstacles = Obstacles(to_pixels(values), marks, np.empty((0, 2, 2)))
    sizes = np.array([[_LETTER * max(map(len, lines)), _LINE * len(lines)] for lines in texts])
    places = place_labels(points, sizes, obstacles, np.array([0.0, 0.0, *area]), _SCALE)
    for trial, lines, place in zip(named, texts, places, strict=True):
        if place is None:
            continue
        x, y = (trial.record.metrics[axis.name].value for axis in front.axes[:2])
        shift = {"ax": place.x, "ay": -place.y} if place.is_far else {"xshift": place.x, "yshift": place.y}
        figure.add_annotation(
            x=x,
            y=y,
            text="<br>".join(map(_plain, lines)),
            font={"size": _FONT, "color": STRONG if trial.on_front else SOFT},
            showarrow=place.is_far,
            arrowhead=0,
            arrowwidth=0.7,
            arrowcolor=LEADER,
            **shift,
        )


def _hover(front: Front, candidate: Candidate) -> str:
    entries = [(axis.name, candidate.record.metrics[axis.name]) for axis in front.axes]
    values = [f"{name} {measured(entry.value, entry.error)}" for name, entry in entries]
    return "<br>".join([_plain(f"trial {candidate.name}: {candidate.title}"), *values])


def _plain(text: str) -> str:
    """Text that Plotly shows as it is: without tags, mathematics and control characters."""
    return escape(clean(text)).replace("$", "&#36;")
