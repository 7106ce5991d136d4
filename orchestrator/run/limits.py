"""What ends a sweep: its budget, or a search that has nothing left to propose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.results.trials import TrialRecord
from search_spaces.sweep_sections import Budget


@dataclass(slots=True)
class Limits:
    """is_exhausted: whether the search's `source`, a space or a pool, has nothing left for a trial of this number.
    images: drawn or planned so far. earlier_s: seconds that earlier launches took.
    """

    budget: Budget
    is_exhausted: Callable[[int], bool]
    source: str
    images: int = 0
    earlier_s: float = 0.0
    _start_time: float = field(default_factory=time.monotonic)

    def reached(self, number: int, *, is_stored: bool) -> str | None:
        """The limit (see `Outcome.stopped_by`) that keeps trial `number` from starting; None if it may start.

        is_stored: the trial has finished in an earlier run, so it takes no time.
        """
        budget = self.budget
        if number >= budget.trials or self.is_exhausted(number):
            return "trials" if number == budget.trials else self.source
        if budget.images is not None and self.images >= budget.images:
            return "images"
        return "hours" if not is_stored and self.is_time_spent else None

    @property
    def is_time_spent(self) -> bool:
        hours = self.budget.hours
        return hours is not None and self.earlier_s + time.monotonic() - self._start_time >= hours * 3600


def seconds_taken(records: Iterable[TrialRecord]) -> float:
    """Wall clock in which the trials of earlier launches ran; several at a time count once.

    Trials that did not finish are not counted, nor revived ones: their spans hold the time between launches.
    """
    finished = [record for record in records if record.finished and not record.is_revived]
    spans = [(record.started, record.finished) for record in finished]
    total, end = 0.0, 0.0
    for start_s, end_s in sorted(tuple(datetime.fromisoformat(at).timestamp() for at in span) for span in spans):
        total += max(0.0, end_s - max(start_s, end))
        end = max(end, end_s)
    return total
