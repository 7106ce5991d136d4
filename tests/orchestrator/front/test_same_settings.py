"""Trials of one setting in two sweeps are one: a sweep that has all settings of another covers it,
however their speeds were measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.front.front import front_of
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage


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


def test_merged_trials_have_the_mean_and_one_error(sweeps: list[Sweep]) -> None:
    front = front_of(sweeps)
    same = front.same_settings
    assert len(same) >= 10
    before, after = front.joint_errors, front.joint_errors.merged(same)
    for one, other in same:
        assert after.values[one] == pytest.approx(before.values[[one, other]].mean(axis=0))
        difference, error, _ = after.difference(one, other)
        assert (difference == 0).all()
        assert error == pytest.approx(0)
    variance = np.diag(after.covariance()).reshape(after.values.shape)
    expected = np.diag(before.covariance()).reshape(before.values.shape)
    one, other = same[3]
    assert variance[one, 0] == pytest.approx((expected[one, 0] + expected[other, 0]) / 4)
    clip = front_of(sweeps, "speedup", "clip_score")  # without blocks, of the same images
    one, other = clip.same_settings[3]
    errors = [clip.joint_errors, clip.joint_errors.merged(clip.same_settings)]
    own, merged = (np.diag(e.covariance()).reshape(e.values.shape)[one, 1] for e in errors)
    assert merged == pytest.approx(own)
    one, other = same[3]
    samples = after.samples()
    assert (samples[:, one] == samples[:, other]).all()
    alone = [place for place in range(len(front.candidates)) if all(place not in s for s in same)]
    assert (after.values[alone] == before.values[alone]).all()


def test_other_captions_or_devices_are_other_trials(sweeps: list[Sweep]) -> None:
    wide, narrow = sweeps
    for changed in (
        {"captions": {**narrow.identity.captions, "count": 96}},
        {"experiment": "of other weights, or of another seed"},
        {"timing": {**narrow.identity.timing, "device": "another"}},
    ):
        other = replace(narrow, identity=replace(narrow.identity, **changed))
        assert front_of([wide, other], "speedup", "step_compression").same_settings == []
