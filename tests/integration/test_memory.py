"""A setting that does not fit into memory: drawn at half the batch, or failed alone with its cause."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

from orchestrator.results.store import read_trials
from orchestrator.run import pool
from orchestrator.run.cluster import Slots
from orchestrator.run.launch import LaunchOptions, launch
from search_spaces.sweep import SweepConfig
from workers.actor import RUNNING_AND_ONE, Worker
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=30)
HOLDS = {2: 4, 3: 0}  # images, by the length of the chain
SPACE = """
name: scarce
quality: {batch: 8, shard: 8}
metrics: [step_compression, caption_accuracy]
objectives: [step_compression, caption_accuracy]
search: {sampler: random, parallel: 2}
budget: {trials: 4}
enqueue:
  - {label: two, drafter: eagle, tree: {policy: chain, length: 2}}
  - {label: three, drafter: eagle, tree: {policy: chain, length: 3}}
  - {label: one, drafter: eagle, tree: {policy: chain, length: 1}}
captions: {source: scenes, count: 8, seed: 1}
reference: {source: scenes, count: 96, seed: 2}
timing: {batch: 1, images: 1, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
"""


class ScarceWorker(Worker):
    """A worker whose memory is too small for some settings, in the middle of drawing them."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        import torch

        import workers.runtime.engines

        class ScarceEngine(workers.runtime.engines.StoppableEngine):
            rounds = 0

            def step(self, batch: Any) -> Any:
                self.rounds += 1
                length = getattr(self.config.policy, "length", None)
                if self.rounds > 2 and self.batch_size > HOLDS.get(length or 0, 99):
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return super().step(batch)

        workers.runtime.engines.StoppableEngine = ScarceEngine  # type: ignore[misc]
        super().__init__(spec)


def test_the_batch_is_halved_once_and_then_the_trial_fails_alone(
    ray_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote: Any = ray.remote
    monkeypatch.setattr(pool, "actor_class", lambda: remote(max_concurrency=RUNNING_AND_ONE)(ScarceWorker))
    monkeypatch.setenv("RAY_TMPDIR", str(ray_files))
    (tmp_path / "space.yaml").write_text(SPACE)
    storage, events = Storage(str(tmp_path / "store")), list[Any]()
    sweep, options = SweepConfig.read(tmp_path / "space.yaml"), LaunchOptions(slots=Slots(1))
    outcome = launch(sweep, storage, options, events.append, cores=2)
    assert not ray.is_initialized(), "another launch can follow in this process"
    records = {record.label: record for record in read_trials(storage)}
    assert [record.state for record in outcome.records] == ["complete", "complete", "failed", "complete"]
    assert records["three"].cause is not None
    assert "out of memory at batch 4: CUDA out of memory. Tried to allocate 2.00 GiB." in records["three"].cause
    assert [event["trial"] for event in events if event["event"] == "trial_finished" and event["cause"]] == [2]

    def batches(label: str) -> set[int]:
        (name,) = (name for name in records[label].shards if "/quality-" in name)
        return set(pq.read_table(tmp_path / "store" / name)["batch"].to_pylist())

    assert (batches("vanilla"), batches("two"), batches("one")) == ({8}, {4}, {8})
