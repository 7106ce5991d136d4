"""How two trials differ: keys, paired values, and images."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.difference import TrialDifference, difference, trials_of
from orchestrator.front.joint import JointErrors
from orchestrator.store.sweep import Sweep
from specfrontier import Sweep as NotebookSweep
from tests.fakes.synthetic_sweeps import CAPTIONS, write_sweep
from workers.data.records import read_shard, write_shard
from workers.data.storage import Storage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("difference")
    write_sweep(folder / "one", trials=10, shards=True)
    write_sweep(folder / "two", trials=6, shards=True, name="two", seed=0)
    return folder


def between(folder: Path, first: int, second: int) -> TrialDifference:
    sweep = Sweep.open(folder / "one")
    return difference(*trials_of(sweep, first, sweep, second))


def test_keys_are_those_that_differ(folder: Path) -> None:
    found = between(folder, 1, 2)
    one, other = (found.first.config.flat(), found.second.config.flat())
    assert found.keys
    for key, values in found.keys.items():
        assert values == (one.get(key), other.get(key))
    same = [key for key in one if one.get(key) == other.get(key)]
    assert not set(same) & set(found.keys)


def test_values_are_paired(folder: Path) -> None:
    found = between(folder, 2, 3)
    entries = {entry.metric.name: entry for entry in found.metrics}
    assert set(entries) == set(found.first.metrics)
    fid = entries["fid"]
    metric = found.first.sweep.metric("fid")
    records = [found.first.record, found.second.record]
    value, error, _ = JointErrors.of(records, [metric]).difference(0, 1)
    assert [fid.difference, fid.error] == pytest.approx([value[0], error[0]])
    apart = math.hypot(fid.first.error, fid.second.error)
    assert fid.error < apart, "the captions are the same, so most of the error cancels"


def test_the_better_trial_is_named_in_both_orders(folder: Path) -> None:
    for first, second in ((1, 3), (3, 1)):
        found = between(folder, first, second)
        verdicts = {row[0]: row[-1] for row in found.tables[1][1]}
        entries = {entry.metric.name: entry for entry in found.metrics}
        for name, sign in (("speedup", 1), ("latency", -1), ("fid", -1)):
            entry = entries[name]
            is_first = sign * entry.first.value > sign * entry.second.value
            assert entry.probability is not None
            assert (entry.probability > 0.5) == is_first
            assert verdicts[name].startswith(f"{first if is_first else second} in ")


def test_lossless_settings_have_no_better_quality(folder: Path) -> None:
    found = between(folder, 0, 1)  # vanilla and eagle2
    rows = {row[0]: row for row in found.tables[1][1]}
    assert float(rows["fid"][3].partition(" ")[0]) == 0
    assert "draws" not in rows["fid"][-1]
    assert "draws" in rows["speedup"][-1]


def test_captions_are_ordered_by_how_much_their_images_differ(folder: Path) -> None:
    found = between(folder, 1, 3)
    tables = [found.first.sweep.images(number) for number in (1, 3)]
    tokens = [np.array(table["tokens"].to_pylist()) for table in tables]
    shares = (tokens[0] != tokens[1]).mean(axis=1)
    assert [each.difference for each in found.images] == sorted(shares, reverse=True)
    by_caption = {each.caption: each.difference for each in found.images}
    assert by_caption == dict(zip(CAPTIONS, shares, strict=True))


def test_features_say_how_far_images_are_apart(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=4, shards=True)
    storage = Storage(tmp_path / "sweep")
    sweep = Sweep.open(storage)
    features = {1: [[0.0, 0], [4, 0], [0, 3]], 3: [[0.0, 0], [4, 1], [0, 9]]}
    for number, rows in features.items():
        (name,) = sweep.records[number].image_shards
        table, metadata = read_shard(storage, name)
        column = pa.array(rows, pa.list_(pa.float32()))
        write_shard(storage, name, table.append_column("features.own", column), metadata)
    found = difference(*trials_of(sweep, 1, sweep, 3))
    unit = (3 + 4 + 5) / 3  # the mean distance between neighbouring captions' images
    assert [each.difference for each in found.images] == pytest.approx([6 / unit, 1 / unit, 0])
    assert [each.caption_id for each in found.images] == [2, 1, 0]


def test_trials_of_two_sweeps(folder: Path) -> None:
    one, two = Sweep.open(folder / "one"), Sweep.open(folder / "two")
    found = difference(*trials_of(one, 3, two, 3))
    assert found.names == ("synthetic#3", "two#3")
    assert not found.keys
    assert {"fid", "speedup"} <= {entry.metric.name for entry in found.metrics}
    assert not found.not_compared
    assert len(found.images) == 3


def test_other_captions_leave_out_what_depends_on_them(folder: Path, tmp_path: Path) -> None:
    captions = {"count": 192, "hash": "9c" * 8, "source": "scenes"}
    write_sweep(tmp_path / "other", 4, name="other", shards=True, captions=captions)
    other = Sweep.open(tmp_path / "other")
    found = difference(*trials_of(Sweep.open(folder / "one"), 3, other, 3))
    assert {"speedup", "step_compression"} <= {entry.metric.name for entry in found.metrics}
    assert {"fid", "images"} <= set(found.not_compared)
    assert "captions" in found.not_compared["images"]
    assert not found.images


def test_a_stopped_trial_has_no_quality_to_compare(tmp_path: Path) -> None:
    write_sweep(tmp_path, 8, stopped={6: 1}, failed=())
    sweep = Sweep.open(tmp_path)
    found = difference(*trials_of(sweep, 1, sweep, 6))
    assert {"speedup", "step_compression"} <= {entry.metric.name for entry in found.metrics}
    assert {"fid", "clip_score"} <= set(found.not_compared)


def test_a_trial_is_not_compared_with_itself(folder: Path) -> None:
    sweep = Sweep.open(folder / "one")
    with pytest.raises(QueryError, match="given twice"):
        trials_of(sweep, 1, sweep, 1)


def test_a_notebook_shows_the_tables(folder: Path) -> None:
    sweep = NotebookSweep.open(folder / "one")
    found = sweep.diff(1, 3)
    assert "speedup" in repr(found)
    assert found._repr_html_().count("<table") == 3
    assert sweep.diff(1, 3, NotebookSweep.open(folder / "two")).names[1] == "two#3"
    with pytest.raises(NoChoiceError, match="no finished trial 99"):
        sweep.diff(1, 99)


def test_sweeps_without_a_common_metric_are_refused(folder: Path, tmp_path: Path) -> None:
    own = {"own": {"direction": "maximize", "unit": "", "about": "", "needs": []}}
    write_sweep(
        tmp_path / "other", 2, name="other", metrics=own,
        objectives=[{"metric": "own", "direction": "maximize"}], constraints=[],
    )  # fmt: skip
    with pytest.raises(QueryError, match="fewer than two"):
        trials_of(Sweep.open(folder / "one"), 1, Sweep.open(tmp_path / "other"), 1)
