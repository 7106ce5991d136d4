"""A real sweep in which lossless settings draw what their speed and a check of their tokens need."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from search_spaces.acceptance import AcceptanceRule
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=30)
SWEEP = """
name: known
models: WEIGHTS
captions: {source: scenes, count: 72, seed: 1}
reference: {source: scenes, count: 96, seed: 2}
quality: {batch: 18, shard: 18}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
metrics: [target_passes, fid, drift]
objectives: [target_passes, fid]
search: {sampler: random, parallel: 2, seed: 0}
budget: {trials: 4}
enqueue:
  - vanilla
  - {label: chain, drafter: eagle, tree: {policy: chain, length: 2}}
  - label: false claim
    drafter: eagle
    tree: {policy: chain, length: 2}
    acceptance: {neighbourhood: additive, k: 100, delta: 0.9}
  - {label: window, drafter: jacobi, tree: {policy: chain, length: 4}}
space: {drafter: eagle, tree: {policy: chain, length: 3}}
"""


def test_a_false_claim_is_found_and_others_draw_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AcceptanceRule, "is_lossless", lambda *_: True)
    monkeypatch.setattr("orchestrator.run.trial._PRECISION", 0.5)  # the images are small
    run = SweepRun(tmp_path, SWEEP)
    launched = run.run_locally()
    folder = run.store
    stored = read_trials(Storage(str(folder)))
    images = [record.images for record in stored]
    assert images[0] == images[2] == 72
    assert max(images[1], images[3]) < 72
    assert [record.check is None or record.check.passed for record in stored] == [
        True,
        True,
        False,
        True,
    ]
    assert ["fid" in record.metrics for record in stored] == [True, False, True, False]
    assert ["drift" in record.metrics for record in stored] == [True, False, True, False]
    sweep = Sweep.open(folder)
    fids = [record.metrics["fid"].value for record in sweep.records]
    assert fids[0] == fids[1] == fids[3]
    assert fids[2] != fids[0]
    assert [record.is_lossless(sweep.identity) for record in sweep.records] == [
        True,
        True,
        False,
        True,
    ]
    for command in (("status",), ("pareto",), ("report", "--out", str(tmp_path / "page.html"))):
        found = specfrontier(command[0], str(folder), *command[1:])
        assert found.code == 0, found.err
    assert "claims to be lossless" in specfrontier("status", str(folder)).out
    assert "claims to be lossless" in (tmp_path / "page.html").read_text()
    assert "claims to be lossless" in launched.out
