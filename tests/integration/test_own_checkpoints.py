"""A sweep of the user's own checkpoints: tiny files in the official layout, named by a
models.yaml.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from orchestrator.launch.start import keep_identity
from orchestrator.store.identity import IdentityError, read_identity
from search_spaces.sweep import SweepConfig
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_llamagen import write_models
from workers.data.records import tokens_of
from workers.data.storage import Storage
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_entry, read_entry

pytestmark = pytest.mark.slow(seconds=8)
COUNT = 6
SPACE = """\
name: own
models: {name: classes}
captions: {source: classes.txt, count: 6}
reference: {source: none}
quality: {batch: 6, shard: 6}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 2.0}
metrics: [step_compression, mean_accepted_length]
objectives: [step_compression, mean_accepted_length]
search: {sampler: random, parallel: 2}
budget: {trials: 3}
enqueue: [vanilla, {label: loose, drafter: eagle, tree: {policy: chain, length: 3},
                    acceptance: {neighbourhood: additive, k: 20, delta: 0.4}}]
space: {drafter: eagle, tree: {policy: dynamic, depth: 2, width: 3, nodes: {low: 4, high: 8}}}
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> SweepRun:
    """A finished sweep of the class-conditional entry."""
    folder = tmp_path_factory.mktemp("own")
    write_models(folder)
    (folder / "classes.txt").write_text(
        "".join(f"{number}\n" for number in (3, 14, 159, 265, 358, 979))
    )
    run = SweepRun(folder, SPACE)
    run.run_locally("--models", "models.yaml", "--no-mlflow")
    return run


def test_every_trial_has_an_image_of_every_class(own: SweepRun) -> None:
    records = own.records
    assert [record.state for record in records] == ["complete"] * 3
    assert [record.images for record in records] == [COUNT] * 3
    metrics = [record.metrics["step_compression"].value for record in records]
    assert metrics[0] == 1
    assert metrics[1] > 1, "a relaxed rule accepts some tokens of any drafter"
    assert all(record.metrics["mean_accepted_length"].value >= 1 for record in records)


def test_the_identity_holds_the_files_hashes(own: SweepRun) -> None:
    identity = json.loads((own.store / "identity.json").read_text())
    entry = read_entry(own.folder / "models.yaml", "classes")
    assert identity["models"] == entry.hashes
    assert identity["target"] == "llamagen-c2i-32x2-48"
    assert identity["image_size"] == 48
    assert "models.yaml" in (own.store / "sweep.yaml").read_text()


def test_the_worker_used_the_files_weights(own: SweepRun) -> None:
    """The entry's target, loaded here, samples the tokens that the worker wrote."""
    models = load_entry(read_entry(own.folder / "models.yaml", "classes"), torch.device("cpu"))
    record = own.records[1]
    config = record.config
    assert config is not None
    (shard,) = [name for name in record.shards if "/quality-" in name]
    table = pq.read_table(own.store / shard)
    requests = [
        Request(*pair)
        for pair in zip(table["caption_id"].to_pylist(), table["caption"].to_pylist(), strict=True)
    ]
    engine = Engine(models.target, config, models.drafters["eagle"], seed=0, batch_size=COUNT)
    tokens_by_caption = {
        result.request.caption_id: result.tokens for result in engine.run(requests)
    }
    for tokens, request in zip(tokens_of(table), requests, strict=True):
        assert torch.equal(torch.as_tensor(tokens).long(), tokens_by_caption[request.caption_id])


def test_other_weights_are_another_sweep(own: SweepRun) -> None:
    """A sweep does not resume with changed weights."""
    path, storage = own.folder / "ckpt/c2i.pt", Storage(str(own.store))
    before, sweep = path.read_bytes(), SweepConfig.read(own.store / "sweep.yaml")
    identity = read_identity(storage)
    assert identity is not None
    state = torch.load(path)
    state["model"]["norm.weight"] *= 2
    torch.save(state, path)
    try:
        changed = replace(identity, models=read_entry(own.folder / "models.yaml", "classes").hashes)
        with pytest.raises(IdentityError, match="models"):
            keep_identity(storage, sweep, changed)
    finally:
        path.write_bytes(before)
    again = replace(identity, models=read_entry(own.folder / "models.yaml", "classes").hashes)
    assert keep_identity(storage, sweep, again) == identity
