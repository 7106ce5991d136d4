"""A trial on its way: which of its files are missing, and what it came to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.trials import COMPLETE, FAILED, Measured, TrialRecord
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import Task
from search_spaces.sweep import SweepConfig
from workers.data.shards import Experiment, MeasureTask, QualityShard, TimingShard, plan_quality, plan_timing


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(slots=True)
class Flight:
    """One trial between its asking and its telling. `missing`: shard files that are not there yet."""

    proposal: Proposal
    quality: list[QualityShard] = field(default_factory=list)
    timing: list[TimingShard] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=lambda: {"quality": [], "timing": []})
    missing: set[str] = field(default_factory=set)
    seconds: float = 0.0
    started: str = field(default_factory=now)
    duplicate_of: int | None = None
    measuring: bool = False
    record: TrialRecord | None = None

    @property
    def number(self) -> int:
        return self.proposal.number

    @property
    def images(self) -> int:
        return sum((shard.stop - shard.start) * shard.samples for shard in self.quality)

    def fail(self, cause: str) -> None:
        self.record = self._record(FAILED, cause=cause)

    def repeat(self, earlier: TrialRecord) -> None:
        """The setting has been measured: its result is this trial's as well."""
        self.record = self._record(
            earlier.state,
            metrics=earlier.metrics,
            constraints=earlier.constraints,
            history=earlier.history,
            shards=earlier.shards,
            images=earlier.images,
            cause=earlier.cause,
            duplicate_of=earlier.number if earlier.duplicate_of is None else earlier.duplicate_of,
        )

    def complete(self, result: Mapping[str, Any], wanted: Collection[str]) -> None:
        """`result`: what a worker's measuring returned. Without one of the metrics `wanted` the trial has failed.

        What is not finite is no measurement. Constraints come later.
        """
        self.seconds += result.get("seconds", 0.0)
        found = {name: Measured(**entry) for name, entry in result["metrics"].items() if math.isfinite(entry["value"])}
        reasons = {name: result.get("skipped", {}).get(name, "not measured") for name in wanted if name not in found}
        self.record = self._record(
            FAILED if reasons else COMPLETE,
            cause="; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or None,
            metrics=found,
            history=tuple((int(images), values) for images, values in result.get("history", ())),
            shards=(*self.names["quality"], *self.names["timing"]),
            images=self.images,
        )

    def _record(self, state: Any, **fields: Any) -> TrialRecord:
        setting = self.proposal.config
        return TrialRecord(
            number=self.number,
            label=self.proposal.label,
            state=state,
            config=setting,
            params=self.proposal.params,
            seconds=self.seconds,
            started=self.started,
            finished=now(),
            **fields,
        )


@dataclass(frozen=True, slots=True)
class Planner:
    """Which files a setting needs, in what order, and the tasks that write those that are missing.

    timed: whether any metric is asked for that needs timings.
    """

    sweep: SweepConfig
    experiment: Experiment
    baseline: Mapping[str, Any]
    captions: int
    metrics: tuple[str, ...]
    timed: bool = True

    def plan(self, flight: Flight, there: Collection[str]) -> list[Task]:
        """Fill in the flight's shards; returns the tasks for those not in `there`."""
        assert flight.proposal.config is not None
        config, quality, timing = flight.proposal.config.to_mapping(), self.sweep.quality, self.sweep.timing
        flight.quality = plan_quality(config, self.captions, quality.shard, quality.samples, quality.batch)
        if self.timed:
            flight.timing = plan_timing(
                config, self.baseline, self.captions, images=timing.images, batch=timing.batch,
                repetitions=timing.repetitions, seed=self.sweep.seed,
            )  # fmt: skip
        tasks = []
        for kind, shards in (("quality", flight.quality), ("timing", flight.timing)):
            for shard in shards:
                name = shard.name(self.experiment)
                flight.names[kind].append(name)
                if name not in there:
                    flight.missing.add(name)
                    tasks.append(Task(flight.number, name, {"kind": kind, **shard.to_mapping()}))
        return tasks

    def measure(self, flight: Flight, baseline: Flight) -> Task:
        """The task that turns a flight's files into metrics."""
        assert flight.proposal.config is not None
        task = MeasureTask(
            config=flight.proposal.config.to_mapping(),
            quality=tuple(flight.names["quality"]),
            timing=tuple(flight.names["timing"]),
            baseline_quality=tuple(baseline.names["quality"]),
            metrics=self.metrics,
        )
        return Task(flight.number, task.name(), {"kind": "measure", **task.to_mapping()}, urgent=True)
