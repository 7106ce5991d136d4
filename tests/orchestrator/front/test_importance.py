"""Importances of what a sweep searched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.front.importance import MIN_TRIALS, importances
from orchestrator.front.questions import objectives_of
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.shards import PREDICTIONS
from workers.data.storage import Storage
from workers.metrics.estimate import measured


def test_importances_cover_what_was_searched(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, 60)
    sweep = Sweep.open(tmp_path)
    found = importances(sweep, objectives_of(sweep))
    assert found.trials == 59, "vanilla has no parameters"
    searched = {name for record in records for name in record.params}
    for metric in ("speedup", "fid"):
        shares = {name: share for name, (share, _) in found.shares[metric].items()}
        assert set(shares) == searched
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
    relaxed = [name for name in searched if name.startswith("acceptance")]
    assert sum(found.shares["fid"][name][0] for name in relaxed) > 0.7, (
        "only the rule changes these images"
    )


def test_errors_are_those_of_the_jackknife(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path, 41)
    sweep = Sweep.open(tmp_path)
    metrics = objectives_of(sweep)
    found = importances(sweep, metrics)
    kept = [record for record in sweep.records if record.params]
    parts = []
    for block in range(10):
        records = [record for place, record in enumerate(kept) if place % 10 != block]
        part = importances(replace(sweep, records=tuple(records)), metrics)
        parts.append(part.shares["fid"])
    for key, (_, error) in found.shares["fid"].items():
        values = np.array([part.get(key, (0.0, 0.0))[0] for part in parts])
        assert error == pytest.approx(math.sqrt(9 / 10 * np.square(values - values.mean()).sum()))
    assert all(error > 0 for _, error in found.shares["fid"].values())


def test_few_trials_have_no_importances_and_a_command_that_adds_more(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path, MIN_TRIALS)
    sweep = Sweep.open(tmp_path)
    found = importances(sweep, objectives_of(sweep))
    assert (found.trials, found.shares) == (MIN_TRIALS - 1, {})
    assert f"--resume --trials {MIN_TRIALS + 1}" in found.more
    assert found.more in found.problem


def test_a_sweep_without_a_space_is_not_told_to_go_on(tmp_path: Path) -> None:
    write_sweep(tmp_path, 30)
    sweep = Sweep.open(tmp_path)
    found = importances(sweep, objectives_of(sweep))
    assert "no space" in found.problem
    assert "--resume" not in found.problem


def test_trials_of_another_space_are_left_out(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, MIN_TRIALS + 1)
    write_trial(Storage(tmp_path), replace(records[3], params={"other": 1}))
    sweep = Sweep.open(tmp_path)
    found = importances(sweep, objectives_of(sweep))
    assert (found.trials, found.shares) == (MIN_TRIALS - 1, {})


def test_only_measured_trials_count(tmp_path: Path) -> None:
    """Not one that racing stopped, whose values on all images are expected ones, and not the
    settings that the replay has predicted.
    """
    records = write_searched_sweep(tmp_path, 60)
    storage = Storage(tmp_path)
    for record in records[50:]:
        write_trial(storage, replace(record, state="stopped", images=8))
    storage.write(PREDICTIONS, b"of settings that no trial has")
    sweep = Sweep.open(tmp_path)
    metrics = objectives_of(sweep)
    found = importances(sweep, metrics)
    alone = replace(sweep, records=sweep.records[:50])
    assert found == importances(alone, metrics)
    assert found.trials == 49


def test_pareto_prints_them(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path, 60)
    text = specfrontier("pareto", str(tmp_path), "--importance").out
    facts = specfrontier("pareto", str(tmp_path), "--importance", "--json").json
    ((_, found),) = facts["importance"].items()
    for key, share in found["metrics"]["fid"].items():
        error = found["errors"]["fid"][key]
        (line,) = (line for line in text.splitlines() if line.startswith(f"{key} "))
        assert line.endswith(measured(share, error))
