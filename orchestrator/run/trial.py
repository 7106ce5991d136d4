"""A trial: the files that it consists of, what it needs at each rung, when it stops, and what its
record says.
"""

from __future__ import annotations

from collections.abc import (
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from orchestrator.cluster.tasks import SweepError, Task
from orchestrator.run.build import Build, Result
from orchestrator.run.racing import EarlyStopping, with_constraints
from orchestrator.run.search import Proposal
from orchestrator.run.timing import Sessions, session_of
from orchestrator.store import events
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.names import SettingNames
from orchestrator.store.records import EarlyStop, Measurement, State, TrialRecord
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.shards import TOKEN_CHECK, Experiment, MeasureTask, QualityShard, plan_quality
from workers.metrics.definition import Metric
from workers.metrics.estimate import BLOCKS, Estimate, jackknife_error

BASELINE = 0  # number of vanilla's trial
# The relative standard error of its passes at which a trial ends whose quality is known. That of
# costs is larger: what changes from one sitting to the next alone is 0.03 (see
# `workers.metrics.costs.QUIET`).
_PRECISION = 0.02
# The longest image of a batch, whose passes the batch takes, is known from this many batches.
_LEAST_BATCHES = 4

# yields a trial's measurements one by one, and returns its record
Steps = Generator[Task, Result, TrialRecord]


def make_record(proposal: Proposal, state: State, **fields: Any) -> TrialRecord:
    """The record of a trial that ends now."""
    now = events.utc_now()
    return TrialRecord(
        number=proposal.number,
        label=proposal.label,
        state=state,
        config=proposal.config,
        params=proposal.params,
        **{"started": now, "finished": now, **fields},
    )


class Rung(NamedTuple):
    """A number of images, and the shards that hold them."""

    images: int
    files: tuple[Task, ...]


@dataclass(slots=True)
class _Progress:
    """What is known of a trial that runs."""

    started: str  # ISO 8601, UTC
    images: int = 0  # on which it was measured last
    history: dict[int, Mapping[str, Estimate]] = field(default_factory=dict)  # see `TrialRecord`
    timed_on: dict[int, str] = field(default_factory=dict)  # see `TrialRecord`
    stop: EarlyStop | None = None
    earlier_s: float = 0.0  # seconds that workers spent on it before racing stopped it

    def add(self, images: int, measurement: Measurement) -> None:
        """Take the measurement on the images of a rung."""
        self.images = images
        self.history |= {**dict(measurement.history), images: measurement.metrics}
        if measurement.device:
            self.timed_on[images] = measurement.device


@dataclass(frozen=True)
class Plan:
    """The files that the trials of a sweep consist of."""

    sweep: SweepConfig
    experiment: Experiment
    baseline: DecodingConfig  # vanilla
    captions: int  # their number
    groups: QualityGroups  # of lossless settings, which know the metrics to measure
    prepared: tuple[Task, ...] = ()  # what every measurement needs in addition to the shards

    @property
    def images(self) -> int:
        """The number of images of a trial that is not stopped."""
        return self.captions * self.sweep.quality.samples

    @cached_property
    def baseline_images(self) -> tuple[Task, ...]:
        return self.rungs(self.baseline)[-1].files

    def rungs(self, config: DecodingConfig) -> list[Rung]:
        """The rungs at which a trial is measured, the one with all captions last. No shard crosses
        a rung.
        """
        return self._rungs_at(self._shards(config), [*self._racing_ends, self.captions])

    def check_rungs(self, config: DecodingConfig) -> list[Rung]:
        """Where a lossless trial may end before all captions: at the first rung of racing, or
        without it after the first shard, with an image in each block of captions and with several
        batches of each size that is timed; then at twice as many captions or more each time.
        """
        shards = self._shards(config)
        ends: list[int] = []
        batches = _LEAST_BATCHES * max(self.sweep.timing.batches)
        least = max(BLOCKS, batches // self.sweep.quality.samples, *self._racing_ends[:1])
        for shard in shards:
            if least <= shard.stop < self.captions:
                ends.append(shard.stop)
                least = 2 * shard.stop
        return self._rungs_at(shards, ends)

    @property
    def _racing_ends(self) -> Sequence[int]:
        """The captions after which racing may stop a trial."""
        return self.sweep.racing.rungs if self.sweep.racing else ()

    def _shards(self, config: DecodingConfig) -> list[QualityShard]:
        quality = self.sweep.quality
        return plan_quality(
            config,
            self.captions,
            quality.shard,
            quality.samples,
            quality.batch,
            self._racing_ends,
        )

    def _rungs_at(self, shards: Sequence[QualityShard], ends: Iterable[int]) -> list[Rung]:
        """The rungs that end at these numbers of captions."""
        parts = [[shard for shard in shards if shard.stop <= end] for end in ends]
        files = self.tasks(shards)
        return [Rung(sum(shard.images for shard in part), files[: len(part)]) for part in parts]

    def session(self, configs: Sequence[DecodingConfig], number: int) -> Task:
        """A timing session of vanilla and other configs."""
        session = session_of(self.sweep, [self.baseline, *configs], self.captions, number)
        return Task.of(session.name(self.experiment), session)

    def tasks(self, shards: Iterable[QualityShard]) -> tuple[Task, ...]:
        return tuple(Task.of(shard.name(self.experiment), shard) for shard in shards)

    def measurement(
        self,
        config: DecodingConfig,
        rung: Rung,
        timings: Sequence[Task],
        prefetched: Sequence[Task] = (),
        *,
        has_known_quality: bool = False,
    ) -> Task:
        """A config's metrics on the images of a rung.

        Args:
            config: the config.
            rung: the rung.
            timings: the sessions that its speed is from.
            prefetched: other shards that must exist.
            has_known_quality: leave out the metrics of images: its group has those of their
                distribution, and others, such as drift, mean nothing on few images.
        """
        metrics = self.groups.metrics
        if has_known_quality:
            metrics = {name: metric for name, metric in metrics.items() if metric.is_of_counts}
        work = MeasureTask(
            config=config,
            quality=names(rung.files),
            timing=names(timings),
            baseline_quality=names(self.baseline_images),
            metrics=tuple(metrics),
            definitions=tuple(sorted({m.definition for m in metrics.values() if m.definition})),
            halfway=self.sweep.racing is None and not has_known_quality,
            check=config != self.baseline and self.groups.claimed_group(config) is not None,
        )
        needs = (*rung.files, *prefetched, *timings, *self.baseline_images, *self.prepared)
        return Task.of(work.name(), work, needs)


def _is_precise(measurement: Measurement) -> bool:
    """Whether the passes are so precise that more images would hardly lower the error of the speed.
    It depends on the images alone, so it is the same on every machine.
    """
    return all(
        len(without) > 1 and jackknife_error(np.array(without)) <= _PRECISION * passes
        for passes, *without in measurement.passes.values()
    )


def names(tasks: Iterable[Task]) -> tuple[str, ...]:
    return tuple(task.name for task in tasks)


class Trials:
    """Runs the trials of a sweep.

    objectives: in the order of the sweep's. earlier: see `EarlyStopping`.
    """

    def __init__(
        self,
        plan: Plan,
        build: Build,
        objectives: Sequence[Metric],
        emit: events.EventSink,
        earlier: int,
    ) -> None:
        self.plan = plan
        self.build = build
        self.emit = emit
        sweep = plan.sweep
        self.groups = plan.groups
        self.racing = EarlyStopping(sweep, objectives, earlier=earlier, groups=plan.groups)
        self.sessions = Sessions(sweep, plan.baseline, plan.session)
        self.names = SettingNames(sweep.sampling)
        required = [objective.name for objective in objectives]
        required += [limit.metric for limit in sweep.constraints]
        self._required = dict.fromkeys(required)  # without these metrics a trial has failed

    def as_told(self, record: TrialRecord, earlier: Sequence[TrialRecord]) -> TrialRecord:
        """A trial's record as the search knows it: with the quality of its group (see
        `QualityGroups.as_told`), and with its violations of the constraints.

        earlier: the trials that were told before.
        """
        known = self.groups.as_told(record, earlier)
        return with_constraints(known, self.plan.sweep.constraints, earlier)

    def run(self, proposal: Proposal, stopped: TrialRecord | None = None) -> Steps:
        """Measure a trial rung by rung, until racing stops it or all captions are measured.

        All images of a config of `enqueue` are generated at once, because it is never stopped.
        stopped: the record of a stopped trial, which goes on to its next rung and no further.

        Raises:
            SweepError: vanilla failed, the baseline of every metric.
        """
        number = proposal.number
        config = proposal.config
        assert config is not None, "a trial without a config does not run"
        # those of earlier trials and its own, whatever comes later
        timings: Sequence[Task] = self.sessions.of(config)
        self.build.want(BASELINE, *self.plan.baseline_images)  # all trials need them
        is_known = stopped is None and self._has_known_quality(number, config)
        if is_known:
            record = yield from self._run_checked(proposal, config, timings)
            if record is not None:
                return record
        progress = self._begin(number, stopped)
        rungs = [rung for rung in self.plan.rungs(config) if rung.images > progress.images]
        prefetched = rungs[-1].files if number < len(self.plan.sweep.enqueue) else ()
        kind = events.TrialResumed if stopped or is_known else events.TrialStarted
        self._emit_start(kind, proposal, rungs[-1] if is_known else rungs[0], rungs[-1])
        for rung in rungs:
            result, timings = yield from self._measure(config, rung, timings, prefetched)
            if result.output is None:
                self._check_baseline(number, result.cause, result.lost)
                return self._record(proposal, "failed", result.cause, progress)
            measurement = Measurement.from_mapping(result.output)
            metrics = measurement.metrics
            progress.add(rung.images, measurement)
            problem = self._missing(measurement)
            if number == BASELINE:
                self._check_baseline(number, self.racing.problem(rung.images, metrics, problem))
            state: State = "failed" if problem else "complete"
            if rung is not rungs[-1]:
                if stopped is None and not problem:
                    known = make_record(
                        proposal,
                        "stopped",
                        metrics=metrics,
                        images=rung.images,
                        check=measurement.check,
                    )
                    progress.stop = self.racing.decide_known(known, measurement.device)
                if progress.stop is None or problem:  # more images may have what these lack
                    continue
                state = "stopped"
                problem = self.racing.reason(progress.stop, config)
            return self._measured_record(
                proposal, state, problem, progress, measurement, rung, timings
            )
        raise AssertionError("the last rung is all captions")

    def _has_known_quality(self, number: int, config: DecodingConfig) -> bool:
        """Whether a trial has vanilla's quality if its tokens are as it states, so that it need not
        draw all images: it claims to be lossless for vanilla's sampling, and the sweep optimises
        and constrains nothing else that only images show.
        """
        groups = self.groups
        if number == BASELINE or self.plan.sweep.quality.lossless == "measure":
            return False
        if groups.claimed_group(config) != groups.baseline:
            return False
        if not self.plan.check_rungs(config):
            return False
        required = [groups.metrics[name] for name in self._required]
        return all(metric.is_of_counts or metric.is_of_distribution for metric in required)

    def _run_checked(
        self, proposal: Proposal, config: DecodingConfig, timings: Sequence[Task]
    ) -> Generator[Task, Result, TrialRecord | None]:
        """Measure the speed of a trial whose quality is known, and check its tokens, on as many
        images as its passes need; None if the check fails, or its passes need all images, on which
        everything is measured.
        """
        progress = self._begin(proposal.number, None)
        rungs = self.plan.check_rungs(config)
        for rung in rungs:
            kind = events.TrialStarted if rung is rungs[0] else events.TrialResumed
            self._emit_start(kind, proposal, rung, rung)
            result, timings = yield from self._measure(
                config, rung, timings, has_known_quality=True
            )
            if result.output is None:
                self._check_baseline(proposal.number, result.cause, result.lost)
                return self._record(proposal, "failed", result.cause, progress)
            measurement = Measurement.from_mapping(result.output)
            progress.add(rung.images, measurement)
            check = measurement.check
            if check is None:
                reason = measurement.skipped.get(TOKEN_CHECK, "a worker left it out")
                about = f"trial {proposal.number} draws all images, as its tokens are not checked"
                self.emit(events.Note(note=f"{about}: {reason}"))
            if check is None or not check.passed:
                return None
            if _is_precise(measurement):
                problem = self._missing(measurement, has_known_quality=True)
                state: State = "failed" if problem else "complete"
                return self._measured_record(
                    proposal, state, problem, progress, measurement, rung, timings
                )
        return None

    def _begin(self, number: int, stopped: TrialRecord | None) -> _Progress:
        """What is known of a trial before it runs: nothing, or what its record says if racing had
        stopped it.
        """
        if stopped is None:
            return _Progress(events.utc_now())
        return _Progress(
            stopped.started,
            stopped.images,
            dict(stopped.history),
            dict(stopped.timed_on),
            stopped.stop,
            stopped.seconds - self.build.seconds[number],
        )

    def _measured_record(
        self,
        proposal: Proposal,
        state: State,
        cause: str | None,
        progress: _Progress,
        measurement: Measurement,
        rung: Rung,
        timings: Sequence[Task],
    ) -> TrialRecord:
        """The record of a trial that ends at a rung."""
        assert proposal.config is not None, "a trial without a config does not run"
        return self._record(
            proposal,
            state,
            cause,
            progress,
            metrics=measurement.metrics,
            history=tuple(sorted(progress.history.items())),
            shards=names([*rung.files, *timings[-1:]]),
            shape=proposal.config.shape.key if timings else "",
            timed_on=progress.timed_on,
            images=rung.images,
            stop=progress.stop,
            check=measurement.check,
            passes=measurement.passes,
            taken=measurement.taken,
        )

    def _record(
        self,
        proposal: Proposal,
        state: State,
        cause: str | None,
        progress: _Progress,
        **results: Any,
    ) -> TrialRecord:
        """The record of a trial that ran, without the violations of constraints."""
        return make_record(
            proposal,
            state,
            cause=cause,
            started=progress.started,
            seconds=progress.earlier_s + self.build.seconds[proposal.number],
            **results,
        )

    def _missing(self, measurement: Measurement, *, has_known_quality: bool = False) -> str | None:
        """Why required metrics are missing; None if none is."""
        metrics = self.groups.metrics
        problems = [
            f"{name}: {measurement.skipped.get(name, 'not measured')}"
            for name in self._required
            if name not in measurement.metrics
            and not (has_known_quality and metrics[name].is_of_distribution)
        ]
        return "; ".join(problems) or None

    def _measure(
        self,
        config: DecodingConfig,
        rung: Rung,
        timings: Sequence[Task],
        prefetched: Sequence[Task] = (),
        *,
        has_known_quality: bool = False,
    ) -> Generator[Task, Result, tuple[Result, Sequence[Task]]]:
        """Measure a config on a rung's images, again while files are lost that can be made again.

        timings: see `Sessions.of`. A session that cannot be made is left out; if it is the one of
        the config's shape, the config is timed in a session of its own.
        """
        while True:
            result = yield self.plan.measurement(
                config, rung, timings, prefetched, has_known_quality=has_known_quality
            )
            if result.output is not None:
                return result, timings
            if result.cause is not None:
                remaining = self.sessions.without(config, timings, result.lost)
                if not remaining or remaining == timings:
                    return result, timings
                timings = remaining

    def _check_baseline(self, number: int, problem: str | None, lost: Collection[str] = ()) -> None:
        """Raise SweepError if a problem of a trial is one of the baseline. lost: the files that
        could not be made.
        """
        needed = names(self.plan.baseline_images)
        if problem and (number == BASELINE or not set(lost).isdisjoint(needed)):
            raise SweepError(f"vanilla, the baseline of every metric, failed: {problem}")

    def _emit_start(
        self, kind: type[events.TrialStarted], proposal: Proposal, first: Rung, last: Rung
    ) -> None:
        """Say how many shards of images a trial has, and how many are missing. A trial that goes on
        needs those of its next rung. Any other needs all, though racing may stop it before the
        last.
        """
        assert proposal.config is not None
        total = set(names(last.files))
        needed = set(names(first.files)) if kind is events.TrialResumed else total
        self.emit(
            kind(
                trial=proposal.number,
                label=proposal.label,
                setting=self.names.name(proposal.config),
                images=last.images,
                shards=len(needed.difference(self.build.files)),
                total_shards=len(total),
                config=proposal.config.flat(),
            )
        )
