"""Importances of what a sweep searched, and the hypervolume over the images spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.front.front import front_of
from orchestrator.front.questions import objectives_of
from orchestrator.report.sections.analysis import MIN_TRIALS, hypervolumes, importances
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.searched_sweeps import write_searched_sweep
from workers.data.storage import Storage


def test_importances_cover_what_was_searched(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, 60)
    sweep = Sweep.open(tmp_path)
    found = importances(sweep, objectives_of(sweep))
    assert found["trials"] == 59, "vanilla has no parameters"
    searched = {name for record in records for name in record.params}
    for metric in ("speedup", "fid"):
        shares = found["metrics"][metric]
        assert set(shares) == searched
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    relaxed = [name for name in searched if name.startswith("acceptance")]
    assert sum(found["metrics"]["fid"][name] for name in relaxed) > 0.7, (
        "only the rule changes these images"
    )


def test_few_trials_have_no_importances(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path, MIN_TRIALS)
    sweep = Sweep.open(tmp_path)
    assert importances(sweep, objectives_of(sweep)) == {
        "trials": MIN_TRIALS - 1,
        "needed": MIN_TRIALS,
        "metrics": {},
    }


def test_trials_of_another_space_are_left_out(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, MIN_TRIALS + 1)
    write_trial(Storage(tmp_path), replace(records[3], params={"other": 1}))
    sweep = Sweep.open(tmp_path)
    assert importances(sweep, objectives_of(sweep)) == {
        "trials": MIN_TRIALS - 1,
        "needed": MIN_TRIALS,
        "metrics": {},
    }


def test_the_hypervolume_grows_to_that_of_the_front(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, 30)
    front = front_of([Sweep.open(tmp_path)])
    (curve,) = hypervolumes(front)
    assert curve["images"] == [192 * count for count in range(1, len(records) + 1)]
    assert curve["volume"] == sorted(curve["volume"])
    assert curve["volume"][-1] == pytest.approx(
        front.hypervolume(front.reference_point())[0], rel=1e-4
    )
