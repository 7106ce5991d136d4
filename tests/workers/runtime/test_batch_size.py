"""`quality.batch: auto`: the rule, and a worker that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from search_spaces.presets import preset
from search_spaces.trial import DecodingConfig
from tests.fakes.tiny_models import tiny_scenes
from workers.data.records import read_shard
from workers.data.shards import QualityShard
from workers.evaluate import Evaluator
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.loading.models_yaml import folder_entry, shape_only_models
from workers.runtime import loaded
from workers.runtime.batch_size import MAX_ON_CPU, MAX_ON_GPU, automatic_batch
from workers.runtime.specification import WorkerSpec


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scenes(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def shapes(weights: Path) -> Models:
    return shape_only_models(folder_entry(weights), torch.bfloat16)


def peak(shapes: Models, config: DecodingConfig, batch: int) -> int:
    return footprint(shapes, config, batch, 1).with_graphs().bytes


def test_a_cpu_takes_the_same_batch_for_every_config(shapes: Models) -> None:
    assert {
        automatic_batch(shapes, preset(name), None) for name in ("vanilla", "eagle2", "sjd")
    } == {MAX_ON_CPU}


@pytest.mark.parametrize("name", ["vanilla", "eagle1"])
def test_a_gpu_takes_the_largest_power_of_two_that_fits(name: str, shapes: Models) -> None:
    """By the dry run's memory, graphs included: the next larger one does not fit, but for what
    pictures take.
    """
    config = preset(name)
    sizes = [
        automatic_batch(shapes, config, peak(shapes, config, batch)) for batch in (1, 16, 40, 64)
    ]
    assert sizes == [1, 16, 32, 64]
    assert automatic_batch(shapes, config, peak(shapes, config, 64) - 1) == 32
    assert automatic_batch(shapes, config, 1 << 50) == MAX_ON_GPU
    assert automatic_batch(shapes, config, 0) == 1


def test_larger_trees_have_smaller_batches(shapes: Models) -> None:
    memory = peak(shapes, preset("vanilla"), 64)
    assert (
        automatic_batch(shapes, preset("adt"), memory)
        < automatic_batch(shapes, preset("vanilla"), memory)
        == 64
    )


@pytest.fixture(scope="module")
def evaluator(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    store, captions = tmp_path_factory.mktemp("store"), {"source": "scenes", "count": 12, "seed": 1}
    models = folder_entry(weights).to_mapping()
    return Evaluator(WorkerSpec(store=str(store), device="cpu", models=models, captions=captions))


def test_a_worker_follows_the_rule_for_its_memory(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the networks of metrics; at most the images of the shard; once for each config."""
    config = DecodingConfig(sampling=evaluator.models.target.sampling)
    shard, calls = QualityShard(config, 0, 12, 50, "auto"), list[int | None]()

    def rule(shapes: Models, config: DecodingConfig, memory: int | None) -> int:
        calls.append(memory)
        return automatic_batch(shapes, config, memory)

    monkeypatch.setattr(loaded, "automatic_batch", rule)
    monkeypatch.setattr(loaded, "metric_bytes", lambda entry: {"a": 30, "b": 12})
    assert evaluator.batch_of(shard) == MAX_ON_CPU
    evaluator._batches.clear()
    monkeypatch.setattr(evaluator, "_memory", 1 << 50)
    assert [evaluator.batch_of(shard) for _ in range(2)] == [MAX_ON_GPU] * 2
    assert calls == [None, (1 << 50) - 42]
    assert evaluator.batch_of(QualityShard(config, 0, 12, 1, "auto")) == 12
    assert evaluator.batch_of(QualityShard(config, 0, 12, 1, 5)) == 5


def test_a_shard_has_the_same_name_and_images_at_any_batch(evaluator: Evaluator) -> None:
    config = DecodingConfig(sampling=evaluator.models.target.sampling)
    automatic, fixed = (QualityShard(config, 0, 6, 1, batch) for batch in ("auto", 4))
    assert automatic.name(evaluator.experiment) == fixed.name(evaluator.experiment)
    assert QualityShard.from_mapping(automatic.to_mapping()) == automatic
    assert evaluator.make(automatic)["ran"]
    assert not evaluator.make(fixed)["ran"]
    table = read_shard(
        evaluator.storage, automatic.name(evaluator.experiment), ["batch", "tokens"]
    )[0]
    assert set(table["batch"].to_pylist()) == {6}
    evaluator.storage.remove(automatic.name(evaluator.experiment))
    evaluator.make(fixed)
    again = read_shard(evaluator.storage, fixed.name(evaluator.experiment), ["batch", "tokens"])[0]
    assert set(again["batch"].to_pylist()) == {4}
    assert again["tokens"] == table["tokens"]
