"""Lossless settings of one sampling have one quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.front.front import Front, front_of
from orchestrator.front.joint import JointErrors
from orchestrator.store.lossless import QualityGroups, Source, pool
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.synthetic_sweeps import identity, write_sweep
from workers.data.shards import Experiment
from workers.data.storage import Storage
from workers.decoding.token_check import TokenCheck
from workers.metrics.definition import BASELINE, FEATURES, REFERENCE, Metric
from workers.metrics.estimate import Estimate, jackknife_error

SAMPLING = Sampling(cfg=1.5)
COOLER = Sampling(temperature=0.9, cfg=1.5)
FID = Metric("fid", "minimize", needs=(FEATURES, REFERENCE))
GAIN = Metric(
    "fid_gain", "minimize", needs=(FEATURES, REFERENCE, BASELINE), vanilla=0.0, is_gain=True
)
DRIFT = Metric("drift", "minimize", needs=(FEATURES, BASELINE), vanilla=0.0)
SPEED = Metric("speedup", "maximize", unit="x", needs=("timings",))
METRICS = (SPEED, FID, GAIN, DRIFT)
GROUPS = QualityGroups({metric.name: metric for metric in METRICS}, SAMPLING, 8)
VANILLA = DecodingConfig(sampling=SAMPLING)
LOSSLESS, LOSSY = (PRESETS[name].with_sampling(SAMPLING) for name in ("eagle1", "lantern"))


def estimate(value: float, seed: int, blocks: int = 24) -> Estimate:
    left_out = value + 0.02 * np.random.default_rng(seed).standard_normal(blocks)
    error = float(jackknife_error(left_out)) if blocks else 0.4
    return Estimate(value, error, 192, tuple(left_out.tolist()))


def record(
    number: int, config: DecodingConfig, speed: float, fid: Estimate, **fields: object
) -> TrialRecord:
    gain = replace(fid, value=fid.value - 3.7)
    metrics = {"speedup": Estimate(speed, 0.02 * speed, 9), "fid": fid, "fid_gain": gain}
    metrics["drift"] = estimate(0.0 if number == 0 else 1 + 0.1 * number, 10 + number)
    made = TrialRecord(number, "", "complete", config, metrics=metrics, images=192)
    return replace(made, history=((192, metrics),), **fields)  # type: ignore[arg-type]


def quick_start(blocks: int = 24) -> list[TrialRecord]:
    """The quick start's table: three lossless settings, the fastest of which has the worst luck."""
    return [
        record(0, VANILLA, 1.0, estimate(3.70, 0, blocks)),
        record(1, LOSSLESS, 1.16, estimate(3.90, 1, blocks)),
        record(2, PRESETS["sjd"].with_sampling(SAMPLING), 1.917, estimate(3.98, 2, blocks)),
        record(3, LOSSY, 2.495, estimate(4.05, 3, blocks)),
    ]


def front(folder: Path, records: Sequence[TrialRecord], *limits: str) -> Front:
    shown = [{"metric": m.name, "direction": m.direction} for m in (SPEED, FID)]
    metrics = {metric.name: metric.to_mapping() for metric in METRICS}
    facts = identity(
        "quick",
        metrics=metrics,
        objectives=shown,
        baseline=VANILLA.to_mapping(),
        constraints=list(limits),
    )
    return front_of([Sweep.of(Storage(str(folder)), facts, records)])


def test_a_group_has_the_mean_of_its_members() -> None:
    records = quick_start()
    found = GROUPS.pooled(records)
    shared = found[0].metrics["fid"]
    assert [trial.metrics["fid"] for trial in found[:3]] == [shared] * 3
    assert shared.value == pytest.approx((3.70 + 3.90 + 3.98) / 3)
    replicates = np.mean([trial.metrics["fid"].replicates for trial in records[:3]], axis=0)
    assert shared.replicates == pytest.approx(replicates)
    assert shared.error == pytest.approx(float(jackknife_error(replicates)))
    assert shared.error < min(trial.metrics["fid"].error for trial in records[:3])
    assert found[3].metrics["fid"] is records[3].metrics["fid"]
    for name in ("drift", "speedup"):
        assert [trial.metrics[name] for trial in found] == [r.metrics[name] for r in records]


def test_the_front_knows_that_a_slower_lossless_setting_is_dominated(tmp_path: Path) -> None:
    """By measured values alone, vanilla was on the front in two of three draws."""
    found = front(tmp_path, quick_start())
    assert [trial.number for trial in found.members] == [2, 3]
    shares = {trial.number: trial.confidence for trial in found.candidates}
    assert shares[0] == shares[1] == 0
    assert shares[2] > 0.5


def test_a_lossless_setting_meets_every_bar_above_vanillas_value(tmp_path: Path) -> None:
    """Trial 2 is within 4 % of vanilla, although its own images are 7.6 % above."""
    limit = "fid <= 1.04 * vanilla"
    found = front(tmp_path, quick_start(), limit)
    assert [trial.number for trial in found.candidates] == [0, 1, 2]
    fastest = next(trial for trial in found.candidates if trial.number == 2)
    assert fastest.record.constraints[limit] < 0
    assert fastest.limit_probability([limit]) == 1
    assert "fid" not in fastest.changes
    assert fastest.change("fid") == "vanilla's (lossless)"
    assert fastest.gain_probability is not None, "its speed is its own"


def test_without_blocks_the_error_is_shared() -> None:
    found = GROUPS.pooled(quick_start(blocks=0))
    joint = JointErrors.of(found, [FID])
    difference, error, _ = joint.difference(0, 2)
    assert (difference[0], error[0]) == (0, 0)
    _, error, _ = joint.difference(0, 3)
    assert error[0] == pytest.approx(np.hypot(0.4, 0.4))
    samples = joint.samples()[..., 0]
    assert (samples[:, 0] == samples[:, 2]).all()
    assert samples[:, 0].std() > 0.3


def test_gains_are_over_the_group() -> None:
    found = GROUPS.pooled(quick_start())
    mean = (3.70 + 3.90 + 3.98) / 3
    for trial in found[:3]:
        assert (trial.metrics["fid_gain"].value, trial.metrics["fid_gain"].error) == (0, 0)
    gain = found[3].metrics["fid_gain"]
    assert gain.value == pytest.approx(4.05 - mean)
    assert len(gain.replicates) == 24


def test_another_sampling_is_another_group() -> None:
    cooler = [
        record(4, DecodingConfig(sampling=COOLER), 1.0, estimate(3.1, 4)),
        record(5, LOSSLESS.with_sampling(COOLER), 1.2, estimate(3.3, 5)),
    ]
    found = GROUPS.pooled([*quick_start(), *cooler])
    assert found[4].metrics["fid"] == found[5].metrics["fid"]
    assert found[4].metrics["fid"].value == pytest.approx(3.2)
    assert found[0].metrics == GROUPS.pooled(quick_start())[0].metrics


def test_images_count_once_and_only_at_equal_numbers() -> None:
    records = quick_start()
    few = estimate(9.0, 6)
    stopped = record(4, LOSSLESS, 1.1, few, state="stopped", duplicate_of=None)
    stopped = replace(stopped, images=96, history=((96, stopped.metrics),))
    copy = replace(records[2], number=5, duplicate_of=2)
    found = GROUPS.pooled([*records, stopped, copy])
    assert found[5].metrics["fid"] == found[0].metrics["fid"]
    assert found[0].metrics == GROUPS.pooled(records)[0].metrics
    assert found[4].metrics["fid"] == few


def test_pooling_twice_changes_nothing_and_files_have_what_was_measured() -> None:
    records = quick_start()
    found = GROUPS.pooled(records)
    assert GROUPS.pooled(found) == found
    assert [trial.measured for trial in found] == records
    for trial, before in zip(found, records, strict=True):
        assert TrialRecord.from_json(trial.to_json()) == before


def test_the_search_is_told_the_first_members_values() -> None:
    """Whatever finishes later, what was told stays."""
    records = quick_start()
    told = GROUPS.all_as_told(records)
    assert [trial.metrics["fid"].value for trial in told] == [3.70, 3.70, 3.70, 4.05]
    assert told == GROUPS.all_as_told(told)
    assert told[:2] == GROUPS.all_as_told(records[:2])
    assert [trial.measured for trial in told] == records


def test_sweeps_of_one_target_have_one_group() -> None:
    one, other = (
        quick_start(),
        [
            record(0, VANILLA, 1.0, estimate(3.4, 7)),
            record(1, LOSSY, 2.0, estimate(4.4, 8)),
        ],
    )
    basis = {"fid": ("target", 192)}
    first, second = pool([Source(GROUPS, one, basis), Source(GROUPS, other, basis)])
    mean = (3.70 + 3.90 + 3.98 + 3.4) / 4
    assert first[0].metrics["fid"].value == pytest.approx(mean)
    assert second[0].metrics["fid"] == first[2].metrics["fid"]
    apart = pool([Source(GROUPS, one), Source(GROUPS, other)])
    assert apart == [GROUPS.pooled(one), GROUPS.pooled(other)]


def test_a_front_of_two_sweeps_has_one_vanilla(tmp_path: Path) -> None:
    """Sweeps of other drafters, with images of their own."""
    for name, seed in (("one", 1), ("two", 2)):
        models = {"target": "0f" * 8, "drafters.eagle": f"{seed}e" * 8}
        write_sweep(tmp_path / name, 8, seed, name, models=models, failed=())
    sweeps = [Sweep.open(tmp_path / name) for name in ("one", "two")]
    alone = [sweep.records[0].metrics["fid"].value for sweep in sweeps]
    assert alone[0] != alone[1]
    values = {
        trial.metrics["fid"].value for trial in front_of(sweeps).candidates if trial.is_vanilla
    }
    assert len(values) == 1
    other = Sweep.of(
        sweeps[1].storage,
        replace(sweeps[1].identity, models={"target": "1f" * 8}, experiment="9" * 20),
        sweeps[1].records,
    )
    values = {
        trial.metrics["fid"].value
        for trial in front_of([sweeps[0], other]).candidates
        if trial.is_vanilla
    }
    assert values == set(alone)


PASSED = TokenCheck(48, 48 * 144, z=0.3, p_value=0.8, impossible=0)
FAILED = TokenCheck(48, 48 * 144, z=6.0, p_value=1e-8, impossible=0)


def checked() -> list[TrialRecord]:
    """Vanilla, a lossless trial that drew a quarter of the images, and a lossy one."""
    vanilla, _, _, lossy = quick_start()
    part = {name: replace(entry, n=48) for name, entry in vanilla.metrics.items()}
    vanilla = replace(vanilla, history=((48, part), *vanilla.history))
    own = {"speedup": Estimate(1.9, 0.04, 48)}
    short = TrialRecord(1, "", "complete", LOSSLESS, metrics=own, images=48, check=PASSED)
    return [vanilla, replace(short, history=((48, own),)), replace(lossy, number=2)]


def test_a_checked_trial_has_the_quality_that_it_did_not_draw() -> None:
    records = checked()
    for found in (GROUPS.pooled(records), GROUPS.all_as_told(records)):
        vanilla, trial, _ = found
        assert trial.images == 48
        assert trial.metrics["fid"] == vanilla.metrics["fid"]
        assert trial.metrics["fid_gain"].value == 0
        assert trial.metrics["speedup"] == records[1].metrics["speedup"]
        assert "drift" not in trial.metrics
        history = dict(trial.history)
        assert set(history) == {48, 192}
        assert history[48]["fid"] == dict(vanilla.history)[48]["fid"]
        assert history[192] == trial.metrics
        assert [record.measured for record in found] == records
        assert TrialRecord.from_json(trial.to_json()) == records[1]
        again = GROUPS.pooled(found)
        assert again == GROUPS.pooled(records)


def test_the_front_has_a_checked_trial(tmp_path: Path) -> None:
    found = front(tmp_path, checked(), "fid <= 1.0 * vanilla")
    assert [trial.number for trial in found.candidates] == [0, 1]
    assert [trial.number for trial in found.members] == [1]
    assert found.members[0].record.feasible


def test_a_trial_that_fails_its_check_is_in_no_group(tmp_path: Path) -> None:
    records = quick_start()
    records[1] = replace(records[1], check=FAILED)
    found = GROUPS.pooled(records)
    assert found[1].metrics["fid"] == records[1].metrics["fid"]
    assert found[0].metrics["fid"].value == pytest.approx((3.70 + 3.98) / 2)
    trials = {trial.number: trial for trial in front(tmp_path, records).candidates}
    assert not trials[1].is_lossless
    assert trials[2].is_lossless
    mapping = trials[1].to_mapping()["token_check"]
    assert (mapping["passed"], mapping["z"]) == (False, 6.0)


def test_a_stopped_trial_has_no_more_than_it_drew() -> None:
    records = checked()
    records[1] = replace(records[1], state="stopped")
    assert "fid" not in GROUPS.pooled(records)[1].metrics


def test_images_that_two_sweeps_have_count_once() -> None:
    """Copied by `--from`, or generated again with the same seed and weights: no new information."""
    one, other = quick_start(), [quick_start()[0], quick_start()[1]]
    basis = {"fid": "one target"}
    alone = GROUPS.pooled(one)[0].metrics["fid"]

    def first(*seeds: int) -> Estimate:
        sources = [
            Source(GROUPS, records, basis, partial(images, seed))
            for records, seed in zip((one, other), seeds, strict=True)
        ]
        values = [records[0].metrics["fid"] for records in pool(sources)]
        assert values[0] == values[1]
        return values[0]

    assert first(0, 0) == alone
    assert first(0, 1).value == pytest.approx((2 * 3.70 + 2 * 3.90 + 3.98) / 5)


def images(seed: int, config: DecodingConfig) -> tuple[DecodingConfig, int]:
    return config, seed


def test_a_value_that_sweeps_share_has_one_error() -> None:
    """Without blocks of captions its error is a source of its own."""
    one, other = quick_start(blocks=0), quick_start(blocks=0)
    basis = {"fid": "one target"}
    identities = [identity("one"), identity("two", experiment="3" * 20)]
    for shared, expected in ((basis, 0.0), ({}, np.hypot(0.4, 0.4))):
        first, second = pool([Source(GROUPS, one, shared), Source(GROUPS, other, shared)])
        joint = JointErrors.of([first[0], second[2]], [FID], identities)
        _, error, _ = joint.difference(0, 1)
        assert error[0] == pytest.approx(expected)
        draws = joint.samples()[..., 0]
        assert (draws[:, 0] == draws[:, 1]).all() == (shared is basis)


def shared_fids(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> set[float]:
    """The fids of vanilla in a front of two sweeps with these identities."""
    experiment = {"models": {"target": "0f" * 8}, "precision": "float32", "device": "cpu"}
    for name, seed, changed in (("one", 1, first), ("two", 2, second)):
        facts = {**experiment, **changed}
        precision = facts.pop("precision")
        known = identity(name)
        digest = Experiment(
            facts["models"], known.captions["hash"], 0, known.extractors, precision
        ).digest()
        write_sweep(folder / name, 8, seed, name, failed=(), experiment=digest, **facts)
    sweeps = [Sweep.open(folder / name) for name in ("one", "two")]
    return {t.metrics["fid"].value for t in front_of(sweeps).candidates if t.is_vanilla}


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ({}, {}, 1),
        ({}, {"device": "gpu", "numerics": {"digest": "other"}}, 1),
        ({}, {"precision": "bfloat16"}, 2),
        ({"precision": "bfloat16"}, {"precision": "bfloat16"}, 1),
        (
            {"precision": "bfloat16", "numerics": {"digest": "a"}},
            {"precision": "bfloat16", "numerics": {"digest": "b"}},
            2,
        ),
    ],
    ids=["same", "float32 anywhere", "other dtype", "same dtype", "other kernels"],
)
def test_groups_of_two_sweeps_have_one_target_in_the_same_numbers(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], values: int
) -> None:
    assert len(shared_fids(tmp_path, first, second)) == values


def test_a_front_counts_images_that_two_sweeps_have_once(tmp_path: Path) -> None:
    """Vanilla's do not depend on drafters; those of another seed are others."""
    write_sweep(tmp_path / "one", 8, 1, "one", failed=())
    records = Sweep.open(tmp_path / "one").records
    facts = Sweep.open(tmp_path / "one").identity

    def fid(*kept: int, **changed: object) -> float:
        other = replace(facts, name="two", **changed)  # type: ignore[arg-type]
        second = Sweep.of(Storage(str(tmp_path / "two")), other, [records[n] for n in kept])
        return front_of([Sweep.open(tmp_path / "one"), second]).candidates[0].metrics["fid"].value

    alone = front_of([Sweep.open(tmp_path / "one")]).candidates[0].metrics["fid"].value
    assert fid(0, 1) == alone
    assert fid(0, seed=1) != alone
    assert fid(0, models={**facts.models, "drafters.eagle": "9" * 16}) == alone
    assert fid(1, models={**facts.models, "drafters.eagle": "9" * 16}) != alone


def test_a_metric_of_both_sets_of_images_says_itself_that_it_is_a_gain() -> None:
    """One that does not may be anything, and is not shared."""
    unknown = replace(GAIN, name="ratio", is_gain=False)
    assert not unknown.is_of_distribution
    assert Metric.from_mapping("fid_gain", GAIN.to_mapping()).is_gain
    groups = replace(GROUPS, metrics={**GROUPS.metrics, "ratio": unknown})
    records = [
        replace(trial, metrics={**trial.metrics, "ratio": trial.metrics["fid"]})
        for trial in quick_start()
    ]
    for before, found in zip(records, groups.pooled(records), strict=True):
        assert found.metrics["ratio"] is before.metrics["ratio"]
