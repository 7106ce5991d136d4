"""Parquet files of results: one per shard, and one for the features of real images.

Any Parquet reader opens the files: numbers and text are plain columns, tokens and rounds are lists. Features are kept
to float16's precision but written as 32-bit floats, split by byte and zstd-compressed: Arrow can write half floats, but
DuckDB does not read them in their compact encoding. The zeros that rounding leaves compress away, so this takes no
more space than half floats would. Pages carry checksums, so that a damaged file is never read as a result.

The schema's metadata holds JSON under `specfrontier`: kind, config, experiment, worker, versions.

    import duckdb; duckdb.sql("select caption, len(accepted) as rounds, latency from 'shards/quality-*.parquet'")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workers.data.storage import Storage

if TYPE_CHECKING:
    from torch import Tensor

METADATA_KEY = b"specfrontier"
FEATURES, SCORES = "features.", "score."  # prefixes of column names


def write_shard(storage: Storage, name: str, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Stores a table atomically. `metadata` is plain data and includes the "kind".

    Raises:
        ValueError: metadata that JSON cannot hold.
    """
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), METADATA_KEY: text.encode()})
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
    fix: str = "delete it; --resume computes it again",
) -> tuple[pa.Table, dict[str, Any]]:
    """A stored table, or some of its columns, and its metadata. `fix`: what the user can do about an unusable file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not one of specfrontier's, not of this kind, or lacks a column; it is named.
    """
    where = f"{storage.display_name}/{name}"
    path = storage.path(name)
    source: Any = pa.BufferReader(storage.read(name)) if path is None else pa.OSFile(str(path))
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            metadata, names = _metadata(file.schema_arrow.metadata or {}), file.schema_arrow.names
            missing = [column for column in columns or () if column not in names]
            unusable = metadata is None or missing
            table = None if unusable else file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: damaged or not a Parquet file ({reason}); {fix}") from error
    if metadata is None:
        raise ValueError(f"{where}: not a Parquet file of specfrontier; {fix}")
    if kind is not None and metadata["kind"] != kind:
        raise ValueError(f"{where}: not a {kind} file but of kind {metadata['kind']!r}; {fix}")
    if table is None:
        raise ValueError(f"{where}: has no column {', '.join(map(repr, missing))}; it has {', '.join(names)}")
    return table, metadata


def features_of(table: pa.Table, extractor: str) -> Tensor:
    """The features of one extractor, float32 [n, d]."""
    return matrix_of(table, FEATURES + extractor)


def tokens_of(table: pa.Table) -> Tensor:
    """The images' tokens, int64 [n, image_len]."""
    return matrix_of(table, "tokens").long()


def matrix_of(table: pa.Table, name: str) -> Tensor:
    """A column of equally long lists as a tensor. ValueError if the table lacks it or the lists differ in length."""
    import torch

    if name not in table.column_names:
        raise ValueError(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    column = table.column(name).combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    width, rest = divmod(len(values), max(len(column), 1))
    lengths = np.diff(column.offsets.to_numpy())
    if rest or (lengths != width).any():
        raise ValueError(f"column {name!r}: lists of {lengths.min()} to {lengths.max()} entries do not form a matrix")
    return torch.from_numpy(values.reshape(len(column), width).copy())


def float_lists(rows: Tensor) -> pa.Array:
    """Rows [n, d] as n lists of 32-bit floats."""
    offsets = np.arange(0, rows.numel() + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(rows.float().contiguous().flatten().numpy()))


def _float_path(field: pa.Field) -> str | None:
    """The Parquet path of a column of floats or lists of floats, else None."""
    if pa.types.is_floating(field.type):
        return str(field.name)
    if pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
        return f"{field.name}.list.element"
    return None


def _metadata(schema_metadata: Mapping[bytes, bytes]) -> dict[str, Any] | None:
    """Our metadata in a schema's; None if there is none."""
    try:
        metadata = json.loads(schema_metadata[METADATA_KEY])
    except (KeyError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) and "kind" in metadata else None
