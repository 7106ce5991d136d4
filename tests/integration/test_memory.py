"""A setting that does not fit into memory runs at half the batch, or its trial alone fails."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from orchestrator.store.records import TrialRecord
from tests.fakes.real_sweeps import SweepRun
from workers.runtime import batch_size, engines
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
    assert states == {
        "vanilla": "complete",
        "two": "complete",
        "three": "failed",
        "one": "complete",
    }
    cause = records["three"].cause
    assert cause is not None
    assert "out of memory at batch 4" in cause
    assert "Tried to allocate 2.00 GiB" in cause

    assert [_batches(run, records[label]) for label in ("vanilla", "two", "one")] == [[8], [4], [8]]


def _batches(run: SweepRun, record: TrialRecord) -> list[int]:
    """The batch size of each of a trial's quality shards."""
    tables = (pq.read_table(run.store / name) for name in record.shards if "/quality-" in name)
    return [size for table in tables for size in set(table["batch"].to_pylist())]


def test_a_sweep_chooses_its_batch_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard at half of the batch that the rule gives, where memory runs out; a resumed sweep
    generates what lacks.
    """
    monkeypatch.setattr(batch_size, "MAX_ON_CPU", 4)
    monkeypatch.setattr(engines, "CancellableEngine", ScarceEngine)
    monkeypatch.setitem(LARGEST_BATCH, 2, 2)
    text = SPACE.replace("batch: 8, shard: 8", "batch: auto, shard: 5").replace(
        "trials: 4", "trials: 2"
    )
    run = SweepRun(tmp_path, text)
    run.run_locally("--no-mlflow")
    first = run.records
    run.run_locally("--no-mlflow", "--resume", "--trials", "4")
    records = {record.label: record for record in run.records}
    assert run.records[:2] == first
    assert {label: record.state for label, record in records.items()} == {
        "vanilla": "complete", "two": "complete", "three": "failed", "one": "complete"
    }  # fmt: skip
    assert [_batches(run, records[label]) for label in ("vanilla", "two", "one")] == [
        [4, 3],
        [2, 1],
        [4, 3],
    ]
