"""A trial in flight: the shards it needs, those that are missing, and its record."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.run.pending import PendingTrial, Planner
from orchestrator.run.study import Proposal
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.shards import Experiment
from workers.metrics.estimate import Estimate

SAMPLING = Sampling(cfg=1.5)
BASELINE = DecodingConfig(sampling=SAMPLING)
CHAIN = DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}).with_sampling(
    SAMPLING
)
EXPERIMENT = Experiment({"target": "0"}, "captions", 0, {"features": "0"}, "float32")


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    path = tmp_path / "pending.yaml"
    path.write_text(
        "name: pending\nquality: {batch: 4, shard: 8, samples: 2}\ntiming: {batch: 1, images: 2, repetitions: 2}\n"
        "space: {drafter: eagle, tree: {policy: chain, length: 3}}\n"
    )
    return Planner(SweepConfig.read(path), EXPERIMENT, BASELINE, 20, ("fid", "speedup"))


def make_trial(config: DecodingConfig | None = CHAIN, number: int = 4) -> PendingTrial:
    return PendingTrial(Proposal(number, "a chain", config, {"tree.length": 3}, {}))


def test_all_captions_are_drawn_once_and_some_are_timed(planner: Planner) -> None:
    trial = make_trial()
    tasks = planner.plan(trial, set())
    assert trial.missing == {task.name for task in tasks} == set(trial.files["quality"])
    drawn = [(task.payload["start"], task.payload["stop"]) for task in tasks if task.kind == "quality"]
    assert drawn == [(0, 8), (8, 16), (16, 20)]
    assert trial.images == 40
    timed = planner.timing_tasks(trial)
    assert {task.kind for task in timed} == {"timing"}
    assert sum(task.payload["stop"] - task.payload["start"] for task in timed) == 2
    assert all(task.payload["baseline"] == BASELINE.to_mapping() for task in timed)
    assert {task.trial for task in (*tasks, *timed)} == {4}
    assert [task.name for task in planner.plan(make_trial(number=9), set())] == [task.name for task in tasks]


def test_no_timing_shards_without_a_metric_that_needs_them(planner: Planner) -> None:
    trial = make_trial()
    assert replace(planner, metrics=("fid",)).timing_tasks(trial) == []


def test_existing_shards_get_no_task(planner: Planner) -> None:
    names = [task.name for task in planner.plan(make_trial(), set())]
    trial = make_trial()
    tasks = planner.plan(trial, set(names[:2]))
    assert [task.name for task in tasks] == names[2:]
    assert trial.missing == set(names[2:])
    whole = make_trial()
    assert planner.plan(whole, set(names)) == []
    assert whole.files["quality"] == names


def test_a_measure_task_names_the_shards_of_the_trial_and_of_vanilla(planner: Planner) -> None:
    trial, vanilla = make_trial(), make_trial(BASELINE, 0)
    planner.plan(trial, set())
    planner.plan(vanilla, set())
    trial.files |= {"timing": ["shards/timing-a"], "own_timing": ["shards/timing-b"]}
    task = planner.measure(trial, vanilla)
    assert (task.trial, task.kind, task.urgent) == (4, "measure", True)
    assert task.payload["quality"] == trial.files["quality"]
    assert (task.payload["timing"], task.payload["own_timing"]) == (["shards/timing-a"], ["shards/timing-b"])
    assert task.payload["baseline_quality"] == vanilla.files["quality"]
    assert list(task.payload["metrics"]) == ["fid", "speedup"]
    assert task.name.startswith("measures/")
    assert planner.measure(vanilla, vanilla).name != task.name
    assert task.payload["halfway"]
    trial.rungs = (20, 40)
    assert not planner.measure(trial, vanilla).payload["halfway"], "a race measures at its rungs"


def test_the_record_of_a_measured_trial(planner: Planner) -> None:
    trial = make_trial()
    planner.plan(trial, set())
    trial.seconds = 2.0
    half = {"value": 6.0, "error": 0.2, "n": 20, "replicates": [5.0, 7.0], "noise": 0.1}
    history = [[20, {"fid": half}]]
    output = {"metrics": {"fid": {"value": 5.0, "error": 0.1, "n": 40}}, "history": history, "seconds": 0.5}
    trial.finish(trial.add_measurement(output, ("fid",)))
    record = trial.record
    assert record is not None
    assert (record.state, record.number, record.label) == ("complete", 4, "a chain")
    assert (record.images, record.seconds) == (40, 2.5)
    assert record.metrics == {"fid": Estimate(5.0, 0.1, 40)}
    assert record.history == ((20, {"fid": Estimate(6.0, 0.2, 20, (5.0, 7.0), 0.1)}), (40, record.metrics))
    assert set(record.shards) == trial.missing
    assert record.params == {"tree.length": 3}
    assert record.config == CHAIN
    assert datetime.fromisoformat(record.started) <= datetime.fromisoformat(record.finished)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_trial_without_a_required_metric_has_failed(value: float | None, planner: Planner) -> None:
    trial = make_trial()
    planner.plan(trial, set())
    metrics = {"fid": {"value": 5.0, "error": None, "n": 40}}
    if value is not None:
        metrics["speedup"] = {"value": value, "error": None, "n": 40}
    output = {"metrics": metrics, "skipped": {"speedup": "no timings"}}
    trial.finish(trial.add_measurement(output, ("fid", "speedup")))
    assert trial.record is not None
    assert (trial.record.state, trial.record.cause) == ("failed", "speedup: no timings")
    assert set(trial.record.metrics) == {"fid"}


def test_the_record_of_a_failed_trial() -> None:
    trial = make_trial()
    trial.fail("OutOfMemory: at batch 4")
    assert trial.record is not None
    assert (trial.record.state, trial.record.cause, trial.record.metrics) == ("failed", "OutOfMemory: at batch 4", {})
    without = make_trial(None)
    without.fail("the space proposed an invalid config")
    assert without.record is not None
    assert without.record.config is None


def test_a_duplicate_copies_the_result_and_names_the_first_trial(planner: Planner) -> None:
    first, second, third = make_trial(number=1), make_trial(number=2), make_trial(number=3)
    planner.plan(first, set())
    first.finish(first.add_measurement({"metrics": {"fid": {"value": 5.0, "error": None, "n": 40}}}, ("fid",)))
    assert first.record is not None
    second.copy_result(first.record)
    assert second.record is not None
    third.copy_result(second.record)
    assert third.record is not None
    assert (second.record.duplicate_of, third.record.duplicate_of) == (1, 1)
    assert second.record.metrics == third.record.metrics == first.record.metrics
    assert third.record.shards == first.record.shards
    assert second.record.seconds == 0.0, "no worker time"
    failed = make_trial(number=5)
    failed.fail("no")
    assert failed.record is not None
    fourth = make_trial(number=6)
    fourth.copy_result(failed.record)
    assert fourth.record is not None
    assert (fourth.record.state, fourth.record.cause, fourth.record.duplicate_of) == ("failed", "no", 5)
