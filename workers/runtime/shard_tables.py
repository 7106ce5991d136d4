"""The rows of a shard's Parquet file: one per image (quality) or one per timed batch (timing)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from workers.data.records import FEATURES, IMAGE_SCHEMA, SCORES, float_lists
from workers.decoding.statistics import Result
from workers.decoding.timer import PHASES
from workers.metrics.costs import TIMED_COLUMNS, VANILLA

_TIMING_SCHEMA = pa.schema(
    {
        "caption_ids": pa.list_(pa.int64()),
        "repetition": pa.int32(),
        "batch": pa.int32(),
        "images": pa.int32(),
        **{name + side: pa.float64() for side in (VANILLA, "") for name in TIMED_COLUMNS},
    }
)


def quality_table(
    results: Sequence[Result],
    *,
    seed: int,
    batch: int,
    features: Mapping[str, Tensor] | None = None,
    scores: Mapping[str, Tensor] | None = None,
) -> pa.Table:
    """One row per image, in the given order. features: [n, d] by extractor; scores: [n] by name; row i is image i's.

    Columns: caption_id, caption, sample, seed; tokens; per round emitted (tokens), depth, nodes; rounds;
    seconds_<phase> and latency (their sum) in seconds, this image's share; batch; features.<extractor>; score.<name>.

    Raises:
        ValueError: another number of features or scores than images, or a feature that is not finite in float16.
    """
    requests, statistics = [r.request for r in results], [r.statistics for r in results]
    columns = {
        "caption_id": [request.caption_id for request in requests],
        "caption": [request.caption for request in requests],
        "sample": [request.sample for request in requests],
        "seed": [seed] * len(requests),
        "tokens": _lists([r.tokens for r in results]),
        "emitted": _lists([s.emitted for s in statistics]),
        "depth": _lists([s.depth for s in statistics]),
        "nodes": _lists([s.nodes for s in statistics]),
        "rounds": [s.rounds for s in statistics],
        **{f"seconds_{phase}": [s.seconds[phase] for s in statistics] for phase in PHASES},
        "latency": [s.latency for s in statistics],
        "batch": [batch] * len(requests),
    }
    table = pa.table(columns, IMAGE_SCHEMA)
    for name, rows in (features or {}).items():
        table = table.append_column(FEATURES + name, _features(name, rows, len(requests)))
    for name, values in (scores or {}).items():
        if values.shape != (len(requests),):
            raise ValueError(f"score {name!r}: shape {list(values.shape)} for {len(requests)} images")
        table = table.append_column(SCORES + name, pa.array(values.detach().double().cpu().numpy()))
    return table


def timing_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row per timed batch and repetition; see `workers.runtime.timing.time_pairs`."""
    return pa.Table.from_pylist([dict(row) for row in rows], _TIMING_SCHEMA)


def _lists(rows: Sequence[Tensor]) -> pa.Array:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([row.cpu().numpy() for row in rows]), pa.int32()))


def _features(name: str, rows: Tensor, count: int) -> pa.Array:
    if rows.dim() != 2 or rows.shape[0] != count:
        raise ValueError(f"features {name!r}: shape {list(rows.shape)} for {count} images; needed [{count}, d]")
    rounded = rows.detach().half().float().cpu()
    if not rounded.isfinite().all():
        raise ValueError(f"features {name!r}: not finite as float16, in which they are kept (NaN, or beyond 65504)")
    return float_lists(rounded)
