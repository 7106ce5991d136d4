"""A trial in flight: the shards it needs, those that are missing, and its record."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.trials import COMPLETE, FAILED, TrialRecord, parse_history, parse_metrics
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import Task
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.shards import Experiment, MeasureTask, QualityShard, TimingShard, plan_quality, plan_timing
from workers.metrics.registry import uses_timings


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class PendingTrial:
    """One trial between Optuna's ask and tell.

    files: names of its shard files by kind; the timing files are those of its shape's first trial, and `own_timing` are
    its own if it is timed itself. missing: those that are not in the store yet. duplicate_of: number of the earlier
    trial with the same config. record: set when the trial is finished.
    """

    proposal: Proposal
    quality: list[QualityShard] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=lambda: {"quality": [], "timing": [], "own_timing": []})
    missing: set[str] = field(default_factory=set)
    seconds: float = 0.0
    started: str = field(default_factory=utc_now)
    duplicate_of: int | None = None
    measuring: bool = False
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
    def images(self) -> int:
        return sum((shard.stop - shard.start) * shard.samples for shard in self.quality)

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
        )

    def complete(self, output: Mapping[str, Any], required: Collection[str]) -> None:
        """Make the record from the output of a worker's measure task.

        Values that are not finite are left out. The trial has failed if one of the `required` metrics is missing.
        Constraints are evaluated later.
        """
        self.seconds += output.get("seconds", 0.0)
        measured = parse_metrics(output["metrics"])
        metrics = {name: entry for name, entry in measured.items() if math.isfinite(entry.value)}
        skipped = output.get("skipped", {})
        problems = [f"{name}: {skipped.get(name, 'not measured')}" for name in required if name not in metrics]
        self.record = self._make_record(
            FAILED if problems else COMPLETE,
            cause="; ".join(problems) or None,
            metrics=metrics,
            history=parse_history(output.get("history", ())),
            shards=tuple(dict.fromkeys(name for names in self.files.values() for name in names)),
            shape=",".join(self.files["timing"]),
            images=self.images,
        )

    def _make_record(self, state: Any, **fields: Any) -> TrialRecord:
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
        """Set the trial's quality shards; returns the tasks for those whose files are not in `existing`."""
        config, quality = pending.config, self.sweep.quality
        pending.quality = plan_quality(config, self.captions, quality.shard, quality.samples, quality.batch)
        tasks = self._tasks(pending, pending.quality)
        pending.files["quality"] = [task.name for task in tasks]
        pending.missing.update(task.name for task in tasks if task.name not in existing)
        return [task for task in tasks if task.name in pending.missing]

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
            quality=tuple(pending.files["quality"]),
            timing=tuple(pending.files["timing"]),
            own_timing=tuple(pending.files["own_timing"]),
            baseline_quality=tuple(baseline.files["quality"]),
            metrics=self.metrics,
        )
        return Task(pending.number, task.name(), {"kind": "measure", **task.to_mapping()}, urgent=True)

    def _tasks(self, pending: PendingTrial, shards: Sequence[QualityShard | TimingShard]) -> list[Task]:
        return [
            Task(pending.number, shard.name(self.experiment), {"kind": shard.kind, **shard.to_mapping()})
            for shard in shards
        ]
