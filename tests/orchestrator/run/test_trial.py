"""A trial: the measurements that it yields, and its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.instant import EXPERIMENT, InstantWorkers
from orchestrator.cluster.tasks import SweepError, Task
from orchestrator.run.build import Build, Result
from orchestrator.run.running import copy_record
from orchestrator.run.search import Proposal
from orchestrator.run.trial import BASELINE, Plan, Steps, Trials, make_record, names
from orchestrator.store.events import Event, TrialStarted
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.shards import TOKEN_CHECK
from workers.data.storage import Storage
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

SAMPLING = Sampling(cfg=1.5)
VANILLA = DecodingConfig(sampling=SAMPLING)
CHAIN = DecodingConfig.from_mapping(
    {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
).with_sampling(SAMPLING)
SWEEP = """
name: tried
quality: {batch: 4, shard: 8, samples: 2, lossless: measure}
timing: {batch: 1, images: 2, repetitions: 2}
objectives: [{metric: fid, direction: minimize}, {metric: speedup, direction: maximize}]
space: {drafter: eagle, tree: {policy: chain, length: 3}}
"""
COUNTS = {"metrics": ["fid"], "objectives": [{"metric": "step_compression"}, {"metric": "fid"}]}
OBJECTIVES = [Metric("fid", "minimize"), Metric("speedup", "maximize")]
GROUPS = QualityGroups({metric.name: metric for metric in OBJECTIVES}, SAMPLING, 8)
FID, SPEED = {"value": 5.0, "error": 0.1, "n": 40}, {"value": 2.0, "error": 0.1, "n": 9}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "tried.yaml"
    path.write_text(SWEEP)
    return Plan(SweepConfig.read(path), EXPERIMENT, VANILLA, 20, GROUPS)


def make_trials(plan: Plan, folder: Path, events: list[Event] | None = None) -> Trials:
    emit = ([] if events is None else events).append
    return Trials(plan, Build(Storage(folder), InstantWorkers(), emit), OBJECTIVES, emit, earlier=0)


def proposal(config: DecodingConfig | None = CHAIN, number: int = 4) -> Proposal:
    return Proposal(number, "a chain", config, {"tree.length": 3}, {})


def end(steps: Steps, output: Mapping[str, Any], number: int = 4) -> TrialRecord:
    """The record of a trial whose first measurement has this output."""
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(Result((number,), output))
    record: TrialRecord = ended.value.value
    return record


def test_all_captions_are_generated_once_and_some_are_timed(plan: Plan) -> None:
    (rung,) = plan.rungs(CHAIN)
    assert rung.images == plan.images == 40
    spans = [(target.payload["start"], target.payload["stop"]) for target in rung.files]
    assert spans == [(0, 8), (8, 16), (16, 20)]
    timing = plan.session([CHAIN], 0)
    assert timing.payload["stop"] - timing.payload["start"] == 2
    assert timing.payload["configs"] == [VANILLA.to_mapping(), CHAIN.to_mapping()]
    assert names(plan.rungs(CHAIN)[0].files) == names(rung.files)


def test_no_timing_without_a_metric_that_needs_it(plan: Plan, tmp_path: Path) -> None:
    unpriced = SweepConfig.read(str(tmp_path / "tried.yaml"), COUNTS)
    target = next(make_trials(replace(plan, sweep=unpriced), tmp_path).run(proposal()))
    assert target.payload["timing"] == []


def test_a_measurement_names_the_trials_shards_and_vanillas(plan: Plan, tmp_path: Path) -> None:
    prepared = Task("reference", {"kind": "reference"})
    trials = make_trials(replace(plan, prepared=(prepared,)), tmp_path)
    first, second = (next(trials.run(proposal(number=number))) for number in (4, 5))
    (rung,) = plan.rungs(CHAIN)
    assert first.is_measurement
    assert first.name.startswith("measures/")
    assert first.payload["quality"] == list(names(rung.files))
    assert first.payload["baseline_quality"] == list(names(plan.baseline_images))
    assert first.payload["timing"] == [session.name for session in trials.sessions.made]
    assert list(first.payload["metrics"]) == ["fid", "speedup"]
    assert first.payload["halfway"]
    needed = {
        *first.payload["quality"],
        *first.payload["timing"],
        *first.payload["baseline_quality"],
        "reference",
    }
    assert set(names(first.needs)) == needed
    assert second.name == first.name
    assert next(trials.run(proposal(VANILLA, BASELINE))).name != first.name


def test_a_race_measures_at_its_rungs(plan: Plan, tmp_path: Path) -> None:
    raced = SweepConfig.read(str(tmp_path / "tried.yaml"), {"racing": {"rungs": [8, 12]}})
    trials = make_trials(replace(plan, sweep=raced), tmp_path)
    target = next(trials.run(proposal()))
    assert not target.payload["halfway"]
    assert [rung.images for rung in trials.plan.rungs(CHAIN)] == [16, 24, 40]
    assert target.payload["quality"] == list(names(trials.plan.rungs(CHAIN)[0].files))
    stopped = make_record(proposal(), "stopped", images=16, shards=())
    resumed = next(trials.run(proposal(), stopped))
    assert resumed.payload["quality"] == list(names(trials.plan.rungs(CHAIN)[1].files))


def test_a_trial_says_how_much_it_lacks(plan: Plan, tmp_path: Path) -> None:
    events: list[Event] = []
    Storage(tmp_path).write(plan.rungs(CHAIN)[0].files[0].name, b"")
    next(make_trials(plan, tmp_path, events).run(proposal()))
    (event,) = [event for event in events if isinstance(event, TrialStarted)]
    assert (event.trial, event.images, event.shards, event.total_shards) == (4, 40, 2, 3)


def test_the_record_of_a_measured_trial(plan: Plan, tmp_path: Path) -> None:
    trials = make_trials(plan, tmp_path)
    trials.build.seconds[4] = 2.5
    half = {"value": 6.0, "error": 0.2, "n": 20, "replicates": [5.0, 7.0], "noise": 0.1}
    output = {
        "metrics": {"fid": FID, "speedup": SPEED},
        "history": [[20, {"fid": half}]],
        "passes": {"1": [30.0, 29.0]},
    }
    record = end(trials.run(proposal()), output)
    assert (record.state, record.number, record.label) == ("complete", 4, "a chain")
    assert (record.images, record.seconds) == (40, 2.5)
    assert record.metrics == {"fid": Estimate(5.0, 0.1, 40), "speedup": Estimate(2.0, 0.1, 9)}
    assert record.history == (
        (20, {"fid": Estimate(6.0, 0.2, 20, (5.0, 7.0), 0.1)}),
        (40, record.metrics),
    )
    assert set(record.shards) == {*names(plan.rungs(CHAIN)[0].files), trials.sessions.made[-1].name}
    assert record.shape == CHAIN.shape.key
    assert record.passes == {1: (30.0, 29.0)}
    assert (record.params, record.config) == ({"tree.length": 3}, CHAIN)
    assert datetime.fromisoformat(record.started) <= datetime.fromisoformat(record.finished)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_trial_without_a_required_metric_has_failed(
    value: float | None, plan: Plan, tmp_path: Path
) -> None:
    metrics = {"fid": FID} | ({} if value is None else {"speedup": SPEED | {"value": value}})
    output = {"metrics": metrics, "skipped": {"speedup": "no timings"}}
    record = end(make_trials(plan, tmp_path).run(proposal()), output)
    assert (record.state, record.cause) == ("failed", "speedup: no timings")
    assert set(record.metrics) == {"fid"}
    with pytest.raises(SweepError, match="vanilla, the baseline"):
        end(make_trials(plan, tmp_path).run(proposal(VANILLA, BASELINE)), output)


def test_the_record_of_a_failed_trial(plan: Plan, tmp_path: Path) -> None:
    steps = make_trials(plan, tmp_path).run(proposal())
    target = next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(
            Result((4,), None, frozenset(target.payload["quality"][:1]), "OutOfMemory: at batch 4")
        )
    record = ended.value.value
    assert (record.state, record.cause, record.metrics) == ("failed", "OutOfMemory: at batch 4", {})
    assert make_record(proposal(None), "failed").config is None


def test_a_trial_that_needs_images_of_vanilla_that_failed_ends_the_sweep(
    plan: Plan, tmp_path: Path
) -> None:
    steps = make_trials(plan, tmp_path).run(proposal())
    target = next(steps)
    with pytest.raises(SweepError, match="vanilla, the baseline"):
        steps.send(
            Result((4,), None, frozenset(target.payload["baseline_quality"][:1]), "DecodingError")
        )


def test_a_lost_file_is_wanted_again(plan: Plan, tmp_path: Path) -> None:
    steps = make_trials(plan, tmp_path).run(proposal())
    target = next(steps)
    assert (
        steps.send(Result((4,), None, frozenset(target.payload["quality"][:1]))).name == target.name
    )


def test_a_duplicate_copies_the_result_and_names_the_first_trial(
    plan: Plan, tmp_path: Path
) -> None:
    first = end(
        make_trials(plan, tmp_path).run(proposal(number=1)),
        {"metrics": {"fid": FID, "speedup": SPEED}},
    )
    second = copy_record(proposal(number=2), first)
    third = copy_record(proposal(number=3), second)
    assert (second.duplicate_of, third.duplicate_of) == (1, 1)
    assert second.metrics == third.metrics == first.metrics
    assert third.shards == first.shards
    assert second.seconds == 0.0, "no worker time"
    failed = copy_record(proposal(number=6), make_record(proposal(number=5), "failed", cause="no"))
    assert (failed.state, failed.cause, failed.duplicate_of) == ("failed", "no", 5)


NEEDS = {"fid": ("features", "reference"), "speedup": ("timings",)}
METRICS = {name: Metric(name, "minimize", needs=needs) for name, needs in NEEDS.items()}
DRIFT = Metric("drift", "minimize", needs=("features", "baseline"))
CHECK = {"images": 16, "tokens": 1024, "z": 0.1, "p_value": 0.9, "impossible": 0}
FAILED_CHECK = CHECK | {"z": 6.0, "p_value": 1e-8}
CHECKING = {"batch": 4, "shard": 8, "samples": 2, "lossless": "check"}
ROUGH = {"1": [60.0, 58.6, 61.4]}
PRECISE = {"1": [60.0, 59.0, 61.0]}


@pytest.fixture
def checking(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan whose lossless trials may end at 8 and 16 of 20 captions."""
    monkeypatch.setattr("orchestrator.run.trial.BLOCKS", 8)
    sweep = SweepConfig.read(str(tmp_path / "tried.yaml"), {"quality": CHECKING})
    return replace(plan, sweep=sweep, groups=QualityGroups(METRICS, SAMPLING, 8))


def test_a_lossless_trial_ends_once_its_passes_are_precise(checking: Plan, tmp_path: Path) -> None:
    """At a standard error of 2 %: of the passes 59 and 61, 1.0 of 60; of 58.6 and 61.4, 1.4."""
    assert [rung.images for rung in checking.check_rungs(CHAIN)] == [16, 32]
    steps = make_trials(checking, tmp_path).run(proposal())
    first = next(steps)
    assert first.payload["check"]
    assert first.payload["metrics"] == ["speedup"]
    assert first.payload["quality"] == list(names(checking.check_rungs(CHAIN)[0].files))
    output = {"metrics": {"speedup": SPEED}, "check": CHECK}
    second = steps.send(Result((4,), output | {"passes": ROUGH}))
    assert second.payload["quality"] == list(names(checking.check_rungs(CHAIN)[1].files))
    with pytest.raises(StopIteration) as ended:
        steps.send(Result((4,), output | {"passes": PRECISE}))
    record: TrialRecord = ended.value.value
    assert (record.state, record.images, set(record.metrics)) == ("complete", 32, {"speedup"})
    assert record.check is not None
    assert not record.fails_check


def test_a_trial_that_fails_its_check_draws_all_images(checking: Plan, tmp_path: Path) -> None:
    steps = make_trials(checking, tmp_path).run(proposal())
    next(steps)
    whole = steps.send(Result((4,), {"metrics": {"speedup": SPEED}, "check": FAILED_CHECK}))
    assert whole.payload["metrics"] == ["fid", "speedup"]
    assert whole.payload["quality"] == list(names(checking.rungs(CHAIN)[0].files))
    assert whole.payload["check"]
    metrics = {"speedup": SPEED, "fid": FID}
    with pytest.raises(StopIteration) as ended:
        steps.send(Result((4,), {"metrics": metrics, "check": FAILED_CHECK}))
    record: TrialRecord = ended.value.value
    assert (record.images, record.fails_check) == (40, True)
    assert GROUPS.group(record) is None


def test_trials_whose_quality_nobody_knows_draw_all_images(checking: Plan, tmp_path: Path) -> None:
    """Lossy ones, those with another sampling, and all where an objective compares images with
    vanilla's.
    """
    lossy = DecodingConfig.from_mapping(
        {
            "drafter": "eagle",
            "tree": {"policy": "chain", "length": 3},
            "acceptance": {"neighbourhood": "additive", "k": 8, "delta": 0.1},
        }
    ).with_sampling(SAMPLING)
    cooler = CHAIN.with_sampling(Sampling(temperature=0.9, cfg=1.5))
    for config, is_checked in ((lossy, False), (cooler, True), (VANILLA, False)):
        number = BASELINE if config is VANILLA else 4
        task = next(make_trials(checking, tmp_path).run(proposal(config, number)))
        assert len(task.payload["quality"]) == 3
        assert task.payload["metrics"] == ["fid", "speedup"]
        assert task.payload["check"] is is_checked
    paired_metrics = METRICS | {"drift": DRIFT}
    known = make_trials(
        replace(checking, groups=replace(checking.groups, metrics=paired_metrics)), tmp_path
    )
    assert next(known.run(proposal())).payload["metrics"] == ["speedup"]
    paired = replace(checking, groups=replace(checking.groups, metrics=paired_metrics))
    emit: list[Event] = []
    build = Build(Storage(tmp_path), InstantWorkers(), emit.append)
    trials = Trials(paired, build, [*OBJECTIVES, DRIFT], emit.append, earlier=0)
    assert len(next(trials.run(proposal())).payload["quality"]) == 3


def test_in_a_race_the_first_rung_is_the_least(checking: Plan, tmp_path: Path) -> None:
    changes = {"racing": {"rungs": [12]}, "quality": CHECKING}
    raced = SweepConfig.read(str(tmp_path / "tried.yaml"), changes)
    plan = replace(checking, sweep=raced)
    assert [rung.images for rung in plan.rungs(CHAIN)] == [24, 40]
    assert [rung.images for rung in plan.check_rungs(CHAIN)] == [24]


def test_large_batches_need_more_images(checking: Plan, tmp_path: Path) -> None:
    """Four batches of each size: the longest of a batch is not known from one."""
    for batch, images in ((4, [16, 32]), (8, [32]), (16, [])):
        changes = {"timing": {"batch": [1, batch]}, "quality": CHECKING}
        sweep = SweepConfig.read(str(tmp_path / "tried.yaml"), changes)
        plan = replace(checking, sweep=sweep)
        assert [rung.images for rung in plan.check_rungs(CHAIN)] == images


def test_each_block_of_captions_has_an_image(
    checking: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.run.trial.BLOCKS", 9)
    assert checking.check_rungs(CHAIN)[0].images == 32


def test_few_captions_are_all_drawn(
    checking: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.run.trial.BLOCKS", 20)
    assert checking.check_rungs(CHAIN) == []
    events: list[Event] = []
    first = next(make_trials(checking, tmp_path, events).run(proposal()))
    assert first.payload["metrics"] == ["fid", "speedup"]
    assert [event.event for event in events if isinstance(event, TrialStarted)] == ["trial_started"]


def test_a_trial_says_what_it_needs_next(checking: Plan, tmp_path: Path) -> None:
    events: list[Event] = []
    steps = make_trials(checking, tmp_path, events).run(proposal())
    next(steps)
    steps.send(Result((4,), {"metrics": {"speedup": SPEED}, "check": CHECK, "passes": ROUGH}))
    steps.send(Result((4,), {"metrics": {}, "check": None, "skipped": {TOKEN_CHECK: "too large"}}))
    started = [event for event in events if isinstance(event, TrialStarted)]
    assert [event.event for event in started] == [
        "trial_started",
        "trial_resumed",
        "trial_resumed",
    ]
    assert [event.images for event in started] == [16, 32, 40]
    (note,) = [event.note for event in events if event.event == "note"]
    assert note is not None
    assert "too large" in note


def test_a_trial_whose_passes_need_all_images_measures_everything(
    checking: Plan, tmp_path: Path
) -> None:
    steps = make_trials(checking, tmp_path).run(proposal())
    next(steps)
    rough = Result((4,), {"metrics": {"speedup": SPEED}, "check": CHECK, "passes": ROUGH})
    steps.send(rough)
    whole = steps.send(rough)
    assert whole.payload["metrics"] == ["fid", "speedup"]
    assert whole.payload["quality"] == list(names(checking.rungs(CHAIN)[0].files))
