"""The atlas's table, collected from a small store that is made here, and what is computed from
it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import atlas as atlas_module
from benchmarks import racing_atlas
from benchmarks.atlas import time_shapes
from benchmarks.atlas_table import BLOCKS, HALF, SPANS, Atlas, StepCost, collect, read_costs
from benchmarks.search import replay_seed
from benchmarks.search_problem import Problem
from benchmarks.strategies import STRATEGIES
from tests.fakes.tables import TOKENS, different_settings, make_table
from workers.data.checked_json import dump_checked, load_checked
from workers.data.records import write_shard
from workers.data.reference import Reference, write_reference
from workers.data.storage import Storage
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES
from workers.metrics.frechet import Gaussian, distance_between, distance_to_reference
from workers.runtime.shard_tables import quality_table

WIDTH, SETTINGS, IMAGES = 4, 3, 2 * HALF
REFERENCE = "reference.parquet"


def features(row: int) -> Tensor:
    """Of a setting's images, as shards keep them: rounded to float16."""
    generator = torch.Generator().manual_seed(row)
    return (torch.randn(IMAGES, WIDTH, generator=generator) + 0.3 * row).half().float()


def passes(row: int, image: int) -> int:
    return TOKENS if row == 0 else TOKENS // (row + 1) - image % 3


def shard(row: int, images: range) -> object:
    results = []
    for image in images:
        count = passes(row, image)
        emitted, ones = torch.full((count,), 2), torch.ones(count, dtype=torch.int64)
        statistics = ImageStatistics(
            emitted,
            emitted.cumsum(0),
            row * ones,
            2 * row * ones,
            torch.tensor([0, count]),
            torch.tensor([count]),
            dict.fromkeys(PHASES, 0.1),
        )
        results.append(
            Result(
                Request(image, f"caption {image}"), torch.zeros(4, dtype=torch.int64), statistics
            )
        )
    return quality_table(
        results, seed=0, batch=8, features={"tiny": features(row)[images.start : images.stop]}
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three settings, the second one tried twice; a trial that failed; shards in no order."""
    folder = tmp_path_factory.mktemp("store")
    storage = Storage(str(folder))
    configs = different_settings(SETTINGS)
    facts = ("name", "experiment", "captions", "reference", "models", "extractors")
    storage.write("identity.json", dump_checked(dict.fromkeys(facts, "")))
    real = Reference(
        (torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(9)),),
        {"identity": "tiny", "source": "s", "resize": "r", "count": 64},
    )
    write_reference(storage, REFERENCE, real)
    for row, config in enumerate(configs):
        names = []
        for start in (HALF, 0):
            names.append(f"shards/quality-{row}-{start}.parquet")
            write_shard(
                storage, names[-1], shard(row, range(start, start + HALF)), {"kind": "quality"}
            )
        trial = {
            "number": row,
            "label": f"setting {row}",
            "state": "complete",
            "config": config.to_mapping(),
        }
        storage.write(f"trials/{row:05d}.json", dump_checked({**trial, "shards": names}))
    repeated = load_checked(storage.read("trials/00001.json")) | {"number": 3, "label": "again"}
    failed = load_checked(storage.read("trials/00002.json")) | {"number": 4, "state": "failed"}
    for trial in (repeated, failed):
        storage.write(f"trials/{trial['number']:05d}.json", dump_checked(trial))
    return str(folder)


def test_collect_reads_each_setting_of_a_store_once(store: str) -> None:
    atlas = collect(store)
    assert atlas.labels == ("setting 0", "setting 1", "setting 2")
    assert atlas.passes.tolist() == [
        [passes(row, image) for image in range(IMAGES)] for row in range(SETTINGS)
    ]
    assert atlas.depth.tolist() == [0, 1, 2]
    assert atlas.nodes.tolist() == [0, 2, 4]


def test_quality_of_a_span_is_the_metric_of_its_captions(store: str) -> None:
    atlas = collect(store)
    real = Gaussian.fit(torch.from_numpy(np.array(_reference(store))))
    for place, (start, stop) in enumerate(SPANS):
        blocks = torch.arange(start, stop) % BLOCKS
        images, vanilla = features(2)[start:stop].double(), features(0)[start:stop].double()
        for name, expected in {
            "fid": distance_to_reference(images, real, blocks),
            "drift": distance_between(images, vanilla, blocks),
        }.items():
            assert atlas.quality[name][2, place, 0] == pytest.approx(expected.value)
            assert atlas.quality[name][2, place, 1:] == pytest.approx(np.array(expected.replicates))


def _reference(store: str) -> list[list[float]]:
    from workers.data.reference import read_reference

    return read_reference(Storage(store), REFERENCE).features[0].tolist()


def test_a_stored_table_is_the_same_to_single_precision(store: str, tmp_path: Path) -> None:
    atlas = collect(store)
    atlas.save(tmp_path)
    stored = Atlas.load(tmp_path)
    assert stored.configs == atlas.configs
    assert stored.labels == atlas.labels
    assert (stored.passes == atlas.passes).all()
    for name, values in atlas.quality.items():
        assert stored.quality[name] == pytest.approx(values, rel=1e-6, abs=1e-6)


def test_without_vanilla_there_is_no_table(store: str, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write("trials/00001.json", Storage(store).read("trials/00001.json"))
    with pytest.raises(ValueError, match="vanilla"):
        collect(str(tmp_path))


def test_a_speed_up_is_counts_times_costs() -> None:
    configs = different_settings(3)
    atlas = make_table(configs, np.array([1.0, 2.0, 4.0]), np.full(3, 5.0))
    costs = dict(
        zip(
            atlas.shapes,
            [StepCost(0.5, 0.01, 0.0), StepCost(0.2, 0.02, 0.0), StepCost(0.1, 0.01, 0.0)],
            strict=True,
        )
    )
    atlas = replace(atlas, costs=costs)
    span = (HALF, HALF + 24)
    vanilla = 0.5 + TOKENS * 0.01
    kept = [image for image in range(*span) if image % BLOCKS != 5]
    assert atlas.speedup(span)[1, 0] == pytest.approx(
        vanilla / (0.2 + 0.02 * atlas.passes[1, slice(*span)].mean())
    )
    assert atlas.speedup(span)[2, 1 + 5] == pytest.approx(
        vanilla / (0.1 + 0.01 * atlas.passes[2, kept].mean())
    )
    assert atlas.mean_accepted_length(span)[0].tolist() == [1.0] * (1 + BLOCKS)


def test_the_shipped_table_is_complete() -> None:
    """Its rows are found in all of its files by what the present code calls them."""
    atlas = Atlas.load()
    assert len(atlas) == 303
    assert set(atlas.shapes) == set(atlas.costs)
    for span in SPANS:
        assert np.isfinite(atlas.objectives(span)).all()
    assert atlas.predictions
    for values in atlas.predictions.values():
        assert np.isfinite(values).all()


def test_benchmarks_run_on_the_shipped_table() -> None:
    """Short runs of `benchmarks.search` and `benchmarks.racing_atlas`."""
    atlas = Atlas.load().select(range(48))
    first, second = (Problem.of(atlas, half) for half in (0, 1))
    needed, _ = replay_seed(STRATEGIES["random"], [first], seed=0)
    assert 0 < needed[0] <= needed[1] <= first.images
    stops, saved = racing_atlas.run_race(first, second, seed=0)
    assert (saved > 0) == bool(stops)


def test_shapes_that_lack_a_cost_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each relative to vanilla, which comes first; those that the file has stay as they are."""
    readings = itertools.count(1)
    monkeypatch.setattr(atlas_module, "load_folder", lambda: None)
    monkeypatch.setattr(atlas_module, "engine_for", lambda models, config, batch: config)
    monkeypatch.setattr(
        atlas_module, "_seconds", lambda config, request: (1.0, float(next(readings)))
    )
    vanilla, other, last = different_settings(3)
    time_shapes([other, vanilla], images=2, folder=tmp_path)
    first = read_costs(tmp_path)
    assert first[vanilla.shape.key] == StepCost(1.0, 1.5, 0.5), "the first two readings"
    assert set(first) == {vanilla.shape.key, other.shape.key}
    time_shapes([last, other, vanilla], images=2, folder=tmp_path)
    second = read_costs(tmp_path)
    assert set(second) == {*first, last.shape.key}
    assert {shape: second[shape] for shape in first} == first
