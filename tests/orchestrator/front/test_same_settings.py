"""Trials of one setting in two sweeps are one: a sweep that has all settings of another covers it,
however their speeds were measured.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.front.front import Front, front_of
from orchestrator.front.pareto import Floats
from orchestrator.report.page import page_data
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.priced_sweeps import time_on, write_untimed_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage
from workers.metrics import costs


@pytest.fixture
def sweeps(tmp_path: Path) -> list[Sweep]:
    """A sweep, and one with its first trials, which were timed again and came out faster."""
    records = write_sweep(tmp_path / "wide", trials=20, seed=4, name="wide", failed=())
    write_sweep(tmp_path / "narrow", trials=12, seed=4, name="narrow", failed=())
    for record in records[:12]:
        speed = record.metrics["speedup"]
        lucky = {"speedup": replace(speed, value=1.03 * speed.value)}
        again = replace(record, metrics={**record.metrics, **lucky})
        write_trial(Storage(str(tmp_path / "narrow")), again)
    return [Sweep.open(tmp_path / name) for name in ("wide", "narrow")]


def test_a_sweep_covers_its_part(sweeps: list[Sweep]) -> None:
    places = [sweep.storage.display_name for sweep in sweeps]
    (pair,) = specfrontier("compare", *places, "--json").json["pairs"]
    assert pair["coverage"][0] == 1
    assert pair["epsilon"][0] <= 0
    assert pair["coverage"][1] < 1


def same_settings(front: Front) -> list[list[int]]:
    """Places among the candidates of trials that two sweeps have."""
    places: dict[object, list[int]] = {}
    for place, trial in enumerate(front.candidates):
        places.setdefault(trial.config, []).append(place)
    return [found for found in places.values() if len(found) > 1]


def variances(front: Front) -> Floats:
    """The variances of the candidates' values."""
    joint = front.joint_errors
    return np.diag(joint.covariance()).reshape(joint.values.shape)


def test_trials_of_one_setting_have_the_mean_and_one_error(sweeps: list[Sweep]) -> None:
    front = front_of(sweeps)
    same = same_settings(front)
    assert len(same) >= 10
    alone = {name: front_of([sweep]) for name, sweep in zip(front.sweeps, sweeps, strict=True)}
    before = {
        (name, trial.number): (trial["speedup"], variance[0])
        for name, one in alone.items()
        for trial, variance in zip(one.candidates, variances(one), strict=True)
    }
    joint = front.joint_errors
    for one, other in same:
        measured = [
            before[trial.origin, trial.number]
            for trial in (front.candidates[one], front.candidates[other])
        ]
        assert joint.values[one, 0] == pytest.approx(np.mean([value for value, _ in measured]))
        assert variances(front)[one, 0] == pytest.approx(
            sum(variance for _, variance in measured) / 4
        )
        difference, error, _ = joint.difference(one, other)
        assert (difference == 0).all()
        assert error == pytest.approx(0)
    one, other = same[3]
    samples = joint.samples()
    assert (samples[:, one] == samples[:, other]).all()
    merged = {place for places in same for place in places}
    for place, trial in enumerate(front.candidates):
        if place not in merged:
            assert trial["speedup"] == before[trial.origin, trial.number][0]


def test_a_value_of_the_same_images_keeps_its_error(sweeps: list[Sweep]) -> None:
    """It has no blocks of captions, so that nothing else says that its error is shared."""
    front = front_of(sweeps, "speedup", "clip_score")
    one, other = same_settings(front)[3]
    expected = front.candidates[one].sweep.records[front.candidates[one].number]
    assert front.candidates[one].metrics["clip_score"].error == pytest.approx(
        expected.metrics["clip_score"].error
    )
    _, error, _ = front.joint_errors.difference(one, other)
    assert error[1] == pytest.approx(0)
    assert variances(front)[one, 1] > 0


def test_table_and_page_have_the_values_that_are_compared(sweeps: list[Sweep]) -> None:
    front = front_of(sweeps)
    values = {trial.name: trial["speedup"] for trial in front.candidates}
    table = front.table(front.candidates).to_pylist()
    assert [row["speedup"] for row in table] == list(values.values())
    shown = {entry["id"]: entry["metrics"] for entry in page_data(sweeps, decode=False)["trials"]}
    assert {name: shown[name]["speedup"][0] for name in values} == values
    errors = {trial.name: trial.metrics["speedup"].error for trial in front.candidates}
    for name, error in errors.items():
        _, known, _, noise, own, *_ = shown[name]["speedup"]
        assert known == pytest.approx(error)
        assert np.hypot(noise, own) == pytest.approx(error)


def test_other_captions_or_devices_are_other_trials(sweeps: list[Sweep]) -> None:
    wide, narrow = sweeps
    for changed in (
        {"captions": {**narrow.identity.captions, "count": 96}},
        {"experiment": "of other weights, or of another seed"},
        {"timing": {**narrow.identity.timing, "device": "another"}},
    ):
        other = replace(narrow, identity=replace(narrow.identity, **changed))
        front = front_of([wide, other], "speedup", "step_compression")
        for trial in front.candidates:
            sweep = wide if trial.origin == "wide" else narrow
            assert trial["speedup"] == sweep.records[trial.number].metrics["speedup"].value


Timing = tuple[int, int, str]  # day, minute and host of a session


def timed_sweeps(folder: Path, *timings: list[Timing]) -> list[Sweep]:
    """A sweep for each list of sessions, in which all of its trials were timed without noise."""
    found = []
    for number, sessions in enumerate(timings):
        storage = write_untimed_sweep(folder / str(number), f"sweep-{number}")
        for day, minute, host in sessions:
            time_on(storage, "zen", range(1, 5), day=day, minute=minute, host=host)
        found.append(Sweep.open(storage))
    return found


def relative_errors(sweeps: list[Sweep], metric: str) -> list[float]:
    """Of the values of trial 1 in each sweep: as stated, and as drawn with those of others."""
    front = front_of(sweeps, metric, "fid", feasible=False)
    spread = np.sqrt(variances(front)[:, 0])
    errors = []
    for trial, error in zip(front.candidates, spread, strict=True):
        if trial.number == 1:
            errors += [trial.metrics[metric].error / trial[metric], error / trial[metric]]
    return errors


@pytest.mark.parametrize(
    ("timings", "between"),
    [
        ([[(1, 0, "node")], [(1, 40, "node")]], 1.0),
        ([[(1, 0, "node")], [(2, 0, "node")]], 1 / 2),
        ([[(1, 0, "node")], [(1, 40, "node2")]], 1 / 2),
        ([[(1, 0, "")], [(1, 40, "")]], 1 / 2),  # not known to be one machine
    ],
)
def test_sweeps_of_one_sitting_share_what_it_adds(
    timings: list[list[Timing]], between: float, tmp_path: Path
) -> None:
    """The mean of two values from sessions of one sitting keeps all of omega^2, and the errors of
    sittings halve it.
    """
    expected = between * costs.QUIET.ratio**2 + costs.ASSUMED_STATE**2 / 2
    for error in relative_errors(timed_sweeps(tmp_path, *timings), "speedup"):
        assert error == pytest.approx(math.sqrt(expected), rel=1e-3)


def test_latencies_share_what_a_sitting_adds_to_vanillas_seconds(tmp_path: Path) -> None:
    one_day, two_days = (
        relative_errors(
            timed_sweeps(tmp_path / str(day), [(1, 0, "node")], [(day, 40, "node")]), "latency"
        )
        for day in (1, 2)
    )
    assert one_day[0] > costs.QUIET.seconds
    variance = costs.QUIET.ratio**2 + costs.QUIET.seconds**2
    for one, two in zip(one_day, two_days, strict=True):
        assert one**2 - two**2 == pytest.approx(variance / 2, rel=1e-3)


def test_a_sweep_between_two_sittings_of_another_makes_them_one(tmp_path: Path) -> None:
    """Alone, its two sittings are 90 minutes apart; beside the other sweep each session begins
    within an hour of the one before.
    """
    sweeps = timed_sweeps(tmp_path, [(1, 0, "node"), (1, 90, "node")], [(1, 45, "node")])
    alone = Sweep.open(sweeps[0].storage).records[1].metrics["speedup"]
    shapes = 4
    explained = shapes * costs.ASSUMED_STATE**2 / costs.QUIET.ratio**2
    told = 1 / (1 + (shapes - 1) * costs.COMMON_SHARE**2)  # what the shapes share counts once
    factor = math.sqrt((2 - told * explained) / (2 + told * shapes))  # of omega, in the first sweep
    assert alone.error < costs.QUIET.ratio * alone.value
    within = costs.ASSUMED_STATE**2 * (1 / 2 + 1) / 4
    expected = (costs.QUIET.ratio * (factor + 1) / 2) ** 2 + within
    for error in relative_errors(sweeps, "speedup"):
        assert error == pytest.approx(math.sqrt(expected), rel=1e-3)


def test_other_settings_of_one_sitting_share_vanillas_part(tmp_path: Path) -> None:
    """Trials that only one of the sweeps has, too: half of omega^2 cancels in their difference."""
    sweeps = timed_sweeps(tmp_path, [(1, 0, "node")], [(1, 40, "node")])
    kept = [{0, 1}, {0, 2}]
    parts = [
        replace(
            sweep, records=tuple(record for record in sweep.records if record.number in numbers)
        )
        for sweep, numbers in zip(sweeps, kept, strict=True)
    ]
    front = front_of(parts, "speedup", "fid", feasible=False)
    places = [place for place, trial in enumerate(front.candidates) if trial.number]
    covariance = front.joint_errors.covariance()[::2, ::2]
    one, other = (front.candidates[place]["speedup"] for place in places)
    shared = covariance[places[0], places[1]] / (one * other)
    assert shared == pytest.approx(costs.COMMON_SHARE * costs.QUIET.ratio**2, rel=1e-3)
