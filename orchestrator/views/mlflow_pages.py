"""A sweep in MLflow's own pages: its description, links, and views of its trials with columns, order, filter, charts.

MLflow reads a shared view from a tag of the experiment; the key in an address names it. An unknown view, or one that
another version of MLflow cannot read, only shows a notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from orchestrator.results.store import Identity
from orchestrator.results.sweep import Sweep
from orchestrator.results.text import counted
from orchestrator.views.front_table import front_table
from orchestrator.views.mlflow_client import public_uri
from orchestrator.views.mlflow_runs import ERROR, KIND, LABEL, MAX_TAG, PARETO, SERIES, SWEEP_ID, sweep_id

NOTE = "mlflow.note.content"  # the tag with a run's description
_TAG = "mlflow.sharedViewState."
_VIEW = "workflowType=machine_learning"  # MLflow opens its GenAI pages otherwise
_NOTE_ROWS = 20  # of the table in a sweep's description
_PARAMS = ("drafter.kind", "tree.policy", "acceptance.neighbourhood", "acceptance.schedule")
_MAX_RUNS = 1000  # in a chart
_FRONT = "front"  # a section of charts
_NAME, _CREATED = "attributes.`Run Name`", "runDateAndNestInfo"  # MLflow's ids of columns that are always there
_NAME_WIDTH = 400  # pixels, for some 55 characters; other columns have MLflow's widths


@dataclass(frozen=True, slots=True)
class MlflowLocation:
    """A sweep's location in MLflow.

    uri: with credentials. parent: id of the sweep's run, "" if it was never logged. runs: ids of the trials' runs by
    number. front: numbers of the trials on the front.
    """

    identity: Identity
    uri: str
    experiment_id: str = ""
    parent: str = ""
    runs: Mapping[int, str] = field(default_factory=dict)
    front: Sequence[int] = ()

    def links(self, base: str = "") -> dict[str, str]:
        """Addresses on the server at `base`, by default at the URI: the server, the sweep's run, its trials as a table,
        the front as a chart, and the comparison of the front's runs.
        """
        base = base or public_uri(self.uri)
        pages, front = {"mlflow": base.rstrip("/")}, [self.runs[number] for number in self.front if number in self.runs]
        if self.parent:
            pages["sweep"] = run_link(self.parent, self.experiment_id, base)
            pages["trials"] = view_link(trials_view(self.identity), self.experiment_id, base)
        if front:
            pages["front"] = view_link(front_view(self.identity), self.experiment_id, base, charts=True)
            pages["compare"] = compare_link(front, self.experiment_id, base)
        return pages


def describe_run(sweep: Sweep, runs: Mapping[int, str], experiment_id: str) -> str:
    """The description of the sweep's run, in Markdown: its front as a table, and links to the view of all its trials
    and to a comparison of the front's runs. runs: ids by the trial's number.
    """
    all_trials = f"[All trials]({view_link(trials_view(sweep.identity), experiment_id)}) as one table."
    front = [runs[record.number] for record in sweep.front_records]
    if not front:
        return f"{all_trials} No trial is on the front yet."
    text = (
        f"{all_trials} The front has {counted(len(front), 'trial')}: [compare their runs]"
        f'({compare_link(front, experiment_id)}), or filter this experiment\'s runs by `tags.{PARETO} = "true"`.'
    )
    table = front_table(sweep, lambda record: run_link(runs[record.number], experiment_id), _NOTE_ROWS)
    return "\n".join([text, "", *table])[:MAX_TAG]


def compare_link(run_ids: Sequence[str], experiment_id: str, base: str = "") -> str:
    """The address of MLflow's comparison of runs; relative if `base` is empty."""
    quoted = [quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (run_ids, [experiment_id])]
    return _page(f"#/compare-runs?runs={quoted[0]}&experiments={quoted[1]}&{_VIEW}", base)


def view_link(key: str, experiment_id: str, base: str = "", *, charts: bool = False) -> str:
    """The address of an experiment's runs in a shared view; relative if `base` is empty."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return _page(f"#/experiments/{experiment_id}/runs?viewStateShareKey={key}{mode}&{_VIEW}", base)


def run_link(run_id: str, experiment_id: str, base: str = "") -> str:
    """The address of a run's page; relative if `base` is empty."""
    return _page(f"#/experiments/{experiment_id}/runs/{run_id}?{_VIEW}", base)


def _page(fragment: str, base: str) -> str:
    return f"{base.rstrip('/')}/{fragment}" if base else fragment


def trials_view(identity: Identity) -> str:
    """The key of the view of all trials."""
    return f"trials-{sweep_id(identity)}"


def front_view(identity: Identity) -> str:
    """The key of the view of the trials on the front."""
    return f"front-{sweep_id(identity)}"


def view_tags(identity: Identity) -> dict[str, str]:
    """The experiment's tags with both views."""
    on_front = f" and tags.`{PARETO}` = 'true'"
    views = {trials_view(identity): _view(identity, ""), front_view(identity): _view(identity, on_front)}
    return {_TAG + key: json.dumps(view, separators=(",", ":")) for key, view in views.items()}


def _view(identity: Identity, condition: str) -> dict[str, Any]:
    """The trials' objectives and errors beside what names their settings, best first; and the charts of the front.

    MLflow lists runs below their parents, which are closed at first, unless there is a filter and an order by a metric.
    """
    objectives = identity.objectives
    names = [axis.name for axis in objectives]
    columns = [f"metrics.`{name}`" for name in (*names, *(ERROR + name for name in names))]
    columns += [f"params.`{name}`" for name in _PARAMS] + [f"tags.`{LABEL}`", f"tags.`{PARETO}`"]
    first = objectives[0]
    return {
        "searchFilter": f"tags.`{SWEEP_ID}` = '{sweep_id(identity)}' and tags.`{KIND}` = 'trial'{condition}",
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
