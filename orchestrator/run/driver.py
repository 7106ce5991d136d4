"""The driver's loop: ask the search for configs, submit their shards to workers, measure them, tell the search.

The store's files are the only state: a shard that exists is not generated again, and a trial with a record is only told
to the search. So a resumed sweep runs the same loop on a store that is not empty.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from orchestrator.results.describe import describe
from orchestrator.results.store import write_trial
from orchestrator.results.trials import COMPLETE, TrialRecord
from orchestrator.run.pending import PendingTrial, Planner
from orchestrator.run.shape_timings import ShapeTimings
from orchestrator.run.study import Proposal, Search, StudyLog
from orchestrator.run.tasks import EventSink, TaskResult, Workers
from search_spaces.constraints import Constraint
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

_SUMMARY_DIGITS = 3  # significant digits of the numbers in a config's summary
_MAX_LOST_IN_A_ROW = 10  # trials
_POLL_TIMEOUT_S = 0.5


class SweepError(RuntimeError):
    """The sweep cannot continue. Finished trials are kept; --resume continues after them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended. stopped_by: `trials`, `images`, `hours` or `space`.

    lost: trials that failed because of a machine, a network or a file. They have no record in the store, so --resume
    runs them again.
    """

    records: Sequence[TrialRecord]
    stopped_by: str
    lost: Collection[int] = ()


class Driver:
    """Runs a sweep on workers and emits its events.

    check: raises ConfigError for a config that the model does not support.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        storage: Storage,
        planner: Planner,
        search: Search,
        study: StudyLog,
        workers: Workers,
        *,
        check: Callable[[DecodingConfig], None],
        emit: EventSink,
    ) -> None:
        self.sweep, self.storage, self.planner, self.search, self.study = sweep, storage, planner, search, study
        self.workers, self.check, self.emit = workers, check, emit
        self.required = dict.fromkeys([*study.objectives, *(constraint.metric for constraint in sweep.constraints)])
        self.shards = {f"shards/{name}" for name in storage.names("shards")}
        self._timings = ShapeTimings(planner, self.shards)
        self._pending: deque[PendingTrial] = deque()
        self._records: list[TrialRecord] = []
        self._baseline: PendingTrial | None = None
        self._images, self._workers_alive = 0, -1
        self._lost: set[int] = set()
        self._first_trials: dict[str, int] = {}  # by the config's digest
        self._stored: dict[int, TrialRecord] = {}
        self._next_number, self._start_time = 0, time.monotonic()

    def run(self, stored: Sequence[TrialRecord] = ()) -> Outcome:
        """Run until the budget is spent. `stored`: the records that the store holds already.

        Raises:
            PoolError: no worker is left and none can be started.
            StudyError: `stored` belongs to another sweep.
            SweepError: the baseline failed, or too many trials in a row were lost.
        """
        self._stored = {record.number: record for record in stored}
        while True:
            stopped_by = self._start_trials()
            if not self._pending:
                return Outcome(self._records, stopped_by or "trials", self._lost)
            if self._pending[0].is_running:
                for result in self.workers.collect(_POLL_TIMEOUT_S):
                    self._handle(result)
                self._emit_worker_count()
            self._finish_oldest()

    def _start_trials(self) -> str | None:
        """Start trials until `parallel` are in flight; returns the limit that is reached (see `Outcome`), or None."""
        while len(self._pending) < self.sweep.search.parallel:
            stopped_by = self._spent_budget()
            if stopped_by:
                return stopped_by
            record = self._stored.get(self._next_number)
            proposal = self.search.propose(self._next_number, record.params if record else None)
            self._next_number += 1
            self.study.add(proposal)
            pending = PendingTrial(proposal)
            self._pending.append(pending)
            self._start(pending, record)
        return None

    def _spent_budget(self) -> str | None:
        budget, number = self.sweep.budget, self._next_number
        if number >= min(budget.trials, self.search.size or math.inf):
            return "trials" if number == budget.trials else "space"
        if budget.images is not None and self._images >= budget.images:
            return "images"
        elapsed = time.monotonic() - self._start_time
        if budget.hours is not None and number not in self._stored and elapsed >= budget.hours * 3600:
            return "hours"
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
        tasks = self.planner.plan(pending, self.shards) + self._timings.assign(pending)
        self._images += pending.images
        if self._baseline is None:
            self._baseline = pending  # all trials need its images: its missing shards run even if it has a record
        elif record is not None:
            return
        if record is None:
            names = {"label": proposal.label, "summary": self._summary(proposal)}
            self.emit({"event": "trial_started", "trial": pending.number, **names, "config": proposal.config.flat()})
        for task in tasks:
            self.workers.submit(task)
        self._submit_ready()

    def _summary(self, proposal: Proposal) -> str:
        """The trial's label, or a short description of its config."""
        described = describe(proposal.config, self.sweep.sampling, _SUMMARY_DIGITS) if proposal.config else ""
        return proposal.label or described

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
        elif result.task.kind == "measure":
            pending.complete(result.output, self.required)
            if pending is self._baseline and pending.record and pending.record.cause:
                self._fail(pending, pending.record.cause)
        else:
            self._add_shard(pending, result)
        self._submit_ready()

    def _add_shard(self, pending: PendingTrial, result: TaskResult) -> None:
        task, output = result.task, result.output
        assert output is not None
        worker = output.get("worker")
        if output["name"] != task.name:
            problem = f"{worker} wrote {output['name']} instead of {task.name}: its models or captions differ"
            self._fail(pending, problem, permanent=False)
            return
        for trial in (pending, *self._pending):  # trials of one shape wait for the same timing shards
            trial.missing.discard(task.name)
        pending.seconds += output["seconds"]
        self.shards.add(task.name)
        facts = {"images": output["images"], "seconds": output["seconds"], "worker": worker}
        self.emit({"event": "shard", "trial": pending.number, "kind": task.kind, **facts})

    def _fail(self, pending: PendingTrial, cause: str, *, permanent: bool = True) -> None:
        """Mark a trial as failed. If it is the baseline, the sweep ends: all metrics compare with its images."""
        if pending is self._baseline:
            raise SweepError(f"vanilla, the baseline of every metric, failed: {cause}")
        self.workers.withdraw(pending.number)
        pending.fail(cause)
        if not permanent and not self.search.is_stateful:
            self._lost.add(pending.number)
            recent = range(pending.number - _MAX_LOST_IN_A_ROW + 1, pending.number + 1)
            if self._lost.issuperset(recent):
                raise SweepError(f"{_MAX_LOST_IN_A_ROW} trials in a row were lost, the last one to: {cause}")

    def _emit_worker_count(self) -> None:
        alive = self.workers.alive
        if alive != self._workers_alive:
            self._workers_alive = alive
            note = "" if alive else "no worker is running; waiting for one"
            self.emit({"event": "workers", "alive": alive, "note": note})

    def _submit_ready(self) -> None:
        """Submit timings that a failed trial left to others, and the measure task of every trial whose shards, and the
        baseline's, are complete.
        """
        for task in self._timings.reassign(self._pending):
            self.workers.submit(task)
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
        record, is_new = pending.record, pending.number not in self._stored
        if is_new:
            record = self._with_constraints(record)
        self._records.append(record)
        self.search.tell(record, self.study.objectives)
        if record.number not in self._lost:
            if is_new:
                write_trial(self.storage, record)
            self.study.finish(record)
        self.emit(
            {
                "event": "trial_finished",
                "trial": record.number,
                "label": record.label,
                "summary": self._summary(pending.proposal),
                "state": record.state,
                "new": is_new,
                "cause": record.cause,
                "feasible": record.feasible,
                "images": record.images,
                "metrics": {name: entry.value for name, entry in record.metrics.items()},
            }
        )

    def _with_constraints(self, record: TrialRecord) -> TrialRecord:
        """The record, with the violation of each constraint if the trial is complete."""
        if record.state != COMPLETE:
            return record
        vanilla = self._records[0] if self._records else record
        violations = {constraint.text: _violation(constraint, record, vanilla) for constraint in self.sweep.constraints}
        return replace(record, constraints=violations)


def _violation(constraint: Constraint, record: TrialRecord, vanilla: TrialRecord) -> float:
    """By how much a trial violates a constraint, in the metric's unit; at most 0 if it is met."""
    reference = vanilla.metrics.get(constraint.metric)
    return constraint.violation(record.metrics[constraint.metric].value, reference.value if reference else math.nan)
