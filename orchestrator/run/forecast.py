"""What is left of a running sweep, in seconds with a range, from the shards that have finished.

A trial costs worker seconds: those to come cost the mean of finished trials, those in flight the share of it that their
missing shards are. Worker seconds become wall clock by the time that workers were up in this launch for each second
that they spent on shards. Measurements, and stopped trials that will go on at the end, are not forecast: then the
estimate is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from orchestrator.run.tasks import Event

RANGE = 0.9  # probability of the stated range
_MIN_TRIALS = 3  # finished, before their spread is known
_EARLY_RANGE = (0.4, 1.5)  # of the estimate before that: the first trial is vanilla, and most others are faster
_OVERRUN = 0.1  # of what was left after the last shard, if the next one takes longer than all of it
_MAX_SHARE = 0.99  # measurements, and stopped trials that go on, follow the last shard of the budget


class Range(NamedTuple):
    """An estimate, and the ends of its range."""

    value: float
    low: float
    high: float


@dataclass
class _Trial:
    """is_proposed: by the search, not enqueued. images: of all captions. missing: shards that do not exist yet; racing
    may stop the trial before the last. shards: with those that existed when it started.
    """

    is_proposed: bool
    images: int
    missing: int
    shards: int
    seconds: float = 0.0
    made: int = 0  # shards, in this launch

    @property
    def share(self) -> float:
        """The share that is done. The measurement after the last shard counts as a shard."""
        return (self.shards - self.missing) / (self.shards + 1)

    @property
    def whole_seconds(self) -> float:
        """The seconds of all its shards, if an earlier launch had made none."""
        return self.seconds * self.shards / self.made


@dataclass
class Forecast:
    """Counts what a run's events say. trials, images: the sweep's budget (None: no limit). Times are in seconds, by any
    clock.
    """

    trials: int | None = None
    images: int | None = None
    workers: int = 0
    _done: int = 0  # trials, those of earlier launches included
    _images: list[int] = field(default_factory=list)  # of each of them that has any
    _running: dict[int, _Trial] = field(default_factory=dict)
    _finished: list[_Trial] = field(default_factory=list)
    _worker_s: float = 0.0  # that workers were up, until the last shard
    _shard_s: float = 0.0  # that they spent on shards
    _shard_at: float = 0.0  # when the last shard came, or the first worker

    def update(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "launch":  # workers start once more, and the driver emits every trial again
            self._done = self.workers = 0
            self._images.clear()
            self._running.clear()
        elif kind in ("trial_started", "trial_resumed"):
            work = event["images"], event["shards"], event["total_shards"]
            self._running[event["trial"]] = _Trial(not event.get("label"), *work)
        elif kind == "shard":
            self._shard_s += event["seconds"]
            self._worker_s += self.workers * (now - self._shard_at)
            self._shard_at = now
            if trial := self._running.get(event["trial"]):
                trial.seconds += event["seconds"]
                trial.made += 1
                trial.missing = max(trial.missing - 1, 0)
        elif kind in ("trial_finished", "trial_revived", "revival_failed"):
            trial = self._running.pop(event["trial"], None)
            if kind == "trial_finished":
                self._done += 1
                self._images += [event["images"]] if event["images"] else []
                if trial is not None and event["new"] and trial.made:
                    trial.shards -= trial.missing  # of a stopped trial
                    self._finished.append(trial)
        elif kind == "workers":
            if not self.workers:
                self._shard_at = now
            self.workers = event["alive"]

    def remaining(self, now: float) -> Range | None:
        """Seconds until the sweep ends; 0 if what is left cannot be forecast; None without a budget of trials or
        images, without workers, or before the first shard.
        """
        to_come = self._trials_to_come()
        if to_come is None or not self.workers:
            return None
        if not to_come and not any(trial.missing for trial in self._running.values()):
            return Range(0.0, 0.0, 0.0)
        known = self._finished or [trial for trial in self._running.values() if trial.made]
        if not known:
            return None
        proposed = [trial.whole_seconds for trial in known if trial.is_proposed]
        costs = proposed if len(proposed) >= _MIN_TRIALS else [trial.whole_seconds for trial in known]
        left = to_come + sum(trial.missing / trial.shards for trial in self._running.values() if trial.shards)
        shards = sum(trial.missing for trial in self._running.values())
        lanes = self.workers if to_come else min(self.workers, shards)  # the last shards leave workers idle
        pace = max(self._worker_s / self._shard_s, 1.0) / lanes if self._shard_s else 1.0 / lanes
        value = pace * left * fmean(costs)
        value = max(value - (now - self._shard_at), _OVERRUN * value)
        if len(costs) < _MIN_TRIALS:
            return Range(value, *(bound * value for bound in _EARLY_RANGE))
        spread = stdev(costs) * math.sqrt(left + left**2 / len(costs))  # of the sum to come, and of the mean
        error = pace * NormalDist().inv_cdf((1 + RANGE) / 2) * spread
        return Range(value, max(value - error, 0.0), value + error)

    def share_done(self) -> float | None:
        """The share of the budget's trials, or images, that is done; None without such a budget. It stays below 1: a
        sweep is done when its launch returns.
        """
        running, shares = self._running.values(), []
        if self.trials:
            shares.append((self._done + sum(trial.share for trial in running)) / self.trials)
        if self.images:
            shares.append((sum(self._images) + sum(trial.share * trial.images for trial in running)) / self.images)
        return min(max(shares), _MAX_SHARE) if shares else None

    def _trials_to_come(self) -> float | None:
        """Trials that have not started."""
        left = []
        if self.trials is not None:
            left.append(float(self.trials - self._done - len(self._running)))
        if self.images is not None and self._images:
            left.append((self.images - sum(self._images)) / fmean(self._images) - len(self._running))
        return max(min(left), 0.0) if left else None
