"""`benchmarks.chaos` on a tiny model: some of its faults, and what it counts."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import chaos, chaos_cluster, chaos_faults, chaos_sweep
from benchmarks.chaos_cluster import LOCAL
from benchmarks.chaos_faults import KINDS, plan
from benchmarks.sweep_results import compare
from tests.fakes.real_sweeps import METRICS, SWEEP, SweepRun
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.records import read_shard, write_shard
from workers.data.storage import Storage

KINDS_HERE = ["store full", "files torn"]  # others: test_interrupted_sweeps.py, test_cluster.py
SHARD = 14  # images

pytestmark = pytest.mark.slow(seconds=90)


def test_faults_are_a_function_of_the_seed() -> None:
    faults = plan(3, 100, list(KINDS))
    assert faults == plan(3, 100, list(KINDS))
    assert {fault.kind for fault in faults} == set(KINDS)
    assert faults != plan(4, 100, list(KINDS))


def test_lost_doubled_and_changed_images_are_counted(small: SweepRun, tmp_path: Path) -> None:
    store = tmp_path / "small"
    shutil.copytree(small.store, store)
    assert compare(small.store, store, METRICS).is_clean
    lost, doubled, changed, *_ = (
        f"shards/{path.name}" for path in sorted((store / "shards").glob("quality-*"))
    )
    storage = Storage(store)
    (store / lost).unlink()
    table, metadata = read_shard(storage, doubled)
    write_shard(
        storage,
        "shards/quality-copy.parquet",
        table,
        metadata | {"name": "shards/quality-copy.parquet"},
    )
    table, metadata = read_shard(storage, changed)
    rows = table["tokens"].to_pylist()
    rows[3][0] += 1
    tokens = pa.array(rows, table["tokens"].type)
    write_shard(
        storage,
        changed,
        table.set_column(table.column_names.index("tokens"), "tokens", tokens),
        metadata,
    )
    found = compare(small.store, store, METRICS)
    assert (found.lost, found.twice, found.wrong, found.trials_differ) == (SHARD, SHARD, 1, [])
    assert (
        compare(small.store, store, METRICS, rewritten=[changed.removeprefix("shards/")]).twice
        == 2 * SHARD
    )
    record = max((store / "trials").iterdir())
    record.unlink()
    assert compare(small.store, store, METRICS).trials_differ == [int(record.stem)]


def test_a_kept_sweep_with_more_trials_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its further trials would count as lost."""
    launches: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: launches.append(command))
    store = tmp_path / "small"
    for trials, is_kept in ((3, True), (4, True), (2, False)):
        write_sweep(store, 3, failed=())
        assert chaos.undisturbed(tmp_path, "name: small", trials) == store
        assert store.exists() == is_kept
    assert [command[-1] for command in launches] == ["3", "4", "2"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow node is not a dead one, and nothing is given up because the machine is busy."""
    monkeypatch.setitem(chaos_cluster.HEALTH_CHECKS, "health_check_timeout_ms", 60_000)
    monkeypatch.setattr(chaos_cluster, "_START_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(chaos_faults, "_SIGTERM_TIMEOUT_S", HANG_S)
    monkeypatch.setattr(chaos_sweep, "_TIMEOUT_S", HANG_S)


@pytest.mark.usefixtures("patient")
def test_faults_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "TRIALS", 40)
    # one worker: to start each one takes as long as what it draws
    monkeypatch.setattr(chaos, "Cluster", lambda: chaos_cluster.Cluster((LOCAL, LOCAL)))
    sweep = SweepRun(tmp_path / "calm", SWEEP)
    text = Path(sweep.arguments()[1]).read_text()

    def calm(trials: int) -> Path:
        sweep.run_locally("--no-mlflow", "--trials", str(trials))
        return sweep.store

    outcome = chaos.chaos(
        tmp_path / "disturbed", text, plan(0, len(KINDS_HERE), KINDS_HERE), calm, mlflow=False
    )
    assert outcome.is_clean, chaos.describe(outcome)
    assert outcome.comparison is not None
    assert outcome.comparison.expected >= 70 * 2, (
        "so far the sweep got before the last fault was over"
    )
    assert outcome.endings[-signal.SIGKILL] == 1
    assert outcome.endings[0] >= 1
