"""A caption that kills every worker that draws it: its trial fails alone, and the captions are
named.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.real_sweeps import SweepRun, files, ray_folder
from workers.data.captions import read_captions

pytestmark = pytest.mark.slow(seconds=40)
SWEEP = """
name: deadly
models: WEIGHTS
captions: {source: scenes, count: 8, seed: 1}
reference: {source: none}
quality: {batch: 4, shard: 4}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
metrics: [step_compression, caption_accuracy]
objectives: [step_compression, caption_accuracy]
search: {parallel: 3}
budget: {trials: 3}
enqueue: [vanilla, {drafter: eagle, tree: {policy: chain, length: 2}, acceptance: {schedule: deadly}}]
space: {drafter: eagle, tree: {policy: chain, length: 3}, acceptance: exact}
"""
PLUGIN = """
import os, signal, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from search_spaces.schedules import SCHEDULES, Constant

@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Deadly(Constant):
    kind: ClassVar[str] = "deadly"

if "workers.runtime.loaded" in sys.modules:  # in a worker
    from workers.runtime.engines import Engines
    generate_once = Engines.generate_once

    def generate_or_die(self, config, requests, *args, **kwargs):
        cured = Path(__file__).with_name("cured").exists()
        if config.acceptance.schedule.kind == "deadly" and requests[-1].caption_id == LAST and not cured:
            os.kill(os.getpid(), signal.SIGKILL)
        return generate_once(self, config, requests, *args, **kwargs)

    Engines.generate_once = generate_or_die
"""


def test_a_trial_whose_captions_kill_workers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = read_captions("scenes", count=8, seed=1)[-1].id
    (tmp_path / "deadly.py").write_text(PLUGIN.replace("LAST", str(last)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SPECFRONTIER_PLUGINS", "deadly")
    with ray_folder() as ray:
        run = SweepRun(tmp_path, SWEEP, ray)
        run.start("--no-mlflow", "--workers", "1")
        assert run.wait() == 1, run.output
    (failed,) = (
        event
        for event in run.events
        if event["event"] == "trial_finished" and event["state"] != "complete"
    )
    assert failed["trial"] == 1
    assert "died 3 times while running" in failed["cause"]
    assert "(quality of captions 4 to 7 of scenes, eagle chain)" in failed["cause"]
    assert f": failed: {failed['cause']}" in run.output
    assert "1 trial lost" in run.output
    assert [record.number for record in run.records] == [
        0,
        2,
    ], "it has no record, so --resume runs it again"
    before = files(run.store)
    (tmp_path / "cured").touch()
    monkeypatch.syspath_prepend(tmp_path)
    run.run_locally("--no-mlflow", "--workers", "1", "--resume")
    assert [record.state for record in run.records] == ["complete"] * 3
    assert before.items() <= files(run.store).items()
