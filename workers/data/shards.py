"""The tasks that a trial is divided into, and the names of the files that hold their results.

A file's name is a hash of everything that its content depends on, and of nothing else. So the
driver knows the name of a result before it exists, and a file that exists is not computed again.
The order of a mapping's keys and the version of Python do not change the name. `start` and `stop`
are indices in the sweep's list of captions. The columns of the files are in `workers.data.records`,
and `workers.runtime.shard_tables` fills them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import lcm
from typing import Any, ClassVar, Literal, Self, TypeVar

from search_spaces.trial import DecodingConfig

FORMAT = 5  # increase it when the meaning of the rows changes; files of another format are not used
# Folders of a sweep.
SHARDS = "shards"
TIMINGS = "timings"
_MEASURES = "measures"
# Shapes that a session times in addition to vanilla and an anchor: a session is lost as a whole,
# and its engines share a memory.
MAX_SHAPES = 8
# The key in a shard's metadata that says which earlier sweep generated its images.
TAKEN_FROM = "taken_from"
FACTS = ("images", "seconds", "worker", TAKEN_FROM)  # the metadata's entries that the driver gets
TOKEN_CHECK = "token_check"  # why it was not made, among the reasons of skipped metrics
PREDICTIONS = "predictions.parquet"  # the pool of a sampler that chooses among predicted settings
# Fields of tasks that hold a DecodingConfig, or several.
_CONFIGS = ("config", "baseline", "configs", "timed")

_Setting = TypeVar("_Setting")


def digest(value: object, length: int = 20) -> str:
    """The first hex digits of the SHA-256 of plain data in canonical JSON.

    Raises:
        ValueError: NaN, infinity, or a value that JSON cannot hold.
    """
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        )
    except TypeError as error:
        raise ValueError(f"not plain data, so it has no identity: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:length]


class Serializable:
    """Base of the dataclasses below: conversion to and from the plain mapping that is sent to a
    worker.
    """

    __slots__ = ()
    kind: ClassVar[str]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data; `from_mapping` gives an equal object back."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads what `to_mapping` wrote; a key `kind` may be added.

        Raises:
            ValueError: the keys or the kind of another class, or a missing key.
            ConfigError: an invalid decoding config.
        """
        entries = dict(mapping)
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if entries.pop("kind", cls.kind) != cls.kind or entries.keys() != set(names):
            raise ValueError(
                f"not a task of kind {cls.kind!r} ({', '.join(names)}): {sorted(mapping)}"
            )
        return cls(**{name: _parsed(name, value) for name, value in entries.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, DecodingConfig):
        return value.to_mapping()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value


def _parsed(name: str, value: Any) -> Any:
    if name in _CONFIGS:
        if isinstance(value, list | tuple):
            return tuple(map(DecodingConfig.from_mapping, value))
        return DecodingConfig.from_mapping(value)
    if isinstance(value, list):
        return tuple(value)
    return value


@dataclass(frozen=True, slots=True)
class Experiment(Serializable):
    """Everything that all results of a sweep depend on, apart from the decoding config."""

    models: Mapping[str, str]  # content hash by name
    captions: str  # hash of the captions
    seed: int
    extractors: Mapping[str, str]  # identity by name
    precision: str  # such as "float32"
    kind: ClassVar[str] = "experiment"

    def digest(self) -> str:
        """20 hex digits."""
        parts = self.to_mapping() | {
            "models": dict(self.models),
            "extractors": dict(self.extractors),
        }
        return digest({"format": FORMAT, **parts})


@dataclass(frozen=True, slots=True)
class ReferenceTask(Serializable):
    """Features of the sweep's real images."""

    kind: ClassVar[str] = "reference"


@dataclass(frozen=True, slots=True)
class QualityShard(Serializable):
    """Images of captions start..stop-1 under a config with sampling.

    The batch is not part of the identity, because no image depends on it.
    """

    config: DecodingConfig
    start: int
    stop: int
    samples: int  # images of each caption
    batch: int | Literal["auto"]  # images generated together; "auto": as many as the worker chooses
    kind: ClassVar[str] = "quality"

    def __post_init__(self) -> None:
        _check_span(self.start, self.stop, samples=self.samples)
        if isinstance(self.batch, int):
            _check_sizes(batch=self.batch)

    @property
    def images(self) -> int:
        return (self.stop - self.start) * self.samples

    def name(self, experiment: Experiment) -> str:
        """The file of its result, relative to the storage's root: shards/quality-<20
        hex>.parquet.
        """
        identity = {name: value for name, value in self.to_mapping().items() if name != "batch"}
        return _shard_name(self.kind, experiment, identity)


@dataclass(frozen=True, slots=True)
class TimingSession(Serializable):
    """Images of captions start..stop-1, generated in turn by all configs, at each batch size, and
    again until the costs are precise.
    """

    configs: tuple[DecodingConfig, ...]  # the configs to time, vanilla's first
    start: int  # the first caption
    stop: int  # the caption after the last
    batches: tuple[int, ...]  # the batch sizes
    repetitions: int  # most repetitions
    precision: float = 0.0  # relative standard error of the costs that ends the repetitions
    number: int = 0  # tells apart sessions of a sweep that are equal in all else
    kind: ClassVar[str] = "timing"

    def __post_init__(self) -> None:
        _check_span(
            self.start, self.stop, batch=min(self.batches, default=0), repetitions=self.repetitions
        )
        _check_sizes(configs=len(self.configs))

    @property
    def images(self) -> int:
        """Images of each config at each batch size."""
        return self.stop - self.start

    def name(self, experiment: Experiment) -> str:
        """The file of its result, relative to the storage's root: timings/timing-<20
        hex>.parquet.
        """
        return _shard_name(self.kind, experiment, self.to_mapping())


@dataclass(frozen=True, slots=True)
class MeasureTask(Serializable):
    """A config's metrics from files, which are named relative to the storage's root."""

    config: DecodingConfig
    quality: tuple[str, ...]  # files of its shards
    timing: tuple[str, ...]  # files of timing sessions, of its shape and of others
    baseline_quality: tuple[str, ...]  # files of the baseline's shards
    metrics: tuple[str, ...]
    halfway: bool = True  # measure also at half of the quality shards
    definitions: tuple[str, ...] = ()  # of the sweep's own metrics, which their names do not say
    check: bool = False  # check whether the tokens are the target's own
    kind: ClassVar[str] = "measure"

    def name(self) -> str:
        """The file of its result, relative to the storage's root: measures/<20 hex>.json."""
        identity = {"format": FORMAT, **self.to_mapping(), "metrics": sorted(self.metrics)}
        return f"{_MEASURES}/{digest(identity)}.json"


@dataclass(frozen=True, slots=True)
class PredictTask(Serializable):
    """Predictions of settings by replay of recorded images."""

    configs: tuple[DecodingConfig, ...]
    params: tuple[str, ...]  # each config's parameters in the search's study, JSON; null: not in it
    captions: int  # captions whose images are recorded
    batch: int  # images recorded together
    timed: tuple[DecodingConfig, ...] = ()  # configs that are timed as well
    timing_batch: int = 1  # images timed together
    kind: ClassVar[str] = "predict"

    def __post_init__(self) -> None:
        _check_sizes(captions=self.captions, batch=self.batch, configs=len(self.configs))
        if len(self.configs) != len(self.params):
            raise ValueError(
                f"{len(self.params)} parameter sets for {len(self.configs)} configs; give one for "
                "each"
            )


def plan_quality(
    config: DecodingConfig,
    count: int,
    shard: int,
    samples: int,
    batch: int | Literal["auto"],
    rungs: Sequence[int] = (),
) -> list[QualityShard]:
    """The shards of all images of a config.

    Args:
        config: the config, with sampling.
        count: number of captions.
        shard: largest number of captions of a shard.
        samples: images of each caption.
        batch: images generated together, or "auto".
        rungs: numbers of captions at which a shard must end.

    Raises:
        ValueError: a number below 1, rungs that do not rise or reach `count`, or a config without
            sampling.
    """
    _check_sizes(count=count, shard=shard)
    _check_sampling(config)
    ends = (0, *rungs, count)
    if any(low >= high for low, high in pairwise(ends)):
        raise ValueError(
            f"rungs must rise from 1 and stay below {count}, the number of captions, got "
            f"{list(rungs)}"
        )
    return [
        QualityShard(config, start, min(start + shard, high), samples, batch)
        for low, high in pairwise(ends)
        for start in range(low, high, shard)
    ]


def session_groups(settings: Sequence[_Setting]) -> list[Sequence[_Setting]]:
    """Settings of different shapes in groups, each for a timing session of its own."""
    return [settings[start : start + MAX_SHAPES] for start in range(0, len(settings), MAX_SHAPES)]


def session_images(images: int, batches: Sequence[int]) -> int:
    """Images of a setting in a timing session: rounded up to whole batches of each size, of which
    at least two.
    """
    whole = lcm(*batches)
    return max(-(-images // whole) * whole, 2 * max(batches))


def plan_session(
    configs: Sequence[DecodingConfig],
    count: int,
    *,
    images: int,
    batches: Sequence[int],
    repetitions: int,
    precision: float = 0.0,
    seed: int = 0,
    number: int = 0,
) -> TimingSession:
    """A timing session of configs. Its captions depend only on `count`, `images`, `batches`, `seed`
    and `number`.

    Args:
        configs: the configs, vanilla's first.
        count: number of captions of the sweep.
        images: images of a setting, rounded up (see `session_images`).
        batches: the batch sizes.
        repetitions: largest number of repetitions.
        precision: relative standard error of the costs that ends the repetitions.
        seed: chooses the captions.
        number: tells apart sessions that are equal in all else.

    Raises:
        ValueError: a number below 1, too few captions, or a config without sampling.
    """
    _check_sizes(count=count, images=images, batch=min(batches, default=0))
    for config in configs:
        _check_sampling(config)
    size = session_images(images, batches)
    spans = count // size
    if not spans:
        raise ValueError(
            f"timing takes {size} captions ({images} in batches of {', '.join(map(str, batches))}, "
            f"of which at least two), there are {count}; lower timing.images or timing.batch, or "
            "give more captions"
        )
    start = int(digest(["timing", seed, number]), 16) % spans * size
    return TimingSession(
        tuple(configs), start, start + size, tuple(batches), repetitions, precision, number
    )


def _check_sampling(config: DecodingConfig) -> None:
    if config.sampling is None:
        raise ValueError(
            "the config has no sampling; set the target's own before planning its shards"
        )


def _shard_name(kind: str, experiment: Experiment, identity: Mapping[str, Any]) -> str:
    folder = TIMINGS if kind == TimingSession.kind else SHARDS
    return f"{folder}/{kind}-{digest([experiment.digest(), kind, dict(identity)])}.parquet"


def _check_span(start: int, stop: int, **sizes: int) -> None:
    if not 0 <= start < stop:
        raise ValueError(
            f"captions {start}..{stop}: the shard is empty or starts below 0; use 0 <= start < stop"
        )
    _check_sizes(**sizes)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
