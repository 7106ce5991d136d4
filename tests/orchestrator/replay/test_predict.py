"""The pool of a sweep: drawn once, predicted once, kept with its weights' names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.replay.predict import (
    describe_settings,
    prediction_task,
    read_pool,
    sample_settings,
)
from orchestrator.replay.sampler import SettingsPool
from orchestrator.store.lossless import QualityGroups
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.records import write_shard
from workers.data.shards import PREDICTIONS, PredictTask
from workers.data.storage import Storage
from workers.loading.models import Capabilities
from workers.metrics.definition import FEATURES, REFERENCE, TIMINGS, Metric
from workers.replay.prediction import LENGTH, QUANTITIES

SWEEP = """
name: pooled
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
search: {sampler: replay, options: {pool: 30, captions: 4}}
enqueue: [vanilla, {label: chain, drafter: eagle, tree: {policy: chain, length: 3},
           acceptance: {neighbourhood: additive, k: 10, delta: 0.1}},
          {label: outside, drafter: eagle, tree: {policy: chain, length: 9}}]
space:
  drafter: eagle
  tree: [{policy: chain, length: {low: 2, high: 6}}, {policy: dynamic, depth: 3, width: 2, nodes: 8}]
  acceptance: {neighbourhood: additive, k: 10, delta: {low: 0.01, high: 0.5, log: true}}
"""
EVERYTHING = Capabilities(
    target="scenes",
    vocab_size=512,
    rows=8,
    cols=8,
    image_size=32,
    sampling=Sampling(),
    drafters={"eagle": None},
)
FID = Metric("fid", "minimize", needs=(FEATURES, REFERENCE))
SPEED = Metric("speedup", "maximize", unit="x", needs=(TIMINGS,))
GROUPS = QualityGroups({"speedup": SPEED, "fid": FID}, Sampling(cfg=1.5), 8)


def read(changes: dict[str, Any] | None = None) -> SweepConfig:
    return SweepConfig.parse(SWEEP, "pooled.yaml", changes).resolve(Sampling())


class Worker:
    """Predicts settings by made-up numbers."""

    def __init__(self, storage: Storage, experiment: str = "e1") -> None:
        self.storage, self.experiment, self.tasks = storage, experiment, list[PredictTask]()

    def __call__(self, task: PredictTask) -> None:
        self.tasks.append(task)
        rng = np.random.default_rng(0)
        columns: dict[str, Any] = {
            "digest": [config.digest() for config in task.configs],
            "config": [json.dumps(config.to_mapping()) for config in task.configs],
            "params": list(task.params),
        }
        columns |= {name: 1 + rng.random(len(task.configs)) for name in QUANTITIES}
        columns |= {f"{name}_error": np.zeros(len(task.configs)) for name in QUANTITIES}
        metadata = {"kind": "predict", "experiment": self.experiment, "captions": task.captions}
        write_shard(self.storage, PREDICTIONS, pa.table(columns), metadata)


def sweep_pool(
    sweep: SweepConfig, storage: Storage, experiment: str, worker: Worker
) -> SettingsPool:
    if (task := prediction_task(sweep, storage, EVERYTHING, lambda line: None)) is not None:
        worker(task)
    return read_pool(sweep, storage, experiment, GROUPS)


def test_a_pool_is_predicted_once_and_read_again(tmp_path: Path) -> None:
    storage, sweep = Storage(str(tmp_path)), read()
    worker = Worker(storage)
    first = sweep_pool(sweep, storage, "e1", worker)
    again = sweep_pool(sweep, storage, "e1", worker)
    (task,) = worker.tasks
    assert (task.captions, task.batch) == (4, sweep.quality.batch)
    assert len(first) == 31, "30 settings, and the enqueued one that the space contains"
    assert first.enqueued == 1
    assert set(first.outside) == {
        sweep.enqueue[0].config.digest(),
        sweep.enqueue[2].config.digest(),
    }
    assert list(first.params) == list(again.params)
    assert np.array_equal(first.features, again.features)
    for params in first.params:
        row = first.find(params)
        assert row is not None
        assert set(params) <= set(sweep.space.parameters())


def test_a_pool_has_a_batch_size_where_the_sweep_has_none(tmp_path: Path) -> None:
    task = prediction_task(
        read({"quality.batch": "auto"}), Storage(str(tmp_path)), EVERYTHING, print
    )
    assert task is not None
    assert task.batch == 32


def test_no_recording_is_made_for_enqueued_settings_alone(tmp_path: Path) -> None:
    chains = {"drafter": "eagle", "tree": {"policy": "chain", "length": {"low": 2, "high": 6}}}
    other = {
        "label": "tree",
        "drafter": "eagle",
        "tree": {"policy": "dynamic", "depth": 2, "width": 2, "nodes": 4},
    }
    sweep = read(
        {
            "space": chains,
            "enqueue": [
                "vanilla",
                other,
                {"drafter": "eagle", "tree": {"policy": "chain", "length": 9}},
            ],
        }
    )
    worker = Worker(Storage(str(tmp_path)))
    pool = sweep_pool(sweep, worker.storage, "e1", worker)
    assert set(pool.outside) == {
        sweep.enqueue[0].config.digest(),
        sweep.enqueue[2].config.digest(),
    }


def test_a_pool_of_other_weights_is_refused(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    sweep_pool(read(), storage, "e1", Worker(storage))
    with pytest.raises(ValueError, match=rf"{PREDICTIONS}.*other weights"):
        sweep_pool(read(), storage, "e2", Worker(storage))
    storage.write(PREDICTIONS, b"no table")
    with pytest.raises(ValueError, match=PREDICTIONS):
        sweep_pool(read(), storage, "e1", Worker(storage))


def test_other_samplers_have_no_pool(tmp_path: Path) -> None:
    sweep = read({"search.sampler": "tpe", "search.options": {}})
    assert prediction_task(sweep, Storage(str(tmp_path)), EVERYTHING, lambda line: None) is None


def test_a_space_that_replay_cannot_describe_is_refused_before_anything_is_drawn(
    tmp_path: Path,
) -> None:
    worker = Worker(Storage(str(tmp_path)))
    greedy = {"sampling": {"temperature": 0, "top_k": 0, "top_p": 1.0, "cfg": 1.5}}
    with pytest.raises(
        ValueError, match=r"^space: replay can describe none of its settings \(.*temperature"
    ):
        sweep_pool(read(greedy), worker.storage, "e1", worker)
    assert not worker.tasks


def test_settings_that_cannot_run_are_not_drawn() -> None:
    small = replace(EVERYTHING, rows=2, cols=2)  # 4 tokens: no deeper chains
    drawn = list(sample_settings(read(), small, 20))[3:]
    assert drawn
    assert max(config.policy.bounds.depth for config, _ in drawn) <= 4
    assert len({config for config, _ in drawn}) == len(drawn)


def test_a_small_finite_space_is_drawn_to_its_end() -> None:
    space = {"drafter": "eagle", "tree": {"policy": "chain", "length": {"low": 2, "high": 4}}}
    drawn = list(sample_settings(read({"space": space}), EVERYTHING, 100))
    assert sorted(config.policy.bounds.depth for config, _ in drawn[1:]) == [2, 3, 3, 4, 9]


@pytest.mark.parametrize(("option", "value"), [("pool", 1), ("captions", 1), ("pool", "many")])
def test_unusable_options_are_refused_by_their_key(option: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        read({f"search.options.{option}": value})
    assert refused.value.path == ("search", "options", option)


def test_features_are_counts_and_costs() -> None:
    """Exact values: passes, drafted levels and nodes per token; one column per kind; square roots
    of costs.
    """
    chain, window = (
        DecodingConfig.from_mapping(
            {
                "drafter": drafter,
                "tree": {"policy": "chain", "length": 3},
                "acceptance": {"schedule": "constant", "budget": 1.5},
            }
        )
        for drafter in ("eagle", "jacobi")
    )
    values = {LENGTH: [1.0, 2.0, 1.5], "excess": [0.0, 0.25, 1.0], "surprise": [0.0, -0.09, 0.04]}
    configs = [DecodingConfig(), chain, window]
    features, guesses = describe_settings(configs, values, cols=8)
    assert np.allclose(guesses, [[1.0, 0.5], [1.3 / 2, 0.5], [1.3 / 1.5, 2.0]]), "mean ranks"
    counts = [
        [0, 0, 0],
        [np.log(1 / 2), np.log(4 / 2), np.log(4 / 2)],
        [np.log(1 / 1.5), np.log(4 / 1.5), np.log(4 / 1.5)],
    ]
    kinds = [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0]]  # drafter, tree
    relaxation = [[0, 0], [0.5, -0.3], [1.0, 0.2]]
    expected = np.concatenate(
        [np.array(part, dtype=np.float64) for part in (counts, kinds, relaxation)], axis=1
    )
    first = features.shape[1] // 2
    assert np.allclose(features[:, :first], expected)
    assert np.allclose(features[1:, first:], expected[1:])
    anywhere = [*expected[1:, :-2].mean(axis=0), 0, 0]
    assert np.allclose(features[0, first:], anywhere), "vanilla's quality depends on no drafter"


def test_what_differs_in_the_sampling_is_described() -> None:
    samplings = [
        Sampling(cfg=1.5),
        Sampling(cfg=1.5, top_k=100),
        Sampling(cfg=3.0, dynamic_temperature=EntropyTemperature()),
    ]
    configs = [DecodingConfig(sampling=sampling) for sampling in samplings]
    values = {name: [1.0] * 3 for name in QUANTITIES}
    features, _ = describe_settings(configs, values, cols=8)
    quality = features[:, features.shape[1] // 2 :]
    varying = quality[:, np.ptp(quality, axis=0) > 0]
    assert varying.T.tolist() == [
        [0.0, 0.0, 2.5],  # amplitude
        [1.5, 1.5, 3.0],  # guidance
        [1.0, 1.0, 0.0],  # constant temperature
        [0.0, 0.0, 1.0],  # by entropy
        [0.0, 0.0, 3.0],  # scale
        [0.0, 0.0, 0.6],  # theta
        [0.0, 0.01, 0.0],  # the inverse of top-k
    ]


def test_a_pool_says_what_depends_on_the_quality_of_images_alone(tmp_path: Path) -> None:
    limits = ["fid <= 1.1 * vanilla", "speedup >= 1"]
    changes = {"objectives": ["speedup", "fid"], "constraints": limits}
    pool = sweep_pool(read(changes), Storage(str(tmp_path)), "e1", Worker(Storage(str(tmp_path))))
    assert pool.quality is not None
    assert pool.quality.objectives == {1}
    assert pool.quality.constraints == {"fid <= 1.1 * vanilla"}
    assert pool.features.shape[1] == 2 * pool.quality.first
