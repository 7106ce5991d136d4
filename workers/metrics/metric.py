"""What a metric is, and the evidence that it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, caption_groups
from workers.metrics.extractor import Classifier
from workers.metrics.features import SceneFeatures

T = TypeVar("T")
Direction = Literal["maximize", "minimize"]
IMAGE_KEYS, TIMING_KEYS = ("caption_id", "sample"), ("caption_id", "repetition")
REFERENCE, BASELINE, TIMINGS, NET = "reference", "baseline", "timings", "net"
MANIFOLD = "manifold"  # column of the features that precision and recall take instead of `features`, where it is there


class Rows(Mapping[str, Tensor]):
    """Columns of equal length [n, ...] by name, in the order of the two key columns.

    So whatever the order in which shards come in, the rows, and with them every sum over them, are the same.
    """

    __slots__ = ("_columns", "key_columns")

    def __init__(self, columns: Mapping[str, Tensor], key_columns: tuple[str, str] = IMAGE_KEYS) -> None:
        """Raises ValueError when two rows have the same keys: shards that overlap."""
        self.key_columns = key_columns
        first, second = (columns[key] for key in key_columns)
        order = second.argsort(stable=True)
        order = order[first[order].argsort(stable=True)]
        self._columns = {name: column[order] for name, column in columns.items()}
        first, second = (self._columns[key] for key in key_columns)
        twice = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        if twice.any():
            at = int(twice.nonzero()[0])
            raise ValueError(
                f"{key_columns[0]} {int(first[at])}, {key_columns[1]} {int(second[at])} is in two rows: shards overlap"
            )

    @classmethod
    def merge(cls, parts: Sequence[Mapping[str, Tensor]], key_columns: tuple[str, str] = IMAGE_KEYS) -> Self:
        """The rows of all the shards; columns that not all of them have are left out."""
        if not parts:
            return cls({key: torch.zeros(0, dtype=torch.int64) for key in key_columns}, key_columns)
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return cls({name: torch.cat([part[name] for part in parts]) for name in shared}, key_columns)

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """How many columns, as of every mapping; `count` is the number of rows."""
        return len(self._columns)

    @property
    def count(self) -> int:
        return self._columns[self.key_columns[0]].numel()

    def groups(self, most: int | None = None) -> Tensor:
        """[n] which block of captions a row belongs to (see `caption_groups`)."""
        return caption_groups(self._columns[self.key_columns[0]], most)

    def same_as(self, other: Rows) -> Rows:
        """These rows, cut down to those whose keys `other` has, in the same order.

        Raises:
            Unmeasurable: some of them are not here.
        """
        place = {key: row for row, key in enumerate(self._key_list())}
        wanted = other._key_list()
        missing = sum(key not in place for key in wanted)
        if missing:
            raise MetricUnavailable(f"the baseline has no image for {missing} of {len(wanted)}: shards are missing")
        indices = torch.tensor([place[key] for key in wanted], dtype=torch.int64)
        return Rows({name: column[indices] for name, column in self._columns.items()}, self.key_columns)

    def _key_list(self) -> list[tuple[int, int]]:
        first, second = (self._columns[key].tolist() for key in self.key_columns)
        return list(zip(first, second, strict=True))


class Reference:
    """Features [m, d] of the real images, and what metrics derive from them once."""

    __slots__ = ("_derived", "features")

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self._derived: dict[str, Any] = {}

    def once(self, name: str, derive: Callable[[Tensor], T]) -> T:
        """`derive(features)`, kept under a name."""
        if name not in self._derived:
            self._derived[name] = derive(self.features)
        derived: T = self._derived[name]
        return derived


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MetricInputs:
    """All that is known of a trial.

    images: a row per image: caption_id, sample, `features` [n, d], `score.<name>` [n], `emitted`, `rounds` and `depth`
    (tokens after the first, target passes, mean drafted depth). timings: a row per (caption batch, repetition):
    `seconds_vanilla`, `seconds`, `images`. baseline: rows of the baseline's images. net: reads classes off features.
    manifold: the real images by the net of the column `manifold`; None where there is no such net.
    """

    images: Rows = field(default_factory=lambda: Rows.merge([]))
    timings: Rows = field(default_factory=lambda: Rows.merge([], TIMING_KEYS))
    baseline: Rows | None = None
    reference: Reference | None = None
    manifold: Reference | None = None
    net: Classifier | None = None
    derived: dict[str, Any] = field(default_factory=dict, repr=False)  # what several metrics share; see `once`

    def column(self, name: str) -> Tensor:
        """A column of the images. Raises Unmeasurable when there is none."""
        return _there(self.images.get(name), f"the images have no {name!r}")

    def timing(self, name: str) -> Tensor:
        """A column of the timings. Raises Unmeasurable when nothing was timed."""
        return _there(self.timings.get(name), "nothing was timed")

    def against(self) -> Reference:
        """The reference. Raises Unmeasurable when there is none."""
        return _there(self.reference, "there are no reference images")

    def vanilla(self, name: str) -> Tensor:
        """A column of the baseline's images, row by row for the same caption and sample as the trial's.

        Raises:
            Unmeasurable: they are not there.
        """
        rows = _there(self.baseline, "there are no images of the baseline").same_as(self.images)
        return _there(rows.get(name), f"the baseline's images have no {name!r}")

    def once(self, name: str, derive: Callable[[MetricInputs], T]) -> T:
        """`derive(self)`, kept under a name."""
        if name not in self.derived:
            self.derived[name] = derive(self)
        found: T = self.derived[name]
        return found

    def reader(self) -> Classifier:
        """The net that reads classes off features. Raises Unmeasurable when there is none."""
        return _there(self.net, "no net reads classes off these features")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a trial. `needs`: columns of the images, or any of REFERENCE, BASELINE, TIMINGS, NET.

    `compute` raises Unmeasurable when the evidence does not suffice.
    """

    name: str
    direction: Direction
    unit: str
    about: str
    needs: tuple[str, ...]
    compute: Callable[[MetricInputs], Estimate]

    @property
    def described(self) -> dict[str, Any]:
        """All but how it is computed, as plain data, for whoever has no torch."""
        told = {"direction": self.direction, "unit": self.unit, "about": self.about}
        return told | {"needs": list(self.needs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContext:
    """What per-image scores are wanted for: images of a size, drawn from captions, on a device; a model's folder.

    net: the scenes' feature net, where it takes images of this size. weights: what the user gives, by key.
    """

    image_size: int
    captions: Sequence[str]
    folder: Any
    device: torch.device
    net: SceneFeatures | None
    weights: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A loaded per-image score: from images [n, 3, H, W], captions and the scenes' features [n, d] (None where they are
    not taken) to [n].
    """

    identity: str
    read: Callable[[Tensor, Sequence[str], Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class ScorerFactory:
    """A per-image score that is kept in the column `score.<name>`.

    `load` raises Unmeasurable, in words, where the score does not apply to the subject, and WeightsError where what
    the user gives for it is wrong. takes: the keys of `ScoreContext.weights` that it knows.
    """

    name: str
    load: Callable[[ScoreContext], Scorer]
    takes: tuple[str, ...] = ()


def _there(value: T | None, problem: str) -> T:
    if value is None:
        raise MetricUnavailable(problem)
    return value
