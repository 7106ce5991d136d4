"""Fronts that one more sweep judges, on made-up sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.judged import judged_hypervolumes, judging_sweep, members
from orchestrator.front.front import front_of
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from tests.fakes.synthetic_sweeps import write_sweep


def test_the_judging_sweep_draws_all_images_of_both_fronts(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 8, failed=())
    found = members(Sweep.open(tmp_path / "one"))
    configs = [config for config in found if not config.is_vanilla]
    assert len(configs) >= 2
    text = judging_sweep("quickstart", [*found, *configs], 48, {"reference.count": 64})
    sweep = SweepConfig.parse(text, "judge.yaml")
    assert [entry.config for entry in sweep.enqueue[1:]] == configs
    assert sweep.enqueue[0].config.is_vanilla
    assert sweep.budget.trials == 1 + len(configs)
    assert (sweep.captions.count, sweep.reference.count) == (48, 64)
    assert sweep.quality.lossless == "measure"
    assert sweep.racing is None


def test_fronts_are_judged_by_another_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path / "judge", 8, failed=())
    judge = Sweep.open(tmp_path / "judge")
    front = front_of([judge], feasible=False)
    best = [trial.record.config for trial in front.members if trial.record.config is not None]
    whole, same, fewer = judged_hypervolumes(judge, [best, best, best[:-1]])
    assert whole.value == pytest.approx(front.hypervolume(front.reference_point())[0])
    assert same == whole == (whole.value, 1, 0, 0)
    assert fewer.value < whole.value
    assert fewer.ratio == pytest.approx(fewer.value / whole.value)
    assert fewer.error > 0
