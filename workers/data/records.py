"""What a shard leaves behind: one Parquet file of one row per image (quality) or per timed batch (timing).

Any Parquet reader opens the files: numbers and text are plain columns, tokens and rounds are lists. Features are kept
to float16's precision but written as 32-bit floats, split by byte and zstd-compressed: Arrow can write half floats, but
DuckDB does not read them in their compact encoding. The zeros that rounding leaves compress away, so this takes no
more room than half floats do. Pages carry checksums, so that a damaged file is never read as a result.

What the rows belong to (kind, setting, experiment, worker, versions) stands as JSON in the schema's metadata under
`specfrontier`.

    import duckdb; duckdb.sql("select caption, len(accepted) as rounds, latency from 'shards/quality-*.parquet'")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workers.data.storage import Storage

if TYPE_CHECKING:
    from torch import Tensor

    from workers.decoding.engine import Result

META = b"specfrontier"
FEATURES, SCORES = "features.", "score."
PHASES = ("prefill", "drafter", "target", "acceptance", "commit")  # as the engine times them
QUALITY_COLUMNS: Mapping[str, pa.DataType] = {
    "caption_id": pa.int64(),
    "caption": pa.string(),
    "sample": pa.int32(),
    "seed": pa.int64(),
    "tokens": pa.list_(pa.int32()),
    "accepted": pa.list_(pa.int32()),
    "depth": pa.list_(pa.int32()),
    "nodes": pa.list_(pa.int32()),
    "rounds": pa.int32(),
    **{f"seconds_{phase}": pa.float64() for phase in PHASES},
    "latency": pa.float64(),
    "batch": pa.int32(),
}
TIMING_SCHEMA = pa.schema(
    {
        "caption_ids": pa.list_(pa.int64()),
        "repetition": pa.int32(),
        "batch": pa.int32(),
        "images": pa.int32(),
        "seconds_vanilla": pa.float64(),
        "seconds": pa.float64(),
        "mean_accepted_length": pa.float64(),
    }
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One batch of captions, drawn by vanilla and by the setting in turn; seconds are of the whole batch, wall clock.

    mean_accepted_length: tokens per target pass of the setting, over all images of the batch.
    """

    caption_ids: tuple[int, ...]
    repetition: int
    batch: int
    seconds_vanilla: float
    seconds: float
    mean_accepted_length: float


def quality_table(
    results: Sequence[Result],
    *,
    seed: int,
    batch: int,
    features: Mapping[str, Tensor] | None = None,
    scores: Mapping[str, Tensor] | None = None,
) -> pa.Table:
    """One row per image, in the order given. features: [n, d] by extractor; scores: [n] by name; row i is image i's.

    Columns: caption_id, caption, sample, seed; tokens; per round accepted (tokens emitted), depth, nodes; rounds;
    seconds_<phase> and latency (their sum) in seconds, this image's share; batch; features.<extractor>; score.<name>.

    Raises:
        ValueError: no results, another number of features or scores than images, or a feature that is not finite in
        float16.
    """
    if not results:
        raise ValueError("no results to record: the shard is empty")
    requests, statistics = [r.request for r in results], [r.statistics for r in results]
    columns: dict[str, Any] = {
        "caption_id": [request.caption_id for request in requests],
        "caption": [request.caption for request in requests],
        "sample": [request.sample for request in requests],
        "seed": [seed] * len(requests),
        "tokens": _lists([r.tokens for r in results]),
        "accepted": _lists([s.emitted for s in statistics]),
        "depth": _lists([s.depth for s in statistics]),
        "nodes": _lists([s.nodes for s in statistics]),
        "rounds": [s.rounds for s in statistics],
        **{f"seconds_{phase}": [s.seconds[phase] for s in statistics] for phase in PHASES},
        "latency": [s.latency for s in statistics],
        "batch": [batch] * len(requests),
    }
    arrays = {name: _array(columns[name], kind) for name, kind in QUALITY_COLUMNS.items()}
    for name, rows in (features or {}).items():
        arrays[FEATURES + name] = _features(name, rows, len(requests))
    for name, values in (scores or {}).items():
        if values.shape != (len(requests),):
            raise ValueError(f"score {name!r}: shape {list(values.shape)} for {len(requests)} images")
        arrays[SCORES + name] = pa.array(values.detach().double().cpu().numpy())
    return pa.table(arrays)


def timing_table(rows: Sequence[Timing]) -> pa.Table:
    """One row per timed batch and repetition. Raises ValueError when there is none."""
    if not rows:
        raise ValueError("no timings to record: the shard is empty")
    columns = {name: [getattr(row, name) for row in rows] for name in TIMING_SCHEMA.names if name != "images"}
    return pa.table(columns | {"images": [len(row.caption_ids) for row in rows]}, schema=TIMING_SCHEMA)


def write_shard(storage: Storage, name: str, table: pa.Table, meta: Mapping[str, Any]) -> None:
    """Store a table with its facts, whole or not at all. `meta` is plain data and says its "kind".

    Raises:
        ValueError: facts that JSON cannot hold.
    """
    text = json.dumps(dict(meta), sort_keys=True, allow_nan=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), META: text.encode()})
    floats = [path for field in table.schema if (path := _float_path(field))]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["caption"] if "caption" in table.column_names else False,
        use_byte_stream_split=floats,
        write_page_checksum=True,
    )
    storage.write(name, sink.getvalue().to_pybytes())


def read_shard(
    storage: Storage,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    kind: str | None = None,
    mend: str = "delete it, and --resume makes it again",
) -> tuple[pa.Table, dict[str, Any]]:
    """A stored table, or some of its columns, and its facts. `mend`: what to do about a file that is no good.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not one of specfrontier's, not of this kind, or lacks a column; it is named.
    """
    where = f"{storage.shown}/{name}"
    path = storage.path(name)
    source: Any = pa.BufferReader(storage.read(name)) if path is None else pa.OSFile(str(path))
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            meta, known = _meta(file.schema_arrow.metadata or {}), file.schema_arrow.names
            missing = [column for column in columns or () if column not in known]
            table = None if meta is None or missing else file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: damaged or no Parquet file ({reason}); {mend}") from error
    if meta is None or (kind is not None and meta["kind"] != kind):
        what = "Parquet file of specfrontier" if meta is None else f"{kind} file but of kind {meta['kind']!r}"
        raise ValueError(f"{where}: not a {what}; {mend}")
    if table is None:
        raise ValueError(f"{where}: has no column {', '.join(map(repr, missing))}; it has {', '.join(known)}")
    return table, meta


def features_of(table: pa.Table, extractor: str) -> Tensor:
    """The features of one extractor, float32 [n, d]."""
    return matrix_of(table, FEATURES + extractor)


def tokens_of(table: pa.Table) -> Tensor:
    """The images' tokens, int64 [n, image_len]."""
    return matrix_of(table, "tokens").long()


def matrix_of(table: pa.Table, name: str) -> Tensor:
    """A column of equally long lists as a tensor. ValueError if the table lacks it or the lists differ."""
    import torch

    if name not in table.column_names:
        raise ValueError(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    column = table.column(name).combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    width, rest = divmod(len(values), max(len(column), 1))
    lengths = np.diff(column.offsets.to_numpy())
    if rest or (lengths != width).any():
        raise ValueError(f"column {name!r}: lists of {lengths.min()} to {lengths.max()} entries are no matrix")
    return torch.from_numpy(values.reshape(len(column), width).copy())


def float_lists(rows: Tensor) -> pa.Array:
    """Rows [n, d] as n lists of 32-bit floats."""
    offsets = np.arange(0, rows.numel() + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(rows.float().contiguous().flatten().numpy()))


def _lists(rows: Sequence[Tensor]) -> pa.Array:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate([row.cpu().numpy() for row in rows]), pa.int32()))


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _features(name: str, rows: Tensor, count: int) -> pa.Array:
    if rows.dim() != 2 or rows.shape[0] != count:
        raise ValueError(f"features {name!r}: shape {list(rows.shape)} for {count} images; needed [{count}, d]")
    rounded = rows.detach().half().float().cpu()
    if not rounded.isfinite().all():
        raise ValueError(f"features {name!r}: not finite as float16, in which they are kept (NaN, or beyond 65504)")
    return float_lists(rounded)


def _float_path(field: pa.Field) -> str | None:
    """The Parquet path of a column of floats or lists of floats, else None."""
    if pa.types.is_floating(field.type):
        return str(field.name)
    if pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
        return f"{field.name}.list.element"
    return None


def _meta(metadata: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    """The facts in a schema's metadata; None if there are none of ours."""
    try:
        meta = json.loads(metadata[META])
    except (KeyError, ValueError):
        return None
    return meta if isinstance(meta, dict) and "kind" in meta else None
