"""Racing in a sweep: which trials stop early, what their values mean, and which go on at the end.

`EarlyStopping` applies the test of a race (`orchestrator.run.race`) to the trials of a sweep,
`at_full_size` says what a stopped trial's values mean next to those of complete trials, and
`next_trials` which stopped trials go on at the end of a sweep: those that may be on the front.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from orchestrator.front.joint import JointErrors, directions
from orchestrator.front.pareto import dominated
from orchestrator.run.race import Race, Scores
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.prices import is_priced, violations
from orchestrator.store.records import EarlyStop, TrialRecord, may_compare_speeds
from orchestrator.store.sweep import Sweep
from search_spaces.constraints import Constraint
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

Metrics = Mapping[str, Estimate]

_DRAWS = 4000  # samples of the joint errors of trials that may go on
_SEED = 0  # of these samples


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """The rule of a sweep with a section `racing`.

    A decision depends on those trials alone that had finished before the trial was proposed, so it
    is the same for any number of workers.
    """

    sweep: SweepConfig
    objectives: Sequence[Metric]
    # The records of finished trials in the order of their numbers, as the search knows them:
    # revived ones as they were when they stopped.
    finished: list[TrialRecord] = field(default_factory=list)
    # the number of trials of earlier sweeps, whose fronts are rivals (see `Source.trials`)
    earlier: int = 0
    groups: QualityGroups | None = None  # of lossless settings

    def decide(
        self,
        number: int,
        images: int,
        metrics: Metrics,
        shape: str,
        device: str,
        group: Sampling | None = None,
    ) -> EarlyStop | None:
        """Whether trial `number`, measured on `images` images, stops. device: of its speeds (see
        `TrialRecord.device`). group: of its quality (see `QualityGroups.group`); rivals of the same
        one are equally good.

        The configs of `enqueue` never stop, and a rival must meet the sweep's constraints. If a
        speed is an objective, rivals are those that were timed on the same device.
        """
        first = len(self.sweep.enqueue)
        racing = self.sweep.racing
        scores = self._scores(metrics, shape, group)
        if racing is None or number < first or scores is None:
            return None
        race = Race(
            [metric.direction for metric in self.objectives], racing.error_rate, len(racing.rungs)
        )
        before = self._rivals_of(number)
        rivals = {}
        for record in before:
            rival = self._rival(record, images, device)
            if rival is not None and rival.blocks.shape == scores.blocks.shape:
                rivals[record.number] = rival
        stop = race.decide(number - first, scores, rivals, len(before) + self.earlier)
        return None if stop is None else EarlyStop(stop.rival, images, stop.chance)

    def decide_known(self, measured: TrialRecord, device: str) -> EarlyStop | None:
        """As `decide`, with the quality that the trial's group is known to have."""
        assert self.groups is not None, "a sweep that runs knows its groups"
        assert measured.config is not None, "it was measured"
        told = self.groups.as_told(measured, self._rivals_of(measured.number))
        shape = measured.config.shape.key
        group = self.groups.group(told)
        return self.decide(told.number, told.images, told.metrics, shape, device, group)

    def _rivals_of(self, number: int) -> Sequence[TrialRecord]:
        """The trials that had finished before this one was proposed."""
        return self.finished[: max(0, number - self.sweep.search.parallel + 1)]

    def reason(self, stop: EarlyStop, config: DecodingConfig | None) -> str:
        """Why a trial with this config was stopped, in one sentence."""
        better, equal = self._compared(stop, config)
        names = " and ".join(better)
        same = ""
        if equal:
            verb = "is" if len(equal) == 1 else "are"
            same = f"; {' and '.join(equal)} {verb} equal, because both are lossless"
        for rival in self.finished:
            if rival.number == stop.rival and rival.images < stop.images:
                same += f"; its passes are of {rival.images} images, as it is lossless"
        if self.sweep.racing is not None and self.sweep.racing.error_rate is None:
            return (
                f"trial {stop.rival} dominates it by measured {names} on the same {stop.images} "
                f"images{same}; not a test"
            )
        return (
            f"trial {stop.rival} is better in {names} on the same {stop.images} images{same}; the "
            f"chance that this is wrong is at most {stop.chance:.1g}"
        )

    def _compared(
        self, stop: EarlyStop, config: DecodingConfig | None
    ) -> tuple[list[str], list[str]]:
        """The objectives in which the rival of a trial with this config is better, and those that
        are known to be equal.
        """
        is_one = False
        if self.groups is not None and config is not None:
            group = self.groups.claimed_group(config)
            rivals = [record for record in self.finished if record.number == stop.rival]
            is_one = group is not None and group in map(self.groups.group, rivals)
        is_equal = [is_one and metric.is_of_distribution for metric in self.objectives]
        names = [metric.name for metric in self.objectives]
        equal = list(compress(names, is_equal))
        return [name for name in names if name not in equal], equal

    def problem(self, images: int, metrics: Metrics, missing: str | None) -> str | None:
        """Why the sweep cannot run with the baseline's metrics on `images` images, and the fix;
        None if it can.

        missing: why required metrics are missing; None if none is.
        """
        if self.sweep.racing is None:
            return missing
        if missing:
            return f"on {images} images, {missing}; remove the `racing.rungs` that are too small"
        if self._scores(metrics, "") is not None:
            return None
        counts = ", ".join(
            f"{metric.name} on {len(metrics[metric.name].replicates)}" for metric in self.objectives
        )
        return (
            "racing: all objectives must be measured on the same blocks of captions, at least 2 "
            f"({counts}); choose other objectives, or leave out `racing`"
        )

    def before_revival(self, record: TrialRecord) -> TrialRecord:
        """The record as the search knows it: that of a revived trial as it was when the trial
        stopped.
        """
        stop = record.stop
        if stop is None or not record.is_revived:
            return record
        history = tuple(
            (images, metrics) for images, metrics in record.history if images <= stop.images
        )
        stopped = replace(
            record, state="stopped", images=stop.images, cause=self.reason(stop, record.config)
        )
        return replace(stopped, history=history, metrics=history[-1][1])

    def _rival(self, record: TrialRecord, images: int, device: str) -> Scores | None:
        """The scores of a rival on `images` images; None if it has none there, violates a
        constraint, or has a speed on another device as an objective.
        """
        metrics = dict(record.history).get(images)
        if record.has_failed or record.duplicate_of is not None or _violates(record):
            return None
        if metrics is None:
            return None
        if not _may_compare(self.objectives, record.timed_on.get(images, record.device), device):
            return None
        group = self.groups.group(record) if self.groups is not None else None
        return self._scores(metrics, record.shape, group)

    def _scores(self, metrics: Metrics, shape: str, group: Sampling | None = None) -> Scores | None:
        """The objectives; None if one of them has no values without blocks of captions."""
        entries = [metrics.get(metric.name) for metric in self.objectives]
        measured = [entry for entry in entries if entry is not None and len(entry.replicates) > 1]
        if len(measured) < len(entries) or len({len(entry.replicates) for entry in measured}) > 1:
            return None
        known = {}
        if group is not None:
            known = {
                place: group
                for place, metric in enumerate(self.objectives)
                if metric.is_of_distribution
            }
        return Scores.from_replicates(
            [entry.value for entry in measured],
            [entry.replicates for entry in measured],
            [entry.noise for entry in measured],
            shape or None,
            min((entry.noise_dof for entry in measured if entry.noise_dof), default=np.inf),
            known,
        )


def as_told(
    config: SweepConfig, record: TrialRecord, sweep: Sweep
) -> tuple[TrialRecord, TrialRecord]:
    """A trial's record as the search knows it (see `EarlyStopping.before_revival`), and the same
    with the values that the search is told.

    Args:
        config: the sweep that runs.
        record: of one of its trials.
        sweep: with all of its trials so far.
    """
    groups = sweep.told_groups
    told = [other for other in sweep.records if other.number < record.number and not other.stop]
    racing = EarlyStopping(config, sweep.identity.objectives, list(sweep.records), groups=groups)
    known = racing.before_revival(record)
    vanilla = sweep.baseline or record
    if known is not record:
        known = with_constraints(known, config.constraints, [vanilla])
    return known, at_full_size(known, vanilla, groups.values_in_full(known, told))


def at_full_size(
    record: TrialRecord, vanilla: TrialRecord, known: Mapping[str, Estimate] | None = None
) -> TrialRecord:
    """A stopped trial's metrics as expected on all images: vanilla's there, plus the difference to
    vanilla on the images that both have. Other records are returned as they are.

    Values of other numbers of images cannot be compared, fid least of all. Vanilla is measured at
    every rung, and the two differ on the same captions and random numbers.

    Args:
        record: of any trial.
        vanilla: the record of vanilla.
        known: values on all images that it is known to have (see
            `QualityGroups.values_in_full`).
    """
    part = dict(vanilla.history).get(record.images)
    if not record.is_stopped or part is None:
        return record
    shared = record.metrics.keys() & part.keys() & vanilla.metrics.keys()
    metrics = {
        name: _moved(record.metrics[name], part[name], vanilla.metrics[name])
        for name in sorted(shared)
    }
    metrics |= {name: entry for name, entry in (known or {}).items() if name in shared}
    return replace(record, metrics=metrics)


def _moved(entry: Estimate, part: Estimate, whole: Estimate) -> Estimate:
    """entry - part + whole, with the replicates of the three.

    Where vanilla is 0 on any number of images (a distance to itself), it does not show how the
    metric falls with n. Then the entry's own jackknife bias of order 1 / n is moved to the other n.
    """
    value = entry.value - part.value + whole.value
    if part.value == whole.value == 0 and entry.replicates:
        shift = (entry.debiased - entry.value) * (1 - entry.n / whole.n)
        replicates = tuple(left_out + shift for left_out in entry.replicates)
        return replace(entry, value=entry.value + shift, n=whole.n, replicates=replicates)
    if not len(entry.replicates) == len(part.replicates) == len(whole.replicates) > 0:
        return replace(entry, value=value, n=whole.n)
    replicates = np.subtract(entry.replicates, part.replicates) + np.array(whole.replicates)
    count = len(replicates)
    error = math.hypot(np.sqrt((count - 1) * replicates.var()), entry.noise)
    return Estimate(value, error, whole.n, tuple(replicates.tolist()), entry.noise, entry.noise_dof)


def with_constraints(
    record: TrialRecord, constraints: Sequence[Constraint], earlier: Sequence[TrialRecord]
) -> TrialRecord:
    """The record, with the violations of the constraints (see `prices.violations`); `earlier[0]` is
    vanilla.
    """
    if record.has_failed:
        return record
    return replace(record, constraints=violations(record, constraints, earlier))


def next_trials(
    records: Sequence[TrialRecord],
    objectives: Sequence[Metric],
    numbers: Collection[int],
    *,
    threshold: float,
    budget: int | None,
    failed: Collection[int] = (),
    groups: QualityGroups | None = None,
) -> list[int]:
    """Stopped trials in the order in which they would go on to their next rungs; empty: none goes
    on.

    The first one goes on; the others may generate images at the same time, as they are probably
    next. First the trials `numbers`, to the end. Then always the one that is most probably on the
    front, until no probability is above `threshold` or `budget` images (None: no limit) are spent.
    With a budget of images no others follow the first one: they may not be needed. failed: trials
    that could not go on. groups: of lossless settings.
    """
    queue = [
        number for number in sorted(numbers) if records[number].is_stopped and number not in failed
    ]
    if not queue and threshold < 1 and (budget is None or _generated(records) < budget):
        shares = front_probabilities(records, objectives, groups)
        uncertain = [
            number for number, share in shares.items() if share > threshold and number not in failed
        ]
        queue = sorted(uncertain, key=lambda number: -shares[number])
    return queue if budget is None else queue[:1]


def front_probabilities(
    records: Sequence[TrialRecord],
    objectives: Sequence[Metric],
    groups: QualityGroups | None = None,
) -> dict[int, float]:
    """For each stopped trial, the share of joint draws from all errors in which no complete trial
    dominates it.

    Its values are those expected on all captions (`at_full_size`). Duplicates, and trials that
    violate a constraint, are left out on both sides; so are complete trials whose speeds, if these
    are objectives, are of another device.
    """
    kept = [record for record in records if record.duplicate_of is None and not _violates(record)]
    complete = [record for record in kept if record.is_complete]
    stopped = [record for record in kept if record.is_stopped]
    if not complete or not stopped:
        return {}
    expected = [
        at_full_size(
            record, records[0], None if groups is None else groups.values_in_full(record, complete)
        )
        for record in stopped
    ]
    draws = JointErrors.of([*complete, *expected], objectives).samples(_DRAWS, _SEED)
    rivals = draws[:, : len(complete)]
    own = draws[:, len(complete) :]
    shares = np.zeros(len(stopped))
    for device in {record.device for record in stopped}:
        rows = [row for row, record in enumerate(stopped) if record.device == device]
        comparable = [
            row
            for row, rival in enumerate(complete)
            if _may_compare(objectives, rival.device, device)
        ]
        shares[rows] = 1 - dominated(
            own[:, rows], rivals[:, comparable], directions(objectives)
        ).mean(axis=0)
    return {record.number: share for record, share in zip(stopped, shares.tolist(), strict=True)}


def _generated(records: Sequence[TrialRecord]) -> int:
    """Images of all trials."""
    return sum(record.images for record in records if record.duplicate_of is None)


def _may_compare(objectives: Sequence[Metric], one: str, other: str) -> bool:
    """Whether the objectives of trials whose speeds are of these devices can be compared."""
    return may_compare_speeds(one, other) or not any(
        is_priced(metric.name) for metric in objectives
    )


def _violates(record: TrialRecord) -> bool:
    return any(value > 0 for value in record.constraints.values())
