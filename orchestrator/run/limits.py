"""What ends a sweep: its budget, or a search that has nothing left to propose."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from search_spaces.sweep_sections import Budget


@dataclass(slots=True)
class Limits:
    """is_exhausted: whether the search's `source`, a space or a pool, has nothing left for a trial of this number.
    images: drawn or planned so far."""

    budget: Budget
    is_exhausted: Callable[[int], bool]
    source: str
    images: int = 0
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
        return hours is not None and time.monotonic() - self._start_time >= hours * 3600
