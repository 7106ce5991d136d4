"""Which stopped trials go on at the end of a sweep: those that may still be on the front.

Every step rewrites the record of one trial, and depends on the records alone. So a sweep that is killed in between
resumes with the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence, Sequence
from dataclasses import replace

import numpy as np

from orchestrator.results.joint import JointErrors
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord
from orchestrator.run.progress import finished_event
from orchestrator.run.racing import at_full_size, with_constraints
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import SweepError
from orchestrator.run.trial import RunningTrial, RunningTrials, Trials, shared_results
from workers.metrics.definition import Metric

_DRAWS, _SEED = 4000, 0


def revive(
    trials: Trials,
    records: MutableSequence[TrialRecord],
    write: Callable[[TrialRecord], None],
    numbers: Collection[int],
    may_go_on: Callable[[], bool],
) -> None:
    """Run stopped trials on, rung by rung (see `next_trials`). write: stores a record that was replaced.

    numbers: trials that go on in any case; others only while `may_go_on`.

    Raises:
        PoolError: no worker is left and none can be started.
        SweepError: one of `numbers` failed, or is not among the records.
    """
    if missing := sorted(number for number in numbers if number >= len(records)):
        raise SweepError(f"trial {missing[0]} is not among the {len(records)} of the budget; raise budget.trials")
    for stopped in [record for record in records if record.stop and record.duplicate_of is None]:
        replace_record(records, write, stopped)  # completes a step that was cut off
    sweep, running, failed = trials.plan.sweep, RunningTrials(trials.build), set[int]()
    threshold = sweep.racing.revive_above if sweep.racing is not None and may_go_on() else 1.0
    while queue := next_trials(
        records, trials.racing.objectives, numbers, threshold=threshold, budget=sweep.budget.images, failed=failed
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
        if record.state != FAILED:
            replace_record(records, write, with_constraints(record, sweep.constraints, records))
            trials.emit(finished_event("trial_revived", records[number], trials.names))
        elif number in numbers:
            raise SweepError(f"trial {number} could not go on: {record.cause}")
        else:
            failed.add(number)
            note = f"trial {number} stays stopped: {record.cause}"
            trials.emit({"event": "revival_failed", "trial": number, "note": note})
    running.withdraw()


def next_trials(
    records: Sequence[TrialRecord],
    objectives: Sequence[Metric],
    numbers: Collection[int],
    *,
    threshold: float,
    budget: int | None,
    failed: Collection[int] = (),
) -> list[int]:
    """Stopped trials in the order in which they would go on to their next rungs; empty: none goes on.

    The first one goes on; the others may generate images at the same time, as they are probably next. First the trials
    `numbers`, to the end. Then always the one that is most probably on the front, until no probability is above
    `threshold` or `budget` images (None: no limit) are spent. With a budget of images no others follow the first one:
    they may not be needed. failed: trials that could not go on.
    """
    queue = [number for number in sorted(numbers) if records[number].state == STOPPED and number not in failed]
    if not queue and threshold < 1 and (budget is None or _generated(records) < budget):
        shares = front_probabilities(records, objectives)
        uncertain = [number for number, share in shares.items() if share > threshold and number not in failed]
        queue = sorted(uncertain, key=lambda number: -shares[number])
    return queue if budget is None else queue[:1]


def front_probabilities(records: Sequence[TrialRecord], objectives: Sequence[Metric]) -> dict[int, float]:
    """For each stopped trial, the share of joint draws from all errors in which no complete trial dominates it.

    Its values are those expected on all captions (`at_full_size`). Duplicates, and trials that violate a constraint,
    are left out on both sides.
    """
    kept = [record for record in records if record.duplicate_of is None and not _violates(record)]
    complete = [record for record in kept if record.state == COMPLETE]
    stopped = [record for record in kept if record.state == STOPPED]
    if not complete or not stopped:
        return {}
    expected = [at_full_size(record, records[0]) for record in stopped]
    draws = JointErrors.of([*complete, *expected], objectives).draws(_DRAWS, _SEED)
    draws *= np.array([-1.0 if metric.direction == "maximize" else 1.0 for metric in objectives])
    rivals = draws[:, : len(complete)]
    found = {}
    for row, record in enumerate(stopped, start=len(complete)):
        own = draws[:, row : row + 1]
        dominated = np.all(rivals <= own, axis=2) & np.any(rivals < own, axis=2)
        found[record.number] = float(1 - np.any(dominated, axis=1).mean())
    return found


def _generated(records: Sequence[TrialRecord]) -> int:
    """Images of all trials."""
    return sum(record.images for record in records if record.duplicate_of is None)


def replace_record(
    records: MutableSequence[TrialRecord], write: Callable[[TrialRecord], None], record: TrialRecord
) -> None:
    """Replace the record of a trial, and the results of its duplicates, in `records`, and write each."""
    copies = [replace(other, **shared_results(record)) for other in records if other.duplicate_of == record.number]
    for changed in (record, *copies):
        if changed != records[changed.number]:
            records[changed.number] = changed
            write(changed)


def _violates(record: TrialRecord) -> bool:
    return any(value > 0 for value in record.constraints.values())
