"""The driver's loop: ask the search for configs, submit their shards to workers, measure them, tell the search.

The store's files are the only state: a shard that exists is not generated again, and a trial with a record is only told
to the search. So a resumed sweep runs the same loop on a store that is not empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from sys import intern
from typing import Any

from orchestrator.results.names import SettingNames
from orchestrator.results.store import write_trial
from orchestrator.results.trials import FAILED, STOPPED, TrialRecord
from orchestrator.run.damaged_shards import DamagedShards
from orchestrator.run.early_stopping import EarlyStopping, at_full_size, with_constraints
from orchestrator.run.events import finished_event, resumed_event, started_event
from orchestrator.run.limits import Limits, seconds_taken
from orchestrator.run.pending import PendingTrial, Planner
from orchestrator.run.revival import replace_record, resume, revivals
from orchestrator.run.shape_timings import ShapeTimings
from orchestrator.run.study import Proposal, Search
from orchestrator.run.tasks import EventSink, Outcome, SweepError, Task, TaskResult, Workers
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage
from workers.metrics.definition import Metric

_MAX_LOST_IN_A_ROW = 10  # trials
_POLL_TIMEOUT_S = 0.5


class Driver:
    """Runs a sweep on workers and emits its events.

    check: raises ConfigError for a config that the model refuses. update: called with each record that was written.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        storage: Storage,
        planner: Planner,
        search: Search,
        workers: Workers,
        *,
        check: Callable[[DecodingConfig], None],
        emit: EventSink,
        update: Callable[[TrialRecord], object],
    ) -> None:
        self.sweep, self.storage, self.planner, self.search, self.update = sweep, storage, planner, search, update
        self.workers, self.check, self.emit, self._names = workers, check, emit, SettingNames(sweep.sampling)
        self._objectives = [objective.metric for objective in sweep.objectives]
        self.required = dict.fromkeys([*self._objectives, *(constraint.metric for constraint in sweep.constraints)])
        self.shards = {intern(f"shards/{name}") for name in storage.names("shards")}
        self._timings = ShapeTimings(planner, self.shards)
        self._damaged = DamagedShards(storage, planner, self.shards, emit)
        self._pending: deque[PendingTrial] = deque()
        self._records: list[TrialRecord] = []
        self._finished: list[TrialRecord] = []  # as the search knows them: revived ones as they were when they stopped
        self._racing = EarlyStopping(sweep, list(map(Metric, self._objectives, search.directions)), self._finished)
        self._baseline: PendingTrial | None = None
        self._limits, self._workers_alive = Limits(sweep.budget, search.is_exhausted, search.source), -1
        self._lost: set[int] = set()
        self._first_trials: dict[str, int] = {}  # by the config's digest
        self._stored: dict[int, TrialRecord] = {}
        self._next_number = 0

    def run(self, stored: Sequence[TrialRecord] = (), revive: Collection[int] = ()) -> Outcome:
        """Run until the budget is spent, then go on with stopped trials that may be on the front.

        stored: the records that the store holds already. revive: numbers of stopped trials to run to the end.

        Raises:
            PoolError: no worker is left and none can be started.
            StudyError: `stored` belongs to another sweep.
            SweepError: the baseline failed, or too many trials in a row were lost.
        """
        self._stored = {record.number: record for record in stored}
        self._limits.earlier_s = seconds_taken(stored)
        while True:
            stopped_by = self._start_trials()
            if not self._pending:
                self._revive(revive, stopped_by or "trials")
                return Outcome(self._records, stopped_by or "trials", self._lost)
            if self._pending[0].is_running:
                self._collect()
            self._finish_oldest()

    def _collect(self) -> None:
        for result in self.workers.collect(_POLL_TIMEOUT_S):
            self._handle(result)
        if (alive := self.workers.alive) != self._workers_alive:
            self._workers_alive = alive
            note = {} if alive else {"note": "no worker is running; waiting for one"}
            self.emit({"event": "workers", "alive": alive, **note})

    def _start_trials(self) -> str | None:
        """Start trials until `parallel` are in flight; returns the limit that is reached (see `Outcome`), or None."""
        while len(self._pending) < self.sweep.search.parallel:
            record = self._stored.get(self._next_number)
            if stopped_by := self._limits.reached(self._next_number, is_stored=record is not None):
                return stopped_by
            proposal = self.search.propose(self._next_number, record.params if record else None)
            self._next_number += 1
            self._pending.append(PendingTrial(proposal))
            self._start(self._pending[-1], record)
        return None

    def _start(self, pending: PendingTrial, record: TrialRecord | None) -> None:
        """Plan a trial and submit its missing shards. record: of the trial, if the store has one."""
        proposal = pending.proposal
        problem = proposal.problem or self._model_problem(proposal)
        if problem or proposal.config is None:
            pending.fail(problem or "the search proposed no config")
            return
        first = self._first_trials.setdefault(proposal.config.digest(), proposal.number)
        pending.record = record
        if first != proposal.number:
            pending.duplicate_of = first
            return
        self.planner.outline(pending)
        self._limits.images += pending.images
        timings = self._timings.assign(pending)
        if self._baseline is None:
            self._baseline = pending  # all trials need its images: its missing shards run even if it has a record
        elif record is not None:
            return
        self._submit(self.planner.plan(pending, self.shards) + timings)
        if record is None:
            self.emit(started_event(pending, self.shards, self._names))
        self._submit_ready()

    def _model_problem(self, proposal: Proposal) -> str | None:
        try:
            if proposal.config is not None:
                self.check(proposal.config)
        except ConfigError as error:
            return f"the model does not support this config: {error}"
        return None

    def _handle(self, result: TaskResult) -> None:
        """Process a finished task. Results of trials that have a record are ignored, except the baseline's."""
        trials = (*self._pending, *([self._baseline] if self._baseline else []))
        pending = next((trial for trial in trials if trial.number == result.task.trial), None)
        if pending is None or (pending.record is not None and pending is not self._baseline):
            return
        if result.output is None:
            self._fail(pending, result.cause or "failed", permanent=result.permanent)
        elif unusable := result.output.get("unusable"):
            pending.measuring = False
            self._submit(self._damaged.redraw(result.task, unusable, trials))
        elif result.task.kind == "measure":
            self._add_measurement(pending, result.output)
        else:
            self._add_shard(pending, result)
        self._submit_ready()

    def _add_measurement(self, pending: PendingTrial, output: Mapping[str, Any]) -> None:
        """Finish the trial, stop it, or go on to its next rung."""
        problem, images = pending.add_measurement(output, self.required), pending.rung_images
        metrics = pending.history[images]
        if pending is self._baseline and (problem := self._racing.problem(images, metrics, problem)):
            self._fail(pending, problem)
        if pending.is_last_rung:
            pending.finish(problem)
        elif pending.stop is not None:  # it is revived rung by rung
            pending.stop_early(pending.stop, self._records[pending.number].cause)
        elif not problem and (stop := self._racing.decide(pending.number, images, metrics, pending.shape)):
            pending.stop_early(stop, self._racing.reason(stop))
        else:
            self._submit(self.planner.advance(pending, self.shards))

    def _add_shard(self, pending: PendingTrial, result: TaskResult) -> None:
        task, output = result.task, result.output
        assert output is not None
        if output["name"] != task.name:
            problem = f"{output['worker']} wrote {output['name']} instead of {task.name}: its models or captions differ"
            self._fail(pending, problem, permanent=False)
            return
        for trial in (pending, *self._pending):  # trials of one shape wait for the same timing shards
            trial.missing.discard(task.name)
        pending.seconds += output["seconds"]
        self.shards.add(task.name)
        facts = {"images": output["images"], "seconds": output["seconds"], "worker": output["worker"]}
        self.emit({"event": "shard", "trial": pending.number, "kind": task.kind, **facts})

    def _fail(self, pending: PendingTrial, cause: str, *, permanent: bool = True) -> None:
        """Mark a trial as failed. If it is the baseline, the sweep ends: all metrics compare with its images."""
        if pending is self._baseline:
            raise SweepError(f"vanilla, the baseline of every metric, failed: {cause}")
        self.workers.withdraw(pending.number)
        pending.fail(cause)
        if not permanent and not self.search.is_stateful:
            self._lost.add(pending.number)
            if self._lost.issuperset(range(pending.number - _MAX_LOST_IN_A_ROW + 1, pending.number + 1)):
                raise SweepError(f"{_MAX_LOST_IN_A_ROW} trials in a row were lost, the last one to: {cause}")

    def _submit_ready(self) -> None:
        """Submit timings that a failed trial left to others, and the measure task of every trial whose shards, and the
        baseline's, are complete.
        """
        self._submit(self._timings.reassign(self._pending))
        if self._baseline is None or self._baseline.missing:
            return
        for pending in self._pending:
            if pending.is_running and not pending.missing and not pending.measuring:
                pending.measuring = True
                self.workers.submit(self.planner.measure(pending, self._baseline))

    def _finish_oldest(self) -> None:
        """Write the oldest trial in flight and tell it to the search, if it has finished.

        Only one trial per call: the next proposal must not depend on how many trials finished at the same time.
        """
        pending = self._pending[0]
        if pending.duplicate_of is not None and pending.record is None:
            pending.copy_result(self._records[pending.duplicate_of])
            if pending.duplicate_of in self._lost:
                self._lost.add(pending.number)
        if pending.record is None:
            return
        self._pending.popleft()
        finished = with_constraints(self._racing.before_revival(pending.record), self.sweep.constraints, self._finished)
        is_new = pending.number not in self._stored
        record = finished if is_new else pending.record
        self._records.append(record)
        self._finished.append(finished)
        if finished.state == STOPPED and finished.duplicate_of is None:
            self._limits.images -= pending.images - finished.images
        expected = at_full_size(finished, self._finished[0])
        self.search.tell(expected, self._objectives)
        if is_new and record.number not in self._lost:
            self._write(record)
        self.emit(finished_event("trial_finished", record, self._names) | {"new": is_new})

    def _revive(self, numbers: Collection[int], stopped_by: str) -> None:
        """Run stopped trials on (see `revivals`); once the time is spent, the trials `numbers` alone.

        Raises:
            SweepError: one of `numbers` failed, or is not among the trials of the budget.
        """
        if missing := sorted(number for number in numbers if number >= len(self._records)):
            raise SweepError(
                f"trial {missing[0]} is not among the {len(self._records)} of the budget; raise budget.trials"
            )
        racing, budget = self.sweep.racing, self.sweep.budget.images
        threshold = 1.0 if racing is None or stopped_by == "hours" else racing.revive_above
        for queue in revivals(self._records, self._write, self._racing.objectives, numbers, threshold, budget):
            number = queue[0]
            if number not in numbers and self._limits.is_time_spent:
                break
            pending = self._run_next_rung(queue)
            if pending.record is None or pending.record.state == FAILED:
                cause = pending.record.cause if pending.record else "withdrawn"
                if number in numbers:
                    raise SweepError(f"trial {number} could not go on: {cause}")
                note = f"trial {number} stays stopped: {cause}"
                self.emit({"event": "revival_failed", "trial": number, "note": note})
                continue
            record = with_constraints(pending.record, self.sweep.constraints, self._records)
            replace_record(self._records, self._write, record)
            self.emit(finished_event("trial_revived", self._records[number], self._names))
        for pending in self._pending:
            self.workers.withdraw(pending.number)
        self._pending.clear()

    def _run_next_rung(self, queue: Sequence[int]) -> PendingTrial:
        """Measure the first of these stopped trials at the rung after its last one, while the next ones draw theirs."""
        running = {pending.number: pending for pending in self._pending}
        for number in queue:
            if number not in running and len(running) < self.sweep.search.parallel:
                running[number] = self._resume(self._records[number])
        trial = running[queue[0]]
        while trial.is_running:
            self._collect()
        self._pending = deque(pending for pending in self._pending if pending is not trial)
        return trial

    def _resume(self, record: TrialRecord) -> PendingTrial:
        """Start the next rung of a stopped trial."""
        pending = resume(record)
        tasks = self.planner.plan(pending, self.shards)
        while pending.rung_images <= record.images:
            tasks = self.planner.advance(pending, self.shards)
        self._submit(tasks + self._timings.assign(pending))
        self.emit(resumed_event(pending, self._names))
        self._pending.append(pending)
        self._submit_ready()
        return pending

    def _write(self, record: TrialRecord) -> None:
        write_trial(self.storage, record)
        self.update(record)

    def _submit(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.workers.submit(task)
