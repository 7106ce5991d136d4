"""The parts of the benchmark of images that are not drawn, on made-up sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lossless_images import (
    images_drawn,
    judged_hypervolumes,
    judging_sweep,
    members,
)
from orchestrator.front.front import front_of
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import Sampling
from tests.fakes.synthetic_sweeps import IMAGES, write_sweep


def test_images_are_counted_once(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, 8, failed=(), repeated={6: 1})
    total, lossless = images_drawn(Sweep.open(tmp_path))
    assert total == 7 * IMAGES
    kept = [record for record in records if record.duplicate_of is None]
    exact = [
        record.number
        for record in kept
        if record.config is not None
        and not record.config.is_vanilla
        and record.config.is_lossless(Sampling(1.0, 0, 1.0, 1.5))
    ]
    assert exact
    assert lossless == len(exact) * IMAGES


def test_the_judging_sweep_draws_all_images_of_both_fronts(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 8, failed=())
    configs = [config for config in members(Sweep.open(tmp_path / "one")) if not config.is_vanilla]
    assert len(configs) >= 2
    text = judging_sweep("quickstart", [*configs, *configs], 48, {"reference.count": 64})
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
    volumes, ratio, error = judged_hypervolumes(judge, [best, best])
    assert volumes[0] == pytest.approx(front.hypervolume(front.reference_point())[0])
    assert (ratio, error) == (1, 0)
    fewer, ratio, error = judged_hypervolumes(judge, [best, best[:-1]])
    assert fewer[1] < volumes[0]
    assert ratio == pytest.approx(fewer[1] / volumes[0])
    assert error > 0
