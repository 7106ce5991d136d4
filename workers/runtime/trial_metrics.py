"""A trial's metrics and pictures from its stored shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from workers.data.checked_json import dump_checked, load_checked
from workers.data.pictures import accepted_by_cell, heat_map, image_grid, png, to_pictures
from workers.data.records import FEATURES, SCORES, ShardError, features_of, read_shard, tokens_of
from workers.data.shards import MeasureTask
from workers.data.storage import Storage
from workers.metrics.costs import TIMED_COLUMNS, VANILLA
from workers.metrics.estimate import Estimate
from workers.metrics.metric import OWN_TIMINGS, POSITION, TIMING_KEYS, Classifier, MetricInputs, ReferenceFeatures, Rows
from workers.metrics.registry import compute_metrics, registered_metrics
from workers.models.target import Target
from workers.runtime.memory import in_chunks

_GRID_IMAGES, _GRID_COLUMNS = 16, 4
_COUNT_COLUMNS = ("caption_id", "sample", "emitted", "depth", "rounds")


@dataclass(frozen=True, slots=True, eq=False)
class ShardReader:
    """Reads the shards of a store. features: for each column of `MetricInputs.images`, the extractor whose features
    shards hold. scores: names of the per-image scores that they hold. positions: position of each caption's id in the
    sweep's list. unusable: why shards could not be read, by name, so that all of them are known at once (see `check`).
    """

    storage: Storage
    features: Mapping[str, str]
    scores: Sequence[str]
    positions: Mapping[int, int]
    unusable: dict[str, str] = field(default_factory=dict)

    def images(self, names: Iterable[str]) -> list[dict[str, Tensor]]:
        """The columns of each quality shard, in the order of their first captions."""
        columns = [*_COUNT_COLUMNS, *(SCORES + name for name in self.scores)]
        columns += [FEATURES + extractor for extractor in self.features.values()]
        parts = [self._image_columns(table) for table in self._read(names, "quality", columns)]
        return sorted(parts, key=lambda part: int(part[POSITION].min()))

    def timings(self, names: Iterable[str]) -> Rows:
        """The rows of all timing shards."""
        return Rows.merge([self._timing_columns(table) for table in self._read(names, "timing")], TIMING_KEYS)

    def tokens_and_rounds(self, names: Iterable[str]) -> pa.Table:
        """Tokens and emitted tokens per round of all images, by caption and sample."""
        tables = list(self._read(names, "quality", ["caption_id", "sample", "tokens", "emitted"]))
        self.check()
        return pa.concat_tables(tables).sort_by([("caption_id", "ascending"), ("sample", "ascending")])

    def check(self) -> None:
        """Raise ShardError if shards could not be read."""
        if self.unusable:
            raise ShardError(self.unusable)

    def _read(self, names: Iterable[str], kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The tables of shards; those that are damaged or missing are noted in `unusable`."""
        for name in names:
            try:
                yield read_shard(self.storage, name, columns, kind=kind, fix="")[0]
            except ShardError as error:
                self.unusable.update(error.reasons)
            except FileNotFoundError:
                self.unusable[name] = f"{self.storage.locate(name)}: missing"

    def _image_columns(self, table: pa.Table) -> dict[str, Tensor]:
        rounds = _numbers(table, "rounds")
        image = torch.arange(len(rounds)).repeat_interleave(rounds)
        emitted, depth = (_numbers(table, name) for name in ("emitted", "depth"))
        zeros = torch.zeros(len(rounds), dtype=torch.int64)
        captions = _numbers(table, "caption_id")
        columns = {
            "caption_id": captions,
            POSITION: torch.tensor([self.positions[caption] for caption in captions.tolist()]),
            "sample": _numbers(table, "sample"),
            "rounds": rounds,
            "emitted": zeros.index_add(0, image, emitted),
            "depth": zeros.index_add(0, image, depth.clamp(min=1)) / rounds,
            **{SCORES + name: _numbers(table, SCORES + name) for name in self.scores},
        }
        return columns | {column: features_of(table, extractor) for column, extractor in self.features.items()}

    def _timing_columns(self, table: pa.Table) -> dict[str, Tensor]:
        first = [ids[0] for ids in table.column("caption_ids").to_pylist()]
        columns = ("repetition", "images", *(name + side for name in TIMED_COLUMNS for side in (VANILLA, "")))
        return {"caption_id": torch.tensor(first)} | {key: _numbers(table, key) for key in columns}


def compute_trial_metrics(
    shards: ShardReader,
    task: MeasureTask,
    names: Sequence[str],
    *,
    references: Mapping[str, ReferenceFeatures],
    classifier: Classifier | None,
) -> dict[str, Any]:
    """The named metrics of a task, their history (see `MeasureTask`), and why others are skipped.

    references: the real images by the column of their features.

    Raises:
        ShardError: shards are missing or damaged.
    """
    parts, baseline_parts = shards.images(task.quality), shards.images(task.baseline_quality)
    timings, own_timings = shards.timings(task.timing), shards.timings(task.own_timing)
    shards.check()
    baseline = Rows.merge(baseline_parts) if task.baseline_quality else None

    def inputs(count: int) -> MetricInputs:
        """Those of the first `count` quality shards."""
        images = Rows.merge(parts[:count])
        return MetricInputs(
            images=images,
            timings=timings,
            own_timings=own_timings,
            baseline=baseline,
            references=references,
            classifier=classifier,
        )

    full = inputs(len(parts))
    estimates, skipped = compute_metrics(full, names)
    for name in [name for name, estimate in estimates.items() if not math.isfinite(estimate.value)]:
        skipped[name] = f"its value is {estimates.pop(name).value}"
    history: list[tuple[int, dict[str, dict[str, Any]]]] = []
    if task.halfway and len(parts) > 1:
        half = inputs((len(parts) + 1) // 2)
        image_metrics = [name for name in estimates if OWN_TIMINGS not in registered_metrics()[name].needs]
        history.append((half.images.count, _plain(compute_metrics(half, image_metrics)[0])))
    metrics = _plain(estimates)
    return {"metrics": metrics, "history": [*history, (full.images.count, metrics)], "skipped": skipped}


def write_metrics(storage: Storage, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Store the result of a measure task under its name; returns it as `read_metrics` does."""
    named = {"name": name, **result}
    storage.write(name, dump_checked(named, indent=1))
    return named


def read_metrics(storage: Storage, name: str) -> dict[str, Any] | None:
    """A stored result; None if there is none, or if the file is damaged or has the result of another task."""
    try:
        stored = load_checked(storage.read(name))
    except (FileNotFoundError, ValueError):
        return None
    return stored if stored.get("name") == name else None


def draw_pictures(shards: ShardReader, task: MeasureTask, target: Target, digest: str) -> list[str]:
    """Write the grid of the first images and the heat map of accepted lengths; returns their names."""
    if not task.quality:
        return []
    table = shards.tokens_and_rounds(task.quality)

    def decode(tokens: Sequence[Tensor]) -> list[Image.Image]:
        return to_pictures(target.decode(torch.stack(list(tokens)).to(target.device)))

    parts = in_chunks(decode, tokens_of(table.slice(0, _GRID_IMAGES)).unbind(), _GRID_IMAGES)
    pictures = [picture for part in parts for picture in part]
    lengths = table.column("emitted").to_pylist()
    rounds, emitted = sum(map(len, lengths)), sum(map(sum, lengths))
    title = f"accepted length of each cell's round, {len(lengths)} images (mean over rounds {emitted / rounds:.2f})"
    cells = accepted_by_cell(lengths, target.grid.rows, target.grid.cols)
    files = {
        f"pictures/{digest}.png": image_grid(pictures, _GRID_COLUMNS),
        f"heatmaps/{digest}.png": heat_map(cells, title),
    }
    for name, picture in files.items():
        shards.storage.write(name, png(picture))
    return list(files)


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """The estimates with finite values as plain data. JSON has no NaN: an error that is not finite becomes None."""
    plain = {name: asdict(estimate) for name, estimate in estimates.items() if math.isfinite(estimate.value)}
    for fields in plain.values():
        fields["replicates"] = list(fields["replicates"])
        if not math.isfinite(fields["error"]):
            fields |= {"error": None, "replicates": [], "noise": 0.0, "noise_dof": 0, "error_dof": 0}
    return plain


def _numbers(table: pa.Table, name: str) -> Tensor:
    """A column, or all entries of a column of lists one list after the other, as int64 or float64."""
    column = table.column(name).combine_chunks()
    values = column.flatten() if pa.types.is_list(column.type) else column
    numbers = torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())
    return numbers.double() if numbers.is_floating_point() else numbers.long()
