"""The runs of a sweep in MLflow as plain data: names, params, metrics and tags."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.results.choices import DEFAULT_FACTORS, has_default_bar
from orchestrator.results.compare import hypervolume
from orchestrator.results.fronts import directions, values_of
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import Floats, knee, nondominated
from orchestrator.results.store import Identity
from orchestrator.results.text import clean, without_credentials
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord

if TYPE_CHECKING:
    from mlflow.entities import Metric

MAX_PARAM = 6000  # characters; MLflow's limit, as the next two
_MAX_NAME, MAX_TAG = 250, 5000
ERROR, SERIES = "error/", "series/"  # groups of metrics: standard errors; values by images
_MAX_OBJECTIVES = 3  # of a hypervolume
SWEEP_ID, TRIAL, PARETO, KIND, CAUSE, IMAGES, LABEL = (
    f"specfrontier.{key}" for key in ("sweep_id", "trial", "pareto", "kind", "cause", "images", "label")
)
PARENT = "mlflow.parentRunId"
_ILLEGAL = re.compile(r"[^\w\-./ ]")  # colons are legal on some systems only


def sweep_id(identity: Identity) -> str:
    """A name that the sweep has in all MLflow servers, wherever its folder is."""
    key = json.dumps([identity.name, identity.experiment, identity.started])
    return hashlib.sha256(key.encode()).hexdigest()[:20]


def sweep_tags(identity: Identity) -> dict[str, str]:
    """The tags of all runs of a sweep: user, code, models and extractors."""
    versions = identity.versions
    tags: dict[str, Any] = {
        "mlflow.user": user(),
        "mlflow.source.name": "specfrontier launch",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": versions.get("commit"),
        SWEEP_ID: sweep_id(identity),
        "specfrontier.sweep": identity.name,
        "specfrontier.target": identity.target,
        "specfrontier.seed": identity.seed,
        "specfrontier.device": identity.device,
        "specfrontier.version": versions.get("specfrontier"),
    }
    for key, hashes in (("model", identity.models), ("extractor", identity.extractors)):
        tags |= {f"specfrontier.{key}.{legal_name(name)}": value for name, value in hashes.items()}
    return clean_tags(tags)


def sweep_params(identity: Identity) -> dict[str, str]:
    """The params of a sweep's run: facts that stay the same while it runs."""
    keys = ("target", "seed", "image_size", "captions", "reference", "objectives", "constraints", "baseline")
    plain = identity.to_mapping()
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
    return {key[:_MAX_NAME]: text[:MAX_TAG] for key, text in texts.items() if text}


def milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def span(record: TrialRecord, identity: Identity) -> tuple[int, int]:
    """When a trial started and finished, in milliseconds. An unknown time is replaced by the other one."""
    times = [milliseconds(time) for time in (record.started, record.finished) if time]
    times = times or [milliseconds(identity.started)]
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
        found[prefix + ERROR + name, entry.n] = entry.known_error
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


def trial_tags(record: TrialRecord, identity: Identity, parent: str, *, pareto: bool) -> dict[str, str]:
    """The tags of a trial's run."""
    return sweep_tags(identity) | clean_tags(
        {
            PARENT: parent,
            KIND: "trial",
            TRIAL: record.number,
            PARETO: boolean(pareto),
            "specfrontier.feasible": boolean(record.feasible),
            "specfrontier.lossless": boolean(record.is_lossless(identity.sampling)),
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
    """The value of a tag."""
    return "true" if value else "false"


def sweep_metrics(records: Sequence[TrialRecord], identity: Identity, since: int) -> dict[int, dict[str, float]]:
    """How a sweep's front grows: metrics of its run by the number of finished trials, of which `since` are logged.

    `knee` is the number of a trial. `best/speedup` is the best first objective among the feasible trials within the
    default bar (see `choices.default_limit`). Hypervolumes have the reference point of `reference`.
    """
    axes = identity.objectives
    toward, baseline = directions(axes), _vanilla(records, identity)
    vanilla = None if baseline is None else values_of([baseline], axes)[0][0]
    quality = next((axis for axis in axes[1:2] if has_default_bar(baseline, axis)), None)
    feasible = [record for record in records if record.feasible]
    values = values_of(feasible, axes)[0]
    feasible = [record for record, row in zip(feasible, values, strict=True) if np.isfinite(row).all()]
    values = values[np.isfinite(values).all(axis=1)]
    found = {}
    for count in range(since + 1, len(records) + 1):
        states = [record.state for record in records[:count]]
        now = values[[record.number < count for record in feasible]]
        on_front = np.flatnonzero(nondominated(now, toward)) if len(now) else np.array([], dtype=np.intp)
        metrics = {"trials": count, "failed": states.count(FAILED), "stopped": states.count(STOPPED)}
        found[count] = {name: float(value) for name, value in metrics.items()} | {"front": float(len(on_front))}
        if len(on_front) and (place := knee(now[on_front], toward)) is not None:
            found[count]["knee"] = float(feasible[on_front[place]].number)
        if vanilla is not None and len(now):
            if len(axes) <= _MAX_OBJECTIVES:
                found[count]["hypervolume"] = hypervolume(now, reference(vanilla, toward), toward)
            if quality is None:
                continue
            bar = DEFAULT_FACTORS[quality.direction] * vanilla[1]
            within = now[now[:, 1] <= bar if quality.direction == "minimize" else now[:, 1] >= bar, 0]
            if len(within):
                best = within.max() if toward[0] == "maximize" else within.min()
                found[count][f"best/{axes[0].name}"] = float(best)
    return found


def reference(vanilla: Floats, toward: Sequence[str]) -> Floats:
    """A point that stays the same while a sweep runs: half of vanilla's value where more is better, else twice it."""
    point: Floats = vanilla + np.abs(vanilla) * np.where(_worse(toward) < 0, -0.5, 1.0)
    return point


def _worse(toward: Sequence[str]) -> Floats:
    """The sign of a change for the worse."""
    return np.array([-1.0 if direction == "maximize" else 1.0 for direction in toward])


def _vanilla(records: Sequence[TrialRecord], identity: Identity) -> TrialRecord | None:
    """Vanilla, if all of its objectives are measured."""
    done = [record for record in records if record.state == COMPLETE and record.config == identity.baseline]
    values = values_of(done[:1], identity.objectives)[0]
    return done[0] if values.size and np.isfinite(values).all() else None
