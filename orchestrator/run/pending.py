"""A trial in flight: the shards it needs, those that are missing, and its record."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.trials import (
    COMPLETE,
    FAILED,
    STOPPED,
    EarlyStop,
    State,
    TrialRecord,
    parse_history,
    parse_metrics,
)
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import Task
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.shards import Experiment, MeasureTask, QualityShard, TimingShard, plan_quality, plan_timing
from workers.metrics.estimate import Estimate
from workers.metrics.registry import uses_timings


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class PendingTrial:
    """One trial between Optuna's ask and tell.

    files: names of its shard files by kind; the timing files are those of its shape's first trial, and `own_timing` are
    its own if it is timed itself. missing: those that are not in the store yet. duplicate_of: number of the earlier
    trial with the same config. rungs: the numbers of captions at which the trial is measured, all captions last. rung:
    index of the one that is drawn now. images: of all captions. history: metrics by number of images. stop: of a trial
    that is revived. record: set when the trial is finished.
    """

    proposal: Proposal
    images: int = 0
    quality: list[QualityShard] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=lambda: {"quality": [], "timing": [], "own_timing": []})
    missing: set[str] = field(default_factory=set)
    seconds: float = 0.0
    started: str = field(default_factory=utc_now)
    duplicate_of: int | None = None
    measuring: bool = False
    rungs: tuple[int, ...] = ()
    rung: int = 0
    history: dict[int, Mapping[str, Estimate]] = field(default_factory=dict)
    stop: EarlyStop | None = None
    record: TrialRecord | None = None

    @property
    def config(self) -> DecodingConfig:
        config = self.proposal.config
        assert config is not None, "a proposal without a config is never planned"
        return config

    @property
    def number(self) -> int:
        return self.proposal.number

    @property
    def rung_images(self) -> int:
        """Of the captions up to the current rung."""
        return sum(shard.images for shard in self.quality if shard.stop <= self.rungs[self.rung])

    @property
    def rung_files(self) -> list[str]:
        """The quality shards up to the current rung."""
        stop = self.rungs[self.rung]
        return [name for shard, name in zip(self.quality, self.files["quality"], strict=True) if shard.stop <= stop]

    @property
    def is_last_rung(self) -> bool:
        return self.rung + 1 == len(self.rungs)

    @property
    def shape(self) -> str:
        """See `TrialRecord.shape`."""
        return ",".join(self.files["timing"])

    @property
    def needs(self) -> set[str]:
        """The files that workers still draw or read for it; a trial with a record, the baseline, needs its images."""
        if self.duplicate_of is not None:
            return set()
        kinds = ("quality",) if self.record is not None else tuple(self.files)
        return {name for kind in kinds for name in self.files[kind]}

    @property
    def is_running(self) -> bool:
        """Whether workers still have tasks of this trial."""
        return self.record is None and self.duplicate_of is None

    def fail(self, cause: str) -> None:
        self.record = self._make_record(FAILED, cause=cause)

    def copy_result(self, earlier: TrialRecord) -> None:
        """Copy the result of an earlier trial with the same config."""
        self.record = self._make_record(
            earlier.state,
            metrics=earlier.metrics,
            constraints=earlier.constraints,
            shape=earlier.shape,
            history=earlier.history,
            shards=earlier.shards,
            images=earlier.images,
            cause=earlier.cause,
            duplicate_of=earlier.number if earlier.duplicate_of is None else earlier.duplicate_of,
            stop=earlier.stop,
        )

    def add_measurement(self, output: Mapping[str, Any], required: Collection[str]) -> str | None:
        """Add the output of a worker's measure task to the history. Values that are not finite are left out.

        Returns why some of the `required` metrics are missing.
        """
        self.seconds += output.get("seconds", 0.0)
        measured = parse_metrics(output["metrics"])
        metrics = {name: entry for name, entry in measured.items() if math.isfinite(entry.value)}
        self.history |= dict(parse_history(output.get("history", ())))
        self.history[self.rung_images] = metrics
        skipped = output.get("skipped", {})
        problems = [f"{name}: {skipped.get(name, 'not measured')}" for name in required if name not in metrics]
        return "; ".join(problems) or None

    def finish(self, problem: str | None = None) -> None:
        """Make the record of a trial that was measured on all captions. It has failed if there is a problem.

        Constraints are evaluated later.
        """
        self.record = self._measured_record(FAILED if problem else COMPLETE, problem)

    def stop_early(self, stop: EarlyStop, reason: str | None) -> None:
        """Make the record of a trial that racing stops at the current rung."""
        self.stop = stop
        self.record = self._measured_record(STOPPED, reason)

    def _measured_record(self, state: State, cause: str | None) -> TrialRecord:
        names = (*self.rung_files, *self.files["timing"], *self.files["own_timing"])
        return self._make_record(
            state,
            cause=cause,
            metrics=self.history[self.rung_images],
            history=tuple(sorted(self.history.items(), key=lambda entry: entry[0])),
            shards=tuple(dict.fromkeys(names)),
            shape=self.shape,
            images=self.rung_images,
            stop=self.stop,
        )

    def _make_record(self, state: State, **fields: Any) -> TrialRecord:
        return TrialRecord(
            number=self.number,
            label=self.proposal.label,
            state=state,
            config=self.proposal.config,
            params=self.proposal.params,
            seconds=self.seconds,
            started=self.started,
            finished=utc_now(),
            **fields,
        )


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the shards of a config, and the tasks that write the missing ones.

    baseline: vanilla's config. captions: number of captions.
    """

    sweep: SweepConfig
    experiment: Experiment
    baseline: DecodingConfig
    captions: int
    metrics: tuple[str, ...]

    def plan(self, pending: PendingTrial, existing: Collection[str]) -> list[Task]:
        """Set the trial's quality shards; returns the tasks for those that it needs now and are not in `existing`.

        A config of `enqueue` needs all at once, because it is never stopped. Another needs those of its first rung.
        """
        whole = pending.number < len(self.sweep.enqueue)
        self.outline(pending)
        quality, rungs = self.sweep.quality, pending.rungs[:-1]
        pending.quality = plan_quality(
            pending.config, self.captions, quality.shard, quality.samples, quality.batch, rungs
        )
        pending.files["quality"] = [shard.name(self.experiment) for shard in pending.quality]
        return self._quality_tasks(pending, existing, pending.rungs[-1 if whole else 0])

    def outline(self, pending: PendingTrial) -> None:
        """Set what a trial that has finished needs: its rungs and its number of images."""
        pending.rungs = (*(self.sweep.racing.rungs if self.sweep.racing else ()), self.captions)
        pending.images = self.captions * self.sweep.quality.samples

    def advance(self, pending: PendingTrial, existing: Collection[str]) -> list[Task]:
        """Go on to the next rung; returns the tasks for its shards whose files are not in `existing`."""
        pending.rung += 1
        pending.measuring = False
        return self._quality_tasks(pending, existing, pending.rungs[pending.rung])

    def _quality_tasks(self, pending: PendingTrial, existing: Collection[str], stop: int) -> list[Task]:
        tasks = self._tasks(pending, [shard for shard in pending.quality if shard.stop <= stop])
        missing = [task for task in tasks if task.name not in existing]
        pending.missing.update(task.name for task in missing)
        return missing

    def timing_tasks(self, pending: PendingTrial) -> list[Task]:
        """The tasks that time this trial's config; none if no metric needs them."""
        if not uses_timings(self.metrics):
            return []
        timing = self.sweep.timing
        shards = plan_timing(
            pending.config, self.baseline, self.captions, images=timing.images, batch=timing.batch,
            repetitions=timing.repetitions, precision=timing.precision, seed=self.sweep.seed,
        )  # fmt: skip
        return self._tasks(pending, shards)

    def measure(self, pending: PendingTrial, baseline: PendingTrial) -> Task:
        """The task that computes a trial's metrics from its shards."""
        task = MeasureTask(
            config=pending.config,
            quality=tuple(pending.rung_files),
            timing=tuple(pending.files["timing"]),
            own_timing=tuple(pending.files["own_timing"]),
            baseline_quality=tuple(baseline.files["quality"]),
            metrics=self.metrics,
            halfway=len(pending.rungs) == 1,
        )
        return Task(pending.number, task.name(), {"kind": "measure", **task.to_mapping()}, urgent=True)

    def tasks(self, pending: PendingTrial) -> list[Task]:
        """All tasks that draw and time a trial's own shards, whether or not their files exist."""
        return self._tasks(pending, pending.quality) + self.timing_tasks(pending)

    def _tasks(self, pending: PendingTrial, shards: Sequence[QualityShard | TimingShard]) -> list[Task]:
        return [
            Task(pending.number, shard.name(self.experiment), {"kind": shard.kind, **shard.to_mapping()})
            for shard in shards
        ]
