"""The front as a Plotly figure."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from orchestrator.results.describe import family
from orchestrator.results.fronts import Candidate, values_of
from orchestrator.results.plots import axis_label, colours
from orchestrator.results.sweep import Front
from orchestrator.results.text import measured

_SYMBOLS = {"none": "star", "chain": "circle", "static": "square", "dynamic": "triangle-up", "adjacency": "diamond"}


def front_figure(front: Front, title: str) -> go.Figure:
    """All candidates with error bars of one standard error; those off the front are pale."""
    figure = go.Figure()
    palette = colours([family(candidate.config) for candidate in front.candidates])
    members = sorted(front.members, key=lambda member: [member.record.metrics[axis.name].value for axis in front.axes])
    if len(front.axes) == 2 and members:
        points, _ = values_of([member.record for member in members], front.axes)
        shape = "vh" if front.axes[0].direction == "maximize" else "hv"
        line = {"color": "#8c8c8c", "width": 1.2, "shape": shape}
        figure.add_scatter(x=points[:, 0], y=points[:, 1], mode="lines", line=line, name="front", hoverinfo="skip")
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in front.candidates:
        groups.setdefault((family(candidate.config), candidate.config.policy.kind), []).append(candidate)
    for (name, tree), group in sorted(groups.items()):
        values, errors = values_of([candidate.record for candidate in group], front.axes)
        figure.add_scatter(
            x=values[:, 0],
            y=values[:, 1],
            error_x={"array": np.nan_to_num(errors[:, 0]), "thickness": 0.9, "width": 2},
            error_y={"array": np.nan_to_num(errors[:, 1]), "thickness": 0.9, "width": 2},
            mode="markers",
            marker={
                "color": palette[name],
                "symbol": _SYMBOLS.get(tree, "triangle-down"),
                "size": 11,
                "opacity": [1.0 if candidate.on_front else 0.35 for candidate in group],
            },
            name=name if tree == "none" else f"{name}, {tree}",
            text=[_hover(front, candidate) for candidate in group],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_layout(title=title, template="plotly_white", width=820, height=520)
    return figure.update_xaxes(title=axis_label(front.axes[0])).update_yaxes(title=axis_label(front.axes[1]))


def _hover(front: Front, candidate: Candidate) -> str:
    entries = [(axis.name, candidate.record.metrics[axis.name]) for axis in front.axes]
    values = [f"{name} {measured(entry.value, entry.error)}" for name, entry in entries]
    return "<br>".join([f"trial {candidate.name}: {candidate.title}".replace("<", "&lt;"), *values])
