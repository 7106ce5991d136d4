"""Records: what comes back is what went in, in this library and in others, and damage never passes
for a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from workers.data.records import ShardError, features_of, read_shard, tokens_of, write_shard
from workers.data.storage import Storage
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES
from workers.runtime.shard_tables import quality_table

NAME = "shards/quality-0123.parquet"
METADATA = {
    "kind": "quality",
    "config": {"sampling": {"cfg": 2}},
    "worker": 'a "quoted" näme',
    "versions": {"torch": "2"},
}


def result(number: int, rounds: int = 3) -> Result:
    emitted = torch.arange(1, rounds + 1)
    statistics = ImageStatistics(
        emitted=emitted,
        position=emitted.cumsum(0) - emitted + 1,
        depth=torch.full((rounds,), 4),
        nodes=torch.full((rounds,), 8),
        acceptance_histogram=torch.ones(rounds, dtype=torch.int64),
        tested=torch.arange(rounds - 1, 0, -1),
        seconds={phase: 0.25 * (i + number) for i, phase in enumerate(PHASES)},
    )
    tokens = torch.randint(0, 512, (16,), generator=torch.Generator().manual_seed(number))
    return Result(
        Request(number + 7, f"a red ring, «no. {number}»", sample=number % 2), tokens, statistics
    )


RESULTS = [result(0), result(1, rounds=5), result(2, rounds=1)]
FEATURES = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * 3
SCORES = torch.tensor([0.1, 0.2, float("nan")])


def table(**changes: Any) -> pa.Table:
    given: dict[str, Any] = {"features": {"scenes": FEATURES}, "scores": {"clip_score": SCORES}}
    return quality_table(RESULTS, seed=5, batch=48, **(given | changes))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path)
    write_shard(storage, NAME, table(), METADATA)
    return storage


@pytest.mark.parametrize("place", ["local", "mock:///a"])
def test_what_is_written_comes_back(place: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path if place == "local" else place)
    write_shard(storage, NAME, table(), METADATA)
    read, metadata = read_shard(storage, NAME, kind="quality")
    assert metadata == METADATA
    assert read.num_rows == 3
    assert torch.equal(tokens_of(read), torch.stack([r.tokens for r in RESULTS]))
    assert torch.equal(features_of(read, "scenes"), FEATURES.half().float())
    rows = read.to_pylist()
    for row, original in zip(rows, RESULTS, strict=True):
        request, statistics = original.request, original.statistics
        assert (row["caption_id"], row["caption"], row["sample"]) == (
            request.caption_id,
            request.caption,
            request.sample,
        )
        assert (row["seed"], row["batch"], row["passes"]) == (5, 48, statistics.passes)
        assert row["emitted"] == statistics.emitted.tolist()
        assert row["depth"] == statistics.depth.tolist()
        assert row["nodes"] == statistics.nodes.tolist()
        assert [row[f"seconds_{phase}"] for phase in PHASES] == [
            statistics.seconds[phase] for phase in PHASES
        ]
        assert row["latency"] == pytest.approx(statistics.latency)
    assert rows[1]["score.clip_score"] == pytest.approx(0.2)
    assert read.schema.field("tokens").type == pa.list_(pa.int32())
    assert read.schema.field("features.scenes").type == pa.list_(pa.float32())


def test_some_columns_are_enough(storage: Storage) -> None:
    read, metadata = read_shard(storage, NAME, ["caption_id", "features.scenes"])
    assert read.column_names == ["caption_id", "features.scenes"]
    assert metadata["kind"] == "quality"
    with pytest.raises(
        ValueError, match=r"no column 'features\.inception'; it has caption_id, .*features\.scenes"
    ):
        read_shard(storage, NAME, ["features.inception"])


def test_pandas_reads_it(storage: Storage) -> None:
    frame = pd.read_parquet(str(storage.path(NAME)))
    assert frame["tokens"][1].tolist() == RESULTS[1].tokens.tolist()
    assert frame["features.scenes"][2].tolist() == FEATURES[2].half().tolist()
    assert frame["emitted"].map(sum).tolist() == [6, 15, 1]


def test_duckdb_reads_it(storage: Storage) -> None:
    rows = (
        duckdb.connect()
        .execute(
            f"""select tokens, "features.scenes", list_sum(emitted) / passes, typeof("features.scenes"), caption
            from '{storage.path(NAME)}' order by caption_id"""
        )
        .fetchall()
    )
    assert rows[1][0] == RESULTS[1].tokens.tolist()
    assert rows[2][1] == FEATURES[2].half().tolist()
    assert [row[2] for row in rows] == [2.0, 3.0, 1.0]
    assert rows[0][3:] == ("FLOAT[]", RESULTS[0].request.caption)


def test_features_take_the_room_of_half_floats(tmp_path: Path) -> None:
    storage, features = Storage(tmp_path), torch.randn(256, 1024)
    results = [result(number) for number in range(256)]
    write_shard(
        storage, NAME, quality_table(results, seed=0, batch=1, features={"x": features}), METADATA
    )
    assert len(storage.read(NAME)) < 1.05 * features.numel() * 2


def test_damage_at_any_place_is_noticed(storage: Storage) -> None:
    """Truncations, and a flipped bit in every byte: of the pages, the footer, the checksum itself
    and both magics.
    """
    whole = storage.read(NAME)
    read_shard(storage, NAME)
    for length in (0, 3, 4, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        storage.write(NAME, whole[:length])
        with pytest.raises(ShardError, match=r"quality-0123\.parquet: damaged.*; delete it"):
            read_shard(storage, NAME)
    path = storage.path(NAME)
    assert path is not None
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(ShardError):
            read_shard(storage, NAME, [])


def test_a_shard_under_the_name_of_another_is_refused(storage: Storage) -> None:
    other = "shards/quality-4567.parquet"
    write_shard(storage, other, table(), METADATA | {"name": other})
    assert read_shard(storage, other)[1]["name"] == other
    storage.write(NAME, storage.read(other))
    with pytest.raises(
        ShardError,
        match=r"quality-0123\.parquet: holds the content of shards/quality-4567\.parquet",
    ):
        read_shard(storage, NAME)


def test_foreign_files_are_refused(storage: Storage) -> None:
    path = storage.path(NAME)
    with pytest.raises(ShardError, match=r"not a timing file but of kind 'quality'; delete it"):
        read_shard(storage, NAME, kind="timing")
    for metadata in ({}, {b"specfrontier": b"{}"}):
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), path)
        with pytest.raises(
            ShardError, match=r"quality-0123\.parquet: written by another version of specfrontier"
        ):
            read_shard(storage, NAME)
    storage.write(NAME, b"caption,seconds\n")
    with pytest.raises(ShardError, match="not a Parquet file"):
        read_shard(storage, NAME)
    with pytest.raises(FileNotFoundError):
        read_shard(storage, "shards/nothing.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"features": {"scenes": FEATURES[:2]}},
            r"features 'scenes': shape \[2, 64\] for 3 images",
        ),
        ({"features": {"scenes": FEATURES[0]}}, "needed"),
        ({"features": {"scenes": FEATURES * 1e6}}, "not finite as float16"),
        ({"features": {"scenes": FEATURES * float("nan")}}, "not finite as float16"),
        ({"scores": {"clip_score": SCORES[:2]}}, "score 'clip_score'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, dict[str, Tensor]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(**changes)


def test_invalid_metadata_and_ragged_lists_are_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_shard(storage, NAME, table(), {"kind": "quality", "x": float("nan")})
    ragged = quality_table(RESULTS, seed=0, batch=1).set_column(
        4, "tokens", pa.array([[1], [1, 2], [3]])
    )
    with pytest.raises(ValueError, match="lists of 1 to 2 entries"):
        tokens_of(ragged)
    with pytest.raises(ValueError, match=r"no column 'features\.x'"):
        features_of(ragged, "x")
