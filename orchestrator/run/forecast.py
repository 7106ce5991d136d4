"""What is left of a running sweep, in seconds with a range, from the shards that have finished.

A trial costs worker seconds. Trials in flight are expected to cost the mean of finished trials of their kind (drafter
and tree), shrunk to that of all; trials to come cost what those that the search proposed did, stopped ones included.
Seconds of work become wall clock by the workers' number and by the share of their time that went into shards so far.
Until three trials have finished, an image is expected to cost what those drawn so far did. Measurements, and stopped
trials that go on at the end, are not forecast: then the estimate is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from orchestrator.run.tasks import Event

RANGE = 0.9  # probability of the stated range
_MIN_TRIALS = 3  # finished, before their costs are used
_EARLY_RANGE = (0.4, 1.5)  # of the estimate before that: the first trial is vanilla, and most others are faster
_PRIOR_TRIALS = 1.0  # weight of all trials' mean in that of a kind
_MAX_SHARE = 0.99  # measurements, and stopped trials that go on, follow the last shard of the budget

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
    planned: int  # images
    shards: int  # to draw and to time; racing may stop the trial before the last
    seconds: float = 0.0
    images: int = 0
    finished: int = 0  # shards

    @property
    def unfinished(self) -> int:
        return max(self.shards - self.finished, 0)

    @property
    def share(self) -> float:
        """The share that is done. The measurement after the last shard counts as a shard."""
        return min(self.finished, self.shards) / (self.shards + 1)

    def rest(self, expected: float) -> float:
        """Worker seconds that it costs from now on. Beyond those `expected` in all, it goes on at its own rate."""
        if not self.unfinished:
            return 0.0
        rest = expected - self.seconds
        return rest if rest > 0 else self.unfinished * self.seconds / max(self.finished, 1)


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
            is_proposed = not event.get("label")
            self._running[event["trial"]] = _Trial(trial_kind, is_proposed, event["images"], event["shards"])
            self._start = now if self._start is None else self._start
        elif kind == "shard":
            trial = self._running.get(event["trial"])
            if trial is not None:
                trial.seconds += event["seconds"]
                trial.finished += 1
                trial.images += event["images"] * (event["kind"] == "quality")
            self._busy[event["worker"]] = self._busy.get(event["worker"], 0.0) + event["seconds"]
            self._last[event["worker"]] = now
        elif kind == "trial_finished":
            self._done += 1
            self._images_done += event["images"]
            trial = self._running.pop(event["trial"], None)
            if trial is not None and event["new"] and trial.seconds:
                self._finished.append(trial)
        elif kind == "workers":
            self.workers = event["alive"]

    def remaining(self, now: float) -> Range | None:
        """Seconds until the sweep ends; 0 if what is left cannot be forecast; None without a budget of trials or
        images, without workers, or before the first images.
        """
        to_come = self._trials_to_come()
        if to_come is None or not self.workers:
            return None
        if not to_come and not self._running:
            return Range(0.0, 0.0, 0.0)
        if len(self._finished) < _MIN_TRIALS:
            return self._early(to_come, now)
        proposed = [trial.seconds for trial in self._finished if trial.is_proposed]
        costs = proposed if len(proposed) >= _MIN_TRIALS else [trial.seconds for trial in self._finished]
        mean, n = fmean(costs), len(costs)
        variance = sum((cost - mean) ** 2 for cost in costs) / (n - 1)
        expected = {trial.kind: self._mean_of_kind(trial.kind) for trial in self._running.values()}
        in_flight = sum(trial.rest(expected[trial.kind]) for trial in self._running.values())
        # of a sum of costs to come, and of the mean that is estimated
        error = math.sqrt(variance * ((len(self._running) + to_come) + to_come**2 / n))
        z = NormalDist().inv_cdf((1 + RANGE) / 2)
        work, efficiency = in_flight + to_come * mean, self._efficiency()
        shards = sum(trial.unfinished for trial in self._running.values())
        busy = min(self.workers, shards)  # the last shards leave workers idle: here those without a shard for longest
        begun = sum(sorted(now - last for last in self._last.values())[:busy]) * efficiency
        begun = min(begun, in_flight * busy / max(shards, 1))  # a shard that takes longer is not the work of others
        lanes = self.workers if to_come else max(busy, 1)
        bounds = (work, work - z * error, work + z * error)
        return Range(*(max(bound - begun, 0.0) / (lanes * efficiency) for bound in bounds))

    def share_done(self) -> float | None:
        """The share of the budget's trials, or images, that is done; None without such a budget. It stays below 1: a
        sweep is done when its launch returns.
        """
        running, shares = self._running.values(), []
        if self.trials:
            shares.append((self._done + sum(trial.share for trial in running)) / self.trials)
        if self.images:
            shares.append((self._images_done + sum(trial.share * trial.planned for trial in running)) / self.images)
        return min(max(shares), _MAX_SHARE) if shares else None

    def _early(self, to_come: float, now: float) -> Range | None:
        """From the cost of an image so far, timings included."""
        trials = [*self._finished, *self._running.values()]
        drawn, planned = sum(trial.images for trial in trials), [trial.planned for trial in trials if trial.planned]
        if not drawn or not planned:
            return None
        left = to_come * fmean(planned)
        left += sum(max(trial.planned - trial.images, 0) for trial in self._running.values())
        work = left * sum(trial.seconds for trial in trials) / drawn
        longest = sum(self._busy.values()) / len(self._busy)  # a shard that runs now is not expected to take longer
        begun = sum(min(now - last, longest) for last in self._last.values())
        seconds = max(work - begun, 0.0) / self.workers
        return Range(seconds, *(factor * seconds for factor in _EARLY_RANGE))

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
