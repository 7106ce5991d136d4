"""When a running task takes too long: much longer than others of its kind took."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable

MIN_DEADLINE_S = 60.0
_FACTOR, _DECILE = 5.0, 9  # a deadline is so many times the decile of the durations of its kind
_MIN_HISTORY, _MAX_HISTORY = 5, 200  # tasks of a kind
_MAX_STEP_S = 5.0


class AwakeClock:
    """Counts the seconds in which this process ran.

    If it is stopped together with its workers (Ctrl-Z, a suspended machine), none of them is late when they go on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, clock()
        self.now = 0.0

    def advance(self) -> None:
        """Call it more often than every `_MAX_STEP_S` seconds: longer steps count as this long."""
        present = self._clock()
        self.now += min(present - self._last, _MAX_STEP_S)
        self._last = present


class Lasting:
    """Notices when something has been so for a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since = seconds, math.nan
        self._is_noticed = False

    def begins(self, is_so: bool, now: float) -> bool:
        """Whether it has now been so for long enough, for the first time since it was not."""
        if not is_so or math.isnan(self._since):
            self._since, self._is_noticed = now if is_so else math.nan, False
        if not is_so or self._is_noticed or now - self._since < self._seconds:
            return False
        self._is_noticed = True
        return True


class Durations:
    """How long finished tasks took, by kind."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_MAX_HISTORY))

    def add(self, kind: str, seconds: float) -> None:
        self._seconds[kind].append(seconds)

    def deadline(self, kind: str) -> float:
        """Seconds after which another worker should run the task too; infinite while little is known."""
        seconds = self._seconds[kind]
        if len(seconds) < _MIN_HISTORY:
            return math.inf
        return max(MIN_DEADLINE_S, _FACTOR * statistics.quantiles(seconds, n=10, method="inclusive")[_DECILE - 1])
