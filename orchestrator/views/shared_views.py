"""Views of a sweep's trials in MLflow's own pages: columns, order, filter and charts.

MLflow reads a shared view from a tag of the experiment; the key in an address names it. An unknown view, or one that
another version of MLflow cannot read, only shows a notice.
"""

from __future__ import annotations

import json
from typing import Any

from orchestrator.views.runs import ERROR, KIND, LABEL, PARETO, SERIES, SWEEP_ID, SweepRun

_TAG = "mlflow.sharedViewState."
_PARAMS = ("drafter.kind", "tree.policy", "acceptance.neighbourhood", "acceptance.schedule")
_MAX_RUNS = 1000  # in a chart
_FRONT = "front"  # a section of charts
_NAME, _CREATED = "attributes.`Run Name`", "runDateAndNestInfo"  # MLflow's ids of columns that are always there
_NAME_WIDTH = 400  # pixels, for some 55 characters; other columns have MLflow's widths


def trials_view(sweep: SweepRun) -> str:
    """The key of the view of all trials."""
    return f"trials-{sweep.id}"


def front_view(sweep: SweepRun) -> str:
    """The key of the view of the trials on the front."""
    return f"front-{sweep.id}"


def view_tags(sweep: SweepRun) -> dict[str, str]:
    """The experiment's tags with both views."""
    on_front = f" and tags.`{PARETO}` = 'true'"
    views = {trials_view(sweep): _view(sweep, ""), front_view(sweep): _view(sweep, on_front)}
    return {_TAG + key: json.dumps(view, separators=(",", ":")) for key, view in views.items()}


def _view(sweep: SweepRun, condition: str) -> dict[str, Any]:
    """The trials' objectives and errors beside what names their settings, best first; and the charts of the front.

    MLflow lists runs below their parents, which are closed at first, unless there is a filter and an order by a metric.
    """
    objectives = sweep.identity.objectives
    names = [axis.name for axis in objectives]
    columns = [f"metrics.`{name}`" for name in (*names, *(ERROR + name for name in names))]
    columns += [f"params.`{name}`" for name in _PARAMS] + [f"tags.`{LABEL}`", f"tags.`{PARETO}`"]
    first = objectives[0]
    return {
        "searchFilter": f"tags.`{SWEEP_ID}` = '{sweep.id}' and tags.`{KIND}` = 'trial'{condition}",
        "orderByKey": f"metrics.`{first.name}`",
        "orderByAsc": first.direction == "minimize",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "columnOrder": [_NAME, _CREATED, *columns],
        "columnWidths": {_NAME: _NAME_WIDTH},
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
        "compareRunSections": [
            {
                "uuid": name,
                "name": name,
                "display": name == _FRONT,
                "isReordered": True,
                "columns": 1,
                "cardHeight": 420,
            }
            for name in (_FRONT, ERROR.strip("/"), SERIES.strip("/"))
        ],
        "compareRunCharts": _charts(names),
    }


def _charts(names: list[str]) -> list[dict[str, Any]]:
    """The first objective against the second; settings and objectives as parallel coordinates."""
    common = {"metricSectionId": _FRONT, "runsCountToCompare": _MAX_RUNS, "deleted": False, "isGenerated": False}
    axes = {axis: {"key": name, "type": "METRIC"} for axis, name in zip(("xaxis", "yaxis"), names, strict=False)}
    parallel = {"selectedParams": list(_PARAMS), "selectedMetrics": names, "showAllRuns": True}
    charts: list[dict[str, Any]] = [{"uuid": "parallel", "type": "PARALLEL", **common, **parallel}]
    if len(names) > 1:
        charts.insert(0, {"uuid": "scatter", "type": "SCATTER", **common, **axes})
    return charts
