"""The driver's loop: ask the search for a config, have its trial's files built, write its record,
tell the search.

Trials run in parallel and end in any order. They are told in the order of their numbers, so the
search proposes the same configs whatever the workers do. If a worker dies, the pool repeats its
task; if a task fails for good, its trial ends with the cause. The store's files are the only state:
a shard that exists is not generated again, and a trial with a record is only told. So a resumed
sweep runs the same loop on a store that is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.cluster.tasks import Limits, Outcome, SweepError, seconds_taken
from orchestrator.front.plateau import Plateau, PlateauState
from orchestrator.run.racing import at_full_size
from orchestrator.run.running import RunningTrial, RunningTrials, copy_record, revive
from orchestrator.run.search import Proposal, Search
from orchestrator.run.trial import Trials, make_record
from orchestrator.store import events
from orchestrator.store.records import TrialRecord, write_trial
from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

_MAX_LOST_IN_A_ROW = 10  # trials


class Driver:
    """Runs a sweep.

    check: raises ConfigError for a config that the model refuses. update: called with each record
    that was written.
    """

    def __init__(
        self,
        storage: Storage,
        trials: Trials,
        search: Search,
        *,
        check: Callable[[DecodingConfig], None],
        update: Callable[[TrialRecord], object],
    ) -> None:
        self.storage = storage
        self.trials = trials
        self.search = search
        self.check = check
        self.update = update
        self.sweep = trials.plan.sweep
        self.racing = trials.racing
        self._records: list[TrialRecord] = []  # of all trials that were told
        self._plateau = Plateau.of(
            self.sweep.budget.to_mapping(), len(self.sweep.enqueue), self.racing.objectives
        )
        self._state: PlateauState | None = None  # as it was emitted last
        self._limits = Limits(
            self.sweep.budget, search.is_exhausted, search.source, self._is_plateau
        )
        self._running = RunningTrials(trials.build)
        self._first_trials: dict[DecodingConfig, int] = {}
        self._lost: set[int] = set()

    def run(self, stored: Sequence[TrialRecord] = (), revived: Collection[int] = ()) -> Outcome:
        """Run until the budget is spent, then go on with stopped trials that may be on the front.

        stored: the records that the store holds already. revived: numbers of stopped trials to run
        to the end.

        Raises:
            PoolError: no worker is left and none can be started.
            StudyError: `stored` belongs to another sweep.
            SweepError: the baseline failed, or too many trials in a row were lost.
        """
        known = {record.number: record for record in stored}
        self._limits.earlier_s = seconds_taken(stored)
        while True:
            stopped_by = self._start_trials(known)
            if not self._running:
                break
            self._finish_oldest(known)
        if stopped_by != "plateau":
            self._is_plateau()  # says where the front ended
        revive(
            self.trials, self._records, self._write, revived, lambda: not self._limits.is_time_spent
        )
        return Outcome(self._records, stopped_by or "trials", self._lost)

    def _start_trials(self, known: Mapping[int, TrialRecord]) -> str | None:
        """Start trials until `parallel` are in flight; returns the limit that is reached (see
        `Outcome`), or None.
        """
        while len(self._running) < self.sweep.search.parallel:
            number = len(self._records) + len(self._running)
            record = known.get(number)
            if stopped_by := self._limits.reached(number, is_stored=record is not None):
                return stopped_by
            proposal = self.search.propose(number, record.params if record else None)
            self._running.start(self._prepare(proposal, record))
        return None

    def _prepare(self, proposal: Proposal, record: TrialRecord | None) -> RunningTrial:
        """A trial that has a record, repeats an earlier config, cannot run, or else is measured."""
        problem = proposal.problem or self._problem(proposal.config)
        if problem or proposal.config is None:
            return RunningTrial(proposal, make_record(proposal, "failed", cause=problem))
        if self._first_trials.setdefault(proposal.config, proposal.number) != proposal.number:
            return RunningTrial(proposal, record)
        self._limits.images += self.trials.plan.images
        if record is not None:
            self.trials.sessions.keep(proposal.config, record.shards)
            return RunningTrial(proposal, record)
        return RunningTrial(proposal, steps=self.trials.run(proposal))

    def _problem(self, config: DecodingConfig | None) -> str | None:
        """Why a config cannot run; None if it can."""
        if config is None:
            return "no config was proposed"
        try:
            self.check(config)
        except ConfigError as error:
            return f"the model does not support this config: {error}"
        return None

    def _finish_oldest(self, known: Mapping[int, TrialRecord]) -> None:
        """Wait for the oldest trial in flight, write its record, and tell it to the search.

        The next proposal follows at once: it must not depend on how many trials end at the same
        time.
        """
        trial = self._running.take(len(self._records))
        number = trial.proposal.number
        record = trial.record
        if record is None:
            assert trial.proposal.config is not None
            first = self._first_trials[trial.proposal.config]
            record = copy_record(trial.proposal, self._records[first])
            trial.is_lost = first in self._lost
        if trial.is_lost and not self.search.is_stateful:
            self._add_lost(record)
        reported = self.trials.as_told(self.racing.before_revival(record), self.racing.finished)
        stored = reported
        if number in known:
            stored = self.trials.as_told(known[number], self.racing.finished)
        self._records.append(stored)
        self.racing.finished.append(reported)
        if not reported.has_failed and reported.duplicate_of is None:
            self._limits.images -= self.trials.plan.images - reported.images
        objectives = [objective.metric for objective in self.sweep.objectives]
        in_full = self.trials.groups.values_in_full(reported, self.racing.finished)
        self.search.tell(at_full_size(reported, self.racing.finished[0], in_full), objectives)
        if number not in known and number not in self._lost:
            self._write(reported)
        event = events.TrialFinished.of(self._records[number], self.trials.names)
        if record.check is not None and record.fails_check and record.duplicate_of is None:
            event = replace(event, note=f"trial {number} {record.check.summary}")
        self.trials.emit(replace(event, new=number not in known))

    def _is_plateau(self) -> bool:
        """Whether the front no longer moves, by the trials that were told; emits how close it
        is.
        """
        if self._plateau is None:
            return False
        if (state := self._plateau.state(self._records)) != self._state:
            self._state = state
            self.trials.emit(state.to_event())
        return state.is_reached

    def _add_lost(self, record: TrialRecord) -> None:
        """Count a trial that a machine, network or file made fail. Raises SweepError after too many
        in a row.
        """
        self._lost.add(record.number)
        if self._lost.issuperset(range(record.number - _MAX_LOST_IN_A_ROW + 1, record.number + 1)):
            raise SweepError(
                f"{_MAX_LOST_IN_A_ROW} trials in a row were lost, the last one to: {record.cause}"
            )

    def _write(self, record: TrialRecord) -> None:
        write_trial(self.storage, record)
        self.update(record)
