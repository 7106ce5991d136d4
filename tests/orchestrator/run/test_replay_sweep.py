"""A sweep of a tiny model with the replay sampler, whole and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import WRONG_USAGE
from orchestrator.results.store import read_trials, trial_file
from orchestrator.results.trials import TrialRecord
from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.tiny_models import tiny_scenes
from workers.data.shards import PREDICTIONS
from workers.data.storage import Storage

SPACE = """
name: pooled
models: WEIGHTS
captions: {source: scenes, count: 24, seed: 1}
reference: {source: none}
metrics: [mean_accepted_length, caption_accuracy]
objectives: [mean_accepted_length, caption_accuracy]
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
search: {sampler: replay, parallel: 2, options: {pool: 24, captions: 3, startup: 3, samples: 16}}
budget: {trials: 8}
enqueue: [vanilla, {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
space:
  drafter: eagle
  tree: [{policy: chain, length: {low: 1, high: 4}}, {policy: dynamic, depth: 2, width: 2, nodes: 3}]
  acceptance: {schedule: constant, budget: {low: 1.0, high: 3.0}}
"""
TRIALS, KEPT = 8, 5


def launch(folder: Path, *options: str) -> list[TrialRecord]:
    with local_launches():
        result = specfrontier(
            "launch", str(folder.parent / "space.yaml"), "--out", str(folder), "--no-mlflow", *options
        )
    assert result.code == 0, result.err
    return read_trials(Storage(str(folder / "pooled")))


@pytest.mark.slow(40)
def test_a_resumed_sweep_chooses_the_same_settings_from_the_same_pool(tmp_path: Path) -> None:
    weights = tiny_scenes(tmp_path / "weights")
    (tmp_path / "space.yaml").write_text(SPACE.replace("WEIGHTS", str(weights)), "utf-8")
    whole = launch(tmp_path / "whole")
    assert [trial.state for trial in whole] == ["complete"] * TRIALS
    assert len({trial.digest for trial in whole}) == TRIALS, "no setting twice"
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for number in range(KEPT, TRIALS):
        (tmp_path / "resumed" / "pooled" / trial_file(number)).unlink()
    resumed = launch(tmp_path / "resumed", "--resume")
    assert [trial.params for trial in resumed] == [trial.params for trial in whole]
    pools = [(tmp_path / name / "pooled" / PREDICTIONS).read_bytes() for name in ("whole", "resumed")]
    assert pools[0] == pools[1]
    store = tmp_path / "resumed" / "pooled"
    (store / PREDICTIONS).write_bytes(b"damaged")
    with local_launches():
        options = ("--out", str(store.parent), "--resume", "--trials", "9")
        refused = specfrontier("launch", str(tmp_path / "space.yaml"), *options)
    assert refused.code == WRONG_USAGE
    assert f"Error: {store}/{PREDICTIONS}" in refused.err
