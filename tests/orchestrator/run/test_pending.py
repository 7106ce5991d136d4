"""A trial on its way: the files it needs, those that are missing, and the record it ends in."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.results.trials import Measured
from orchestrator.run.pending import Flight, Planner
from orchestrator.run.study import Proposal
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.shards import Experiment

SAMPLING = Sampling(cfg=1.5)
BASELINE = DecodingConfig(sampling=SAMPLING)
CHAIN = DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}).with_sampling(
    SAMPLING
)
EXPERIMENT = Experiment({"target": "0"}, "captions", 0, {"features": "0"}, "float32")


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    path = tmp_path / "flown.yaml"
    path.write_text(
        "name: flown\nquality: {batch: 4, shard: 8, samples: 2}\ntiming: {batch: 1, images: 2, repetitions: 2}\n"
        "space: {drafter: eagle, tree: {policy: chain, length: 3}}\n"
    )
    return Planner(SweepConfig.read(path), EXPERIMENT, BASELINE.to_mapping(), 20, ("fid", "speedup"))


def flight(config: DecodingConfig | None = CHAIN, number: int = 4) -> Flight:
    return Flight(Proposal(number, "a chain", config, {"tree.length": 3}, {}))


def test_all_captions_are_drawn_once_and_some_are_timed(planner: Planner) -> None:
    flown = flight()
    tasks = planner.plan(flown, set())
    drawn = [(task.payload["start"], task.payload["stop"]) for task in tasks if task.kind == "quality"]
    assert drawn == [(0, 8), (8, 16), (16, 20)]
    assert flown.images == 40
    timed = [task for task in tasks if task.kind == "timing"]
    assert sum(task.payload["stop"] - task.payload["start"] for task in timed) == 2
    assert all(task.payload["baseline"] == BASELINE.to_mapping() for task in timed)
    assert flown.missing == {task.name for task in tasks} == {*flown.names["quality"], *flown.names["timing"]}
    assert {task.trial for task in tasks} == {4}
    assert [task.name for task in planner.plan(flight(number=9), set())] == [task.name for task in tasks]


def test_nothing_is_timed_where_no_metric_asks_for_it(planner: Planner) -> None:
    flown = flight()
    tasks = replace(planner, timed=False).plan(flown, set())
    assert {task.kind for task in tasks} == {"quality"}
    assert flown.names["timing"] == []
    assert flown.timing == []


def test_what_is_there_is_not_asked_for_again(planner: Planner) -> None:
    names = [task.name for task in planner.plan(flight(), set())]
    flown = flight()
    tasks = planner.plan(flown, set(names[:2]))
    assert [task.name for task in tasks] == names[2:]
    assert flown.missing == set(names[2:])
    whole = flight()
    assert planner.plan(whole, set(names)) == []
    assert [*whole.names["quality"], *whole.names["timing"]] == names


def test_measuring_names_the_setting_and_vanilla(planner: Planner) -> None:
    flown, vanilla = flight(), flight(BASELINE, 0)
    planner.plan(flown, set())
    planner.plan(vanilla, set())
    task = planner.measure(flown, vanilla)
    assert (task.trial, task.kind, task.urgent) == (4, "measure", True)
    assert task.payload["quality"] == flown.names["quality"]
    assert task.payload["timing"] == flown.names["timing"]
    assert task.payload["baseline_quality"] == vanilla.names["quality"]
    assert list(task.payload["metrics"]) == ["fid", "speedup"]
    assert task.name.startswith("measures/")
    assert planner.measure(vanilla, vanilla).name != task.name


def test_a_trial_that_was_measured(planner: Planner) -> None:
    flown = flight()
    planner.plan(flown, set())
    flown.seconds = 2.0
    flown.complete(
        {"metrics": {"fid": {"value": 5.0, "error": 0.1, "n": 40}}, "history": [[20, {"fid": 6.0}]], "seconds": 0.5},
        ("fid",),
    )
    record = flown.record
    assert record is not None
    assert (record.state, record.number, record.label) == ("complete", 4, "a chain")
    assert (record.images, record.seconds) == (40, 2.5)
    assert record.metrics == {"fid": Measured(5.0, 0.1, 40)}
    assert record.history == ((20, {"fid": 6.0}),)
    assert set(record.shards) == flown.missing
    assert record.params == {"tree.length": 3}
    assert record.config == CHAIN
    assert datetime.fromisoformat(record.started) <= datetime.fromisoformat(record.finished)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_trial_without_a_wanted_metric_has_failed(value: float | None, planner: Planner) -> None:
    flown = flight()
    planner.plan(flown, set())
    metrics = {"fid": {"value": 5.0, "error": None, "n": 40}}
    if value is not None:
        metrics["speedup"] = {"value": value, "error": None, "n": 40}
    flown.complete({"metrics": metrics, "skipped": {"speedup": "no timings"}}, ("fid", "speedup"))
    assert flown.record is not None
    assert (flown.record.state, flown.record.cause) == ("failed", "speedup: no timings")
    assert set(flown.record.metrics) == {"fid"}


def test_a_trial_that_failed() -> None:
    flown = flight()
    flown.fail("OutOfMemory: at batch 4")
    assert flown.record is not None
    assert (flown.record.state, flown.record.cause, flown.record.metrics) == ("failed", "OutOfMemory: at batch 4", {})
    without = flight(None)
    without.fail("the space proposed what cannot be")
    assert without.record is not None
    assert without.record.config is None


def test_a_repeat_takes_the_result_and_names_the_first(planner: Planner) -> None:
    first, second, third = flight(number=1), flight(number=2), flight(number=3)
    planner.plan(first, set())
    first.complete({"metrics": {"fid": {"value": 5.0, "error": None, "n": 40}}}, ("fid",))
    assert first.record is not None
    second.repeat(first.record)
    assert second.record is not None
    third.repeat(second.record)
    assert third.record is not None
    assert (second.record.duplicate_of, third.record.duplicate_of) == (1, 1)
    assert second.record.metrics == third.record.metrics == first.record.metrics
    assert third.record.shards == first.record.shards
    assert second.record.seconds == 0.0, "no worker was busy with it"
    failed = flight(number=5)
    failed.fail("no")
    assert failed.record is not None
    fourth = flight(number=6)
    fourth.repeat(failed.record)
    assert fourth.record is not None
    assert (fourth.record.state, fourth.record.cause, fourth.record.duplicate_of) == ("failed", "no", 5)
