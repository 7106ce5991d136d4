"""The sweep's loop: ask for settings, hand out their shards, measure what came back, tell the study; all on one page.

Parquet is the truth: a file that is there is not made again, and a trial whose record is there is only told again. So
to resume is to run the same loop on a store that is not empty.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.results.describe import describe
from orchestrator.results.store import write_trial
from orchestrator.results.trials import COMPLETE, TrialRecord
from orchestrator.run.pending import Flight, Planner
from orchestrator.run.study import Proposal, Record, Search
from orchestrator.run.tasks import Done, Task, Workers
from search_spaces.goals import Constraint
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

Tell = Callable[[Mapping[str, Any]], None]
SHOWN_DIGITS = 3  # of a setting's numbers
MOST_LOST = 10  # trials in a row, before the sweep itself gives up
PATIENCE = 0.5  # seconds to wait for results before looking at the clock


class SweepError(RuntimeError):
    """The sweep cannot go on; what it has finished stays, and --resume goes on from there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended: its trials, why it stopped (`trials`, `images`, `hours` or `space`), and which trials were
    lost to a machine, a network or a file: they were not written down, so that --resume runs them again.
    """

    records: Sequence[TrialRecord]
    stopped_by: str
    lost: Collection[int] = ()


class Driver:
    """Runs a sweep on workers, telling `tell` what happens.

    check: refuses a setting that the model cannot serve (ConfigError). objectives: names of metrics.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        storage: Storage,
        planner: Planner,
        search: Search,
        record: Record,
        workers: Workers,
        *,
        objectives: Sequence[str],
        check: Callable[[Any], None],
        tell: Tell,
    ) -> None:
        self.sweep, self.storage, self.planner, self.search, self.record = sweep, storage, planner, search, record
        self.workers, self.objectives, self.check, self.tell = workers, list(objectives), check, tell
        self.wanted = dict.fromkeys([*objectives, *(constraint.metric for constraint in sweep.constraints)])
        self.there = {f"shards/{name}" for name in storage.names("shards")}
        self.flights: deque[Flight] = deque()
        self.records: list[TrialRecord] = []
        self.baseline: Flight | None = None
        self.images = 0
        self.lost: set[int] = set()
        self._alive = -1
        self._digests: dict[str, int] = {}
        self._finished: dict[int, TrialRecord] = {}
        self._asked, self._began = 0, time.monotonic()

    def run(self, finished: Sequence[TrialRecord] = ()) -> Outcome:
        """Run to the end of the budget; `finished`: the records that the store holds already.

        Raises:
            PoolError: no worker is left and none can be had.
            StudyError: `finished` is another sweep's.
            SweepError: the baseline failed.
        """
        self._finished = {entry.number: entry for entry in finished}
        while True:
            stop = self._ask_what_may_be_asked()
            if not self.flights:
                return Outcome(self.records, stop or "trials", self.lost)
            if self.flights[0].record is None and self.flights[0].duplicate_of is None:
                for done in self.workers.collect(PATIENCE):
                    self._take(done)
                self._count_workers()
            self._tell_the_oldest()

    def _ask_what_may_be_asked(self) -> str | None:
        """Start trials until `parallel` are in flight or the budget is spent; then says which part of it."""
        while len(self.flights) < self.sweep.search.parallel:
            stop = self._spent()
            if stop:
                return stop
            known = self._finished.get(self._asked)
            proposal = self.search.propose(self._asked, known.params if known else None)
            self._asked += 1
            self.record.asked(proposal)
            flight = Flight(proposal)
            self.flights.append(flight)
            self._start(flight, known)
        return None

    def _spent(self) -> str | None:
        budget, known = self.sweep.budget, self._asked in self._finished
        if self._asked >= min(budget.trials, self.search.size or math.inf):
            return "trials" if self._asked == budget.trials else "space"
        if budget.images is not None and self.images >= budget.images:
            return "images"
        if budget.hours is not None and not known and time.monotonic() - self._began >= budget.hours * 3600:
            return "hours"
        return None

    def _start(self, flight: Flight, known: TrialRecord | None) -> None:
        proposal = flight.proposal
        problem = proposal.problem or self._misfit(proposal)
        if problem or proposal.config is None:
            flight.fail(problem or "no setting")
            return
        tasks = self.planner.plan(flight, self.there)
        earlier = self._digests.setdefault(proposal.config.digest(), proposal.number)
        flight.record = known
        if earlier != proposal.number:
            flight.duplicate_of = earlier
            return
        self.images += flight.images
        if self.baseline is None:
            self.baseline = flight  # its images are needed even if its record is there
        elif known is not None:
            return
        if known is None:
            about = {"label": proposal.label, "words": self._words(proposal.label, proposal.config)}
            self.tell({"event": "trial_started", "trial": flight.number, **about, "setting": proposal.config.flat()})
        for task in tasks:
            self.workers.submit(task)
        self._measure_what_is_there()

    def _words(self, label: str, setting: DecodingConfig | None) -> str:
        """What a trial is called where it is shown: its label, else its setting."""
        return label or (describe(setting, self.sweep.sampling, SHOWN_DIGITS) if setting else "")

    def _misfit(self, proposal: Proposal) -> str | None:
        try:
            if proposal.config is not None:
                self.check(proposal.config)
        except ConfigError as error:
            return f"the model cannot serve it: {error}"
        return None

    def _take(self, done: Done) -> None:
        """A task came back."""
        known = (*self.flights, *([self.baseline] if self.baseline else []))
        flight = next((flight for flight in known if flight.number == done.task.trial), None)
        if flight is None or (flight.record is not None and flight is not self.baseline):
            return
        if done.result is None:
            self._fail(flight, done.cause or "failed", lasting=done.lasting)
        elif done.task.kind == "measure":
            flight.complete(done.result, self.wanted)
            if flight is self.baseline and flight.record and flight.record.cause:
                self._fail(flight, flight.record.cause)
        else:
            self._arrived(flight, done.task, done.result)
        self._measure_what_is_there()

    def _arrived(self, flight: Flight, task: Task, result: Mapping[str, Any]) -> None:
        if result["name"] != task.name:
            wrote = f"{result.get('worker')} wrote {result['name']}, not {task.name}"
            self._fail(flight, f"{wrote}: its models or captions are others than the driver's", lasting=False)
            return
        flight.missing.discard(task.name)
        flight.seconds += result["seconds"]
        self.there.add(task.name)
        self.tell(
            {
                "event": "shard",
                "trial": flight.number,
                "kind": task.kind,
                "images": result["images"],
                "seconds": result["seconds"],
                "worker": result.get("worker"),
            }
        )

    def _fail(self, flight: Flight, cause: str, *, lasting: bool = True) -> None:
        """A trial fails alone, except vanilla: without its images there is nothing to measure the others by."""
        if flight is self.baseline:
            raise SweepError(f"vanilla, the baseline of every metric, failed: {cause}")
        self.workers.withdraw(flight.number)
        flight.fail(cause)
        if not lasting and not self.search.remembers:
            self.lost.add(flight.number)
            if len(self.lost.intersection(range(flight.number - MOST_LOST + 1, flight.number + 1))) == MOST_LOST:
                raise SweepError(f"{MOST_LOST} trials in a row were lost, the last one to: {cause}")

    def _count_workers(self) -> None:
        """Tell when workers come or go."""
        alive = self.workers.alive
        if alive != self._alive:
            self._alive = alive
            self.tell({"event": "workers", "alive": alive, "note": "" if alive else "no worker is up; waiting for one"})

    def _measure_what_is_there(self) -> None:
        base = self.baseline
        if base is None or base.missing:
            return
        for flight in self.flights:
            ready = (
                flight.record is None and not flight.missing and not flight.measuring and flight.duplicate_of is None
            )
            if ready:
                flight.measuring = True
                self.workers.submit(self.planner.measure(flight, base))

    def _tell_the_oldest(self) -> None:
        """Write down and tell the oldest trial in flight, if it has finished. One at a time: each telling is followed
        by the asking that it allows, so that what is asked does not depend on how many finished together.
        """
        flight = self.flights[0]
        if flight.duplicate_of is not None and flight.record is None:
            flight.repeat(self.records[flight.duplicate_of])
            if flight.duplicate_of in self.lost:
                self.lost.add(flight.number)
        if flight.record is not None:
            self.flights.popleft()
            self._finish(flight.record, new=flight.number not in self._finished)

    def _finish(self, record: TrialRecord, *, new: bool) -> None:
        record = self._judged(record) if new else record
        self.records.append(record)
        self.search.tell(record, self.objectives)
        if record.number not in self.lost:
            if new:
                write_trial(self.storage, record)
            self.record.told(record)
        about = {"trial": record.number, "label": record.label, "words": self._words(record.label, record.config)}
        state = {"state": record.state, "new": new, "cause": record.cause, "feasible": record.feasible}
        shown = {name: entry.value for name, entry in record.metrics.items()}
        self.tell({"event": "trial_finished", **about, **state, "images": record.images, "metrics": shown})

    def _judged(self, record: TrialRecord) -> TrialRecord:
        """The record with how far it is beyond each constraint."""
        if record.state != COMPLETE:
            return record
        base = self.records[0] if self.records else record
        held = {constraint.text: violation(constraint, record, base) for constraint in self.sweep.constraints}
        return replace(record, constraints=held)


def violation(constraint: Constraint, record: TrialRecord, vanilla: TrialRecord) -> float:
    """How far a trial is beyond a constraint, in the metric's unit; at most 0 where it holds."""
    reference = vanilla.metrics.get(constraint.metric)
    return constraint.violation(record.metrics[constraint.metric].value, reference.value if reference else math.nan)
