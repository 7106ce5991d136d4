"""The runs of a sweep in MLflow as plain data: names, params, metrics, tags, descriptions and links."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from orchestrator.results.fronts import directions, values_of
from orchestrator.results.launches import load_identity
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import nondominated
from orchestrator.results.redaction import without_credentials
from orchestrator.results.store import Identity
from orchestrator.results.text import clean
from orchestrator.results.trials import STOPPED, TrialRecord
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Metric

MAX_PARAM = 6000  # characters; MLflow's limit, as the next two
_MAX_NAME, _MAX_TAG = 250, 5000
ERROR, SERIES = "error/", "series/"  # groups of metrics: standard errors; values by images
_VIEW = "workflowType=machine_learning"  # MLflow opens its GenAI pages otherwise
_NOTE_ROWS = 20  # of the table in a sweep's description
SWEEP_ID, TRIAL, PARETO, KIND, CAUSE, IMAGES, LABEL = (
    f"specfrontier.{key}" for key in ("sweep_id", "trial", "pareto", "kind", "cause", "images", "label")
)
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
_ILLEGAL = re.compile(r"[^\w\-./ ]")  # colons are legal on some systems only


@dataclass(frozen=True, slots=True)
class SweepRun:
    """The run of a sweep. id: independent of the sweep's folder. started: milliseconds since 1970."""

    id: str
    started: int
    identity: Identity

    @classmethod
    def read(cls, storage: Storage) -> SweepRun:
        """Raises ValueError if there is no sweep, or its identity is damaged."""
        identity = load_identity(storage)
        key = json.dumps([identity.name, identity.experiment, identity.started])
        return cls(hashlib.sha256(key.encode()).hexdigest()[:20], _milliseconds(identity.started), identity)

    def tags(self) -> dict[str, str]:
        """The tags of all runs of the sweep: user, code, models and extractors."""
        versions = self.identity.versions
        tags: dict[str, Any] = {
            "mlflow.user": user(),
            "mlflow.source.name": "specfrontier launch",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": versions.get("commit"),
            SWEEP_ID: self.id,
            "specfrontier.sweep": self.identity.name,
            "specfrontier.target": self.identity.target,
            "specfrontier.seed": self.identity.seed,
            "specfrontier.device": self.identity.device,
            "specfrontier.version": versions.get("specfrontier"),
        }
        for key, hashes in (("model", self.identity.models), ("extractor", self.identity.extractors)):
            tags |= {f"specfrontier.{key}.{legal_name(name)}": value for name, value in hashes.items()}
        return clean_tags(tags)

    def params(self) -> dict[str, str]:
        """The params of the sweep's run: facts that stay the same while it runs."""
        keys = ("target", "seed", "image_size", "captions", "reference", "objectives", "constraints", "baseline")
        plain = self.identity.to_mapping()
        return {key: value[:MAX_PARAM] for key, value in flatten({key: plain[key] for key in keys}) if value}


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """The leaves of nested mappings under dotted keys, as text with credentials redacted; a list is one leaf."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flatten(entry, f"{prefix}.{legal_name(str(key))}" if prefix else legal_name(str(key)))
    elif isinstance(value, list | tuple):
        entries = [" ".join(map(str, e.values())) if isinstance(e, Mapping) else str(e) for e in value]
        yield prefix, without_credentials(", ".join(entries))
    elif value is not None:
        yield prefix, without_credentials(str(value))


def user() -> str:
    """The user's name; "unknown" if the system has none for this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return "unknown"


def legal_name(name: str) -> str:
    """A name that MLflow accepts for a param, a metric or a tag."""
    return _ILLEGAL.sub("_", name).strip("/. ")[:_MAX_NAME] or "_"


def clean_tags(tags: Mapping[str, Any]) -> dict[str, str]:
    """Tags as text with credentials redacted; omits None and empty ones."""
    texts = {key: without_credentials(str(value)) for key, value in tags.items() if value is not None}
    return {key[:_MAX_NAME]: text[:_MAX_TAG] for key, text in texts.items() if text}


def _milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def span(record: TrialRecord, sweep: SweepRun) -> tuple[int, int]:
    """When a trial started and finished, in milliseconds. An unknown time is replaced by the other one."""
    times = [_milliseconds(time) for time in (record.started, record.finished) if time] or [sweep.started]
    return times[0], times[-1]


def run_name(record: TrialRecord, names: SettingNames) -> str:
    """The trial's number, its label if it has one, and its setting's name."""
    return clean(f"{record.number} {record.title(names.name(record.config))}")[:_MAX_NAME]


def params(record: TrialRecord) -> dict[str, str]:
    """A trial's config by flat key."""
    flat = record.config.flat() if record.config is not None else {}
    return {legal_name(key): str(value)[:MAX_PARAM] for key, value in flat.items()}


def metrics(record: TrialRecord, moment: int, objectives: Sequence[str]) -> list[Metric]:
    """A trial's results, the objectives first, each a single value; standard errors as `error/fid`; the values on fewer
    images, which have a larger bias, as `series/fid` by the number of images.

    Results of a stopped trial are named `stopped/fid`: they are of fewer images than those of other runs. Omits values
    that are not finite, because MLflow would store infinity as the largest float. moment: in milliseconds.
    """
    from mlflow.entities import Metric

    prefix = f"{STOPPED}/" if record.state == STOPPED else ""
    results = dict(sorted(record.metrics.items(), key=lambda entry: entry[0] not in objectives))
    found: dict[tuple[str, int], float | None] = {}
    for name, entry in results.items():
        found[prefix + name, entry.n] = entry.value
    found |= {("images", record.images): record.images, ("seconds", record.images): record.seconds}
    for name, entry in results.items():
        found[prefix + ERROR + name, entry.n] = entry.error
    measured = (*(entries for _, entries in record.history), record.metrics)
    series = [(name, entry) for entries in measured for name, entry in entries.items()]
    steps = Counter(name for name, _ in {(name, entry.n) for name, entry in series})
    for name, entry in series:
        if steps[name] > 1:
            found[SERIES + name, entry.n] = entry.value
    return [
        Metric(legal_name(name), value, moment, step)
        for (name, step), value in found.items()
        if value is not None and math.isfinite(value)
    ]


def trial_tags(record: TrialRecord, sweep: SweepRun, parent: str, *, pareto: bool) -> dict[str, str]:
    """The tags of a trial's run."""
    return sweep.tags() | clean_tags(
        {
            PARENT: parent,
            KIND: "trial",
            TRIAL: record.number,
            PARETO: boolean(pareto),
            "specfrontier.feasible": boolean(record.feasible),
            "specfrontier.lossless": boolean(record.is_lossless(sweep.identity.sampling)),
            "specfrontier.violated_constraints": "; ".join(name for name, v in record.constraints.items() if v > 0),
            "specfrontier.digest": record.digest,
            LABEL: record.label,
            "specfrontier.state": record.state,
            CAUSE: record.cause,
            IMAGES: record.images,
            "specfrontier.duplicate_of": record.duplicate_of,
        }
    )


def boolean(value: bool) -> str:
    """As a tag."""
    return "true" if value else "false"


def front_numbers(records: Sequence[TrialRecord], sweep: SweepRun) -> set[int]:
    """The numbers of the feasible trials on the front of all of the sweep's objectives."""
    feasible, goals = [record for record in records if record.feasible], sweep.identity.objectives
    on_front = nondominated(values_of(feasible, goals)[0], directions(goals)) if goals else ()
    return {feasible[row].number for row in np.flatnonzero(on_front)}


def note(
    sweep: SweepRun, best: Sequence[tuple[str, TrialRecord]], experiment_id: str, names: SettingNames, trials_view: str
) -> str:
    """The description of the sweep's run, in Markdown: its front as a table, and links to the view of all its trials
    and to a comparison of the front's runs.
    """
    objectives = [goal.name for goal in sweep.identity.objectives]
    all_trials = f"[All trials]({view_link(trials_view, experiment_id)}) as one table."
    if not best:
        return f"{all_trials} No trial is on the front yet."
    link = compare_link([run_id for run_id, _ in best], experiment_id)
    trials = f"{len(best)} trial{'' if len(best) == 1 else 's'}"
    lines = [
        f"{all_trials} The front has {trials}: [compare their runs]({link}), or filter this experiment's runs by "
        f'`tags.{PARETO} = "true"`.',
        "",
        f"| trial | {' | '.join(objectives)} |",
        "|---" * (len(objectives) + 1) + "|",
    ]
    for run_id, record in best[:_NOTE_ROWS]:
        values = " | ".join(f"{record.metrics[name].value:.4g}" for name in objectives)
        name = re.sub(r"([\\|\[\]<>*_`])", r"\\\1", f"{record.number} {record.title(names.name(record.config))}")
        lines.append(f"| [{name}]({run_link(run_id, experiment_id)}) | {values} |")
    return "\n".join(lines)[:_MAX_TAG]


def compare_link(run_ids: Sequence[str], experiment_id: str, base: str = "") -> str:
    """The address of MLflow's comparison of runs; relative if `base` is empty."""
    quoted = [quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (run_ids, [experiment_id])]
    return _page(f"#/compare-runs?runs={quoted[0]}&experiments={quoted[1]}&{_VIEW}", base)


def view_link(key: str, experiment_id: str, base: str = "", *, charts: bool = False) -> str:
    """The address of an experiment's runs in a shared view (see `shared_views`); relative if `base` is empty."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return _page(f"#/experiments/{experiment_id}/runs?viewStateShareKey={key}{mode}&{_VIEW}", base)


def run_link(run_id: str, experiment_id: str, base: str = "") -> str:
    """The address of a run's page; relative if `base` is empty."""
    return _page(f"#/experiments/{experiment_id}/runs/{run_id}?{_VIEW}", base)


def _page(fragment: str, base: str) -> str:
    return f"{base.rstrip('/')}/{fragment}" if base else fragment
