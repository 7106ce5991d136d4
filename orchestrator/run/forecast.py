"""What is left of a running sweep, in seconds with a range, from the shards that have finished.

A trial costs worker seconds. Trials in flight are expected to cost the mean of finished trials of their kind (drafter
and tree), shrunk to that of all; trials to come cost what those that the search proposed did, stopped ones included.
Until three trials have finished, those in flight count by their shards. Seconds of work become wall clock by the pace
of the last minutes: the time between a worker's shards, over what such shards cost in the whole run. So the forecast
follows a machine that becomes busy or free. Workers count while they are up, not while they load their models.
Measurements, and stopped trials that will go on at the end, are not forecast: then the estimate is 0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

from orchestrator.run.tasks import Event

RANGE = 0.9  # probability of the stated range
_MIN_TRIALS = 3  # finished, before those in flight are left out of the mean cost, and before its spread is known
_EARLY_RANGE = (0.4, 1.5)  # of the estimate before that: the first trial is vanilla, and most others are faster
_PRIOR_TRIALS = 1.0  # weight of all trials' mean in that of a kind
_MAX_SHARE = 0.99  # measurements, and stopped trials that go on, follow the last shard of the budget
_PACE_S, _PACE_SHARDS = 60.0, 8  # the pace is that of this time, and of this number of shards at least
_OVERRUN = 0.1  # of its time so far, that a shard beyond its expected end still takes

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
    total_shards: int  # with those that the store had when the trial started
    seconds: float = 0.0
    finished: list[_ShardKind] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        return max(self.shards - len(self.finished), 0)

    @property
    def share(self) -> float:
        """The share that is done. The measurement after the last shard counts as a shard."""
        return (self.total_shards - self.unfinished) / (self.total_shards + 1)

    @property
    def weight(self) -> float:
        """The share of its shards whose seconds are known: an earlier run may have drawn others."""
        return min(len(self.finished) / self.total_shards, 1.0)


class _ShardKind(NamedTuple):
    """Shards of one cost."""

    trial: Kind | None
    kind: str  # quality or timing
    images: int

    @property
    def of_any_trial(self) -> _ShardKind:
        return self._replace(trial=None)


@dataclass
class _Cost:
    seconds: float = 0.0
    shards: int = 0

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.shards += 1


class _Span(NamedTuple):
    """From the end of a worker's shard to the end of its next."""

    shard: _ShardKind
    seconds: float
    end: float


@dataclass
class Forecast:
    """Counts what a run's events say. trials, images: the sweep's budget (None: no limit). Times are in seconds, by any
    clock.
    """

    trials: int | None = None
    images: int | None = None
    workers: int = 0
    _done: int = 0  # trials, those of earlier runs included
    _images: list[int] = field(default_factory=list)  # of each of them that has any
    _running: dict[int, _Trial] = field(default_factory=dict)
    _finished: list[_Trial] = field(default_factory=list)
    _costs: dict[_ShardKind, _Cost] = field(default_factory=dict)  # also of all trials' shards of one kind
    _recent: deque[_Span] = field(default_factory=deque)
    _last: dict[str, float] = field(default_factory=dict)  # end of each worker's last shard, the earliest end first

    def update(self, event: Event, now: float) -> None:
        kind = event["event"]
        if kind == "launch":  # workers start once more, and the driver emits every trial again
            self._done = self.workers = 0
            self._images.clear()
            self._running.clear()
        elif kind in ("trial_started", "trial_resumed"):
            config: Mapping[str, Any] = event.get("config") or {}
            trial_kind = config.get("drafter.kind"), config.get("tree.policy")
            is_proposed = not event.get("label")
            work = event["images"], event["shards"], event["total_shards"]
            self._running[event["trial"]] = _Trial(trial_kind, is_proposed, *work)
        elif kind == "shard":
            self._add_shard(event, now)
        elif kind in ("trial_finished", "trial_revived", "revival_failed"):
            trial = self._running.pop(event["trial"], None)
            if kind == "trial_finished":
                self._done += 1
                self._images += [event["images"]] if event["images"] else []
                if trial is not None and event["new"] and trial.seconds:
                    trial.total_shards -= trial.unfinished
                    self._finished.append(trial)
        elif kind == "workers":
            self.workers = event["alive"]
        while len(self._last) > self.workers:  # a replacement has another name: the one silent for longest is gone
            del self._last[next(iter(self._last))]

    def _add_shard(self, event: Event, now: float) -> None:
        seconds, worker, trial = event["seconds"], event["worker"], self._running.get(event["trial"])
        shard = _ShardKind(trial.kind if trial else None, event["kind"], event["images"])
        if trial is not None:
            trial.seconds += seconds
            trial.finished.append(shard)
        for known in {shard, shard.of_any_trial}:
            self._costs.setdefault(known, _Cost()).add(seconds)
        self._recent.append(_Span(shard, max(now - self._last.pop(worker, now), seconds), now))
        self._last[worker] = now
        while len(self._recent) > _PACE_SHARDS and self._recent[0].end < now - _PACE_S:
            self._recent.popleft()

    def remaining(self, now: float) -> Range | None:
        """Seconds until the sweep ends; 0 if what is left cannot be forecast; None without a budget of trials or
        images, without workers, or before the first images.
        """
        to_come = self._trials_to_come()
        if to_come is None or not self.workers:
            return None
        if not to_come and not self._running:
            return Range(0.0, 0.0, 0.0)
        is_early = len(self._finished) < _MIN_TRIALS
        trials = [*self._finished, *(self._running.values() if is_early else ())]
        if not any(shard.kind == "quality" for trial in trials for shard in trial.finished):
            return None
        proposed = [trial for trial in self._finished if trial.is_proposed]
        costs = proposed if len(proposed) >= _MIN_TRIALS else trials
        in_flight = sum(self._rest(trial, trials) for trial in self._running.values())
        shards = sum(trial.unfinished for trial in self._running.values())
        busy = min(self.workers, shards)  # the last shards leave workers idle: here those without a shard for longest
        begun, each = [now - last for last in reversed(self._last.values())][:busy], in_flight / max(shards, 1)
        pace = self._pace(begun, each)
        work = pace * (in_flight + to_come * _mean(costs))
        work -= sum(pace * each - max(pace * each - elapsed, _OVERRUN * elapsed) for elapsed in begun)
        lanes = self.workers if to_come else max(busy, 1)
        if is_early:
            low, high = (bound * work for bound in _EARLY_RANGE)
        else:
            error = pace * NormalDist().inv_cdf((1 + RANGE) / 2) * self._error(costs, to_come)
            low, high = work - error, work + error
        return Range(*(max(bound, 0.0) / lanes for bound in (work, low, high)))

    def share_done(self) -> float | None:
        """The share of the budget's trials, or images, that is done; None without such a budget. It stays below 1: a
        sweep is done when its launch returns.
        """
        running, shares = self._running.values(), []
        if self.trials:
            shares.append((self._done + sum(trial.share for trial in running)) / self.trials)
        if self.images:
            shares.append((sum(self._images) + sum(trial.share * trial.planned for trial in running)) / self.images)
        return min(max(shares), _MAX_SHARE) if shares else None

    def _trials_to_come(self) -> float | None:
        """Trials that have not started."""
        left = []
        if self.trials is not None:
            left.append(float(self.trials - self._done - len(self._running)))
        if self.images is not None and self._images:
            left.append((self.images - sum(self._images)) / fmean(self._images) - len(self._running))
        return max(min(left), 0.0) if left else None

    def _rest(self, trial: _Trial, trials: Sequence[_Trial]) -> float:
        """Worker seconds that a trial costs from now on. Beyond what its kind does, it goes on at its own rate."""
        if not trial.unfinished:
            return 0.0
        overall, same = _mean(trials), [other for other in trials if other.kind == trial.kind]
        weight = sum(other.weight for other in same)
        expected = (sum(other.seconds for other in same) + _PRIOR_TRIALS * overall) / (weight + _PRIOR_TRIALS)
        expected *= min(trial.shards / fmean(other.total_shards for other in trials), 1.0)  # it may lack few
        done = sum(map(self._cost, trial.finished))
        return expected - done if expected > done else trial.unfinished * trial.seconds / max(len(trial.finished), 1)

    def _error(self, costs: Sequence[_Trial], to_come: float) -> float:
        """The standard error of a sum of costs to come, and of the mean that is estimated, in worker seconds."""
        variance = stdev(trial.seconds / trial.weight for trial in costs) ** 2
        return math.sqrt(variance * ((len(self._running) + to_come) + to_come**2 / len(costs)))

    def _cost(self, shard: _ShardKind) -> float:
        """Mean seconds of such shards, shrunk to those of all trials."""
        own, overall = self._costs[shard], self._costs[shard.of_any_trial]
        return (own.seconds + overall.seconds / overall.shards) / (own.shards + 1)

    def _pace(self, begun: Sequence[float], each: float) -> float:
        """Time between the last shards, each worker's own, over what such shards cost in the whole run.

        begun: seconds since the start of shards that run now; those that took longer than expected count, too. each:
        their expected cost.
        """
        seconds, expected = sum(span.seconds for span in self._recent), sum(self._cost(s.shard) for s in self._recent)
        late = [elapsed for elapsed in begun if elapsed * expected > each * seconds]
        return (seconds + sum(late)) / (expected + each * len(late)) if expected else 1.0


def _mean(trials: Iterable[_Trial]) -> float:
    """Mean seconds of a whole trial."""
    trials = list(trials)
    return sum(trial.seconds for trial in trials) / sum(trial.weight for trial in trials)
