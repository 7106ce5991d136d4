"""How long the rest of a sweep takes, with a range: the work that is left, at what it took so far,
over the rate at which the workers do it.

Vanilla, and the sessions that time the settings of `enqueue`, come first and once. So as soon as
another trial has a shard, they say nothing about the rest.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import NamedTuple

from orchestrator.store.progress import SweepProgress

_MIN_TIME_LEFT_S = 1.0  # the least that is shown
_MIN_TRIALS = 3  # finished without vanilla, before their spread is known
# the range before that, over the estimate: vanilla is first, and most others are faster; lossless
# settings are early, and others have more images
_EARLY_RANGE = (0.4, 2.0)
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

    Images that will be copied count as others until they are. Stopped trials that go on at the end,
    and the last timing sessions, are not counted. None without a budget of trials or images,
    without workers, or before the first shard of images.

    now: seconds, of the clock of `SweepProgress.update`.
    """
    images = progress.images_left
    pace = progress.pace
    if images is None or not progress.workers:
        return None
    if progress.share == 1.0:
        return TimeLeft(0.0, 0.0, 0.0)
    work = pace.others if pace.others.images else pace.vanilla
    if not work.images or pace.began is None:
        return None
    cost = work.seconds / work.images
    rate = _busy_workers(progress)
    value = images * cost / rate
    since = cost * _images_in_flight(progress, cost) / rate + now - pace.last_shard
    value = max(value - since, _OVERRUN * value)
    count = len(pace.costs)
    if count < _MIN_TRIALS or not (mean := fmean(pace.costs)):
        return TimeLeft(value, *(bound * value for bound in _EARLY_RANGE))
    # standard error of the mean so far plus that of the trials left, relative to the mean
    trials_left = images / progress.mean_images
    relative = stdev(pace.costs) / mean * math.sqrt(1 / count + 1 / trials_left)
    error = _NINETY_PERCENT * relative * value
    return TimeLeft(value, max(value - error, 0.0), value + error)


def _busy_workers(progress: SweepProgress) -> float:
    """How many workers draw, in the mean: at most as many as there were shards to draw, each for
    its share of the time since its first shard. One that is silent for longer than any shard took
    is idle.
    """
    pace = progress.pace
    workers = progress.workers or 0
    latest = sorted(pace.busy, key=pace.ended.__getitem__)[-workers:]
    busy = 0.0
    for worker in latest:
        silent = pace.last_shard - pace.ended[worker] - pace.longest
        idle = pace.idle[worker] + max(silent, 0.0)
        busy += pace.busy[worker] / (pace.busy[worker] + idle) if pace.busy[worker] else 1.0
    if pace.last_shard - (pace.began or 0.0) <= pace.longest:
        busy += workers - len(latest)
    return min(busy or 1.0, max(pace.at_once, 1))


def _images_in_flight(progress: SweepProgress, cost: float) -> float:
    """Images of unfinished shards that workers had drawn when the last shard came, at most a shard
    each. cost: seconds of an image.
    """
    pace = progress.pace
    waiting = [trial for trial in progress.running.values() if trial.missing]
    if not waiting or not cost:
        return 0.0
    shard = sum(trial.images for trial in waiting) / sum(trial.shards for trial in waiting)
    began = max(pace.began or 0.0, min(trial.started for trial in waiting))
    busy = min(progress.workers or 0, sum(trial.missing for trial in waiting))
    ends = sorted(pace.ended.values())[-busy:]
    ends += [began] * (busy - len(ends))
    drawn = [(pace.last_shard - max(end, began)) / cost for end in ends]
    return sum(min(max(images, 0.0), shard) for images in drawn)


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
