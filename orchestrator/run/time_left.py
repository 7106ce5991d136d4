"""How long the rest of a sweep takes: a plain extrapolation of the launch's pace, with a range."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator.store.progress import SweepProgress

_MIN_TIME_LEFT_S = 1.0  # the least that is shown
_MIN_TRIALS = 3  # finished, before their spread is known
# the range before that, over the estimate: vanilla is first, and most others are faster
_EARLY_RANGE = (0.4, 1.5)
# share of what was left after the last shard, if the next one takes longer than all of it
_OVERRUN = 0.1
_NINETY_PERCENT = 1.645  # standard errors


class TimeLeft(NamedTuple):
    """An estimate in seconds, and the ends of its 90 % range."""

    value: float
    low: float
    high: float


def estimate_time_left(progress: SweepProgress, now: float) -> TimeLeft | None:
    """What the rest of the budget takes at the pace of this launch so far.

    Images that will be copied count as others until they are. Stopped trials that go on at the end
    are not counted. None without a budget of trials or images, without workers, or before the first
    shard.

    now: seconds, of the clock of `SweepProgress.update`.
    """
    share = progress.share
    pace = progress.pace
    if share is None or not progress.workers:
        return None
    if share == 1.0:
        return TimeLeft(0.0, 0.0, 0.0)
    if share <= pace.given or pace.began is None:
        return None
    left = (1 - share) / (share - pace.given)  # for each second so far
    count = len(pace.costs)
    value = pace.last_shard - pace.began
    # shards in flight, of which there are many for the few that are done, count as none
    if count < _MIN_TRIALS:
        value = min(value, pace.worked / progress.workers)
    value *= left
    value = max(value - (now - pace.last_shard), _OVERRUN * value)
    if count < _MIN_TRIALS or not (mean := fmean(pace.costs)):
        return TimeLeft(value, *(bound * value for bound in _EARLY_RANGE))
    # standard error of the mean so far plus that of the trials left, relative to the mean
    relative = stdev(pace.costs) / mean * math.sqrt(1 / count + 1 / (left * count))
    error = _NINETY_PERCENT * relative * value
    return TimeLeft(value, max(value - error, 0.0), value + error)


def describe_time_left(left: TimeLeft | None, *, is_upper_bound: bool = False) -> str:
    """`49:00 left (35:00 to 63:00)`, or `at most` that; `finishing` at the end."""
    if left is None:
        return "? left"
    if left.value < _MIN_TIME_LEFT_S:
        return "finishing"
    value, low, high = (format_duration(seconds) for seconds in left)
    text = f"{value} left"
    if is_upper_bound:
        text = f"at most {text}"
    if low != high:
        text += f" ({low} to {high})"
    return text


def format_duration(seconds: float) -> str:
    """`4:07` or `2:10:00`."""
    total = round(seconds)
    hours, minutes = divmod(total // 60, 60)
    if not hours:
        return f"{minutes}:{total % 60:02d}"
    return f"{hours}:{minutes:02d}:{total % 60:02d}"
