"""A setting that does not fit into memory runs at half the batch, or its trial alone fails."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.fakes.real_sweeps import SweepRun
from workers.runtime import engines
from workers.runtime.engines import CancellableEngine

pytestmark = pytest.mark.slow(seconds=5)
LARGEST_BATCH = {2: 4, 3: 0}  # images that fit into memory, by the chain's length
SPACE = """
name: scarce
models: WEIGHTS
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


class ScarceEngine(CancellableEngine):
    """Runs out of memory in its third round if the batch is too large for the setting."""

    rounds = 0

    def step(self, batch: Any) -> Any:
        self.rounds += 1
        length = getattr(self.config.policy, "length", 0)
        if self.rounds > 2 and self.batch_size > LARGEST_BATCH.get(length, math.inf):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().step(batch)


def test_the_batch_is_halved_once_and_then_the_trial_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CancellableEngine", ScarceEngine)
    run = SweepRun(tmp_path, SPACE)
    run.run_locally("--no-mlflow")
    records = {record.label: record for record in run.records}
    states = {label: record.state for label, record in records.items()}
    assert states == {"vanilla": "complete", "two": "complete", "three": "failed", "one": "complete"}
    cause = records["three"].cause
    assert cause is not None
    assert "out of memory at batch 4" in cause
    assert "Tried to allocate 2.00 GiB" in cause

    def batches(label: str) -> set[int]:
        (name,) = (name for name in records[label].shards if "/quality-" in name)
        return set(pq.read_table(run.store / name)["batch"].to_pylist())

    assert (batches("vanilla"), batches("two"), batches("one")) == ({8}, {4}, {8})
