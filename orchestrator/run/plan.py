"""The files that a trial consists of: its images, rung by rung, and its timings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from orchestrator.run.build import Target
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, StepShape
from workers.data.shards import Experiment, MeasureTask, QualityShard, TimingShard, plan_quality, plan_timing
from workers.metrics.registry import uses_timings


class Rung(NamedTuple):
    """A number of images, and the shards that hold them."""

    images: int
    files: tuple[Target, ...]


@dataclass(frozen=True)
class Plan:
    """The files that the trials of a sweep consist of.

    baseline: vanilla's config. captions: number of captions. metrics: names of those to measure. prepared: what every
    measurement needs besides the shards.
    """

    sweep: SweepConfig
    experiment: Experiment
    baseline: DecodingConfig
    captions: int
    metrics: tuple[str, ...]
    prepared: tuple[Target, ...] = ()

    @property
    def images(self) -> int:
        """The number of images of a trial that is not stopped."""
        return self.captions * self.sweep.quality.samples

    @cached_property
    def baseline_images(self) -> tuple[Target, ...]:
        return self.rungs(self.baseline)[-1].files

    def rungs(self, config: DecodingConfig) -> list[Rung]:
        """At which a trial is measured, the one with all captions last. No shard crosses a rung."""
        quality, ends = self.sweep.quality, self.sweep.racing.rungs if self.sweep.racing else ()
        shards = plan_quality(config, self.captions, quality.shard, quality.samples, quality.batch, ends)
        parts = [[shard for shard in shards if shard.stop <= end] for end in (*ends, self.captions)]
        files = self.targets(shards)
        return [Rung(sum(shard.images for shard in part), files[: len(part)]) for part in parts]

    def timing(self, config: DecodingConfig) -> Target | None:
        """The shard that times a config; None if no metric needs it."""
        if not uses_timings(self.metrics):
            return None
        timing = self.sweep.timing
        shards = plan_timing(
            config, self.baseline, self.captions, images=timing.images, batch=timing.batch,
            repetitions=timing.repetitions, precision=timing.precision, seed=self.sweep.seed,
        )  # fmt: skip
        return self.targets(shards)[0]

    def targets(self, shards: Iterable[QualityShard | TimingShard]) -> tuple[Target, ...]:
        return tuple(Target.of(shard.name(self.experiment), shard) for shard in shards)

    def measurement(
        self, config: DecodingConfig, rung: Rung, timings: Timings, prefetched: Sequence[Target] = ()
    ) -> Target:
        """A config's metrics on the images of a rung. prefetched: shards that must exist, too."""
        task = MeasureTask(
            config=config,
            quality=names(rung.files),
            timing=names(timings.shared),
            own_timing=names(timings.own),
            baseline_quality=names(self.baseline_images),
            metrics=self.metrics,
            halfway=self.sweep.racing is None,
        )
        needs = (*rung.files, *prefetched, *timings.shared, *timings.own, *self.baseline_images, *self.prepared)
        return Target.of(task.name(), task, needs)


def names(targets: Iterable[Target]) -> tuple[str, ...]:
    return tuple(target.name for target in targets)


@dataclass(frozen=True, slots=True)
class Timings:
    """A trial's timing files: the one of its shape, and its own if it is timed itself. Empty without a need."""

    shared: tuple[Target, ...] = ()
    own: tuple[Target, ...] = ()

    @property
    def shape(self) -> str:
        """See `TrialRecord.shape`."""
        return ",".join(names(self.shared))


@dataclass(slots=True)
class _Shape:
    """shared: the timing file of its trials, once one of them has it. timed: the configs that are timed themselves."""

    shared: Target | None = None
    timed: set[DecodingConfig] = field(default_factory=set)


@dataclass(slots=True)
class ShapeTimings:
    """Which file times a shape: that of its first trial, in the order of the trials' numbers.

    So any number of workers, and a resumed sweep, take the same files. files: those in the store.
    """

    plan: Plan
    files: Collection[str]
    _shapes: defaultdict[StepShape, _Shape] = field(default_factory=lambda: defaultdict(_Shape))
    _known: dict[str, Target] = field(default_factory=dict)

    def of(self, config: DecodingConfig, lost: Collection[str] = ()) -> Timings:
        """The files of a trial. lost: files that cannot be used; if its shape's is among them, the trial times it."""
        own = self._own(config)
        if own is None:
            return Timings()
        shape = self._shapes[config.shape]
        if shape.shared is None or shape.shared.name in lost:
            shape.shared = own
        self._count(shape, config, own)
        return Timings((shape.shared,), (own,) if config in shape.timed else ())

    def keep(self, config: DecodingConfig, files: str) -> None:
        """Use the timing file of a trial that an earlier launch finished, if it still exists. files: the trial's."""
        own = self._own(config)
        if own is None:
            return
        shape, kept = self._shapes[config.shape], self._known.get(files, own)
        if kept.name in self.files and (shape.shared is None or shape.shared.name not in self.files):
            shape.shared = kept
        self._count(shape, config, own)

    def _count(self, shape: _Shape, config: DecodingConfig, own: Target) -> None:
        """Time a config itself if its file is that of the shape, or as one of the first of its shape."""
        if shape.shared in (None, own) or len(shape.timed) < self.plan.sweep.timing.direct:
            shape.timed.add(config)

    def _own(self, config: DecodingConfig) -> Target | None:
        own = self.plan.timing(config)
        return None if own is None else self._known.setdefault(own.name, own)
