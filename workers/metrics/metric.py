"""The registry of metrics, and the inputs that they are computed from.

Features of generated images come from shards, which hold them rounded to float16 (a relative error
of at most 2^-11); those of real images are not rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from search_spaces.constraints import split_batch
from search_spaces.params import ConfigError, at
from search_spaces.plugins import Registry
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import FEATURES, Direction, Metric
from workers.metrics.estimate import BLOCKS, Estimate, MetricUnavailable
from workers.metrics.timings import PriceList

T = TypeVar("T")
KEYS = ("caption_id", "sample")
POSITION = "position"  # column of the images: index of the caption in the sweep's list


class Rows(Mapping[str, Tensor]):
    """Columns of equal length [n, ...] by name, sorted by caption and sample.

    The order of the rows, and with it the rounding of sums over them, does not depend on the order
    of the shards.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        """Raises ValueError when two rows have the same keys, because shards overlap."""
        first, second = (columns[key] for key in KEYS)
        order = second.argsort(stable=True)
        order = order[first[order].argsort(stable=True)]
        self._columns = {name: column[order] for name, column in columns.items()}
        first, second = (self._columns[key] for key in KEYS)
        repeated = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
        if repeated.any():
            row = int(repeated.nonzero()[0])
            keys = f"{KEYS[0]} {int(first[row])}, {KEYS[1]} {int(second[row])}"
            raise ValueError(f"two rows have the keys {keys}: shards overlap")

    @classmethod
    def merge(cls, parts: Sequence[Mapping[str, Tensor]]) -> Self:
        """The rows of all shards, with the columns that all of them have."""
        if not parts:
            return cls({key: torch.zeros(0, dtype=torch.int64) for key in KEYS})
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return cls({name: torch.cat([part[name] for part in parts]) for name in shared})

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of columns; `count` is the number of rows."""
        return len(self._columns)

    @property
    def count(self) -> int:
        return self._columns[KEYS[0]].numel()

    def matching(self, other: Rows) -> Rows:
        """The rows whose keys `other` has, in the same order.

        Raises:
            MetricUnavailable: some of them are missing here.
        """
        row_of = {key: row for row, key in enumerate(self._keys())}
        keys = other._keys()
        missing = sum(key not in row_of for key in keys)
        if missing:
            raise MetricUnavailable(
                f"the baseline has no image for {missing} of {len(keys)}: shards are missing"
            )
        indices = torch.tensor([row_of[key] for key in keys], dtype=torch.int64)
        return Rows({name: column[indices] for name, column in self._columns.items()})

    def _keys(self) -> list[tuple[int, int]]:
        first, second = (self._columns[key].tolist() for key in KEYS)
        return list(zip(first, second, strict=True))


class ReferenceFeatures:
    """Features [m, d] of the real images, and what metrics derive from them once."""

    __slots__ = ("_cache", "features")

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self._cache: dict[str, Any] = {}

    def cached(self, name: str, compute: Callable[[Tensor], T]) -> T:
        """`compute(features)`, computed once for each name."""
        if name not in self._cache:
            self._cache[name] = compute(self.features)
        value: T = self._cache[name]
        return value


@runtime_checkable
class Classifier(Protocol):
    """A network that predicts classes from its own features."""

    def class_logits(self, features: Tensor) -> Tensor:
        """Logits [n, classes], float64 on the CPU, of features [n, d]."""
        ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MetricInputs:
    """The data of a trial that metrics are computed from."""

    # A row per image: caption_id, sample, `position` (of the caption in the sweep's list),
    # `features` [n, d], `score.<name>` [n], `emitted`, `passes` and `depth` (tokens after the
    # first, target passes, mean drafted depth); `manifold`, `dinov2` and so on [n, d] where such
    # extractors are given; `tokens` where a metric needs them or IMAGES.
    images: Rows = field(default_factory=lambda: Rows.merge([]))
    config: DecodingConfig = field(default_factory=DecodingConfig)  # config of the trial
    # The costs of settings from timing sessions.
    timings: PriceList = field(default_factory=PriceList)
    baseline: Rows | None = None  # rows of the baseline's images
    # The real images by the column of their features.
    references: Mapping[str, ReferenceFeatures] = field(default_factory=dict)
    classifier: Classifier | None = None  # reads classes from `features`
    decode: Callable[[Tensor], Tensor] | None = None  # images [n, 3, H, W] in [0, 1] of tokens
    captions: Sequence[str] = ()  # captions of the sweep, which `position` counts
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def column(self, name: str) -> Tensor:
        """A column of the images. Raises MetricUnavailable when there is none."""
        return _require(self.images.get(name), f"the images have no {name!r}")

    @property
    def blocks(self) -> Tensor:
        """[n] each image's block of captions, over which every jackknife runs (see
        `workers.metrics.estimate`).
        """
        return self.column(POSITION) % BLOCKS

    def reference(self, column: str = FEATURES) -> ReferenceFeatures:
        """The real images. Raises MetricUnavailable when there are none."""
        return _require(self.references.get(column), "there are no reference images")

    def baseline_column(self, name: str) -> Tensor:
        """A column of the baseline's images, for the captions and samples of the trial's rows, in
        their order.

        Raises:
            MetricUnavailable: the baseline, some of its rows or the column is missing.
        """
        rows = _require(self.baseline, "there are no images of the baseline").matching(self.images)
        return _require(rows.get(name), f"the baseline's images have no {name!r}")

    def class_logits(self) -> Tensor:
        """Class logits [n, classes] of the features. Raises MetricUnavailable when no network
        predicts classes.
        """
        classifier = _require(self.classifier, "the feature extractor predicts no classes")
        return classifier.class_logits(self.column(FEATURES))

    def decode_rows(self, tokens: Tensor) -> Tensor:
        """Images [n, 3, H, W], float32 in [0, 1], of tokens [n, image_len]. Raises
        MetricUnavailable without a decoder.
        """
        return _require(self.decode, "the images cannot be decoded")(tokens).float()

    def cached(self, name: str, compute: Callable[[MetricInputs], T]) -> T:
        """`compute(self)`, computed once for each name; several metrics may share it."""
        if name not in self._cache:
            self._cache[name] = compute(self)
        value: T = self._cache[name]
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedMetric(Metric):
    """A metric with the function that computes it, which raises MetricUnavailable when the inputs
    do not suffice.
    """

    compute: Callable[[MetricInputs], Estimate]
    # The column of features whose covariance it needs, and so more images than features; "": none.
    covariance_of: str = ""


AtBatch = Callable[[MetricInputs, int], Estimate]
_AT_BATCH: dict[str, AtBatch] = {}


class MetricRegistry(Registry[ComputedMetric]):
    """The metrics by name. Those of speed have a variant for every batch size, such as
    `speedup_batch8`: it is found by its name, and is not listed.
    """

    def __contains__(self, name: object) -> bool:
        return super().__contains__(split_batch(name)[0] if isinstance(name, str) else name)

    def __getitem__(self, name: str) -> ComputedMetric:
        base, batch = split_batch(name)
        metric = super().__getitem__(base)
        if batch is None:
            return metric
        about = f"`{base}` at batch {batch}, one of `timing.batch`"
        return replace(
            metric, name=name, about=about, compute=partial(_compute_at, _AT_BATCH[base], batch)
        )

    def including(self, own: Mapping[str, ComputedMetric]) -> MetricRegistry:
        """All metrics, and a sweep's own.

        Raises:
            ConfigError: one of them has the name of another metric.
        """
        found = MetricRegistry(self.what, self._package)
        found._entries = dict(self.all()._entries)
        found._modules = dict(self._modules)
        for name, metric in own.items():
            with at(name):
                if name in self:
                    raise ConfigError(
                        ("name",), f"{name!r} is already a metric; give this one another `name`"
                    )
                found.add(name, metric)
        return found


def _compute_at(compute: AtBatch, batch: int, inputs: MetricInputs) -> Estimate:
    return compute(inputs, batch)


METRICS = MetricRegistry("metric", "workers.metrics")
Compute = TypeVar("Compute", bound=Callable[[MetricInputs], Estimate])


def register_metric(
    name: str,
    *,
    direction: Direction,
    unit: str,
    needs: tuple[str, ...],
    vanilla: float | None = None,
    at_batch: AtBatch | None = None,
    is_gain: bool = False,
    unbiased: bool = False,
    covariance_of: str = "",
) -> Callable[[Compute], Compute]:
    """Decorator that adds a metric; its `about` is the first paragraph of the function's docstring.

    Args:
        name: name of the metric in sweeps and results.
        direction: whether more or less is better.
        unit: unit of the values, such as `s/image`.
        needs: the inputs without which it cannot be computed (see `Metric.needs`).
        vanilla: vanilla's value, where the definition fixes it.
        at_batch: computes the metric at a batch size; None: it does not depend on one.
        is_gain: whether it is a value of the images minus vanilla's (see `Metric.is_gain`).
        unbiased: whether its mean does not depend on the number of images (see `Metric.unbiased`).
        covariance_of: the column of features whose covariance it needs, if any.

    Raises:
        ConfigError: another module has registered the name.
    """

    def register(compute: Compute) -> Compute:
        about = " ".join((compute.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")
        metric = ComputedMetric(
            name=name,
            direction=direction,
            unit=unit,
            about=about,
            needs=needs,
            compute=compute,
            vanilla=vanilla,
            is_gain=is_gain,
            unbiased=unbiased,
            covariance_of=covariance_of,
        )
        METRICS.add(name, metric, module=compute.__module__)
        if at_batch is not None:
            _AT_BATCH[name] = at_batch
        return compute

    return register


def _require(value: T | None, problem: str) -> T:
    if value is None:
        raise MetricUnavailable(problem)
    return value
