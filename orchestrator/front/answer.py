"""The answer to a question about a front, which every command and page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from orchestrator.front.choice import Recommendation
from orchestrator.front.front import Front
from orchestrator.front.quality_bar import QualityBar
from orchestrator.front.trial import Candidate
from orchestrator.store.sweep import Sweep
from workers.metrics.definition import Metric


@dataclass(frozen=True, slots=True)
class Hypervolume:
    """The volume that a front dominates up to a reference point."""

    value: float
    error: float
    reference_point: list[float]

    @classmethod
    def of(cls, front: Front, reference_point: list[float] | None = None) -> Self:
        """Up to this point, by default the front's own (see `Front.reference_point`)."""
        corner = reference_point or front.reference_point()
        value, error = front.hypervolume(corner)
        return cls(value, error, corner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A front, what it recommends, and what to know about both."""

    sweeps: Mapping[str, Sweep]  # by name
    metrics: tuple[Metric, ...]  # two or three, the first of which is optimised
    trials: int  # of all sweeps
    measured: int  # of these, those that may be on the front
    on_front: int  # of these, those that are on the front
    left_out: Mapping[str, int]  # how many of the others were left out, by reason
    rows: Sequence[Candidate]  # the trials that are listed
    recommended: Recommendation
    notes: Sequence[str] = ()  # sentences on the sweeps, the filters and the limits
    # what only some questions ask for
    hypervolume: Hypervolume | None = None
    stopped: Sequence[dict[str, Any]] | None = None  # by racing, as plain data (see `EarlyStop`)
    bar: QualityBar | None = None

    @classmethod
    def of(cls, front: Front, rows: Sequence[Candidate], **more: Any) -> Self:
        """The answer of a front. rows: the trials to list. more: other fields."""
        return cls(
            sweeps=front.sweeps,
            metrics=front.metrics,
            trials=sum(len(sweep.records) for sweep in front.sweeps.values()),
            measured=len(front.candidates),
            on_front=len(front.members),
            left_out=front.left_out,
            rows=rows,
            **more,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain data: what `pareto --json` prints."""
        more = dict[str, Any]()
        if self.hypervolume is not None:
            more["hypervolume"] = self.hypervolume.value
            more["hypervolume_error"] = self.hypervolume.error
            more["reference_point"] = self.hypervolume.reference_point
        if self.stopped is not None:
            more["stopped"] = list(self.stopped)
        return {
            "sweeps": {name: sweep.storage.display_name for name, sweep in self.sweeps.items()},
            "speeds_on": {
                name: str(sweep.machine) for name, sweep in self.sweeps.items() if sweep.machine
            },
            "objectives": [
                {"metric": metric.name, "direction": metric.direction} for metric in self.metrics
            ],
            "trials": self.trials,
            "measured": self.measured,
            "left_out": dict(self.left_out),
            "rows": [row.to_mapping() for row in self.rows],
            **more,
            "warnings": list(self.notes),
            **self.recommended.to_mapping(),
        }
