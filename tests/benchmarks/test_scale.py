"""The benchmark of scale, small: the real driver with workers that sleep, and a store that is made
and resumed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.scale import (
    efficiency,
    imports_mb,
    make_store,
    question_s,
    racing_s,
    resume,
    sweep_of,
)
from specfrontier import Sweep

pytestmark = pytest.mark.slow(seconds=40)


def test_the_efficiency_of_workers_that_sleep(tmp_path: Path) -> None:
    facts = efficiency(1, 0.05, 64, tmp_path)
    assert facts["shards"] >= 64  # the trial's quality shards, and its timing session
    assert 0 < facts["efficiency"] < 1  # how much is for the benchmark to say, on a quiet machine


def test_a_made_store_is_resumed_by_the_real_command(tmp_path: Path) -> None:
    sweep = sweep_of(3, 16)
    sweep = replace(sweep, reference=replace(sweep.reference, count=96))
    made = make_store(sweep, tmp_path)
    assert (made["trials"], made["shards"]) == (3, 3 * 16)
    assert made["sessions"] >= 2, "one of the trials' shapes, and one of the front"
    assert Sweep.open(str(tmp_path / sweep.name)).prices.problems == (), "they can be read"
    asked = question_s(tmp_path / sweep.name)
    assert 0 < asked["trials_mb"] < 1
    assert min(asked["pareto_cpu_s"], asked["status_cpu_s"]) > 0
    resumed = resume(sweep, tmp_path, 4, "--no-mlflow", "--workers", "1").summary()
    assert resumed["preflight_done_s"] <= resumed["first_worker_s"] <= resumed["first_shard_s"]
    assert resumed["memory_mb"] > 50


def test_a_library_is_counted_by_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_LIBRARIES", ("numpy", "numpy.fft"))
    added = imports_mb()
    assert added["numpy"] > 5 > added["numpy.fft"], "numpy has imported it"


def test_trials_of_a_racing_sweep_stop_and_go_on(tmp_path: Path) -> None:
    facts = racing_s(30, tmp_path)
    assert facts["trials"] == 30
    assert facts["stopped"] > facts["revived"] > 0
    assert facts["steps"] >= facts["revived"]
