"""A sweep that times its settings at several batch sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.errors import WRONG_USAGE
from orchestrator.report.page import page_data
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow_sync import find_location
from tests.fakes.command_line import error_of
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_models import tiny_scored
from workers.data.records import read_shard
from workers.data.shards import TIMINGS

SPACE = """
name: sizes
models: WEIGHTS
captions: {count: 8}
reference: {source: none}
quality: {batch: 8, shard: 8}
timing: {batch: [1, 2], images: 2, repetitions: 1}
metrics: [speedup, mean_accepted_length, caption_accuracy]
objectives: [mean_accepted_length, caption_accuracy]
enqueue: [vanilla, {drafter: eagle, tree: {policy: chain, length: 3}}]
budget: {trials: 2}
space: {drafter: eagle, tree: {policy: chain, length: 2}}
"""


@pytest.fixture
def run(tmp_path: Path) -> SweepRun:
    return SweepRun(tmp_path, SPACE, models=tiny_scored)


def test_speeds_are_measured_at_each_size(run: SweepRun, empty_database: Path) -> None:
    run.store.parent.mkdir()
    shutil.copy(empty_database, run.store.parent / "mlflow.db")
    run.run_locally()
    sweep = Sweep.open(run.store)
    assert {"speedup", "speedup_batch2"} <= sweep.identity.metrics.keys()
    assert "latency_batch2" not in sweep.identity.metrics, "latency was not asked for"
    for name in sweep.storage.names(TIMINGS):
        table, _ = read_shard(sweep.storage, f"{TIMINGS}/{name}", fix="")
        assert set(table.column("batch").to_pylist()) == {1, 2}
    vanilla, chain = sweep.records
    assert vanilla.metrics["speedup_batch2"].value == 1
    assert chain.metrics["speedup"].value != chain.metrics["speedup_batch2"].value
    there = Sweep.open(sweep.storage, batch=2).records[1].metrics
    assert (
        there["speedup"].value
        == there["speedup_batch2"].value
        == chain.metrics["speedup_batch2"].value
    )
    (section,) = [
        entry for name, entry in page_data([sweep])["sections"].items() if name == "batches"
    ]
    assert section["data"]["sizes"] == [1, 2]
    row = next(row for row in section["data"]["rows"] if row[0] == "1")
    assert row[3] == [
        chain.metrics["speedup_batch2"].value,
        chain.metrics["speedup_batch2"].known_error,
    ]
    uri = f"sqlite:///{run.store.parent}/mlflow.db"
    client, run_id = MlflowClient(uri), find_location(sweep, uri).runs[1]
    points = [
        (point.step, point.value) for point in client.get_metric_history(run_id, "by_batch/speedup")
    ]
    assert sorted(points) == [
        (1, chain.metrics["speedup"].value),
        (2, chain.metrics["speedup_batch2"].value),
    ]
    assert (sweep.identity.timing_batch, sweep.identity.timing["batch"]) == (1, [1, 2])


def test_a_speed_at_a_size_that_is_not_timed_is_refused(run: SweepRun) -> None:
    words = run.arguments("--no-mlflow", "--check", "--set")
    refused = error_of(*words, "metrics=[speedup_batch8, caption_accuracy]", code=WRONG_USAGE)
    assert "metrics[0]: speedup_batch8: timing.batch lacks 8" in refused
