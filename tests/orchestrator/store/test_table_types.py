"""The types of a column depend on its name alone: tools read the tables of several sweeps
together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from orchestrator.errors import QueryError
from orchestrator.front.front import front_of
from orchestrator.store.files import FRONT_TABLE, TRIAL_TABLE
from orchestrator.store.identity import write_identity
from orchestrator.store.records import COLUMNS, TrialRecord, write_trial
from orchestrator.views.tables import write_tables
from search_spaces.params import ConfigError
from search_spaces.presets import PRESETS
from search_spaces.schedules import SCHEDULES, Constant
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, flat_types
from specfrontier import Sweep
from tests.fakes.synthetic_sweeps import SAMPLING, identity, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

FACTS = {
    "number": pa.int64(),
    "label": pa.string(),
    "state": pa.string(),
    "cause": pa.string(),
    "feasible": pa.bool_(),
    "digest": pa.string(),
    "images": pa.int64(),
    "seconds": pa.float64(),
    "duplicate_of": pa.int64(),
    "started": pa.string(),
    "finished": pa.string(),
    "lossless": pa.bool_(),
    "front": pa.bool_(),
}


def write(folder: Path, configs: Mapping[str, Any], value: float = 2) -> None:
    """A sweep of complete trials with these configs and whole numbers without errors as metrics."""
    storage = Storage(str(folder))
    write_identity(storage, identity(folder.name))
    for number, (label, config) in enumerate(configs.items()):
        setting = (
            config if isinstance(config, DecodingConfig) else DecodingConfig.from_mapping(config)
        )
        metrics = {name: Estimate(value + number, math.inf, 8) for name in ("speedup", "fid")}
        write_trial(
            storage,
            TrialRecord(
                number, label, "complete", setting.with_sampling(SAMPLING), metrics=metrics
            ),
        )
    write_tables(Sweep.open(storage))


@pytest.fixture
def sweeps(tmp_path: Path) -> Path:
    """Sweeps of other spaces: one with failures and repetitions, one with none, one of failures
    alone.
    """
    write_sweep(tmp_path / "failures", 12, failed=(7,), repeated={9: 6})
    write_sweep(tmp_path / "broken", 3, failed=(0, 1, 2))
    for name in ("failures", "broken"):
        write_tables(Sweep.open(Storage(str(tmp_path / name))))
    tree = {"policy": "adjacency", "beta": 2, "radius": 3, "depth_range": [2, 8]}
    relaxed = {
        "neighbourhood": "additive",
        "k": 10,
        "delta": 1,
        "schedule": "linear",
        "budget": 2,
        "slope": 0,
    }
    configs = {
        "vanilla": PRESETS["vanilla"],
        "adt": {"drafter": "eagle", "tree": tree, "acceptance": relaxed},
    }
    write(tmp_path / "whole", configs | {"gsd": PRESETS["gsd"]})
    return tmp_path


def schemas(folder: Path) -> dict[str, dict[str, pa.DataType]]:
    """The columns' types by table."""
    tables = [*folder.glob(f"*/{TRIAL_TABLE}"), *folder.glob(f"*/{FRONT_TABLE}")]
    return {
        str(path): dict(zip((s := pq.read_schema(path)).names, s.types, strict=True))
        for path in tables
    }


def test_a_column_has_one_type_in_every_table(sweeps: Path) -> None:
    found: dict[str, set[pa.DataType]] = {}
    for columns in (tables := schemas(sweeps)).values():
        assert {*FACTS} - {"front"} <= columns.keys()
        for name, kind in columns.items():
            found.setdefault(name, set()).add(kind)
    assert len(tables) == 6
    assert {
        name: kinds for name, kinds in found.items() if len(kinds) > 1 or pa.null() in kinds
    } == {}
    assert {name: found[name] for name in FACTS} == {name: {kind} for name, kind in FACTS.items()}
    whole = (
        "acceptance.delta",
        "acceptance.slope",
        "tree.beta",
        "tree.radius",
        "sampling.temperature",
        "fid_error",
    )
    assert {name: found[name] for name in whole} == {key: {pa.float64()} for key in whole}
    assert found["acceptance.k"] == found["tree.nodes"] == {pa.int64()}
    assert found["tree.depth_range"] == {pa.string()}


def test_a_new_column_is_one_entry(sweeps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shards(record: TrialRecord, _: object) -> int:
        return len(record.shards)

    monkeypatch.setitem(COLUMNS, "shards", (int, shards))
    for name in ("failures", "broken"):
        sweep = Sweep.open(sweeps / name)
        found = sweep.trials()["shards"]
        assert (found.type, found.to_pylist()) == (
            pa.int64(),
            [len(record.shards) for record in sweep.records],
        )
        assert "shards" in sweep.front().column_names


def test_arrow_and_duckdb_read_several_sweeps_at_once(sweeps: Path) -> None:
    files = sorted(sweeps.glob(f"*/{TRIAL_TABLE}"))
    for order in (files, files[::-1]):
        table = ds.dataset([str(path) for path in order]).to_table(columns=[*FACTS, "drafter.kind"])
        assert (table.num_rows, table["cause"].null_count) == (18, 14)
    schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in files])
    assert (
        ds.dataset([str(path) for path in files], schema=schema).to_table()["fid"].null_count == 4
    )
    query = f"""SELECT count(*), count(duplicate_of), sum("acceptance.delta") > 0, typeof(any_value(duplicate_of))
                FROM read_parquet('{sweeps}/*/{TRIAL_TABLE}', union_by_name=true)"""
    assert duckdb.connect().execute(query).fetchone() == (18, 1, True, "BIGINT")


def test_an_empty_sweep_has_the_same_columns(sweeps: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path / "empty", 0)
    empty, full = Sweep.open(tmp_path / "empty"), Sweep.open(sweeps / "failures")
    assert dict(zip(empty.trials().column_names, empty.trials().schema.types, strict=True)) == FACTS
    assert (
        pa.concat_tables([empty.trials(), full.trials()], promote_options="default").num_rows == 12
    )
    columns = empty.front().schema
    assert all(
        columns.field(name).type == full.front().schema.field(name).type for name in columns.names
    )
    pq.write_table(empty.trials(), tmp_path / "empty.parquet")
    files = [str(tmp_path / "empty.parquet"), str(sweeps / "failures" / TRIAL_TABLE)]
    assert ds.dataset(files).to_table().num_rows == 12
    assert front_of([empty, full]).candidates, "sweeps are joined without changes of types"


def test_images_of_a_sweep_without_any_have_their_columns(tmp_path: Path) -> None:
    write_sweep(tmp_path, 2, failed=(0, 1))
    images = Sweep.open(tmp_path).images()
    assert (images.num_rows, images.schema.field("tokens").type) == (0, pa.list_(pa.int32()))
    assert images.schema.field("number").type == pa.int64()
    assert Sweep.open(tmp_path).images(columns=["latency"]).column_names == ["number", "latency"]


def test_a_key_that_no_trial_has_keeps_its_type_in_filters(sweeps: Path) -> None:
    sweep = Sweep.open(sweeps / "whole")
    assert sweep.trials(["tree.width >= 2"]).num_rows == 0
    with pytest.raises(QueryError, match=r"tree\.width holds numbers"):
        sweep.trials(["tree.width = wide"])
    with pytest.raises(QueryError, match=r"tree\.paths holds text"):
        sweep.trials(["tree.paths < 3"])


def test_every_key_of_a_config_has_the_type_of_its_field() -> None:
    types = flat_types()
    for config in PRESETS.values():
        assert {key: type(value) for key, value in config.flat().items()}.items() <= types.items()


def test_a_plugin_cannot_give_a_key_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, slots=True)
    class Worded(Constant):
        kind: ClassVar[str] = "worded"
        slope: Annotated[str, "a word"] = "steep"

    monkeypatch.setitem(SCHEDULES._entries, "worded", Worded)
    with pytest.raises(
        ConfigError, match=r"^acceptance: .*Worded.* 'slope' is str here but float in 'linear'"
    ):
        SweepConfig.from_mapping({"name": "clash", "enqueue": ["vanilla"]})
