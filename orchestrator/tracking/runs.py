"""What a sweep looks like in MLflow: the names, params, metrics and tags of its runs, as plain data."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from orchestrator.results.describe import describe
from orchestrator.results.redaction import without_credentials
from orchestrator.results.store import Identity, read_identity
from orchestrator.results.trials import COMPLETE, TrialRecord
from search_spaces.trial import Sampling
from workers.data.storage import Storage

MAX_NAME, MAX_TAG, MAX_PARAM = 250, 5000, 6000  # MLflow's own limits, in characters
INACTIVE = "n/a"
VIEW = "workflowType=machine_learning"  # MLflow opens its pages for language models otherwise
ROWS = 20  # of the table in the description
STATUS = {COMPLETE: "FINISHED"}
SWEEP_ID, TRIAL, PARETO, KIND = (f"specfrontier.{key}" for key in ("sweep_id", "trial", "pareto", "kind"))
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
_ILLEGAL = re.compile(r"[^\w\-./ ]")  # colons are legal on some systems only


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric after `step` images."""

    name: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What identity.json says about a sweep. `id` is the same wherever the sweep's folder lies."""

    id: str
    name: str
    started: int
    identity: Identity

    @classmethod
    def read(cls, storage: Storage) -> Facts:
        """Raises ValueError when there is no sweep, or its identity is damaged."""
        identity = read_identity(storage)
        if identity is None:
            raise ValueError(f"{storage.shown}: no sweep there")
        key = json.dumps([identity.name, identity.experiment, identity.started])
        digest = hashlib.sha256(key.encode()).hexdigest()[:20]
        return cls(digest, identity.name, milliseconds(identity.started), identity)

    def tags(self) -> dict[str, str]:
        """What all runs of the sweep share: who, with what code, models and extractors."""
        versions = self.identity.versions
        tags: dict[str, Any] = {
            "mlflow.user": user(),
            "mlflow.source.name": "specfrontier launch",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": versions.get("commit"),
            SWEEP_ID: self.id,
            "specfrontier.sweep": self.name,
            "specfrontier.target": self.identity.target,
            "specfrontier.seed": self.identity.seed,
            "specfrontier.device": self.identity.device,
            "specfrontier.version": versions.get("specfrontier"),
        }
        for key, hashes in (("model", self.identity.models), ("extractor", self.identity.extractors)):
            tags |= {f"specfrontier.{key}.{legal(name)}": value for name, value in hashes.items()}
        return clean(tags)

    @property
    def sampling(self) -> Sampling | None:
        """The baseline's."""
        return self.identity.sampling

    def params(self) -> dict[str, str]:
        """The parent's params: what does not change when the sweep goes on."""
        keys = ("target", "seed", "image_size", "captions", "reference", "objectives", "constraints", "baseline")
        plain = self.identity.to_mapping()
        return {key: value[:MAX_PARAM] for key, value in flatten({key: plain[key] for key in keys}) if value}


def flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """The leaves of nested mappings under dotted keys; a list is one leaf, as text."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flatten(entry, f"{prefix}.{legal(str(key))}" if prefix else legal(str(key)))
    elif isinstance(value, list | tuple):
        words = [" ".join(map(str, e.values())) if isinstance(e, Mapping) else str(e) for e in value]
        yield prefix, without_credentials(", ".join(words))
    elif value is not None:
        yield prefix, without_credentials(str(value))


def user() -> str:
    """The name of the user; "unknown" where the system has none for this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a bare number
        return "unknown"


def legal(name: str) -> str:
    """A name that MLflow takes for a param, a metric or a tag."""
    return _ILLEGAL.sub("_", name).strip("/. ")[:MAX_NAME] or "_"


def clean(tags: Mapping[str, Any]) -> dict[str, str]:
    """Tags as text without credentials, those that are None or empty left out."""
    texts = {key: without_credentials(str(value)) for key, value in tags.items() if value is not None}
    return {key[:MAX_NAME]: text[:MAX_TAG] for key, text in texts.items() if text}


def milliseconds(moment: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 moment. Raises ValueError if it is none."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def span(record: TrialRecord, facts: Facts) -> tuple[int, int]:
    """When a trial started and finished, in milliseconds; a moment that it does not know is taken from the other."""
    known = [milliseconds(moment) for moment in (record.started, record.finished) if moment] or [facts.started]
    return known[0], known[-1]


def run_name(record: TrialRecord, facts: Facts) -> str:
    """The trial's number, then its label and its setting in short words, the sampling only where it is unusual."""
    words = describe(record.config, facts.sampling, 3) if record.config is not None else "no setting"
    named = f"{record.label}: {words}" if record.label and record.label != words else words
    return f"{record.number} {named}"[:MAX_NAME]


def params(record: TrialRecord) -> dict[str, str]:
    """The setting of a trial by flat key."""
    flat = record.config.flat() if record.config is not None else {}
    return {legal(key): str(value)[:MAX_PARAM] for key, value in flat.items()}


def points(record: TrialRecord) -> list[Point]:
    """The metrics of a trial over the number of images; the last of each is its result, standard errors included.

    What is not a finite number is left out: MLflow would keep infinity as the largest float.
    """
    found: list[Point] = []
    for images, values in record.history:
        for name, value in values.items():
            last = record.metrics.get(name)
            if last is None or images < last.n:
                found.append(Point(legal(name), value, images))
    for name, entry in record.metrics.items():
        found.append(Point(legal(name), entry.value, entry.n))
        if entry.error is not None:
            found.append(Point(legal(f"{name}_error"), entry.error, entry.n))
    found += [Point("images", record.images, record.images), Point("seconds", record.seconds, record.images)]
    return [point for point in found if math.isfinite(point.value)]


def tags(record: TrialRecord, facts: Facts, parent: str, *, pareto: bool) -> dict[str, str]:
    """The tags of a trial's run."""
    broken = [name for name, value in record.constraints.items() if value > 0]
    return facts.tags() | clean(
        {
            PARENT: parent,
            KIND: "trial",
            TRIAL: record.number,
            PARETO: word(pareto),
            "specfrontier.feasible": word(record.feasible),
            "specfrontier.broken_constraints": "; ".join(broken),
            "specfrontier.digest": record.digest,
            "specfrontier.label": record.label,
            "specfrontier.state": record.state,
            "specfrontier.cause": record.cause,
            "specfrontier.duplicate_of": record.duplicate_of,
        }
    )


def word(truth: bool) -> str:
    return "true" if truth else "false"


def status(record: TrialRecord) -> str:
    return STATUS.get(record.state, "FAILED")


def front(records: Sequence[TrialRecord], facts: Facts) -> set[int]:
    """The numbers of the feasible trials that no other one beats in all of the sweep's objectives."""
    from orchestrator.results.pareto import nondominated

    goals = {axis.name: axis.direction for axis in facts.identity.objectives}
    able = [record for record in records if record.feasible and goals.keys() <= record.metrics.keys()]
    if not goals or not able:
        return set()
    mask = nondominated([[r.metrics[name].value for name in goals] for r in able], list(goals.values()))
    return {record.number for record, best in zip(able, mask, strict=True) if best}


def note(facts: Facts, best: Sequence[tuple[str, TrialRecord]], experiment_id: str) -> str:
    """The description of the sweep's run, in Markdown: its front as a table, and the way to compare its runs."""
    objectives = [axis.name for axis in facts.identity.objectives]
    if not best:
        return "No trial is on the front yet."
    place = compare_fragment([run_id for run_id, _ in best], experiment_id)
    trials = f"{len(best)} trial{'' if len(best) == 1 else 's'}"
    lines = [
        f"The front has {trials}: [compare their runs]({place}), or filter this experiment's runs by "
        f'`tags.{PARETO} = "true"`.',
        "",
        f"| trial | {' | '.join(objectives)} |",
        "|---" * (len(objectives) + 1) + "|",
    ]
    for run_id, record in best[:ROWS]:
        values = " | ".join(f"{record.metrics[name].value:.4g}" for name in objectives)
        name = re.sub(r"([\\|\[\]<>*_`])", r"\\\1", run_name(record, facts))
        lines.append(f"| [{name}]({run_fragment(run_id, experiment_id)}) | {values} |")
    return "\n".join(lines)[:MAX_TAG]


def compare_fragment(run_ids: Sequence[str], experiment_id: str) -> str:
    """The part of an address behind the server's that opens runs side by side in MLflow."""
    wanted, experiments = (quote(json.dumps(ids, separators=(",", ":")), safe="") for ids in (run_ids, [experiment_id]))
    return f"#/compare-runs?runs={wanted}&experiments={experiments}&{VIEW}"


def run_fragment(run_id: str, experiment_id: str) -> str:
    """The part of an address behind the server's that opens the page of a run."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{VIEW}"
