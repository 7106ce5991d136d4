"""The images that the report compares, and the heat maps: drawn from the store, with what cannot be
drawn left out.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from PIL import Image

from orchestrator.report.page import page_data, write_report
from orchestrator.report.section import Note, Subject, ignore
from orchestrator.report.sections import images
from orchestrator.report.sections.heat import heat
from orchestrator.report.sections.images import CAPTIONS, COLUMNS, embed_grids
from orchestrator.report.trials import PageTrial, page_trials
from orchestrator.store.files import write_sweep_text
from orchestrator.store.prices import read_prices
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from tests.fakes.drawn_sweeps import captions, write_drawn_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.timed_sweeps import time_again, write_timed_sweep
from tests.fakes.waiting import HANG_S
from workers.data.records import read_shard, write_shard
from workers.data.storage import Storage
from workers.loading.models_yaml import find_entry


def about(trials: Sequence[PageTrial], note: Note = ignore) -> Subject:
    """The subject of a page that shows these trials."""
    return Subject({}, (), (), None, trials, note)


def complete(sweep: Sweep) -> list[PageTrial]:
    return [trial for trial in page_trials({sweep.name: sweep}) if trial.record.state == "complete"]


def test_tiles_are_drawn_from_the_tokens(tmp_path: Path) -> None:
    write_drawn_sweep(tmp_path, captions(CAPTIONS + 10), trials=3)
    sweep = Sweep.open(tmp_path)
    notes: list[str] = []
    data = images.images(about(complete(sweep), notes.append))
    assert notes == []
    assert data["from_tokens"]
    assert data["captions"] == captions(CAPTIONS)
    assert CAPTIONS >= 48
    assert set(data["sheets"]) == {record.digest for record in sweep.records}
    target = find_entry("builtin").family.load(torch.device("cpu"), torch.float32)
    record, tile = sweep.records[1], 13
    tokens = torch.tensor([sweep.images(record.number, ["tokens"])["tokens"][tile].as_py()])
    expected = target.decode(tokens)[0].permute(1, 2, 0).numpy() * 255
    sheet = Image.open(
        io.BytesIO(base64.b64decode(data["sheets"][record.digest].partition(",")[2]))
    ).convert("RGB")
    top, left = tile // COLUMNS * data["height"], tile % COLUMNS * data["width"]
    found = np.asarray(sheet, dtype=float)[top : top + data["height"], left : left + data["width"]]
    assert np.abs(found - expected).mean() < 12, "compressed"


def store_grids(folder: Path, sweep: Sweep) -> None:
    """A grid of two by two images for each trial: three black ones and a grey one."""
    pixels = np.zeros((98, 98, 3), dtype=np.uint8)
    pixels[50:, 50:] = 200
    for record in sweep.records:
        Image.fromarray(pixels).save(folder / "pictures" / f"{record.digest}.png")


def test_without_drawing_no_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_drawn_sweep(tmp_path, captions(20), trials=3)
    store_grids(tmp_path, Sweep.open(tmp_path))
    monkeypatch.setattr(images, "_load_target", lambda *_: pytest.fail("loaded"))
    notes: list[str] = []
    data = page_data([Sweep.open(tmp_path)], notes.append, decode=False)["sections"]["images"][
        "data"
    ]
    assert not data["from_tokens"]
    assert data["sheets"]
    assert notes == []
    write_report(Storage(tmp_path), notes.append, decode=False)
    assert notes == []


@pytest.mark.parametrize("obstacle", ["changed", "missing"])
def test_a_target_that_cannot_be_loaded_leaves_the_stored_images(
    tmp_path: Path, obstacle: str
) -> None:
    write_drawn_sweep(tmp_path, captions(20), trials=3, models={"tokenizer": "00"})
    if obstacle == "missing":
        plan = yaml.safe_load((tmp_path / "sweep.yaml").read_bytes())
        plan["models"] = {"file": str(tmp_path / "gone")}
        write_sweep_text(Storage(tmp_path), yaml.safe_dump(plan))
    sweep = Sweep.open(tmp_path)
    store_grids(tmp_path, sweep)
    notes: list[str] = []
    data = images.images(about(complete(sweep), notes.append))
    assert len(notes) == 1
    assert ("changed" if obstacle == "changed" else "gone") in notes[0]
    assert not data["from_tokens"]
    assert data["captions"] == captions(4), "a grid of two by two images"
    sheet = Image.open(
        io.BytesIO(base64.b64decode(data["sheets"][sweep.records[0].digest].partition(",")[2]))
    )
    tiles = np.asarray(sheet.convert("L"))[:48].reshape(48, COLUMNS, 48).mean(axis=(0, 2))
    assert [round(float(value), -1) for value in tiles[:4]] == [0, 0, 0, 200]


@pytest.mark.parametrize("part", ["load", "decode"])
def test_any_failure_to_draw_leaves_the_stored_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    write_drawn_sweep(tmp_path, captions(20), trials=3)
    sweep = Sweep.open(tmp_path)
    store_grids(tmp_path, sweep)

    def fail(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory <is> left")

    target = SimpleNamespace(device=torch.device("cpu"), decode=fail)
    monkeypatch.setattr(images, "_load_target", fail if part == "load" else lambda *_: target)
    notes: list[str] = []
    data = images.images(about(complete(sweep), notes.append))
    assert not data["from_tokens"]
    assert set(data["sheets"]) == {record.digest for record in sweep.records}
    assert data["captions"] == captions(4)
    assert len(notes) == 1
    assert "OutOfMemoryError: no memory <is> left" in notes[0]


def test_a_trial_of_other_captions_is_left_out_with_a_note(tmp_path: Path) -> None:
    records = write_drawn_sweep(tmp_path, captions(20), trials=4)
    for record, column, value in (
        (records[1], "caption_id", range(100, 120)),
        (records[2], "caption", ["x"] * 20),
    ):
        table, metadata = read_shard(Storage(tmp_path), record.shards[0])
        at = table.column_names.index(column)
        table = table.set_column(at, column, pa.array(value, table.schema.field(column).type))
        (tmp_path / record.shards[0]).unlink()
        write_shard(Storage(tmp_path), record.shards[0], table, metadata)
    notes: list[str] = []
    data = images.images(about(complete(Sweep.open(tmp_path)), notes.append))
    assert set(data["sheets"]) == {records[0].digest, records[3].digest}
    assert data["captions"] == captions(20)
    assert [text.split(": trial ")[1][0] for text in notes] == ["1", "2"]


def test_as_many_images_are_compared_as_each_complete_trial_has(tmp_path: Path) -> None:
    """A lossless trial draws fewer, and one that racing stopped is left out."""
    write_drawn_sweep(tmp_path, captions(CAPTIONS), trials=4)
    sweep = Sweep.open(tmp_path)
    for number, count in ((1, 20), (2, 10)):
        for shard in sweep.records[number].image_shards:
            table, metadata = read_shard(sweep.storage, shard)
            write_shard(sweep.storage, shard, table.slice(0, count), metadata)
    records = list(sweep.records)
    records[1] = replace(records[1], images=20)
    records[2] = replace(records[2], images=10, state="stopped")
    notes: list[str] = []
    trials = page_trials({"sweep": replace(sweep, records=tuple(records))})
    data = images.images(about(trials, notes.append))
    assert notes == []
    assert len(data["captions"]) == 20
    assert set(data["sheets"]) == {records[number].digest for number in (0, 1, 3)}


def test_what_cannot_be_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    records = write_drawn_sweep(tmp_path, captions(5), trials=3)
    (tmp_path / records[1].shards[0]).write_bytes(b"PAR1")
    sweep = Sweep.open(tmp_path)
    for data, part in ((images.images, "sheets"), (heat, "cells")):
        notes: list[str] = []
        found = data(about(complete(sweep), notes.append))
        assert found is not None
        assert set(found[part]) == {records[0].digest, records[2].digest}
        assert len(notes) == 1
        assert records[1].shards[0] in notes[0]


def test_heat_maps_share_one_scale(tmp_path: Path) -> None:
    records = write_drawn_sweep(tmp_path, captions(4), trials=3)
    sweep = Sweep.open(tmp_path)
    data = heat(about(complete(sweep)))
    assert data is not None
    assert (data["rows"], data["columns"], data["low"], data["high"]) == (12, 12, 1, 3)
    first, *rest = data["cells"][records[1].digest]
    assert first is None, "the prefill emits the first token"
    assert set(rest) == {2.0}
    assert data["means"] == {record.digest: 1 + record.number for record in records}


def test_a_mean_accepted_length_counts_each_round_once(tmp_path: Path) -> None:
    (record,) = write_drawn_sweep(tmp_path, captions(2), trials=1)
    (shard,) = record.shards
    table, metadata = read_shard(Storage(tmp_path), shard)
    place = table.column_names.index("emitted")
    lengths = pa.array([[1, 5], [1, 5]], pa.list_(pa.int32()))
    write_shard(Storage(tmp_path), shard, table.set_column(place, "emitted", lengths), metadata)
    data = heat(about(complete(Sweep.open(tmp_path))))
    assert data is not None
    values = [value for value in data["cells"][record.digest] if value is not None]
    assert data["means"][record.digest] == 3
    assert np.mean(values) == pytest.approx(26 / 6), "a map shows five tokens of the second round"


def test_sweeps_of_other_captions_are_not_mixed(tmp_path: Path) -> None:
    sweeps = {}
    for name, count, digest in (("a", 5, "4b"), ("b", 7, "4b"), ("c", 5, "5c")):
        given = {"hash": digest, "count": count if name == "c" else 5, "source": "scenes"}
        write_drawn_sweep(tmp_path / name, captions(count), trials=2, name=name, captions=given)
        sweeps[name] = Sweep.open(tmp_path / name)
    data = images.images(about(page_trials(sweeps)))
    assert set(data["sheets"]) == {trial.key for trial in page_trials(sweeps) if trial.owner != "c"}
    assert len(set(data["sheets"].values())) == 4, "each sweep has its own images of one config"
    assert data["captions"] == captions(5)


def test_a_sweep_without_images_has_neither(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=3)
    sweep = Sweep.open(tmp_path)
    assert images.images(about(complete(sweep))) == {"sheets": {}}
    assert heat(about(complete(sweep))) is None


def reads_together(
    monkeypatch: pytest.MonkeyPatch, folder: str, count: int, alone: int = 0
) -> list[str]:
    """Each read in the folder, after the first `alone` ones, waits until `count` are under way;
    returns their names.
    """
    gate, names, read = threading.Barrier(count, timeout=HANG_S), list[str](), Storage.read

    def wait(storage: Storage, name: str) -> bytes:
        if name.startswith(f"{folder}/"):
            names.append(name)
            if len(names) > alone:
                gate.wait()
        return read(storage, name)

    monkeypatch.setattr(Storage, "read", wait)
    return names


def test_heat_maps_read_all_trials_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a bucket takes long: one read after the other is minutes at the end of a
    sweep.
    """
    records = write_drawn_sweep(tmp_path, captions(4), trials=5)
    trials = complete(Sweep.open(tmp_path))
    expected = heat(about(trials))
    names = reads_together(monkeypatch, "shards", len(records))
    assert heat(about(trials)) == expected
    assert sorted(names) == sorted(record.shards[0] for record in records)


def test_images_read_all_trials_but_the_first_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = write_drawn_sweep(tmp_path, captions(4), trials=5)
    store_grids(tmp_path, Sweep.open(tmp_path))
    trials = complete(Sweep.open(tmp_path))
    expected = images.images(replace(about(trials), decode=False))
    names = reads_together(monkeypatch, "shards", len(records) - 1, alone=1)
    assert images.images(replace(about(trials), decode=False)) == expected
    assert len(names) == len(records)


def test_image_grids_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = write_drawn_sweep(tmp_path, captions(4), trials=5)
    store_grids(tmp_path, Sweep.open(tmp_path))
    names = reads_together(monkeypatch, "pictures", len(records))
    assert list(embed_grids(complete(Sweep.open(tmp_path)))) == [
        record.digest for record in records
    ]
    assert len(names) == len(records)


def test_records_and_timing_sessions_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = write_timed_sweep(tmp_path, trials=6)
    for _ in range(2):
        time_again(Sweep.open(tmp_path), (1, 8))
    with monkeypatch.context() as patch:
        reads_together(patch, "trials", 6)
        assert [record.number for record in read_trials(sweep.storage)] == list(range(6))
    with monkeypatch.context() as patch:
        reads_together(patch, "timings", 3)
        assert len(read_prices(sweep.storage).sessions) == 3
