"""The state of a sweep, from its events: what a launch, `status`, the report and notices show."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.store import events
from orchestrator.text import clean
from workers.data.checked_json import OtherVersionError
from workers.data.storage import Storage

_RECENT_EVENTS = 3
_VANILLA = 0  # number of its trial


@dataclass(slots=True)
class RunningTrial:
    """A trial in flight."""

    name: str  # its label, or that of its setting
    images: int  # of all captions
    missing: int  # shards that do not exist yet; racing may stop the trial before the last
    shards: int
    started: float
    seconds: float = 0.0  # spent on its shards in this launch

    @property
    def share(self) -> float:
        """The share of its images that is done."""
        return (self.shards - self.missing) / self.shards if self.shards else 1.0


@dataclass(slots=True)
class _Work:
    """What the shards of some trials took in a launch."""

    images: int = 0
    seconds: float = 0.0  # of workers

    def add(self, shard: events.Shard) -> None:
        self.images += shard.images if shard.has_images else 0
        self.seconds += shard.seconds


@dataclass(slots=True)
class Pace:
    """How fast a launch works, as far as that says what the rest will take.

    Moments are in seconds, of the clock of `SweepProgress.update`.
    """

    given: float = 0.0  # share of the budget that the launch found done, or copied
    # without the timing sessions that are its, which are those of all settings of `enqueue`
    vanilla: _Work = field(default_factory=_Work)
    others: _Work = field(default_factory=_Work)
    costs: list[float] = field(default_factory=list)  # seconds of each finished one of the others
    # when the first shard was begun, or what is prepared before was done; the others are since then
    began: float | None = None
    ended: dict[str, float] = field(default_factory=dict)  # when the last shard of a worker came
    busy: dict[str, float] = field(default_factory=dict)  # seconds of each worker on shards
    idle: dict[str, float] = field(default_factory=dict)  # and between them
    longest: float = 0.0  # seconds of a shard
    at_once: int = 0  # the most shards of images that there were to draw

    @property
    def last_shard(self) -> float:
        """When it came."""
        return max(self.ended.values(), default=0.0)

    def add(self, shard: events.Shard, now: float) -> None:
        """Take a shard that a worker has written now."""
        begin = now - shard.seconds
        if self.began is None:
            self.began = begin
        worker = shard.worker
        before = max(self.ended.get(worker, begin), self.began)
        gap = max(begin - before, 0.0) if worker in self.busy else 0.0
        self.idle[worker] = self.idle.get(worker, 0.0) + gap
        self.busy[worker] = self.busy.get(worker, 0.0) + now - max(begin, before)
        self.ended[worker] = now
        self.longest = max(self.longest, shard.seconds)
        if shard.has_images and shard.trial == _VANILLA:
            self.vanilla.add(shard)
        elif shard.trial != _VANILLA:
            self.others.add(shard)


@dataclass(slots=True)
class SweepProgress:
    """The state of a sweep, updated by its events.

    A launch's events are the last `Launch` and those after it: it emits the trials of earlier
    launches again.
    """

    planned: int | None = None  # trials in the budget; None: no limit, or not known
    planned_images: int | None = None
    is_upper_bound: bool = False  # whether the sweep may end before its budget is spent
    start_time: float = field(default_factory=time.monotonic)  # of this object

    launched: str | None = None  # when the latest launch began
    ended: events.End | None = None  # how that ended
    resume: str | None = None  # the command that resumes it
    place: str | None = None  # the sweep's folder then
    phase: str = ""  # what it waits for
    note: str = ""  # the latest, until a trial ends
    plateau: events.Plateau | None = None
    workers: int | None = None  # that are alive; None: not known yet
    lost: list[events.Launch | events.Workers] = field(default_factory=list)
    done: int = 0  # trials, with those of earlier launches
    failed: int = 0  # of these
    stopped: int = 0  # of these, by racing
    running: dict[int, RunningTrial] = field(default_factory=dict)
    timing: dict[str, events.Timing] = field(default_factory=dict)  # sessions that run, by worker
    pace: Pace = field(default_factory=Pace)
    _done_images: int = 0

    objectives: tuple[events.Objective, ...] = ()
    finished: set[int] = field(default_factory=set)  # trials of all launches
    images: Counter[int] = field(default_factory=Counter)  # of each trial, by all launches
    copied: Counter[int] = field(default_factory=Counter)  # of these, those of earlier sweeps
    # the last results of trials that meet the constraints
    candidates: dict[int, events.TrialResult] = field(default_factory=dict)
    recent: deque[events.Event] = field(default_factory=lambda: deque(maxlen=_RECENT_EVENTS))
    last: str | None = None  # when the last event was

    damaged: int = 0  # lines of the file
    of_other_versions: int = 0  # lines of the file that other versions of specfrontier wrote
    ends_damaged: bool = False  # whether the last line is one of them

    def update(self, event: events.Event, now: float | None = None) -> None:
        """Take an event. now: its moment in seconds, by default on the monotonic clock."""
        if now is None:
            now = time.monotonic()
        before = self.share or 0.0
        is_given = False  # whether what it adds to the share took no time
        match event:
            case events.Launch():
                self._begin(event)
            case events.TrialStarted():
                is_given = event.trial not in self.running
                self._start(event, now)
            case events.Shard():
                self._add_shard(event, now)
                is_given = event.taken_from is not None
            case events.TrialFinished():
                is_given = not self._finish(event)
            case events.TrialRevived() | events.RevivalFailed():
                trial = self.running.pop(event.trial, None)
                is_given = trial is not None and not trial.seconds
                if isinstance(event, events.TrialRevived) and event.state != "stopped":
                    self.stopped -= 1
            case events.Workers():
                if event.alive and not self.workers:
                    self.note = ""  # that none was running
                self.workers = event.alive
                if event.lost is not None:
                    self.lost.append(event)
            case events.Phase():
                self.phase = event.phase
                if not event.phase:
                    self.pace.began = now
                    self.pace.busy.clear()
                    self.pace.idle.clear()
            case events.Timing(settings=0):
                self.timing.pop(event.worker, None)
            case events.Timing():
                self.timing[event.worker] = event
            case events.Plateau():
                self.plateau = event
            case events.Identified():
                self.objectives = event.objectives
            case events.End():
                self.ended = event
        if isinstance(event, events.TrialResult) and event.feasible:
            self.candidates[event.trial] = event
        if event.note is not None:
            self.note = event.note
        if is_given:
            self.pace.given += (self.share or 0.0) - before
        self.last = event.at
        if not (isinstance(event, events.Shard | events.Plateau) or _only_ends(event)):
            self.recent.append(event)

    def _begin(self, launch: events.Launch) -> None:
        """Begin a launch: its workers start, and the driver emits every trial again."""
        self.launched = launch.at
        self.resume = launch.resume
        self.place = launch.place
        self.ended = None
        self.workers = None
        self.phase = ""
        self.done = 0
        self.failed = 0
        self.stopped = 0
        self._done_images = 0
        self.running.clear()
        self.timing.clear()
        self.pace = Pace()
        if launch.note is None:
            self.lost = []
            self.plateau = None  # the budget may be another
        else:
            self.lost.append(launch)  # the same launch on another cluster

    def _start(self, event: events.TrialStarted, now: float) -> None:
        """Start a trial, or go on with one that runs: it needs more images than it had."""
        name = clean(event.label or event.setting)
        before = self.running.get(event.trial)
        seconds = 0.0 if before is None else before.seconds
        self.running[event.trial] = RunningTrial(
            name, event.images, event.shards, event.total_shards, now, seconds
        )
        missing = sum(trial.missing for trial in self.running.values())
        self.pace.at_once = max(self.pace.at_once, missing)

    def _add_shard(self, shard: events.Shard, now: float) -> None:
        if shard.has_images:
            self.images[shard.trial] += shard.images
            if shard.taken_from is not None:
                self.copied[shard.trial] += shard.images
        trial = self.running.get(shard.trial)
        if trial is not None and shard.has_images:
            trial.missing = max(trial.missing - 1, 0)
        if shard.taken_from is not None:
            return
        self.pace.add(shard, now)
        if trial is not None:
            trial.seconds += shard.seconds

    def _finish(self, event: events.TrialFinished) -> bool:
        """Count a finished trial; returns whether it took time in this launch: not if all of its
        shards existed, or were copied.
        """
        trial = self.running.pop(event.trial, None)
        self.finished.add(event.trial)
        self.done += 1
        self.failed += event.state == "failed"
        self.stopped += event.state == "stopped"
        self._done_images += event.images
        if event.new:
            self.note = ""
            if trial is not None and trial.seconds and event.trial != _VANILLA:
                self.pace.costs.append(trial.seconds)
        return event.new and (trial is None or trial.seconds > 0)

    @property
    def share(self) -> float | None:
        """The share of the budget's trials, or images, that is done; None without such a budget."""
        running = self.running.values()
        shares = []
        if self.planned:
            trials = self.done + sum(trial.share for trial in running)
            shares.append(trials / self.planned)
        if self.planned_images:
            images = self._done_images + sum(trial.share * trial.images for trial in running)
            shares.append(images / self.planned_images)
        return min(max(shares), 1.0) if shares else None

    @property
    def mean_images(self) -> float:
        """The images of a trial: the mean over those that have finished or run; 0 without any."""
        running = [trial.images for trial in self.running.values()]
        count = self.done + len(running)
        return (self._done_images + sum(running)) / count if count else 0.0

    @property
    def images_left(self) -> float | None:
        """The images that the rest of the budget takes, if trials that have not started have
        `mean_images`; None without a budget of trials or images.
        """
        running = self.running.values()
        left = []
        if self.planned:
            waiting = max(self.planned - self.done - len(running), 0)
            rest = sum((1 - trial.share) * trial.images for trial in running)
            left.append(rest + waiting * self.mean_images)
        if self.planned_images:
            drawn = self._done_images + sum(trial.share * trial.images for trial in running)
            left.append(max(self.planned_images - drawn, 0.0))
        return min(left) if left else None

    @property
    def timing_text(self) -> str:
        """The timing sessions that run: `timing 10 settings on worker-0`; "" if none does."""
        return ", ".join(session.text for session in self.timing.values())

    @property
    def has_earlier_work(self) -> bool:
        """Whether a part of the budget took this launch no time."""
        return self.pace.given > 0

    @property
    def lost_clusters(self) -> list[str]:
        """The notes on clusters that the launch lost."""
        return [lost.note or "" for lost in self.lost if isinstance(lost, events.Launch)]


def _only_ends(event: events.Event) -> bool:
    """Whether it says no more than that a phase or a timing session has ended."""
    match event:
        case events.Phase(phase="") | events.Timing(settings=0):
            return True
    return False


def read_progress(storage: Storage) -> SweepProgress:
    """The state of a stored sweep, whose budget is not among its events."""
    progress = SweepProgress()
    for event in events.read_events(storage):
        progress.ends_damaged = event is None
        if event is None:
            progress.damaged += 1
        elif isinstance(event, OtherVersionError):
            progress.of_other_versions += 1
        else:
            progress.update(event, datetime.fromisoformat(event.at).timestamp())
    return progress
