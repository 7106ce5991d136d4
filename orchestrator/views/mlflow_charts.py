"""The charts of MLflow's shared views of a sweep: its front first, then its objectives, and images
by caption. The format is MLflow's own (`RunsChartsCardConfig` in its interface).

MLflow makes a chart for each metric that a view does not have, and hides those that a view says are
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.store.identity import Identity
from orchestrator.views.mlflow_runs import ERROR, OWN, SERIES, STOPPED, legal_name
from workers.metrics.definition import Metric

_FRONT = "front"
_OBJECTIVES = "objectives"
_IMAGES = "images"
_OTHERS = "others"
# Sections by their key. The heights of their charts are in pixels. MLflow adds its own charts to
# the section `Model metrics`.
_SECTIONS: Mapping[str, Mapping[str, Any]] = {
    _FRONT: {"name": "Front", "columns": 2, "cardHeight": 420},
    _OBJECTIVES: {"name": "Objectives"},
    _IMAGES: {"name": "Images by caption", "columns": 1, "cardHeight": 600},
    _OTHERS: {"name": "Model metrics", "display": False},
}
_MAX_RUNS = 100  # in a chart
# prefixes of metrics without a chart
_HIDDEN = (ERROR, SERIES, OWN, STOPPED, f"{STOPPED}{ERROR}", f"{STOPPED}{OWN}")


def view_charts(identity: Identity, images: Sequence[str]) -> dict[str, Any]:
    """The part of a shared view that says which charts it has, in their order. images: the keys of
    the images that its runs have.
    """
    found = []
    for place, chart in enumerate(_charts(identity, images)):
        common = {
            "uuid": f"specfrontier-{place}",
            "runsCountToCompare": _MAX_RUNS,
            "metricSectionId": _OTHERS,
            "deleted": False,
            "isGenerated": False,
        }
        found.append(common | chart)
    used = {chart["metricSectionId"] for chart in found}
    plain = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
    sections: list[dict[str, Any]] = [
        {**plain, "uuid": key, **own} for key, own in _SECTIONS.items() if key in used
    ]
    for section in sections:
        if section["uuid"] == _OBJECTIVES:  # the titles of charts have no room for units
            section["name"] += ": " + ", ".join(map(_with_unit, identity.objectives))
    return {
        "compareRunCharts": found,
        "compareRunSections": sections,
        "isAccordionReordered": True,  # MLflow sorts the sections otherwise
        "runsHiddenMode": "SHOW_ALL",
    }


def _charts(identity: Identity, images: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The charts, each with what it has beside the common keys."""
    first, *others = identity.objectives
    for other in others:
        yield {
            "type": "SCATTER",
            "metricSectionId": _FRONT,
            "xaxis": {"key": legal_name(first.name), "type": "METRIC"},
            "yaxis": {"key": legal_name(other.name), "type": "METRIC"},
        }
    for metric in identity.objectives:
        yield _bar(metric.name) | {"metricSectionId": _OBJECTIVES}
    if images:
        yield {
            "type": "IMAGE",
            "metricSectionId": _IMAGES,
            "imageKeys": list(images),
            "step": 0,
            "showRunParams": False,
        }
    for key in images:  # MLflow would make a chart of each
        yield {"type": "IMAGE", "imageKeys": [key], "deleted": True}
    objectives = {metric.name for metric in identity.objectives}
    for name in identity.metrics:
        if name not in objectives:
            yield _bar(name)
        for prefix in _HIDDEN:
            yield _bar(f"{prefix}{name}") | {"deleted": True}


def _bar(name: str) -> dict[str, Any]:
    """A chart of one bar for each run."""
    return {"type": "BAR", "metricKey": legal_name(name)}


def _with_unit(metric: Metric) -> str:
    return f"{metric.name} [{metric.unit}]" if metric.unit else metric.name
