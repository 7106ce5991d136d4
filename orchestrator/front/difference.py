"""How two trials differ: in the keys of their settings, in their values, and in the images of the
same captions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import QueryError
from orchestrator.front.compare import obstacles, shared_objectives
from orchestrator.front.front import front_of
from orchestrator.front.joint import JointErrors
from orchestrator.front.pareto import Floats
from orchestrator.front.trial import Trial
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import clean, html_table, percent
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, measured

if TYPE_CHECKING:
    import pyarrow

_EQUAL = "equal: both have vanilla's distribution"
_MAX_CAPTIONS = 8  # captions in a notebook and in the terminal


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A metric of two trials."""

    metric: Metric
    first: Estimate
    second: Estimate
    difference: float  # the first value minus the second
    error: float  # standard error of the difference, paired by captions and costs; NaN: unknown
    # the share of draws from the errors in which the first trial is better; None if an error is
    # unknown, or if the values are equal
    probability: float | None


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """The images of two trials from one caption and the same random numbers."""

    caption_id: int
    sample: int
    caption: str
    # 0: they are the same; 1: they are as far apart as images of different captions
    difference: float


@dataclass(frozen=True, eq=False)
class TrialDifference:
    """How two trials differ."""

    first: Trial
    second: Trial
    keys: Mapping[str, tuple[Any, Any]]  # keys of the settings with different values; None: none
    metrics: tuple[MetricDifference, ...]
    not_compared: Mapping[str, str]  # metrics that cannot be compared, and why
    images: tuple[ImageDifference, ...]  # those that both have, the most different ones first

    @property
    def names(self) -> tuple[str, str]:
        """The trials' numbers, after the sweeps' names if these differ."""
        first, second = self.first, self.second
        if first.sweep.storage.display_name == second.sweep.storage.display_name:
            return str(first.number), str(second.number)
        return f"{first.origin}#{first.number}", f"{second.origin}#{second.number}"

    @property
    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """The keys, the metrics and the most different images as tables: a heading, and rows."""
        one, other = self.names
        keys = [[key, _text(a), _text(b)] for key, (a, b) in self.keys.items()]
        metrics = [
            [
                entry.metric.name,
                str(entry.first),
                str(entry.second),
                measured(entry.difference, entry.error),
                self._verdict(entry),
            ]
            for entry in self.metrics
        ]
        images = [[f"{each.difference:.2f}", each.caption] for each in self.images[:_MAX_CAPTIONS]]
        return [
            (["key", one, other], keys),
            (["metric", one, other, "difference", "better"], metrics),
            (["image difference", "caption"], images),
        ]

    def _verdict(self, entry: MetricDifference) -> str:
        """Which trial is better, and in how many draws."""
        if self.first.has_vanillas(entry.metric) and self.second.has_vanillas(entry.metric):
            return _EQUAL
        if entry.probability is None:
            return ""
        one, other = self.names
        if entry.probability >= 0.5:
            return f"{one} in {percent(entry.probability)} of draws"
        return f"{other} in {percent(1 - entry.probability)} of draws"

    def to_mapping(self) -> dict[str, Any]:
        """Plain data."""
        one, other = self.names
        return {
            "first": one,
            "second": other,
            "keys": {key: list(values) for key, values in self.keys.items()},
            "metrics": {
                entry.metric.name: {
                    "first": entry.first.value,
                    "second": entry.second.value,
                    "difference": entry.difference,
                    "error": entry.error if math.isfinite(entry.error) else None,
                    "first_is_better": entry.probability,
                }
                for entry in self.metrics
            },
            "not_compared": dict(self.not_compared),
            "images": [
                {
                    "caption_id": each.caption_id,
                    "sample": each.sample,
                    "caption": each.caption,
                    "difference": each.difference,
                }
                for each in self.images
            ],
        }

    def __repr__(self) -> str:
        one, other = self.names
        parts = [
            f"{entry.metric.name} {measured(entry.difference, entry.error)}"
            for entry in self.metrics
        ]
        return clean(f"Trial {one} minus trial {other}: {', '.join(parts)}")

    def _repr_html_(self) -> str:
        return "".join(html_table(head, rows) for head, rows in self.tables if rows)


def trials_of(sweep: Sweep, first: int, other: Sweep, second: int) -> tuple[Trial, Trial]:
    """Two trials by their numbers, the second of `other`. Lossless settings of two sweeps have one
    quality where they may.

    Raises:
        QueryError: the same trial twice, or sweeps without two metrics that can be compared.
        NoChoiceError: no such trial.
    """
    if other is sweep:
        if first == second:
            raise QueryError(f"trial {first} is given twice; give two trials")
        front = front_of([sweep], feasible=False)
        return front.trial(first), front.trial(second)
    identities = [sweep.identity, other.identity]
    own, _ = shared_objectives(identities)
    shared = [*own, *(name for name in sweep.identity.metrics if name in other.identity.metrics)]
    comparable = [name for name in dict.fromkeys(shared) if not obstacles(identities, name)]
    if len(comparable) < 2:
        raise QueryError(
            f"the sweeps {sweep.name} and {other.name} have fewer than two metrics that can be "
            "compared"
        )
    front = front_of([sweep, other], *comparable[:2], feasible=False)
    one, another = front.sweeps
    return front.trial(first, one), front.trial(second, another)


def difference(first: Trial, second: Trial) -> TrialDifference:
    """How two trials differ. Trials of two sweeps are compared in the metrics that can be.

    Raises:
        ValueError: a shard of their images is missing or damaged.
    """
    pairs = (first.config.flat(), second.config.flat())
    keys = {}
    for key in dict.fromkeys([*pairs[0], *pairs[1]]):
        values = (pairs[0].get(key), pairs[1].get(key))
        if values[0] != values[1]:
            keys[key] = values
    metrics, not_compared = _metrics(first, second)
    images: tuple[ImageDifference, ...] = ()
    if obstacle := _obstacle_to_images(first, second):
        not_compared["images"] = obstacle
    else:
        images = _images(first, second)
    return TrialDifference(first, second, keys, metrics, not_compared, images)


def _obstacle_to_images(first: Trial, second: Trial) -> str:
    """Why images of a caption in the two trials have nothing to do with each other; "" if they
    do.
    """
    one, other = first.sweep.identity, second.sweep.identity
    facts = {
        "captions": one.caption_set == other.caption_set,
        "targets": one.target == other.target,
        "seeds": one.seed == other.seed,
    }
    differing = [name for name, is_same in facts.items() if not is_same]
    return f"the sweeps differ in their {' and '.join(differing)}" if differing else ""


def _metrics(first: Trial, second: Trial) -> tuple[tuple[MetricDifference, ...], dict[str, str]]:
    """The differences in all metrics that both trials have, and why others are left out."""
    identities = [first.sweep.identity, second.sweep.identity]
    metrics = []
    not_compared = {}
    for name, metric in first.sweep.identity.metrics.items():
        if name not in first.metrics or name not in second.metrics:
            continue
        reasons = obstacles(identities, name)
        if reasons:
            not_compared[name] = f"the sweeps differ in {'; in '.join(reasons)}"
        elif not metric.is_of_counts and _differ_in_images(first.record, second.record):
            not_compared[name] = "racing stopped a trial after fewer images"
        else:
            metrics.append(metric)
    joint = JointErrors.of([first.record, second.record], metrics, identities)
    values, errors, _ = joint.difference(0, 1)
    samples = joint.samples()
    found = []
    for place, metric in enumerate(metrics):
        one, other = first.metrics[metric.name], second.metrics[metric.name]
        is_known = one.known_error is not None and other.known_error is not None
        probability = None
        if is_known and errors[place] > 0 and values[place] != 0:
            gain = samples[:, 0, place] - samples[:, 1, place]
            is_better = gain > 0 if metric.direction == "maximize" else gain < 0
            probability = float(is_better.mean())
        error = float(errors[place]) if is_known else math.nan
        found.append(MetricDifference(metric, one, other, float(values[place]), error, probability))
    return tuple(found), not_compared


def _differ_in_images(one: TrialRecord, other: TrialRecord) -> bool:
    """Whether racing stopped one of the trials, so that its values are of fewer images."""
    return one.images != other.images and (one.is_stopped or other.is_stopped)


def _images(first: Trial, second: Trial) -> tuple[ImageDifference, ...]:
    """The images of the same captions that both trials have, the most different ones first: by the
    distance of their features where both have them, else by the share of tokens that differ.
    """
    tables = [trial.sweep.images(trial.number) for trial in (first, second)]
    keys = [_image_keys(table) for table in tables]
    shared = [key for key in keys[0] if key in keys[1]]
    if not shared:
        return ()
    columns = [name for name in tables[0].column_names if name.startswith("features.")]
    column = next((name for name in columns if name in tables[1].column_names), "tokens")
    one, other = (
        _rows(table, column, [places[key] for key in shared])
        for table, places in zip(tables, keys, strict=True)
    )
    if one.shape != other.shape:  # images of other sizes
        return ()
    if column == "tokens":
        distances = (one != other).mean(axis=1)
    else:
        distances = _distances(one, other) / _mean_distance(one, [caption for caption, _ in shared])
    captions = tables[0]["caption"].to_pylist()
    found = [
        ImageDifference(key[0], key[1], captions[keys[0][key]], float(value))
        for key, value in zip(shared, distances, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: -each.difference))


def _image_keys(table: pyarrow.Table) -> dict[tuple[int, int], int]:
    """The rows of a table of images by caption and sample."""
    pairs = zip(table["caption_id"].to_pylist(), table["sample"].to_pylist(), strict=True)
    return {pair: row for row, pair in enumerate(pairs)}


def _rows(table: pyarrow.Table, column: str, rows: list[int]) -> Floats:
    """A column of lists as an array [rows, length]."""
    return np.array(table[column].take(rows).to_pylist(), dtype=np.float64)


def _distances(one: Floats, other: Floats) -> Floats:
    distances: Floats = np.linalg.norm(one - other, axis=1)
    return distances


def _mean_distance(features: Floats, captions: list[int]) -> float:
    """The mean distance between images of different captions; 1 if there are none."""
    differ = np.array(captions) != np.roll(captions, 1)
    if not differ.any():
        return 1.0
    return float(_distances(features, np.roll(features, 1, axis=0))[differ].mean()) or 1.0


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
