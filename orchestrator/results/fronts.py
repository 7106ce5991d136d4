"""Which trials are on a front, from their records: `pareto` on named metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from orchestrator.results.joint import JointErrors
from orchestrator.results.pareto import Bools, Floats, front_confidence, nondominated
from orchestrator.results.store import Identity
from orchestrator.results.trials import TrialRecord
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Candidate:
    """A measured trial that may be on a front.

    row: index in the table of all trials. name: the trial's number, after the sweep's name if there are several.
    setting: its setting's name (see `SettingNames`). description: the setting in words. confidence: the share of
    draws from the errors of all trials together in which it is on the front. distinct_from_next: the objectives in
    which it differs beyond error from the next trial on the front (None for the last trial, and off the front).
    within_error_of: names of the other trials on the front that are within error of it in every objective (None off
    the front).
    """

    row: int
    sweep: str
    name: str
    setting: str
    description: str
    record: TrialRecord
    on_front: bool = False
    confidence: float = 0.0
    distinct_from_next: list[str] | None = None
    within_error_of: list[str] | None = None

    @property
    def config(self) -> DecodingConfig:
        return cast(DecodingConfig, self.record.config)  # measured, so it has one

    @property
    def title(self) -> str:
        """The setting's name, after the trial's label if it has one."""
        return self.record.title(self.setting)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        record = self.record
        return {
            "sweep": self.sweep,
            "number": record.number,
            "label": record.label,
            "digest": record.digest,
            "on_front": self.on_front,
            "setting": self.setting,
            "description": self.description,
            "config": self.config.to_mapping(),
            "metrics": {
                name: {"value": entry.value, "error": entry.known_error} for name, entry in record.metrics.items()
            },
            "confidence": self.confidence,
            "distinct_from_next": self.distinct_from_next,
            "within_error_of": self.within_error_of,
        }


def rows_passing(tests: Mapping[str, Bools | Sequence[bool]]) -> tuple[list[int], dict[str, int]]:
    """The rows that pass all tests; and how many of the others each test leaves out, by the first that they fail.

    tests: which rows [n] pass, by the reason that leaves the others out.
    """
    passed = np.array(list(tests.values()), dtype=np.bool_)
    kept = np.logical_and.accumulate(passed)
    left_out = -np.diff(kept.sum(axis=1), prepend=passed.shape[1])
    counts = {reason: int(count) for reason, count in zip(tests, left_out, strict=True) if count}
    return [int(row) for row in np.flatnonzero(kept[-1])], counts


def directions(axes: Sequence[Metric]) -> list[Direction]:
    return [axis.direction for axis in axes]


def values_of(records: Sequence[TrialRecord], axes: Sequence[Metric]) -> tuple[Floats, Floats]:
    """The axes' metrics and their standard errors, each [records, axes]; NaN where a trial has none."""
    missing = Estimate(np.nan, np.inf, 0)
    entries = [[record.metrics.get(axis.name, missing) for axis in axes] for record in records]
    values = np.array([[entry.value for entry in row] for row in entries], dtype=np.float64)
    errors = np.array([[entry.known_error for entry in row] for row in entries], dtype=np.float64)  # None becomes NaN
    shape = (len(records), len(axes))
    return values.reshape(shape), errors.reshape(shape)


def joint_errors(
    candidates: Sequence[Candidate], axes: Sequence[Metric], identities: Mapping[str, Identity]
) -> JointErrors:
    """The candidates' values in the axes, with the errors that they share. identities: of the sweeps, by name."""
    owners = [identities[candidate.sweep] for candidate in candidates]
    return JointErrors.of([candidate.record for candidate in candidates], axes, owners)


def mark_front(
    candidates: Sequence[Candidate], axes: Sequence[Metric], identities: Mapping[str, Identity]
) -> list[Candidate]:
    """The candidates by rising first objective, with the facts about the front filled in."""
    joint = joint_errors(candidates, axes, identities)
    on_front = nondominated(joint.values, directions(axes))
    confidence = front_confidence(joint.draws(), directions(axes))
    order = [int(row) for row in np.lexsort(joint.values.T[::-1])]
    front = [row for row in order if on_front[row]]
    marked = {
        row: replace(candidates[row], on_front=bool(on_front[row]), confidence=float(confidence[row])) for row in order
    }
    for index, row in enumerate(front):
        differs = [joint.differ(row, other) for other in front]
        within = [
            candidates[other].name for other, d in zip(front, differs, strict=True) if other != row and not d.any()
        ]
        is_last = index + 1 == len(front)
        distinct = None if is_last else [axis.name for axis, d in zip(axes, differs[index + 1], strict=True) if d]
        marked[row] = replace(marked[row], distinct_from_next=distinct, within_error_of=within)
    return list(marked.values())
