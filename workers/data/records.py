"""Parquet files of results: one per shard, and one for the features of real images.

Any Parquet reader opens the files: numbers and text are plain columns; tokens, and what each pass
did, are lists.
Features are kept to float16's precision but written as 32-bit floats, split by byte and
zstd-compressed: Arrow can write half floats, but DuckDB does not read them in their compact
encoding. The zeros that rounding leaves compress away, so this takes no more space than half floats
would.

The schema's metadata holds JSON under `specfrontier`: kind, config, experiment, captions, worker,
versions. A shard's name is in it too, so another shard's file under that name is refused. The
footer holds a SHA-256 of the whole file under `specfrontier.sha256`, computed with zeros in its own
place: a file with any changed bit is refused. Pages carry checksums for other readers.

    import duckdb
    duckdb.sql("select caption, len(emitted) as passes from 'shards/quality-*.parquet'")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workers.data.storage import Storage

if TYPE_CHECKING:
    from torch import Tensor

METADATA_KEY = b"specfrontier"
_CHECKSUM_KEY = "specfrontier.sha256"
_PARQUET = b"PAR1"  # begins and ends a Parquet file
_ZEROS = b"0" * 64  # stands for the checksum while it is computed
# The checksum's key in the footer, and the bytes by which Thrift announces a text of that length.
_CHECKSUM_MARK = _CHECKSUM_KEY.encode() + bytes([0x18, len(_ZEROS)])
# Prefixes of column names.
FEATURES = "features."
SCORES = "score."
# The phases of `workers.decoding.timer`, which imports torch.
_PHASES = ("prefill", "drafter", "target", "acceptance", "commit")
# Counts of accepted drafts (see `ImageStatistics`), which shards of earlier versions lack.
ACCEPTANCE = ("acceptance_histogram", "tested")
# Columns of quality shards, without features and scores; see `workers.runtime.shard_tables`
IMAGE_SCHEMA = pa.schema(
    {
        "caption_id": pa.int64(),
        "caption": pa.string(),
        "sample": pa.int32(),
        "seed": pa.int64(),
        **dict.fromkeys(("tokens", "emitted", "depth", "nodes"), pa.list_(pa.int32())),
        **dict.fromkeys(ACCEPTANCE, pa.list_(pa.int32())),
        "passes": pa.int32(),
        **dict.fromkeys((f"seconds_{phase}" for phase in _PHASES), pa.float64()),
        "latency": pa.float64(),
        "batch": pa.int32(),
    }
)


class ShardError(ValueError):
    """Files are damaged or missing, or not what their names say. `reasons` has a sentence about
    each file, by its name.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, str]]]:
        return type(self), (self.reasons,)


class ColumnError(ValueError):
    """A file lacks a column. `known` are the columns that it has."""

    def __init__(self, where: str, columns: Sequence[str], known: Sequence[str]) -> None:
        super().__init__(
            f"{where}: has no column {', '.join(map(repr, columns))}; it has {', '.join(known)}"
        )
        self.known = tuple(known)


def write_shard(storage: Storage, name: str, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Stores a table atomically.

    Args:
        storage: where the file is written.
        name: name of the file.
        table: columns of the file.
        metadata: plain data with a "kind"; if it has a "name", the file is refused under any other.

    Raises:
        ValueError: metadata that JSON cannot hold.
    """
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), METADATA_KEY: text.encode()}
    )
    floats = [path for field in table.schema if (path := _float_path(field))]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=["caption"] if "caption" in table.column_names else False,
        use_byte_stream_split=floats,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_CHECKSUM_KEY: _ZEROS.decode()})
    data = bytearray(sink.getvalue())
    start = _checksum_start(data)
    data[start : start + len(_ZEROS)] = hashlib.sha256(data).hexdigest().encode()
    storage.write(name, bytes(data))


def read_shard(
    storage: Storage,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    kind: str | None = None,
    fix: str = "delete it; --resume computes it again",
) -> tuple[pa.Table, dict[str, Any]]:
    """A stored table, or some of its columns, and its metadata.

    The whole file is read and checked (about 1 GB/s), whatever the columns.

    Args:
        storage: where the file is.
        name: name of the file.
        columns: the columns to return; None: all.
        kind: the kind that the file must have; None: any.
        fix: what an error tells the user to do about an unusable file.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file is damaged, not one of specfrontier's, not of this kind, or holds the
            content of another file; the message names it.
        ColumnError: it lacks a column.
    """
    where = storage.locate(name)

    def refused(problem: str) -> ShardError:
        return ShardError({name: f"{where}: {problem}" + (f"; {fix}" if fix else "")})

    data = storage.read(name)
    if problem := _damage(data):
        raise refused(problem)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        metadata = json.loads(file.schema_arrow.metadata[METADATA_KEY])
        names = file.schema_arrow.names
        if kind is not None and metadata["kind"] != kind:
            raise refused(f"not a {kind} file but of kind {metadata['kind']!r}")
        if metadata.get("name", name) != name:
            raise refused(f"holds the content of {metadata['name']}")
        if missing := [column for column in columns or () if column not in names]:
            raise ColumnError(where, missing, names)
        return file.read(columns=None if columns is None else list(columns)), metadata


def _checksum_start(data: bytes | bytearray) -> int:
    """Where a file's checksum starts; -1 if there is none. Thrift's compact protocol writes texts
    as their bytes.
    """
    start = data.rfind(_CHECKSUM_MARK)
    if start < 0:
        return -1
    return start + len(_CHECKSUM_MARK)


def _damage(data: bytes) -> str | None:
    """Why these are not the bytes that `write_shard` wrote; None if they are."""
    start = _checksum_start(data)
    is_parquet = data.startswith(_PARQUET) and data[len(_PARQUET) :].endswith(_PARQUET)
    if start < 0 and is_parquet:
        return "written by another version of specfrontier, or by another program (no checksum)"
    if start < 0:
        return "damaged, or not a Parquet file (no checksum)"
    view = memoryview(data)
    end = start + len(_ZEROS)
    checksum = hashlib.sha256(view[:start])
    checksum.update(_ZEROS)
    checksum.update(view[end:])
    if view[start:end] != checksum.hexdigest().encode():
        return "damaged (its checksum differs)"
    return None


def features_of(table: pa.Table, extractor: str) -> Tensor:
    """The features of one extractor, float32 [n, d]."""
    return matrix_of(table, FEATURES + extractor)


def tokens_of(table: pa.Table) -> Tensor:
    """The images' tokens, int64 [n, image_len]."""
    return matrix_of(table, "tokens").long()


def matrix_of(table: pa.Table, name: str) -> Tensor:
    """A column of equally long lists as a tensor [rows, entries]. Raises ValueError if the table
    lacks the column or the lists differ in length.
    """
    import torch

    if name not in table.column_names:
        raise ValueError(
            f"the table has no column {name!r}; it has {', '.join(table.column_names)}"
        )
    column = table.column(name).combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    width, rest = divmod(len(values), max(len(column), 1))
    lengths = np.diff(column.offsets.to_numpy())
    if rest or (lengths != width).any():
        raise ValueError(
            f"column {name!r}: lists of {lengths.min()} to {lengths.max()} entries do not form a "
            "matrix"
        )
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
