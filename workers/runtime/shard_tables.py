"""The rows of a shard's Parquet file, one per image: written, and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from workers.data.captions import Caption
from workers.data.records import (
    ACCEPTANCE,
    FEATURES,
    IMAGE_SCHEMA,
    SCORES,
    ColumnError,
    ShardError,
    features_of,
    float_lists,
    read_shard,
    tokens_of,
)
from workers.data.shards import TAKEN_FROM, Experiment, QualityShard, TimingSession
from workers.data.storage import Storage
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.decoding.timer import PHASES
from workers.metrics.definition import TOKENS
from workers.metrics.metric import POSITION
from workers.metrics.timings import PriceList, read_session
from workers.runtime.device import compute_facts

T = TypeVar("T")
Shard = QualityShard | TimingSession
_COUNT_COLUMNS = ("caption_id", "sample", "emitted", "depth", "passes")


def requests_of(captions: Sequence[Caption], shard: Shard, samples: int = 1) -> list[Request]:
    """The images of a shard of a sweep with these captions.

    Raises:
        ValueError: the sweep has fewer captions.
    """
    if shard.stop > len(captions):
        raise ValueError(f"captions {shard.start}..{shard.stop}: the sweep has {len(captions)}")
    chosen = captions[shard.start : shard.stop]
    return [
        Request(caption.id, caption.text, sample) for caption in chosen for sample in range(samples)
    ]


def shard_metadata(
    shard: Shard, experiment: Experiment, captions: Sequence[Caption], device: torch.device
) -> dict[str, Any]:
    """The metadata that the files of all shards have. `captions` are those of the sweep."""
    return {
        "kind": shard.kind,
        "name": shard.name(experiment),
        "captions": [caption.id for caption in captions[shard.start : shard.stop]],
        "experiment": experiment.digest(),
        **compute_facts(device),
    }


def quality_table(
    results: Sequence[Result],
    *,
    seed: int,
    batch: int,
    features: Mapping[str, Tensor] | None = None,
    scores: Mapping[str, Tensor] | None = None,
) -> pa.Table:
    """One row per image, in the given order. A new column needs an entry here and one in
    `workers.data.records.IMAGE_SCHEMA`, which has the types.

    Columns: caption_id, caption, sample, seed; tokens; per pass emitted (tokens), depth, nodes;
    acceptance_histogram and tested (see `ImageStatistics`); passes (their number); seconds_<phase>
    (see `PhaseTimer`) and latency (their sum), this image's share; batch; features.<extractor>;
    score.<name>.

    Args:
        results: the images.
        seed: seed of the images.
        batch: images that were generated together.
        features: [n, d] by extractor, in the order of the results.
        scores: [n] by name, in the order of the results.

    Raises:
        ValueError: another number of features or scores than images, or a feature that is not
            finite in float16.
    """
    requests = [result.request for result in results]
    statistics = [result.statistics for result in results]
    columns = {
        "caption_id": [request.caption_id for request in requests],
        "caption": [request.caption for request in requests],
        "sample": [request.sample for request in requests],
        "seed": [seed] * len(requests),
        "tokens": _lists([result.tokens for result in results]),
        "emitted": _lists([image.emitted for image in statistics]),
        "depth": _lists([image.depth for image in statistics]),
        "nodes": _lists([image.nodes for image in statistics]),
        "acceptance_histogram": _lists([image.acceptance_histogram for image in statistics]),
        "tested": _lists([image.tested for image in statistics]),
        "passes": [image.passes for image in statistics],
        **{f"seconds_{phase}": [image.seconds[phase] for image in statistics] for phase in PHASES},
        "latency": [image.latency for image in statistics],
        "batch": [batch] * len(requests),
    }
    assert columns.keys() == set(IMAGE_SCHEMA.names), "a column without a type would be dropped"
    table = pa.table(columns, IMAGE_SCHEMA)
    for name, rows in (features or {}).items():
        table = table.append_column(FEATURES + name, _features(name, rows, len(requests)))
    for name, values in (scores or {}).items():
        if values.shape != (len(requests),):
            raise ValueError(
                f"score {name!r}: shape {list(values.shape)} for {len(requests)} images"
            )
        table = table.append_column(SCORES + name, pa.array(values.detach().double().cpu().numpy()))
    return table


def _lists(rows: Sequence[Tensor]) -> pa.Array:
    """Tensors [n] of any lengths as a column of lists of int32."""
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(
        offsets, pa.array(np.concatenate([row.cpu().numpy() for row in rows]), pa.int32())
    )


def _features(name: str, rows: Tensor, count: int) -> pa.Array:
    """Features [count, d], rounded to float16, as a column of lists."""
    if rows.dim() != 2 or rows.shape[0] != count:
        raise ValueError(
            f"features {name!r}: shape {list(rows.shape)} for {count} images; needed [{count}, d]"
        )
    rounded = rows.detach().half().float().cpu()
    if not rounded.isfinite().all():
        raise ValueError(
            f"features {name!r}: not finite as float16, in which they are kept (NaN, or beyond "
            "65504)"
        )
    return float_lists(rounded)


@dataclass(frozen=True, slots=True, eq=False)
class ShardReader:
    """Reads the shards of a store."""

    storage: Storage
    # For each column of `MetricInputs.images`, the extractor whose features shards hold.
    features: Mapping[str, str]
    scores: Sequence[str]  # names of the per-image scores that shards hold
    positions: Mapping[int, int]  # position of each caption's id in the sweep's list
    with_tokens: bool = False  # read the images' tokens too
    # Why shards could not be read, by name, so that all of them are known at once (see `check`).
    unusable: dict[str, str] = field(default_factory=dict)
    # Images of those read that earlier sweeps generated, by name of the shard.
    taken: dict[str, int] = field(default_factory=dict)

    def images(self, names: Iterable[str]) -> list[dict[str, Tensor]]:
        """The columns of each quality shard, in the order of their first captions."""
        columns = [*_COUNT_COLUMNS, *(SCORES + name for name in self.scores)]
        columns += [FEATURES + extractor for extractor in self.features.values()]
        if self.with_tokens:
            columns.append(TOKENS)
        parts = [self._image_columns(table) for table in self._read(names, "quality", columns)]
        return sorted(parts, key=lambda part: int(part[POSITION].min()))

    def timings(self, names: Iterable[str]) -> PriceList:
        """The costs from timing sessions."""
        return PriceList(session for name in names for session in self._opened(name, read_session))

    def tokens_and_passes(self, names: Sequence[str]) -> pa.Table:
        """Tokens, emitted tokens per pass and, where all shards have them, counts of accepted
        drafts of all images, by caption and sample.
        """
        columns = ["caption_id", "sample", "tokens", "emitted"]
        try:
            tables = list(self._read(names, "quality", [*columns, *ACCEPTANCE]))
        except ColumnError:  # of an earlier version
            tables = list(self._read(names, "quality", columns))
        self.check()
        return pa.concat_tables(tables).sort_by(
            [("caption_id", "ascending"), ("sample", "ascending")]
        )

    def check(self) -> None:
        """Raise ShardError if shards could not be read."""
        if self.unusable:
            raise ShardError(self.unusable)

    def _read(
        self, names: Iterable[str], kind: str, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The tables of shards; those that are damaged or missing are noted in `unusable`."""
        for name in names:
            for table, metadata in self._opened(
                name, partial(read_shard, columns=columns, kind=kind, fix="")
            ):
                if TAKEN_FROM in metadata:
                    self.taken[name] = table.num_rows
                yield table

    def _opened(self, name: str, read: Callable[[Storage, str], T]) -> Iterator[T]:
        """A file's content; nothing, and a reason in `unusable`, if it is damaged or missing."""
        try:
            yield read(self.storage, name)
        except ShardError as error:
            self.unusable.update(error.reasons)
        except FileNotFoundError:
            self.unusable[name] = f"{self.storage.locate(name)}: missing"

    def _image_columns(self, table: pa.Table) -> dict[str, Tensor]:
        passes = _numbers(table, "passes")
        image = torch.arange(len(passes)).repeat_interleave(passes)
        emitted, depth = (_numbers(table, name) for name in ("emitted", "depth"))
        zeros = torch.zeros(len(passes), dtype=torch.int64)
        captions = _numbers(table, "caption_id")
        columns = {
            "caption_id": captions,
            POSITION: torch.tensor([self.positions[caption] for caption in captions.tolist()]),
            "sample": _numbers(table, "sample"),
            "passes": passes,
            "emitted": zeros.index_add(0, image, emitted),
            "depth": zeros.index_add(0, image, depth.clamp(min=1)) / passes,
        }
        if self.with_tokens:
            columns[TOKENS] = tokens_of(table)
        for name in self.scores:
            columns[SCORES + name] = _numbers(table, SCORES + name)
        for column, extractor in self.features.items():
            columns[column] = features_of(table, extractor)
        return columns


def _numbers(table: pa.Table, name: str) -> Tensor:
    """A column, or all entries of a column of lists one list after the other, as int64 or
    float64.
    """
    column = table.column(name).combine_chunks()
    values = column.flatten() if pa.types.is_list(column.type) else column
    numbers = torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())
    if numbers.is_floating_point():
        return numbers.double()
    return numbers.long()
