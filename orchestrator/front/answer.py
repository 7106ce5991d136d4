"""The answer to a question about a front, which every command and page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.front.choice import Recommendation
from orchestrator.front.front import Front
from orchestrator.front.trial import Candidate


@dataclass(frozen=True, slots=True)
class Hypervolume:
    """The volume that a front dominates up to a reference point."""

    value: float
    error: float
    reference_point: list[float]

    @classmethod
    def of(cls, front: Front, reference_point: list[float] | None = None) -> Hypervolume:
        """Up to this point, by default the front's own (see `Front.reference_point`)."""
        corner = reference_point or front.reference_point()
        return cls(*front.hypervolume(corner), corner)


@dataclass(frozen=True, slots=True)
class Answer:
    """A front, what it recommends, and what to know about both."""

    front: Front
    rows: Sequence[Candidate]
    """The trials that are listed: those on the front, or all that may be on it."""
    recommended: Recommendation
    notes: Sequence[str] = ()
    """Sentences on the sweeps, the filters and the limits."""
    hypervolume: Hypervolume | None = None
    """If it was asked for."""
    stopped: Sequence[dict[str, Any]] | None = None
    """The trials that racing stopped, if they were asked for: plain data (see `EarlyStop`)."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain data: what `pareto --json` prints."""
        front = self.front
        more = dict[str, Any]()
        if self.hypervolume is not None:
            more["hypervolume"] = self.hypervolume.value
            more["hypervolume_error"] = self.hypervolume.error
            more["reference_point"] = self.hypervolume.reference_point
        if self.stopped is not None:
            more["stopped"] = list(self.stopped)
        return {
            "sweeps": {name: sweep.storage.display_name for name, sweep in front.sweeps.items()},
            "speeds_on": {
                name: str(sweep.machine) for name, sweep in front.sweeps.items() if sweep.machine
            },
            "objectives": [
                {"metric": metric.name, "direction": metric.direction} for metric in front.metrics
            ],
            "trials": front.trials.num_rows,
            "measured": len(front.candidates),
            "left_out": dict(front.left_out),
            "rows": [row.to_mapping() for row in self.rows],
            **more,
            "warnings": list(self.notes),
            **self.recommended.to_mapping(),
        }
