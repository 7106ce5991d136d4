"""How fast a training runs, and when it logs."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_LINE_S, LINE_INTERVAL_S = 5.0, 60.0


class Pace:
    """Times the steps of a run from step `first` on.

    A line is due at the end of the first step that ends `FIRST_LINE_S` after the start, then every `log_every` steps
    and every `LINE_INTERVAL_S` seconds. The first step, which may compile the model, does not count once there are
    others.
    """

    def __init__(self, first: int, log_every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._first, self._log_every, self._clock = first, log_every, clock
        self._start = self._last_line = clock()
        self._first_end = self._start  # of the first step
        self._interval = FIRST_LINE_S

    def line_is_due(self, done: int) -> bool:
        """Whether to log after `done` steps. Call it once, at the end of every step."""
        now = self._clock()
        if done == self._first + 1:
            self._first_end = now
        due = done % self._log_every == 0 or now - self._last_line >= self._interval
        if due:
            self._last_line, self._interval = now, LINE_INTERVAL_S
        return due

    def describe(self, done: int, steps: int) -> str:
        """The mean time of a step after `done` steps, and the time that the rest of all `steps` takes."""
        count = done - self._first
        since, timed = (self._first_end, count - 1) if count > 1 else (self._start, count)
        seconds = (self._clock() - since) / timed
        return f"{1e3 * seconds:.0f} ms/step, {(steps - done) * seconds / 60:.1f} min left"
