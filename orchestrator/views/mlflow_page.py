"""MLflow's page of a sweep: its description, its shared views, and links to it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np

from orchestrator.front.questions import front_records
from orchestrator.store.explain import explain_setting
from orchestrator.store.identity import Identity
from orchestrator.store.names import title
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import markdown
from orchestrator.views.mlflow_charts import view_charts
from orchestrator.views.mlflow_client import public_uri
from orchestrator.views.mlflow_runs import KIND, MAX_TAG, PARETO, SWEEP_ID, legal_name, sweep_id
from search_spaces.documents import shorten

_VIEW = "workflowType=machine_learning"  # MLflow opens its GenAI pages otherwise
# tags of an experiment, by the key in the address
_SHARED_VIEW = "mlflow.sharedViewState."
_ALL = "-trials"
_PACKED = "deflate;"  # begins a view that is packed
_GAP = "&ensp;"  # MLflow's tables have no space between columns
_NO_BREAK = "&nbsp;"
_NOTE_TRIALS = 8  # of the table in a sweep's description, which is as wide as half of a window
_VIEW_PARAMS = 12  # of a shared view


@dataclass(frozen=True, slots=True)
class MlflowLocation:
    """A sweep's location in MLflow."""

    identity: Identity
    uri: str  # with credentials
    experiment_id: str = ""
    parent: str = ""  # id of the sweep's run, "" if it was never logged
    runs: Mapping[int, str] = field(default_factory=dict)  # ids of the trials' runs by number
    front: Sequence[int] = ()  # numbers of the trials on the front

    def links(self, base: str = "") -> dict[str, str]:
        """Addresses on the server at `base`, by default at the URI: the charts of the sweep's
        trials, its run, its trials as a table, and the runs on the front with the parameters in
        which they differ; the server, if it does not have the sweep.
        """
        base = base or public_uri(self.uri)
        if not self.parent:
            return {"mlflow": base.rstrip("/")}
        pages = {
            "charts": charts_link(self.identity, self.experiment_id, base),
            "sweep": run_link(self.parent, self.experiment_id, base),
            "trials": trials_link(self.identity, self.experiment_id, base),
        }
        if any(number in self.runs for number in self.front):
            pages["compare"] = front_link(self.identity, self.experiment_id, base)
        return pages


def describe_run(sweep: Sweep, runs: Mapping[int, str], experiment_id: str) -> str:
    """The description of the sweep's run, in Markdown: links to its pages, and its front as a
    table. MLflow folds all but 100 pixels of it: a line and three rows. runs: ids by the trial's
    number.
    """
    all_trials = (
        f"[All trials]({trials_link(sweep.identity, experiment_id)}), "
        f"[charts]({charts_link(sweep.identity, experiment_id)})"
    )
    front = [runs[record.number] for record in front_records(sweep)]
    if not front:
        return f"{all_trials}. No trial is on the front yet."
    members = f"[front with its parameters]({front_link(sweep.identity, experiment_id)})"
    all_of_them = f"[side by side]({compare_link(front, experiment_id)})"
    links = {number: run_link(run_id, experiment_id) for number, run_id in runs.items()}
    return shorten(
        "\n".join([f"{all_trials}, {members}, {all_of_them}", "", *_front_table(sweep, links)]),
        MAX_TAG,
    )


def describe_trial(sweep: Sweep, record: TrialRecord, *, pareto: bool) -> str:
    """The description of a trial's run, in Markdown: its setting in words and the objectives, as
    MLflow folds all but a few lines, then a table of all values with their units. pareto: whether
    it is on the front.
    """
    facts = [f"**{markdown(sweep.names.describe(record.config))}**"]
    if record.is_lossless(sweep.identity):
        facts.append("lossless")
    if pareto:
        facts.append("on the front")
    if record.is_stopped:
        facts.append(f"stopped by racing after {record.images} images")
    words = "" if record.config is None else markdown(explain_setting(record.config))
    values = {}
    for metric in (*sweep.identity.objectives, *sweep.identity.metrics.values()):
        if metric.name in record.metrics:
            value = markdown(str(record.metrics[metric.name])).replace(" ", _NO_BREAK)
            name = markdown(metric.name)
            values[name] = (name, value, markdown(metric.unit), markdown(metric.about))
    rows = list(values.values())
    first = [" ".join(row[:3]).rstrip() for row in rows[: len(sweep.identity.objectives)]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = ["| metric | value | unit | |", "|---|---|---|---|"] if rows else []
    parts = [f"{', '.join(facts)}. {words}", "", ", ".join(first), "", *head, *lines]
    return shorten("\n".join(parts), MAX_TAG)


def _front_table(sweep: Sweep, links: Mapping[int, str]) -> list[str]:
    """The lines of a table with a column for each trial on the front, best first objective last,
    and a row for each objective; of a long front, trials over its whole length. links: the
    addresses of the trials' pages.
    """
    names = [metric.name for metric in sweep.identity.objectives]
    front = sorted(front_records(sweep), key=lambda record: record.metrics[names[0]].value)
    places = np.linspace(0, len(front) - 1, min(len(front), _NOTE_TRIALS)).round().astype(int)
    shown = [front[place] for place in places]
    settings = sweep.names.alike(record.config for record in front if record.config is not None)
    heads = []
    for record in shown:
        name = markdown(title(record.label, settings.name(record.config))).replace('"', '\\"')
        heads.append(f'[{record.number}]({links[record.number]} "{name}")')
    corner = "trial" if len(shown) == len(front) else f"{len(shown)} of {len(front)} trials"
    values = [[str(record.metrics[name]).partition(" ±")[0] for record in shown] for name in names]
    rows = [
        [markdown(name), *(f"{_GAP}{value}" for value in own)]
        for name, own in zip(names, values, strict=True)
    ]
    return [
        f"| {' | '.join(cells)} |"
        for cells in ([corner, *heads], ["---"] * (1 + len(shown)), *rows)
    ]


def shared_views(sweep: Sweep, images: Sequence[str] = ()) -> dict[str, str]:
    """The tags of an experiment that hold MLflow's shared views, which `front_link`, `trials_link`
    and `charts_link` open: the runs on the sweep's front, and all of its trials, as a table with
    the objectives and the parameters in which these trials differ, and as charts (see
    `view_charts`). The format is MLflow's own. images: keys of the images that the runs have.
    """
    name = f"{_SHARED_VIEW}{sweep_id(sweep.identity)}"
    charts = view_charts(sweep.identity, images)
    front = _view(sweep, front_records(sweep), f"tags.`{PARETO}` = 'true'")
    everything = _view(sweep, sweep.records, f"tags.`{KIND}` = 'trial'")
    return {name: _fitting(front, charts), f"{name}{_ALL}": _fitting(everything, charts)}


def _fitting(view: Mapping[str, Any], charts: Mapping[str, Any]) -> str:
    """A packed view within the limit of a tag: without its charts if it must be, and then with a
    single column.
    """
    columns = view["selectedColumns"]
    candidates = ({**view, **charts}, view, {**view, "selectedColumns": columns[:1]})
    packed = map(_packed, candidates)
    return next((text for text in packed if len(text) <= MAX_TAG), "")


def _packed(view: Mapping[str, Any]) -> str:
    """A view as MLflow's interface packs it."""
    data = zlib.compress(json.dumps(view).encode(), level=9)
    return _PACKED + base64.b64encode(data).decode()


def _view(sweep: Sweep, records: Iterable[TrialRecord], condition: str) -> dict[str, Any]:
    """The filter, order and columns of a view."""
    flat = [record.config.flat() for record in records if record.config is not None]
    keys: dict[str, None] = {}
    for settings in flat:
        keys |= dict.fromkeys(settings)
    differing = [key for key in keys if len({str(settings.get(key)) for settings in flat}) > 1]
    objectives = [metric.name for metric in sweep.identity.objectives]
    columns = [
        *(f"metrics.`{legal_name(name)}`" for name in objectives),
        *(f"params.`{legal_name(key)}`" for key in differing[:_VIEW_PARAMS]),
    ]
    condition = f"tags.`{SWEEP_ID}` = '{sweep_id(sweep.identity)}' and {condition}"
    order = {
        "orderByKey": columns[0],
        "orderByAsc": sweep.identity.objectives[0].direction == "minimize",
    }
    return {"searchFilter": condition, **order, "selectedColumns": columns}


def compare_link(run_ids: Sequence[str], experiment_id: str, base: str = "") -> str:
    """The address of MLflow's comparison of runs; relative if `base` is empty."""
    runs, experiments = (
        quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (run_ids, [experiment_id])
    )
    return _page(f"#/compare-runs?runs={runs}&experiments={experiments}&{_VIEW}", base)


def front_link(identity: Identity, experiment_id: str, base: str = "") -> str:
    """The address of the table of the runs on a sweep's front (see `shared_views`); relative if
    `base` is empty.
    """
    key = f"viewStateShareKey={sweep_id(identity)}"
    return _page(f"#/experiments/{experiment_id}/runs?{key}&compareRunsMode=TABLE&{_VIEW}", base)


def charts_link(identity: Identity, experiment_id: str, base: str = "") -> str:
    """The address of the charts of a sweep's trials, its front first (see `shared_views`); relative
    if `base` is empty.
    """
    key = f"viewStateShareKey={sweep_id(identity)}{_ALL}"
    return _page(f"#/experiments/{experiment_id}/runs?{key}&compareRunsMode=CHART&{_VIEW}", base)


def trials_link(identity: Identity, experiment_id: str, base: str = "") -> str:
    """The address of a sweep's trials as a table, best first (see `shared_views`); relative if
    `base` is empty.
    """
    key = f"viewStateShareKey={sweep_id(identity)}{_ALL}"
    return _page(f"#/experiments/{experiment_id}/runs?{key}&compareRunsMode=TABLE&{_VIEW}", base)


def run_link(run_id: str, experiment_id: str, base: str = "") -> str:
    """The address of a run's page; relative if `base` is empty."""
    return _page(f"#/experiments/{experiment_id}/runs/{run_id}?{_VIEW}", base)


def _page(fragment: str, base: str) -> str:
    return f"{base.rstrip('/')}/{fragment}" if base else fragment
