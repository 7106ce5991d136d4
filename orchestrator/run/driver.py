"""The driver's loop: ask the search for a config, have its trial's files built, write its record, tell the search.

Trials run in parallel and end in any order. They are told in the order of their numbers, so the search proposes the
same configs whatever the workers do. If a worker dies, the pool repeats its task; if a task fails for good, its trial
ends with the cause. The store's files are the only state: a shard that exists is not generated again, and a trial with
a record is only told. So a resumed sweep runs the same loop on a store that is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orchestrator.results.store import write_trial
from orchestrator.results.trials import FAILED, STOPPED, TrialRecord
from orchestrator.run.build import Build, Result
from orchestrator.run.early_stopping import at_full_size, replace_record, revivals, with_constraints
from orchestrator.run.events import finished_event
from orchestrator.run.limits import Limits, seconds_taken
from orchestrator.run.study import Proposal, Search
from orchestrator.run.tasks import EventSink, Outcome, SweepError
from orchestrator.run.trial import Steps, Trials, copy_record, make_record
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

_MAX_LOST_IN_A_ROW = 10  # trials
_POLL_TIMEOUT_S = 0.5


@dataclass(slots=True)
class _InFlight:
    """A trial between proposal and record. steps: what it still measures; None if it measures nothing."""

    proposal: Proposal
    record: TrialRecord | None = None
    steps: Steps | None = None
    is_lost: bool = False


class Driver:
    """Runs a sweep and emits its events.

    check: raises ConfigError for a config that the model refuses. update: called with each record that was written.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        storage: Storage,
        trials: Trials,
        search: Search,
        build: Build,
        *,
        check: Callable[[DecodingConfig], None],
        emit: EventSink,
        update: Callable[[TrialRecord], object],
    ) -> None:
        self.sweep, self.storage, self.trials, self.search, self.build = sweep, storage, trials, search, build
        self.check, self.emit, self.update, self.racing = check, emit, update, trials.racing
        self._limits = Limits(sweep.budget, search.is_exhausted, search.source)
        self._records: list[TrialRecord] = []  # of all trials that were told
        self._in_flight: dict[int, _InFlight] = {}
        self._first_trials: dict[DecodingConfig, int] = {}
        self._lost: set[int] = set()
        self._next_number = 0

    def run(self, stored: Sequence[TrialRecord] = (), revive: Collection[int] = ()) -> Outcome:
        """Run until the budget is spent, then go on with stopped trials that may be on the front.

        stored: the records that the store holds already. revive: numbers of stopped trials to run to the end.

        Raises:
            PoolError: no worker is left and none can be started.
            StudyError: `stored` belongs to another sweep.
            SweepError: the baseline failed, or too many trials in a row were lost.
        """
        known = {record.number: record for record in stored}
        self._limits.earlier_s = seconds_taken(stored)
        while True:
            stopped_by = self._start_trials(known)
            if not self._in_flight:
                self._revive(revive, stopped_by or "trials")
                return Outcome(self._records, stopped_by or "trials", self._lost)
            self._finish(self._in_flight[len(self._records)], known)

    def _start_trials(self, known: dict[int, TrialRecord]) -> str | None:
        """Start trials until `parallel` are in flight; returns the limit that is reached (see `Outcome`), or None."""
        while len(self._in_flight) < self.sweep.search.parallel:
            record = known.get(self._next_number)
            if stopped_by := self._limits.reached(self._next_number, is_stored=record is not None):
                return stopped_by
            self._start(self.search.propose(self._next_number, record.params if record else None), record)
            self._next_number += 1
        return None

    def _start(self, proposal: Proposal, record: TrialRecord | None) -> None:
        """Start a trial, unless it has a record, has the config of an earlier one, or cannot run."""
        trial = self._in_flight[proposal.number] = _InFlight(proposal, record)
        problem = proposal.problem or (self._problem(proposal.config) if proposal.config else "no config was proposed")
        if problem or proposal.config is None:
            trial.record = make_record(proposal, FAILED, cause=problem)
        elif self._first_trials.setdefault(proposal.config, proposal.number) == proposal.number:
            self._limits.images += self.trials.plan.images
            if record is not None:
                self.trials.timings.keep(proposal.config, record.shape)
            else:
                trial.steps = self.trials.run(proposal)
                self._advance(trial)

    def _problem(self, config: DecodingConfig) -> str | None:
        try:
            self.check(config)
        except ConfigError as error:
            return f"the model does not support this config: {error}"
        return None

    def _advance(self, trial: _InFlight, result: Result | None = None) -> None:
        """Let a trial go on with the result of its measurement, to the next one or to its record."""
        assert trial.steps is not None
        number = trial.proposal.number
        try:
            target = next(trial.steps) if result is None else trial.steps.send(result)
        except StopIteration as end:
            trial.record = end.value
            trial.is_lost = result is not None and result.output is None and not result.permanent
            self.build.withdraw(number)
        else:
            self.build.want(number, target)

    def _wait(self, trial: _InFlight) -> None:
        """Let all trials go on until this one has its record."""
        while trial.record is None and trial.steps is not None:
            for result in self.build.collect(_POLL_TIMEOUT_S):
                for number in result.trials:
                    self._advance(self._in_flight[number], result)

    def _finish(self, trial: _InFlight, known: dict[int, TrialRecord]) -> None:
        """Wait for the oldest trial in flight, write its record, and tell it to the search.

        The next proposal follows at once: it must not depend on how many trials end at the same time.
        """
        self._wait(trial)
        number = trial.proposal.number
        if trial.record is None:
            assert trial.proposal.config is not None
            first = self._first_trials[trial.proposal.config]
            trial.record, trial.is_lost = copy_record(trial.proposal, self._records[first]), first in self._lost
        if trial.is_lost and not self.search.is_stateful:
            self._add_lost(trial.record)
        del self._in_flight[number]
        finished = self.racing.before_revival(trial.record)
        finished = with_constraints(finished, self.sweep.constraints, self.racing.finished)
        record = known.get(number, finished)
        self._records.append(record)
        self.racing.finished.append(finished)
        if finished.state == STOPPED and finished.duplicate_of is None:
            self._limits.images -= self.trials.plan.images - finished.images
        objectives = [objective.metric for objective in self.sweep.objectives]
        self.search.tell(at_full_size(finished, self.racing.finished[0]), objectives)
        if number not in known and number not in self._lost:
            self._write(record)
        self.emit(finished_event("trial_finished", record, self.trials.names) | {"new": number not in known})

    def _add_lost(self, record: TrialRecord) -> None:
        """Count a trial that a machine, network or file made fail. Raises SweepError after too many in a row."""
        self._lost.add(record.number)
        if self._lost.issuperset(range(record.number - _MAX_LOST_IN_A_ROW + 1, record.number + 1)):
            raise SweepError(f"{_MAX_LOST_IN_A_ROW} trials in a row were lost, the last one to: {record.cause}")

    def _revive(self, numbers: Collection[int], stopped_by: str) -> None:
        """Run stopped trials on (see `revivals`); once the time is spent, the trials `numbers` alone.

        Raises:
            SweepError: one of `numbers` failed, or is not among the trials of the budget.
        """
        count = len(self._records)
        if missing := sorted(number for number in numbers if number >= count):
            raise SweepError(f"trial {missing[0]} is not among the {count} of the budget; raise budget.trials")
        racing, budget = self.sweep.racing, self.sweep.budget.images
        threshold = 1.0 if racing is None or stopped_by == "hours" else racing.revive_above
        for queue in revivals(self._records, self._write, self.racing.objectives, numbers, threshold, budget):
            number = queue[0]
            if number not in numbers and self._limits.is_time_spent:
                break
            record = self._run_next_rung(queue)
            if record.state != FAILED:
                record = with_constraints(record, self.sweep.constraints, self._records)
                replace_record(self._records, self._write, record)
                self.emit(finished_event("trial_revived", self._records[number], self.trials.names))
            elif number in numbers:
                raise SweepError(f"trial {number} could not go on: {record.cause}")
            else:
                note = f"trial {number} stays stopped: {record.cause}"
                self.emit({"event": "revival_failed", "trial": number, "note": note})
        for number in self._in_flight:
            self.build.withdraw(number)

    def _run_next_rung(self, queue: Sequence[int]) -> TrialRecord:
        """Measure the first of these stopped trials at its next rung, while the next ones' images are generated."""
        for number in queue:
            if number not in self._in_flight and len(self._in_flight) < self.sweep.search.parallel:
                stopped = self._records[number]
                proposal = Proposal(number, stopped.label, stopped.config, stopped.params, {})
                trial = self._in_flight[number] = _InFlight(proposal, steps=self.trials.run(proposal, stopped))
                self._advance(trial)
        trial = self._in_flight[queue[0]]
        self._wait(trial)
        del self._in_flight[queue[0]]
        assert trial.record is not None
        return trial.record

    def _write(self, record: TrialRecord) -> None:
        write_trial(self.storage, record)
        self.update(record)
