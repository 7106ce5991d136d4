"""What is left of a running sweep, in seconds with a range, from the shards that have finished.

A trial costs worker seconds. Trials in flight are expected to cost the mean of finished trials of their kind (drafter
and tree), shrunk to that of all; trials to come cost what those that the search proposed did, stopped ones included.
Seconds of work become wall clock by the workers' number and by the share of their time that went into shards so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from orchestrator.run.tasks import Event

RANGE = 0.9  # probability of the stated range
_MIN_TRIALS = 3  # finished, before anything is said
_PRIOR_TRIALS = 1.0  # weight of all trials' mean in that of a kind

Kind = tuple[object, object]  # drafter, tree


class Range(NamedTuple):
    """An estimate, and the ends of its range."""

    value: float
    low: float
    high: float


@dataclass
class _Trial:
    kind: Kind
    is_proposed: bool  # by the search, not enqueued
    seconds: float = 0.0
    images: int = 0


@dataclass
class Forecast:
    """Counts what a run's events say. trials, images: the sweep's budget (None: no limit). Times are in seconds, by any
    clock.
    """

    trials: int | None = None
    images: int | None = None
    workers: int = 0
    _done: int = 0  # trials, those of earlier runs included
    _images_done: int = 0
    _running: dict[int, _Trial] = field(default_factory=dict)
    _finished: list[_Trial] = field(default_factory=list)
    _shards: int = 0
    _start: float | None = None  # of the first trial
    _busy: dict[str, float] = field(default_factory=dict)  # seconds of shards by worker
    _last: dict[str, float] = field(default_factory=dict)  # end of each worker's last shard

    def update(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "launch":  # the driver emits every trial again
            self._done = self._images_done = 0
            self._running.clear()
        elif kind == "trial_started":
            config: Mapping[str, Any] = event.get("config") or {}
            trial_kind = config.get("drafter.kind"), config.get("tree.policy")
            self._running[event["trial"]] = _Trial(trial_kind, not event.get("label"))
            self._start = now if self._start is None else self._start
        elif kind == "shard":
            trial = self._running.get(event["trial"])
            if trial is not None:
                trial.seconds += event["seconds"]
                trial.images += event["images"] * (event["kind"] == "quality")
            self._busy[event["worker"]] = self._busy.get(event["worker"], 0.0) + event["seconds"]
            self._last[event["worker"]] = now
            self._shards += 1
        elif kind == "trial_finished":
            self._done += 1
            self._images_done += event["images"]
            trial = self._running.pop(event["trial"], None)
            if trial is not None and event["new"] and trial.seconds:
                self._finished.append(trial)
        elif kind == "workers":
            self.workers = event["alive"]

    def remaining(self, now: float) -> Range | None:
        """Seconds until the sweep ends; None without a budget of trials or images, without workers, or before enough
        trials have finished.
        """
        to_come = self._trials_to_come()
        if to_come is None or not self.workers or len(self._finished) < _MIN_TRIALS:
            return None
        proposed = [trial.seconds for trial in self._finished if trial.is_proposed]
        costs = proposed if len(proposed) >= _MIN_TRIALS else [trial.seconds for trial in self._finished]
        mean, n = fmean(costs), len(costs)
        variance = sum((cost - mean) ** 2 for cost in costs) / (n - 1)
        expected = {trial.kind: self._mean_of_kind(trial.kind) for trial in self._running.values()}
        in_flight = sum(max(expected[trial.kind] - trial.seconds, 0.0) for trial in self._running.values())
        # of a sum of costs to come, and of the mean that is estimated
        error = math.sqrt(variance * ((len(self._running) + to_come) + to_come**2 / n))
        z = NormalDist().inv_cdf((1 + RANGE) / 2)
        work, efficiency = in_flight + to_come * mean, self._efficiency()
        begun = sum(now - last for last in self._last.values()) * efficiency  # shards that run now
        seconds = (
            max(part - begun, 0.0) / (self.workers * efficiency) for part in (work, work - z * error, work + z * error)
        )
        return Range(*seconds)

    @property
    def _mean_shard(self) -> float:
        """Seconds of a shard."""
        return sum(self._busy.values()) / self._shards

    def _trials_to_come(self) -> float | None:
        """Trials that have not started."""
        left = []
        if self.trials is not None:
            left.append(float(self.trials - self._done - len(self._running)))
        if self.images is not None and self._finished:
            each = fmean(trial.images for trial in self._finished)
            if each:
                left.append((self.images - self._images_done) / each - len(self._running))
        return max(min(left), 0.0) if left else None

    def _mean_of_kind(self, kind: Kind) -> float:
        """Expected worker seconds of a trial."""
        overall = fmean(trial.seconds for trial in self._finished)
        same = [trial.seconds for trial in self._finished if trial.kind == kind]
        return (sum(same) + _PRIOR_TRIALS * overall) / (len(same) + _PRIOR_TRIALS)

    def _efficiency(self) -> float:
        """The share of the workers' time that went into shards, each until its last shard."""
        assert self._start is not None
        spans = sum(last - self._start for last in self._last.values())
        return min(sum(self._busy.values()) / spans, 1.0) if spans > 0 else 1.0
