"""The trials in flight; how stopped ones go on at the end of a sweep; and trials with one config,
which share their results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.cluster.tasks import SweepError
from orchestrator.run.build import Build, Result
from orchestrator.run.racing import next_trials
from orchestrator.run.search import Proposal
from orchestrator.run.trial import Steps, Trials, make_record
from orchestrator.store import events
from orchestrator.store.records import TrialRecord

_POLL_TIMEOUT_S = 0.5
_RESULTS = (
    "state",
    "metrics",
    "constraints",
    "history",
    "own",
    "shards",
    "images",
    "taken",
    "cause",
    "stop",
    "check",
    "shape",
    "passes",
    "timed_on",
)


def _shared_results(record: TrialRecord) -> dict[str, Any]:
    """What other trials with the same config have in common with this one."""
    return {name: getattr(record, name) for name in _RESULTS}


def copy_record(proposal: Proposal, earlier: TrialRecord) -> TrialRecord:
    """The record of a trial whose config an earlier one had, with that one's result."""
    first = earlier.number if earlier.duplicate_of is None else earlier.duplicate_of
    return make_record(proposal, **_shared_results(earlier), duplicate_of=first)


@dataclass(slots=True)
class RunningTrial:
    """A trial between its proposal and its record."""

    proposal: Proposal
    record: TrialRecord | None = None
    steps: Steps | None = None  # what it measures; None if it measures nothing
    is_lost: bool = False  # whether a machine, network or file made it fail


class RunningTrials:
    """The trials in flight, by number."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._trials: dict[int, RunningTrial] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, number: object) -> bool:
        return number in self._trials

    def start(self, trial: RunningTrial) -> None:
        self._trials[trial.proposal.number] = trial
        if trial.steps is not None:
            self._advance(trial, trial.steps)

    def take(self, number: int) -> RunningTrial:
        """Remove a trial once it has its record, if it will have one. All go on meanwhile.

        Raises:
            PoolError, SweepError: see `Build.collect`.
        """
        trial = self._trials[number]
        while trial.record is None and trial.steps is not None:
            for result in self._build.collect(_POLL_TIMEOUT_S):
                for waiting in (self._trials[number] for number in result.trials):
                    assert waiting.steps is not None
                    self._advance(waiting, waiting.steps, result)
        return self._trials.pop(number)

    def withdraw(self) -> None:
        """Make nothing more for any of them."""
        for number in self._trials:
            self._build.withdraw(number)

    def _advance(self, trial: RunningTrial, steps: Steps, result: Result | None = None) -> None:
        """Let a trial go on with the result of its measurement, to the next one or to its
        record.
        """
        number = trial.proposal.number
        try:
            task = next(steps) if result is None else steps.send(result)
        except StopIteration as end:
            trial.record = end.value
            trial.is_lost = result is not None and result.output is None and not result.permanent
            self._build.withdraw(number)
        else:
            self._build.want(number, task)


def revive(
    trials: Trials,
    records: MutableSequence[TrialRecord],
    write: Callable[[TrialRecord], None],
    numbers: Collection[int],
    may_go_on: Callable[[], bool],
) -> None:
    """Run stopped trials on, rung by rung (see `next_trials`). write: stores a record that was
    replaced. numbers: trials that go on in any case; others only while `may_go_on`.

    Every step rewrites the record of one trial, and depends on the records alone. So a sweep that
    is killed in between resumes with the same step.

    Raises:
        PoolError: no worker is left and none can be started.
        SweepError: one of `numbers` failed, or is not among the records.
    """
    if missing := sorted(number for number in numbers if number >= len(records)):
        raise SweepError(
            f"trial {missing[0]} is not among the {len(records)} of the budget; raise budget.trials"
        )
    for stopped in [record for record in records if record.stop and record.duplicate_of is None]:
        _replace_record(records, write, stopped)  # completes a step that was cut off
    sweep = trials.plan.sweep
    running = RunningTrials(trials.build)
    failed = set[int]()
    threshold = sweep.racing.revive_above if sweep.racing is not None and may_go_on() else 1.0
    while queue := next_trials(
        records,
        trials.racing.objectives,
        numbers,
        threshold=threshold,
        budget=sweep.budget.images,
        failed=failed,
        groups=trials.groups,
    ):
        number = queue[0]
        if number not in numbers and not may_go_on():
            break
        for other in queue:  # their images are generated at the same time
            if other not in running and len(running) < sweep.search.parallel:
                stopped = records[other]
                proposal = Proposal(other, stopped.label, stopped.config, stopped.params, {})
                running.start(RunningTrial(proposal, steps=trials.run(proposal, stopped)))
        record = running.take(number).record
        assert record is not None
        if not record.has_failed:
            _replace_record(records, write, trials.as_told(record, trials.racing.finished[:number]))
            trials.emit(events.TrialRevived.of(records[number], trials.names))
        elif number in numbers:
            raise SweepError(f"trial {number} could not go on: {record.cause}")
        else:
            failed.add(number)
            note = f"trial {number} stays stopped: {record.cause}"
            trials.emit(events.RevivalFailed(number, note=note))
    running.withdraw()


def _replace_record(
    records: MutableSequence[TrialRecord], write: Callable[[TrialRecord], None], record: TrialRecord
) -> None:
    """Replace the record of a trial, and the results of its duplicates, in `records`, and write
    each.
    """
    copies = [
        replace(other, **_shared_results(record))
        for other in records
        if other.duplicate_of == record.number
    ]
    for changed in (record, *copies):
        if changed != records[changed.number]:
            records[changed.number] = changed
            write(changed)
