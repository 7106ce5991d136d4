"""When a sweep ends because its front no longer moves: `budget: {plateau: 0.01, patience: 5}`.

The share of the front's hypervolume that the last trials added is expected over joint draws from
all errors, in which what the trials share cancels. A draw compares the front with and without these
trials; the share is between 0 and 1 in each, so its mean exists whatever the tails of the errors.
Trials that racing stopped, and settings outside of the constraints, are on no front, but they count
as trials that did not move it.

The decision depends on the trials' records alone. With P trials in flight, trial n starts when the
search has been told those before n - P + 1, and these decide whether it does: the same for any
number of workers, and in a resumed sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from orchestrator.front.compare import reference_point, sampled_hypervolumes
from orchestrator.front.joint import JointErrors, directions
from orchestrator.front.pareto import nondominated
from orchestrator.store import events, files
from orchestrator.store.records import TrialRecord, read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted
from workers.metrics.definition import Metric


@dataclass(frozen=True, slots=True)
class PlateauState:
    """How close a front is to its plateau."""

    share: float  # see `Plateau`
    patience: int  # see `Plateau`
    trials: int  # those searched, at most `patience`
    added: float | None  # by the last `patience` of them (see `Plateau.added`)

    @property
    def is_reached(self) -> bool:
        """Whether the front no longer moves."""
        return self.added is not None and self.added < self.share

    @property
    def text(self) -> str:
        """The state in a few words."""
        plateau = f"plateau {_percent(self.share)}"
        if self.trials < self.patience:
            return (
                f"{plateau} for {counted(self.patience, 'trial')} ({self.trials} of "
                f"{self.patience})"
            )
        last = f"the last {counted(self.patience, 'trial')}"
        if self.added is None:
            return f"{plateau}: no trial before {last} meets the constraints"
        reached = ", reached" if self.is_reached else ""
        return (
            f"front: +{_percent(self.added)} of the hypervolume expected from {last}, "
            f"{plateau}{reached}"
        )

    def to_event(self) -> events.Plateau:
        """The event of a launch, which `status` shows."""
        return events.Plateau(**asdict(self), is_reached=self.is_reached, text=self.text)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


@dataclass(frozen=True, slots=True)
class Plateau:
    """The rule of one sweep."""

    share: float  # of the hypervolume, below which the front does not move
    patience: int  # trials that must not move it together
    enqueued: int  # first trials, which all run and are not counted
    objectives: Sequence[Metric]

    @classmethod
    def of(
        cls, budget: Mapping[str, Any], enqueued: int, objectives: Sequence[Metric]
    ) -> Self | None:
        """The plateau of a resolved budget (plain data); None without one. enqueued: number of
        configs that run first.
        """
        if budget.get("plateau") is None:
            return None
        return cls(budget["plateau"], budget["patience"], enqueued, objectives)

    def added(self, records: Sequence[TrialRecord]) -> float | None:
        """The expected share of the hypervolume that the last `patience` trials added, failed ones
        not counted; None while fewer have been searched, or if no trial before them meets the
        constraints.

        records: from trial 0, in order.
        """
        searched = [record.number for record in records[self.enqueued :] if not record.has_failed]
        last = searched[-self.patience :]
        points = [
            record
            for record in records
            if record.feasible and not record.stop and record.duplicate_of is None
        ]
        before = [index for index, record in enumerate(points) if last and record.number < last[0]]
        if len(last) < self.patience or not before:
            return None
        joint = JointErrors.of(points, self.objectives)
        toward = directions(self.objectives)
        corner = reference_point(joint.values[nondominated(joint.values, toward)], toward)
        samples = joint.samples()
        whole = sampled_hypervolumes(samples, corner, toward)
        part = sampled_hypervolumes(samples[:, before], corner, toward)
        kept = np.divide(part, whole, out=np.ones_like(whole), where=whole > 0)
        return max(0.0, 1 - float(kept.mean()))  # below by rounding

    def state(self, records: Sequence[TrialRecord]) -> PlateauState:
        """What these trials say. records: see `added`."""
        searched = sum(not record.has_failed for record in records[self.enqueued :])
        return PlateauState(
            self.share, self.patience, min(searched, self.patience), self.added(records)
        )


def _read_plateau(sweep: Sweep) -> tuple[Plateau | None, Mapping[str, Any]]:
    """The rule of a stored sweep, and its sections as plain data."""
    plain = files.read_sweep_yaml(sweep.storage)
    budget = plain.get("budget") or {}
    enqueued = len(plain.get("enqueue") or ())
    return Plateau.of(budget, enqueued, sweep.identity.objectives), plain


def plateau_state(sweep: Sweep) -> PlateauState | None:
    """What all trials of a stored sweep say; None if it has no plateau."""
    plateau, _ = _read_plateau(sweep)
    return None if plateau is None else plateau.state(_told_records(sweep))


def _told_records(sweep: Sweep) -> list[TrialRecord]:
    """The trials as the search was told them: with their speeds and qualities of then."""
    return sweep.told_groups.all_as_told(read_trials(sweep.storage))


def plateau_notes(sweep: Sweep) -> list[str]:
    """A sentence on a sweep that ended because its front no longer moves."""
    plateau, plain = _read_plateau(sweep)
    if plateau is None or len(sweep.records) >= plain["budget"]["trials"]:
        return []
    records = _told_records(sweep)
    state = plateau.state(records[: max(0, len(records) - plain["search"]["parallel"] + 1)])
    if state.added is None or not state.is_reached:
        return []
    return [
        f"the sweep ended because its front no longer moves: the {plateau.patience} trials before "
        f"the decision added {_percent(state.added)} of its hypervolume, as expected from all "
        f"errors, and budget.plateau is {_percent(plateau.share)}"
    ]
