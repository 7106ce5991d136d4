"""The pieces of work that a setting is cut into, and the names of the files that hold their results.

A file's name is a hash of all that its content depends on, and of nothing else: whoever needs a result can tell its
name, and a name that is there need not be made again. Neither the order of a mapping's keys nor the version of Python
moves it. `start` and `stop` are positions in the sweep's list of captions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from search_spaces.trial import DecodingConfig

FORMAT = 1  # goes up when rows of the same identity would mean something else: files of another format are not taken
SHARDS, MEASURES = "shards", "measures"


def canonical(value: object) -> str:
    """JSON text that equal plain data share. Raises ValueError for NaN, infinity and what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"not plain data, so it has no identity: {error}") from error


def digest(value: object, length: int = 20) -> str:
    """The first hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


class Plain:
    """Base of the pieces below: their way to and from the plain mapping that is sent to a worker."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data; `from_mapping` gives an equal piece back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote; the key `kind` may stand beside it. ValueError if it is another piece."""
        given = dict(mapping)
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if given.pop("kind", cls.kind) != cls.kind or given.keys() != set(known):
            raise ValueError(f"not a piece of kind {cls.kind!r} ({', '.join(known)}): {sorted(mapping)}")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


@dataclass(frozen=True, slots=True)
class Experiment(Plain):
    """What every result of a sweep depends on, beside the setting.

    models, extractors: name -> content hash or identity. captions: their hash. precision: e.g. "float32".
    """

    models: Mapping[str, str]
    captions: str
    seed: int
    extractors: Mapping[str, str]
    precision: str
    kind: ClassVar[str] = "experiment"

    def digest(self) -> str:
        """20 hex digits."""
        parts = self.to_mapping() | {"models": dict(self.models), "extractors": dict(self.extractors)}
        return digest({"format": FORMAT, **parts})


@dataclass(frozen=True, slots=True)
class QualityShard(Plain):
    """Images of captions start..stop-1, `samples` of each, under a complete setting; `batch` are drawn together.

    The batch is no part of the identity, because no image depends on it.
    """

    config: dict[str, Any]
    start: int
    stop: int
    samples: int
    batch: int
    kind: ClassVar[str] = "quality"

    def __post_init__(self) -> None:
        _check_span(self.start, self.stop, samples=self.samples, batch=self.batch)

    @property
    def images(self) -> int:
        return (self.stop - self.start) * self.samples

    def name(self, experiment: Experiment) -> str:
        """The file of its result, from the storage's root: shards/quality-<20 hex>.parquet."""
        depends = {name: value for name, value in self.to_mapping().items() if name != "batch"}
        return _shard_name(self.kind, experiment, depends)


@dataclass(frozen=True, slots=True)
class TimingShard(Plain):
    """Captions start..stop-1 drawn in turn by `baseline` and `config`, `batch` at a time, `repetitions` times over."""

    config: dict[str, Any]
    baseline: dict[str, Any]
    start: int
    stop: int
    batch: int
    repetitions: int
    kind: ClassVar[str] = "timing"

    def __post_init__(self) -> None:
        _check_span(self.start, self.stop, batch=self.batch, repetitions=self.repetitions)

    @property
    def images(self) -> int:
        return self.stop - self.start

    def name(self, experiment: Experiment) -> str:
        """The file of its result, from the storage's root: shards/timing-<20 hex>.parquet."""
        return _shard_name(self.kind, experiment, self.to_mapping())


@dataclass(frozen=True, slots=True)
class MeasureTask(Plain):
    """A setting's metrics from its shards' files, named from the storage's root, and from the baseline's."""

    config: dict[str, Any]
    quality: tuple[str, ...]
    timing: tuple[str, ...]
    baseline_quality: tuple[str, ...]
    metrics: tuple[str, ...]
    kind: ClassVar[str] = "measure"

    def name(self) -> str:
        """The file of its result, from the storage's root: measures/<20 hex>.json. The files' names say the rest."""
        identity = {"format": FORMAT, **self.to_mapping(), "metrics": sorted(self.metrics)}
        return f"{MEASURES}/{digest(identity)}.json"


def plan_quality(config: Mapping[str, Any], count: int, shard: int, samples: int, batch: int) -> list[QualityShard]:
    """All of `count` captions in shards of at most `shard` captions.

    Raises:
        ValueError: a number below 1, or a setting that is not complete.
    """
    _check_sizes(count=count, shard=shard)
    whole = _complete(config)
    starts = range(0, count, shard)
    return [QualityShard(whole, start, min(start + shard, count), samples, batch) for start in starts]


def plan_timing(
    config: Mapping[str, Any],
    baseline: Mapping[str, Any],
    count: int,
    *,
    images: int,
    batch: int,
    repetitions: int,
    seed: int = 0,
) -> list[TimingShard]:
    """The one timing shard of a setting: `images` of `count` captions, rounded up to whole batches.

    Where it lies depends on the numbers alone, so that all settings of a sweep are timed on the same captions.

    Raises:
        ValueError: a number below 1, fewer captions than that takes, or a setting that is not complete.
    """
    _check_sizes(count=count, images=images, batch=batch)
    size = -(-images // batch) * batch
    places = count // size
    if not places:
        raise ValueError(
            f"timing takes {size} captions ({images} in batches of {batch}), there are {count}; lower timing.images or "
            "timing.batch, or give more captions"
        )
    start = int(digest(["timing", seed]), 16) % places * size
    return [TimingShard(_complete(config), _complete(baseline), start, start + size, batch, repetitions)]


def _complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The setting with every parameter written out. ValueError when it leaves the sampling to the target."""
    setting = DecodingConfig.from_mapping(config)
    if setting.sampling is None:
        raise ValueError("the setting has no sampling; fill in the target's own before it is cut into shards")
    return setting.to_mapping()


def _shard_name(kind: str, experiment: Experiment, depends: Mapping[str, Any]) -> str:
    return f"{SHARDS}/{kind}-{digest([experiment.digest(), kind, dict(depends)])}.parquet"


def _check_span(start: int, stop: int, **sizes: int) -> None:
    if not 0 <= start < stop:
        raise ValueError(f"a shard of captions {start}..{stop} is empty or starts before the first; 0 <= start < stop")
    _check_sizes(**sizes)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
