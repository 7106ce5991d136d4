"""Racing in a sweep: which trials stop after a rung, and what their values mean next to those of complete trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.results.trials import FAILED, STOPPED, EarlyStop, TrialRecord
from orchestrator.run.racing import Race, Scores
from search_spaces.constraints import Constraint
from search_spaces.sweep import SweepConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

Metrics = Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """The rule of a sweep with a section `racing`.

    finished: the records of finished trials in the order of their numbers, as the search knows them: revived ones as
    they were when they stopped. A decision depends on those alone that had finished before the trial was proposed, so
    it is the same for any number of workers.
    """

    sweep: SweepConfig
    objectives: Sequence[Metric]
    finished: list[TrialRecord] = field(default_factory=list)

    def decide(self, number: int, images: int, metrics: Metrics, shape: str) -> EarlyStop | None:
        """Whether trial `number`, measured on `images` images, stops.

        The configs of `enqueue` never stop, and a rival must meet the sweep's constraints.
        """
        first, racing = len(self.sweep.enqueue), self.sweep.racing
        scores = self._scores(metrics, shape)
        if racing is None or number < first or scores is None:
            return None
        race = Race([axis.direction for axis in self.objectives], racing.error_rate, len(racing.rungs))
        eligible = max(0, number - self.sweep.search.parallel + 1)
        rivals = {}
        for record in self.finished[:eligible]:
            rival = self._rival(record, images)
            if rival is not None and rival.blocks.shape == scores.blocks.shape:
                rivals[record.number] = rival
        stop = race.decide(number - first, scores, rivals, eligible)
        return None if stop is None else EarlyStop(stop.rival, images, stop.chance)

    def reason(self, stop: EarlyStop) -> str:
        """In one sentence."""
        names = " and ".join(axis.name for axis in self.objectives)
        if self.sweep.racing is not None and self.sweep.racing.error_rate is None:
            return f"trial {stop.rival} dominates it by measured {names} on the same {stop.images} images; not a test"
        return (
            f"trial {stop.rival} is better in {names} on the same {stop.images} images; the chance that this is wrong "
            f"is at most {stop.chance:.1g}"
        )

    def problem(self, images: int, metrics: Metrics, missing: str | None) -> str | None:
        """Why the sweep cannot run with the baseline's metrics on `images` images, and the fix; None if it can.

        missing: why required metrics are.
        """
        if self.sweep.racing is None:
            return missing
        if missing:
            return f"on {images} images, {missing}; remove the `racing.rungs` that are too small"
        if self._scores(metrics, "") is not None:
            return None
        counts = ", ".join(f"{axis.name} on {len(metrics[axis.name].replicates)}" for axis in self.objectives)
        return (
            f"racing: all objectives must be measured on the same blocks of captions, at least 2 ({counts}); choose "
            "other objectives, or leave out `racing`"
        )

    def before_revival(self, record: TrialRecord) -> TrialRecord:
        """The record as the search knows it: that of a revived trial as it was when the trial stopped."""
        stop = record.stop
        if stop is None or not record.is_revived:
            return record
        history = tuple((images, metrics) for images, metrics in record.history if images <= stop.images)
        stopped = replace(record, state=STOPPED, images=stop.images, cause=self.reason(stop))
        return replace(stopped, history=history, metrics=history[-1][1])

    def _rival(self, record: TrialRecord, images: int) -> Scores | None:
        """The scores of a rival on `images` images; None if it has none there, or violates a constraint."""
        violates = any(value > 0 for value in record.constraints.values())
        metrics = dict(record.history).get(images)
        if record.state == FAILED or record.duplicate_of is not None or violates or metrics is None:
            return None
        return self._scores(metrics, record.shape)

    def _scores(self, metrics: Metrics, shape: str) -> Scores | None:
        """The objectives; None if one of them has no values without blocks of captions."""
        entries = [metrics.get(axis.name) for axis in self.objectives]
        measured = [entry for entry in entries if entry is not None and len(entry.replicates) > 1]
        if len(measured) < len(entries) or len({len(entry.replicates) for entry in measured}) > 1:
            return None
        return Scores.from_replicates(
            [entry.value for entry in measured],
            [entry.replicates for entry in measured],
            [entry.noise for entry in measured],
            shape or None,
            min((entry.noise_dof for entry in measured if entry.noise_dof), default=np.inf),
        )


def as_told(sweep: SweepConfig, record: TrialRecord, vanilla: TrialRecord) -> tuple[TrialRecord, TrialRecord]:
    """A trial's record as the search knows it (see `before_revival`), and the same with the values to tell."""
    objectives = [Metric(objective.metric, objective.direction or "minimize") for objective in sweep.objectives]
    known = EarlyStopping(sweep, objectives).before_revival(record)
    if known is not record:
        known = with_constraints(known, sweep.constraints, [vanilla])
    return known, at_full_size(known, vanilla)


def at_full_size(record: TrialRecord, vanilla: TrialRecord) -> TrialRecord:
    """A stopped trial's metrics as expected on all images: vanilla's there, plus the difference to vanilla on the
    images that both have. Other records are returned as they are.

    Values of other numbers of images cannot be compared, fid least of all. Vanilla is measured at every rung, and the
    two differ on the same captions and random numbers.
    """
    part = dict(vanilla.history).get(record.images)
    if record.state != STOPPED or part is None:
        return record
    shared = record.metrics.keys() & part.keys() & vanilla.metrics.keys()
    metrics = {name: _moved(record.metrics[name], part[name], vanilla.metrics[name]) for name in sorted(shared)}
    return replace(record, metrics=metrics)


def _moved(entry: Estimate, part: Estimate, whole: Estimate) -> Estimate:
    """entry - part + whole, with the replicates of the three.

    Where vanilla is 0 on any number of images (a distance to itself), it does not show how the metric falls with n.
    Then the entry's own jackknife bias of order 1 / n is moved to the other n.
    """
    value = entry.value - part.value + whole.value
    if part.value == whole.value == 0 and entry.replicates:
        bias = (len(entry.replicates) - 1) * (float(np.mean(entry.replicates)) - entry.value)
        value = entry.value - bias * (1 - entry.n / whole.n)
        replicates = np.add(entry.replicates, value - entry.value)
        return replace(entry, value=value, n=whole.n, replicates=tuple(replicates.tolist()))
    if not len(entry.replicates) == len(part.replicates) == len(whole.replicates) > 0:
        return replace(entry, value=value, n=whole.n)
    replicates = np.subtract(entry.replicates, part.replicates) + np.array(whole.replicates)
    count = len(replicates)
    error = math.hypot(np.sqrt((count - 1) * replicates.var()), entry.noise)
    return Estimate(value, error, whole.n, tuple(replicates.tolist()), entry.noise, entry.noise_dof)


def with_constraints(
    record: TrialRecord, constraints: Sequence[Constraint], earlier: Sequence[TrialRecord]
) -> TrialRecord:
    """The record, with the violation of each constraint unless the trial failed: by how much it violates it, in the
    metric's unit, at most 0 if it is met. A stopped trial is compared with vanilla (`earlier[0]`) on as many images.
    """
    if record.state == FAILED:
        return record
    vanilla = earlier[0] if earlier else record
    images = record.images if record.state == STOPPED else vanilla.images
    reference = vanilla.metrics if images == vanilla.images else dict(vanilla.history)[images]
    violations = {}
    for constraint in constraints:
        limit = reference.get(constraint.metric)
        value = record.metrics[constraint.metric].value
        violations[constraint.text] = constraint.violation(value, limit.value if limit else math.nan)
    return replace(record, constraints=violations)
