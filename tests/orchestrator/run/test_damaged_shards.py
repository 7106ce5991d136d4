"""Damaged shards in a sweep: set aside, drawn again, and the results are those of an undisturbed
sweep.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.instant import InstantWorkers
from orchestrator.cluster.tasks import SweepError, Task, TaskResult
from orchestrator.run.build import DAMAGED
from orchestrator.store.records import TrialRecord, read_trials
from tests.orchestrator.run.test_driver import run, sweep
from workers.data.records import ShardError, read_shard, write_shard
from workers.data.storage import Storage

TRIALS = 6


class WritingWorkers(InstantWorkers):
    """Workers that write small shards, and read them to measure. They stop the driver after
    `results` results.
    """

    def __init__(self, folder: Path, results: int = 10_000) -> None:
        super().__init__()
        self.storage, self.left = Storage(folder), results
        self.drawn: list[str] = []

    def collect(self, timeout: float) -> list[TaskResult]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().collect(timeout)

    def answer(self, task: Task) -> Mapping[str, Any]:
        if task.kind != "measure":
            return self.draw(task)
        payload, unusable = task.payload, dict[str, str]()
        for name in (
            name for key in ("quality", "timing", "baseline_quality") for name in payload[key]
        ):
            try:
                read_shard(self.storage, name, [], fix="")
            except ShardError as error:
                unusable |= error.reasons
            except FileNotFoundError:
                unusable[name] = f"{name}: missing"
        return {"unusable": unusable} if unusable else super().answer(task)

    def draw(self, task: Task) -> Mapping[str, Any]:
        if self.storage.exists(task.name):
            try:
                read_shard(self.storage, task.name, [])
            except ShardError as error:
                return {"unusable": error.reasons}
        self.drawn.append(task.name)
        write_shard(
            self.storage, task.name, pa.table({"n": [1]}), {"kind": task.kind, "name": task.name}
        )
        return super().answer(task)


def launched(
    folder: Path, workers: WritingWorkers, **changes: Any
) -> tuple[list[TrialRecord], list[str]]:
    """The records of a sweep of six trials, and what it noted."""
    notes: list[str] = []
    config = sweep(folder.parent, changes={"budget.trials": TRIALS} | changes)
    outcome = run(
        config,
        folder,
        workers,
        emit=lambda event: notes.append(event.note or ""),
    )
    return list(outcome.records), [note for note in notes if note]


def results(records: list[TrialRecord]) -> list[tuple[Any, ...]]:
    return [(r.number, r.config, r.metrics, r.shards, r.shape, r.state) for r in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[TrialRecord]:
    folder = tmp_path_factory.mktemp("whole") / "store"
    return launched(folder, WritingWorkers(folder))[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A store whose driver died when no trial had a record, and many shards were drawn."""
    folder = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        launched(folder, WritingWorkers(folder, results=9))
    assert not read_trials(Storage(folder))
    return folder


def flip(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    return bytes(data)


def test_a_damaged_shard_of_an_unfinished_trial_is_set_aside_and_drawn_again(
    stopped: Path, whole: list[TrialRecord]
) -> None:
    shards = sorted(path.name for path in (stopped / "shards").iterdir())
    damaged = {name: flip(stopped / "shards" / name) for name in shards[::2]}
    workers = WritingWorkers(stopped)
    records, notes = launched(stopped, workers)
    assert results(records) == results(whole)
    assert {name for name in workers.drawn if f"shards/{name}" in damaged} == set()
    assert sorted(path.read_bytes() for path in (stopped / DAMAGED).iterdir()) == sorted(
        damaged.values()
    )
    assert len(notes) == len(damaged), "said once for each"
    assert all(str(stopped / "shards" / name) in " ".join(notes) for name in damaged)
    assert max(workers.drawn.count(f"shards/{name}") for name in shards) == 1


def test_a_shard_of_another_setting_under_a_name_of_the_trial_is_drawn_again(
    stopped: Path, whole: list[TrialRecord]
) -> None:
    first, second, *_ = sorted((stopped / "shards").glob("quality-*"))
    shutil.copy(first, second)
    workers = WritingWorkers(stopped)
    records, notes = launched(stopped, workers)
    assert results(records) == results(whole)
    assert f"shards/{second.name}" in workers.drawn
    assert len(notes) == 1
    assert f"shards/{first.name}" in notes[0]


@pytest.mark.parametrize("missing", [False, True])
def test_the_baselines_shards_are_drawn_again_for_later_trials(
    whole: list[TrialRecord], tmp_path: Path, missing: bool
) -> None:
    folder = tmp_path / "store"
    launched(folder, WritingWorkers(folder), **{"budget.trials": 3})
    path = folder / whole[0].image_shards[1]
    path.unlink() if missing else flip(path)
    records, notes = launched(folder, workers := WritingWorkers(folder))
    assert results(records) == results(whole)
    assert workers.drawn.count(whole[0].image_shards[1]) == 1
    assert len(notes) == (0 if missing else 1), (
        "a shard that is not there at the start is simply drawn"
    )


def test_a_damaged_timing_session_is_set_aside_and_timed_anew(
    tmp_path: Path, whole: list[TrialRecord]
) -> None:
    folder = tmp_path / "store"
    launched(folder, WritingWorkers(folder), **{"budget.trials": TRIALS - 2})
    session = next(name for name in whole[1].shards if name.startswith("timings/"))
    flip(folder / session)
    records, notes = launched(folder, workers := WritingWorkers(folder))
    assert results(records) == results(whole)
    assert workers.drawn.count(session) == 1
    assert len(notes) == 1
    assert session in notes[0]


def test_a_task_that_finds_its_own_file_damaged_is_repeated(
    tmp_path: Path, whole: list[TrialRecord]
) -> None:
    folder = tmp_path / "store"

    class Surprised(WritingWorkers):
        def draw(self, task: Task) -> Mapping[str, Any]:
            if (
                task.name == whole[1].image_shards[0]
                and task.name not in self.drawn
                and not (folder / DAMAGED).exists()
            ):
                self.storage.write(task.name, b"torn")
            return super().draw(task)

    records, notes = launched(folder, Surprised(folder))
    assert results(records) == results(whole)
    assert len(notes) == 1


def test_a_store_that_damages_every_shard_ends_the_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    class Spoiling(WritingWorkers):
        def draw(self, task: Task) -> Mapping[str, Any]:
            answer = super().draw(task)
            flip(folder / task.name)
            return answer

    with pytest.raises(SweepError, match=r"shards/.*: damaged .*check the disk"):
        launched(folder, Spoiling(folder))
