"""A sweep in MLflow as plain data: names, params, metrics and tags of its runs; its description,
and links to pages.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.front.choice import DEFAULT_FACTORS, has_default_bar, is_trade
from orchestrator.front.compare import hypervolume
from orchestrator.front.joint import directions, values_of
from orchestrator.front.pareto import Floats, knee, nondominated
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.names import SettingNames, title
from orchestrator.store.prices import is_priced
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import clean, without_credentials
from search_spaces.constraints import AT_BATCH, split_batch
from search_spaces.documents import shorten
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric

# MLflow's limits in characters
_MAX_PARAM = 6000
MAX_TAG = 5000  # newer servers take more
_MAX_NAME = 250
_DIGEST = 16  # characters of the digest of a dataset
# prefixes of metrics
ERROR = "error/"  # standard errors
SERIES = "series/"  # values by images
BY_BATCH = "by_batch/"  # values by batch
OWN = "own/"  # values of a lossless trial's own images
STOPPED = "stopped/"  # values of a stopped trial
_PREFIXES = ("", ERROR, SERIES, BY_BATCH, STOPPED, f"{STOPPED}{ERROR}")
_OF_FRONT = ("knee", "hypervolume", "best/")  # metrics of a sweep's run that may cease to exist
_MAX_OBJECTIVES = 3  # of a hypervolume
# tags
SWEEP_ID = "specfrontier.sweep_id"
TRIAL = "specfrontier.trial"
PARETO = "specfrontier.pareto"
KIND = "specfrontier.kind"
CAUSE = "specfrontier.cause"
IMAGES = "specfrontier.images"
LABEL = "specfrontier.label"
FEASIBLE = "specfrontier.feasible"
VIOLATED = "specfrontier.violated_constraints"
TIMED_ON = "specfrontier.timed_on"
PARENT = "mlflow.parentRunId"
_ILLEGAL = re.compile(r"[^\w\-./ ]")  # colons are legal on some systems only
NOTE = "mlflow.note.content"  # the tag with a run's description


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


def datasets(identity: Identity) -> list[DatasetInput]:
    """What the runs of a sweep read: its captions, and its reference images if it has any."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = []
    parts = {"captions": (identity.captions, "hash"), "reference": (identity.reference, "identity")}
    for context, (facts, key) in parts.items():
        if not facts:
            continue
        source = without_credentials(str(facts.get("source", "")))
        name = legal_name(f"{context} {source}")
        digest = hashlib.sha256(str(facts.get(key)).encode()).hexdigest()[:_DIGEST]
        dataset = Dataset(
            name=name,
            digest=digest,
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps({"num_rows": facts.get("count")}),
        )
        found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return found


def sweep_params(identity: Identity) -> dict[str, str]:
    """The params of a sweep's run: facts that stay the same while it runs."""
    keys = (
        "target",
        "seed",
        "image_size",
        "captions",
        "reference",
        "objectives",
        "constraints",
        "baseline",
    )
    plain = identity.to_mapping()
    return {key: param(value) for key, value in flatten({key: plain[key] for key in keys}) if value}


def param(value: Any) -> str:
    """The value of a param, shortened if MLflow would refuse or cut it."""
    return shorten(str(value), _MAX_PARAM)


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """The leaves of nested mappings under dotted keys, as text with credentials redacted; a list is
    one leaf.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            name = legal_name(str(key))
            yield from flatten(entry, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list | tuple):
        texts = []
        for entry in value:
            parts = entry.values() if isinstance(entry, Mapping) else [entry]
            texts.append(" ".join(map(str, parts)))
        yield prefix, without_credentials(", ".join(texts))
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
    return shorten(_ILLEGAL.sub("_", name).strip("/. "), _MAX_NAME, "-") or "_"


def clean_tags(tags: Mapping[str, Any]) -> dict[str, str]:
    """Tags as text with credentials redacted; omits None and empty ones."""
    texts = {
        key: without_credentials(str(value)) for key, value in tags.items() if value is not None
    }
    return {
        shorten(key, _MAX_NAME, "-"): shorten(text, MAX_TAG) for key, text in texts.items() if text
    }


def milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def span(record: TrialRecord, identity: Identity) -> tuple[int, int]:
    """When a trial started and finished, in milliseconds. An unknown time is replaced by the other
    one.
    """
    times = [milliseconds(time) for time in (record.started, record.finished) if time]
    times = times or [milliseconds(identity.started)]
    return times[0], times[-1]


def run_name(record: TrialRecord, names: SettingNames) -> str:
    """The trial's number, its label if it has one, and its setting's name."""
    return shorten(
        clean(f"{record.number} {title(record.label, names.name(record.config))}"), _MAX_NAME
    )


def params(record: TrialRecord) -> dict[str, str]:
    """A trial's config by flat key."""
    flat = record.config.flat() if record.config is not None else {}
    return {legal_name(key): param(value) for key, value in flat.items()}


def metrics(record: TrialRecord, moment: int, identity: Identity) -> list[Metric]:
    """A trial's results, the objectives first, each a single value; standard errors as `error/fid`;
    the values on fewer images, which have a larger bias, as `series/fid` by the number of images;
    what a lossless trial's own images say, where it has its group's value, as `own/fid`.

    Results of a stopped trial are named `stopped/fid`: they are of fewer images than those of other
    runs. Omits values that are not finite, because MLflow would store infinity as the largest
    float.

    Args:
        record: of the trial.
        moment: in milliseconds.
        identity: the sweep's.
    """
    from mlflow.entities import Metric

    objectives = [metric.name for metric in identity.objectives]
    is_in_group = QualityGroups.of(identity).group(record) is not None
    prefix = STOPPED if record.is_stopped else ""
    results = dict(sorted(record.metrics.items(), key=lambda entry: entry[0] not in objectives))
    found: dict[tuple[str, int], float | None] = {}
    for name, entry in results.items():
        found[prefix + name, entry.n] = entry.value
    found |= {("images", record.images): record.images, ("seconds", record.images): record.seconds}
    for name, entry in results.items():
        found[prefix + ERROR + name, entry.n] = entry.known_error
    if is_in_group:  # a lossy trial's gains are over vanilla's group
        for name, own in dict(record.own).get(record.images, {}).items():
            if own is not None:
                found[prefix + OWN + name, own.n] = own.value
    series: list[tuple[str, Estimate]] = []
    for entries in (*(entries for _, entries in record.history), record.metrics):
        series += entries.items()
    steps = Counter(name for name, _ in {(name, entry.n) for name, entry in series})
    for name, entry in series:
        if steps[name] > 1:
            found[SERIES + name, entry.n] = entry.value
    return [
        Metric(legal_name(name), value, moment, step)
        for (name, step), value in found.items()
        if value is not None and math.isfinite(value)
    ]


def last_values(metrics: Iterable[Metric]) -> list[Metric]:
    """The value of each metric that MLflow shows: that of the last step."""
    return list(
        {metric.key: metric for metric in sorted(metrics, key=lambda metric: metric.step)}.values()
    )


def different_steps(
    metrics: Iterable[Metric], logged: Iterable[Metric], moment: int
) -> list[Metric]:
    """The metrics of a sweep's run whose value at their step is not the latest that was logged
    there; NaN for values of the front that a step has no more. moment: in milliseconds.
    """
    from mlflow.entities import Metric

    latest: dict[tuple[str, int], float] = {}
    for point in sorted(logged, key=lambda point: point.timestamp):
        latest[point.key, point.step] = point.value
    found = {(metric.key, metric.step): metric for metric in metrics}
    for key, step in latest.keys() - found.keys():
        if key.startswith(_OF_FRONT):
            found[key, step] = Metric(key, math.nan, moment, step)
    return [
        metric for place, metric in found.items() if not _is_equal(latest.get(place), metric.value)
    ]


def _is_equal(shown: float | None, value: float) -> bool:
    """Whether MLflow shows a value, which may be NaN."""
    return shown == value or (shown is not None and math.isnan(shown) and math.isnan(value))


def different(metrics: Iterable[Metric], shown: Mapping[str, float]) -> list[Metric]:
    """The metrics' last values where MLflow shows others, or none."""
    return [metric for metric in last_values(metrics) if shown.get(metric.key) != metric.value]


def outdated(
    record: TrialRecord, names: Iterable[str], shown: Mapping[str, float], moment: int
) -> list[Metric]:
    """NaN for each speed that MLflow shows of a trial that has none: its speed was that of another
    device than the sweep's, and MLflow keeps metrics for ever. names: the sweep's metrics.
    """
    from mlflow.entities import Metric

    missing = [name for name in names if is_priced(name) and name not in record.metrics]
    keys = {legal_name(f"{prefix}{name}") for name in missing for prefix in _PREFIXES}
    stale = [key for key, value in shown.items() if key in keys and not math.isnan(value)]
    return [Metric(key, math.nan, moment, record.images) for key in stale]


def by_batch(
    record: TrialRecord, first: int, moment: int, changed: Sequence[Metric], shown: Collection[str]
) -> list[Metric]:
    """The speeds of a complete trial at several batch sizes as one metric, `by_batch/speedup`,
    whose step is the size.

    Only if one of them is among the `changed` metrics, or the series is not among those that MLflow
    shows. first: the sweep's own size.
    """
    from mlflow.entities import Metric

    if not record.is_complete:
        return []
    has_changed = {split_batch(metric.key)[0] for metric in changed}
    found: list[Metric] = []
    for name in AT_BATCH:
        key = BY_BATCH + name
        values = record.by_batch(name, first)
        if len(values) > 1 and (name in has_changed or key not in shown):
            found += [Metric(key, entry.value, moment, size) for size, entry in values.items()]
    return found


def marks(parent: str, record: TrialRecord, *, pareto: bool) -> dict[str, str]:
    """The tags of a trial's run that change while the sweep runs. parent: id of the sweep's run.
    `timed_on`: the device of its speeds.
    """
    violated = shorten(
        "; ".join(name for name, value in record.constraints.items() if value > 0), MAX_TAG
    )
    return {
        PARENT: parent,
        PARETO: _boolean(pareto),
        FEASIBLE: _boolean(record.feasible),
        VIOLATED: violated,
        TIMED_ON: record.device,
    }


def trial_tags(record: TrialRecord, identity: Identity) -> dict[str, str]:
    """The other tags of a trial's run."""
    return sweep_tags(identity) | clean_tags(
        {
            KIND: "trial",
            TRIAL: record.number,
            "specfrontier.lossless": _boolean(record.is_lossless(identity)),
            "specfrontier.token_check": record.check and record.check.summary,
            "specfrontier.digest": record.digest,
            LABEL: record.label,
            "specfrontier.state": record.state,
            CAUSE: record.cause,
            IMAGES: record.images,
            "specfrontier.duplicate_of": record.duplicate_of,
        }
    )


def _boolean(value: bool) -> str:
    """The value of a tag."""
    return "true" if value else "false"


def sweep_metrics(
    sweep: Sweep, since: int, shown: Mapping[str, float] | None = None
) -> dict[int, dict[str, float]]:
    """How a sweep's front grows: metrics of its run by the number of finished trials, of which
    `since` are logged. shown: what MLflow shows of them; a value of the front that it has no more
    is NaN, because MLflow keeps metrics for ever.

    `knee` is the number of a trial. `best/speedup` is the best value of the first objective,
    whatever its error, among the feasible trials within the default bar (see
    `choice.default_limit`). Hypervolumes have the reference point of `reference`. `trials` is the
    last of its number: what MLflow has it for, it has whole.
    """
    records = sweep.records
    values = values_of(sweep.records, sweep.identity.objectives)
    is_feasible = np.array([record.feasible for record in records], dtype=np.bool_)
    usable = is_feasible & np.isfinite(values).all(axis=1)
    found: dict[int, dict[str, float]] = {}
    kept = {
        name
        for name, value in (shown or {}).items()
        if name.startswith(_OF_FRONT) and not math.isnan(value)
    }
    for count in range(since + 1, len(records) + 1):
        rows = np.flatnonzero(usable[:count])
        own = _front_metrics(sweep, rows, values[rows])
        ended = dict.fromkeys(kept - own.keys(), math.nan)
        kept = {name for name in own if name.startswith(_OF_FRONT)}
        found[count] = {
            "failed": sum(record.has_failed for record in records[:count]),
            "stopped": sum(record.is_stopped for record in records[:count]),
            **own,
            **ended,
            "trials": count,
        }
    return found


def _front_metrics(sweep: Sweep, rows: NDArray[np.intp], values: Floats) -> dict[str, float]:
    """The metrics of the front of some trials. rows: their places among the records. values: their
    objectives.
    """
    objectives = sweep.identity.objectives
    vanilla = sweep.baseline
    toward = directions(objectives)
    if not len(values):
        return {"front": 0.0}
    front = np.flatnonzero(nondominated(values, toward))
    found = {"front": float(len(front))}
    members = [sweep.records[rows[place]] for place in front]
    place = knee(values[front], toward)
    are_lossless = (member.is_lossless(sweep.identity) for member in members)
    if place is not None and is_trade(objectives, are_lossless):
        found["knee"] = float(members[place].number)
    if vanilla is None:
        return found
    base = values_of([vanilla], objectives)[0]
    if not np.isfinite(base).all():
        return found
    if len(objectives) <= _MAX_OBJECTIVES:
        found["hypervolume"] = hypervolume(values, reference(base, toward), toward)
    if len(objectives) > 1 and has_default_bar(vanilla, objectives[1]):
        signs = -_worse(toward)  # times a value: more is better
        bar = DEFAULT_FACTORS[objectives[1].direction] * base[1]
        within = values[signs[1] * values[:, 1] >= signs[1] * bar, 0]
        if len(within):
            found[f"best/{objectives[0].name}"] = float(signs[0] * (signs[0] * within).max())
    return found


def reference(vanilla: Floats, toward: Sequence[str]) -> Floats:
    """A point that stays the same while a sweep runs: half of vanilla's value where more is better,
    else twice it.
    """
    point: Floats = vanilla + np.abs(vanilla) * np.where(_worse(toward) < 0, -0.5, 1.0)
    return point


def _worse(toward: Sequence[str]) -> Floats:
    """The sign of a change for the worse."""
    return np.array([-1.0 if direction == "maximize" else 1.0 for direction in toward])
