"""A running sweep knows that lossless settings have one quality: in racing, and in what it tells
the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.instant import InstantWorkers, make_driver
from orchestrator.run.race import Race, Scores
from orchestrator.run.racing import EarlyStopping, at_full_size, front_probabilities
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import EarlyStop, TrialRecord, read_trials
from search_spaces.presets import PRESETS
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.storage import Storage
from workers.metrics.definition import FEATURES, REFERENCE, Metric
from workers.metrics.estimate import Estimate, jackknife_error

SAMPLING = Sampling(cfg=1.5)
VANILLA = DecodingConfig(sampling=SAMPLING)
FAST, SLOW = (PRESETS[name].with_sampling(SAMPLING) for name in ("sjd", "eagle1"))
SPEED = Metric("speedup", "maximize", unit="x", needs=("timings",))
FID = Metric("fid", "minimize", needs=(FEATURES, REFERENCE))
GROUPS = QualityGroups({"speedup": SPEED, "fid": FID}, SAMPLING, 8)
SWEEP = """
name: known
captions: {source: scenes, count: 32, seed: 1}
quality: {batch: 8, shard: 8}
timing: {batch: 1, images: 2, repetitions: 2}
search: {sampler: random, parallel: 2}
budget: {trials: 5}
constraints: ["fid <= 1.0 * vanilla"]
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
enqueue: [vanilla, eagle1, sjd, lantern]
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}, acceptance: {}}
"""


def scores(speed: float, fid: float, known: Mapping[int, str] | None = None) -> Scores:
    rng = np.random.default_rng(round(1000 * (speed + fid)))
    replicates = np.array([[speed], [fid]]) + 0.001 * rng.standard_normal((2, 24))
    return Scores.from_replicates([speed, fid], replicates, known=known)


def test_a_value_known_to_be_equal_is_not_tested() -> None:
    """The rival is faster beyond doubt. By measured fid it is a little worse, by luck."""
    race = Race(["maximize", "minimize"], 0.05, 2)
    slow, fast = scores(1.0, 4.00, {1: "group"}), scores(2.0, 4.01, {1: "group"})
    assert race.p_values(slow, [fast])[0] < 1e-6
    assert race.p_values(slow, [replace(fast, known={})])[0] > 0.5
    assert race.p_values(slow, [replace(fast, known={1: "another"})])[0] > 0.5
    stop = race.decide(0, slow, {7: fast}, 1)
    assert stop is not None
    assert stop.rival == 7


def test_a_rival_that_is_known_to_be_equal_everywhere_beats_nothing() -> None:
    race = Race(["minimize"], 0.05, 1)
    one = Scores.from_replicates([4.0], [[4.0, 4.1]], known={0: "group"})
    assert race.p_values(one, [replace(one)])[0] == 1
    assert race.decide(0, one, {1: replace(one)}, 1) is None


def metrics(speed: float, fid: float, seed: int) -> dict[str, Estimate]:
    found = {}
    for name, value in (("speedup", speed), ("fid", fid)):
        left_out = value + 0.003 * np.random.default_rng(seed).standard_normal(24)
        error = float(jackknife_error(left_out))
        found[name] = Estimate(value, error, 24, tuple(left_out.tolist()))
    return found


def test_racing_stops_a_slower_lossless_setting() -> None:
    changes = {
        "racing": {"rungs": [24, 48]},
        "search.parallel": 1,
        "enqueue": ["vanilla"],
        "objectives": ["speedup", "fid"],
    }
    sweep = SweepConfig.read("quickstart", changes)
    finished = [
        TrialRecord(number, "", "complete", config, metrics=own, images=96, history=((24, own),))
        for number, (config, own) in enumerate(
            [(VANILLA, metrics(1.0, 3.7, 0)), (FAST, metrics(2.0, 3.9, 1))]
        )
    ]
    racing = EarlyStopping(sweep, (SPEED, FID), GROUPS.all_as_told(finished), groups=GROUPS)
    slow = TrialRecord(2, "", "stopped", SLOW, metrics=metrics(1.2, 3.65, 2), images=24)
    told = GROUPS.as_told(slow, racing.finished)
    stop = racing.decide(2, 24, told.metrics, "", "", GROUPS.group(slow))
    assert stop is not None
    assert stop.rival == 1
    unknowing = EarlyStopping(sweep, (SPEED, FID), finished)
    assert unknowing.decide(2, 24, slow.metrics, "", "") is None


def test_the_search_is_told_one_quality_and_files_have_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(SWEEP.replace("shard: 8", "shard: 8, lossless: measure"))
    sweep = SweepConfig.read(path)
    storage = Storage(str(tmp_path / "store"))
    tell: list[list[float]] = []
    driver = make_driver(sweep, storage, InstantWorkers(), [SPEED, FID], sampling=SAMPLING)
    learn = driver.search.tell

    def follow(record: TrialRecord, objectives: Sequence[str]) -> None:
        tell.append([record.metrics[name].value for name in objectives])
        learn(record, objectives)

    monkeypatch.setattr(driver.search, "tell", follow)
    outcome = driver.run()
    vanilla = tell[0][1]
    lossless = [
        record.number for record in outcome.records if record.config != outcome.records[3].config
    ]
    assert {tell[number][1] for number in lossless} == {vanilla}
    assert tell[3][1] != vanilla
    stored = read_trials(storage)
    assert len({record.metrics["fid"].value for record in stored}) > 3
    feasible = [record.number for record in outcome.records if record.feasible]
    assert set(lossless) <= set(feasible), "by its own images, one was above vanilla's value"
    assert [record.constraints for record in stored] == [
        record.constraints for record in outcome.records
    ]
    resumed = make_driver(sweep, storage, InstantWorkers(), [SPEED, FID], sampling=SAMPLING)
    assert resumed.run(stored).records == outcome.records


def test_a_budget_of_images_counts_those_that_were_drawn(tmp_path: Path) -> None:
    """Vanilla and a lossy trial draw 32 images, lossless ones 24."""
    path = tmp_path / "known.yaml"
    path.write_text(SWEEP.replace("trials: 5", "trials: 50, images: 160"))
    sweep = SweepConfig.read(path)
    storage = Storage(str(tmp_path / "store"))
    driver = make_driver(sweep, storage, InstantWorkers(), [SPEED, FID], sampling=SAMPLING)
    records = driver.run().records
    assert [record.images for record in records[:4]] == [32, 24, 24, 32]
    assert {record.images for record in records[4:]} == {24}
    distinct = [record for record in records if record.duplicate_of is None]
    assert 160 <= sum(record.images for record in distinct) < 160 + 2 * 32
    vanilla = records[0].metrics["fid"]
    stored = read_trials(storage)
    for number in (1, 2, 4):
        assert records[number].metrics["fid"].value == vanilla.value
        assert "fid" not in stored[number].metrics
    resumed = make_driver(sweep, storage, InstantWorkers(), [SPEED, FID], sampling=SAMPLING)
    assert resumed.run(stored).records == records


COOLER = Sampling(temperature=0.9, cfg=1.5)
RACED = {
    "racing": {"rungs": [24, 48]},
    "search.parallel": 1,
    "enqueue": ["vanilla"],
    "objectives": ["speedup", "fid"],
}


def measured(
    number: int, config: DecodingConfig, part: tuple[float, float], whole: tuple[float, float]
) -> TrialRecord:
    """A complete trial of 96 images, with its speed and fid on 24 and on all."""
    first, last = metrics(*part, 2 * number), metrics(*whole, 2 * number + 1)
    history = ((24, first), (96, last))
    return TrialRecord(number, "", "complete", config, metrics=last, images=96, history=history)


def stopped_at_24(record: TrialRecord, rival: int) -> TrialRecord:
    """The same as racing had left it."""
    history = record.history[:1]
    return replace(
        record,
        state="stopped",
        images=24,
        history=history,
        metrics=history[0][1],
        stop=EarlyStop(rival, 24, 0.01),
    )


def test_a_stopped_trial_has_the_value_that_its_group_has_on_all_images() -> None:
    """Not vanilla's value there plus a difference: another sampling has its own group."""
    records = [
        measured(0, VANILLA, (1.0, 5.0), (1.0, 3.7)),
        measured(1, FAST.with_sampling(COOLER), (2.0, 4.4), (2.0, 3.3)),
        stopped_at_24(measured(2, SLOW.with_sampling(COOLER), (1.2, 4.6), (1.2, 9.9)), 1),
        stopped_at_24(measured(3, SLOW, (1.2, 5.3), (1.2, 9.9)), 1),
    ]
    told = GROUPS.all_as_told(records)
    expected = [
        at_full_size(record, told[0], GROUPS.values_in_full(record, told)) for record in told
    ]
    assert [record.metrics["fid"].value for record in expected] == pytest.approx(
        [3.7, 3.3, 3.3, 3.7]
    )
    assert expected[2].metrics["fid"] == told[1].metrics["fid"]
    assert at_full_size(told[2], told[0]).metrics["fid"].value == pytest.approx(3.1), "by itself"
    # it may only be on the front by its speed, which is far below
    assert front_probabilities(told, (SPEED, FID), GROUPS) == {2: 0.0, 3: 0.0}


def test_what_was_revived_in_the_end_is_no_first_member() -> None:
    """While the sweep ran, trial 2 was complete first, and trial 1 had stopped."""
    whole = measured(1, FAST.with_sampling(COOLER), (2.0, 4.4), (2.0, 3.3))
    others = [
        measured(0, VANILLA, (1.0, 5.0), (1.0, 3.7)),
        measured(2, SLOW.with_sampling(COOLER), (1.2, 4.6), (1.2, 3.5)),
    ]
    then = [others[0], stopped_at_24(whole, 0), others[1]]
    told: list[TrialRecord] = []
    for record in then:
        told.append(GROUPS.as_told(record, told))
    revived = replace(whole, stop=EarlyStop(0, 24, 0.01))
    later = GROUPS.all_as_told([others[0], revived, others[1]])
    assert later[2] == told[2]
    assert later[2].metrics["fid"].value == 3.5
    assert dict(later[2].history)[24]["fid"].value == 4.4
    assert later[1].metrics["fid"].value == 3.3


def test_values_of_earlier_sweeps_come_first() -> None:
    """The search was told them before its own trials, those that were measured in full alone."""
    before = measured(4, FAST.with_sampling(COOLER), (2.0, 4.1), (2.0, 3.1))
    whole = {name: replace(entry, n=96) for name, entry in before.metrics.items()}
    before = replace(before, history=(), metrics=whole)
    part = replace(before, number=3, state="stopped", metrics=metrics(2.0, 3.2, 9), images=24)
    groups = replace(GROUPS, earlier=(part, before))
    vanilla = measured(0, VANILLA, (1.0, 5.0), (1.0, 3.7))
    own = measured(1, SLOW.with_sampling(COOLER), (1.2, 4.6), (1.2, 3.5))
    told = groups.all_as_told([vanilla, own])
    assert told[1] == groups.as_told(own, told[:1])
    assert [record.metrics["fid"].value for record in told] == [3.7, 3.1]
    assert dict(told[1].history)[24]["fid"].value == 4.6
    stopped = stopped_at_24(own, 0)
    assert groups.values_in_full(stopped, told[:1])["fid"].value == 3.1


@pytest.mark.parametrize("error_rate", [0.05, None])
def test_the_reason_says_in_what_the_rival_is_better(error_rate: float | None) -> None:
    """Not in fid, which both have by theorem."""
    racing = {"rungs": [24, 48], "error_rate": error_rate}
    sweep = SweepConfig.read("quickstart", {**RACED, "racing": racing})
    records = [
        measured(0, VANILLA, (1.0, 5.0), (1.0, 3.7)),
        measured(1, FAST, (2.0, 5.1), (2.0, 3.9)),
    ]
    race = EarlyStopping(sweep, (SPEED, FID), GROUPS.all_as_told(records), groups=GROUPS)
    stop = EarlyStop(1, 24, 0.01)
    reason = race.reason(stop, SLOW)
    assert "speedup on the same 24 images; fid is equal, because both are lossless; " in reason
    lossy = PRESETS["lantern"].with_sampling(SAMPLING)
    for config in (lossy, SLOW.with_sampling(COOLER), None):
        assert "speedup and fid on the same 24 images; " in race.reason(stop, config)
