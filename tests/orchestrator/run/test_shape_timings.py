"""Trials of one shape are timed by one of them: who, what the others wait for, and what happens when it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.instant import InstantWorkers, make_driver
from orchestrator.results.store import read_trials
from orchestrator.results.trials import TrialRecord
from orchestrator.run.tasks import Outcome, Task, TaskResult
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage
from workers.metrics.definition import Metric

NAMES = ("speedup", "fid")
TRIALS = 9
SPACE = """
name: shapes
captions: {source: scenes, count: 16, seed: 1}
quality: {batch: 8, shard: 8}
timing: {batch: 1, images: 2, repetitions: 2, direct: DIRECT}
search: {sampler: random, parallel: PARALLEL}
budget: {trials: 9}
objectives: [{metric: speedup, direction: maximize}, {metric: fid, direction: minimize}]
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
enqueue: [vanilla, {label: chain, drafter: eagle, tree: {policy: chain, length: 3}}]
space:
  drafter: eagle
  tree: {policy: chain, length: 3}
  acceptance:
    - {schedule: constant, budget: {low: 1, high: 3, log: true}}
    - {schedule: exponential, budget: {low: 1, high: 3, log: true}, nu: {low: 0.1, high: 0.5}}
"""
Fault = Callable[[Task], bool]


class Workers(InstantWorkers):
    """They write an empty file for each shard. Tasks for which `fault` holds fail. A driver that waits for nothing ends
    the test instead of hanging. left: results after which the driver is killed.
    """

    def __init__(self, fault: Fault = lambda task: False, *, permanent: bool = True, left: int = 10_000) -> None:
        super().__init__()
        self.storage: Storage | None = None
        self.fault, self.permanent, self.left = fault, permanent, left
        self.tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        super().submit(task)
        self.tasks.append(task)

    def collect(self, timeout: float) -> list[TaskResult]:
        assert self.waiting, "the driver waits for a task that nobody runs"
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return [
            TaskResult(result.task, None, "no", permanent=self.permanent) if self.fault(result.task) else result
            for result in super().collect(timeout)
        ]

    def answer(self, task: Task) -> Mapping[str, Any]:
        if self.storage is not None and task.kind != "measure" and not self.fault(task):
            self.storage.write(task.name, b"")
        return super().answer(task)

    def timed(self) -> list[int]:
        """The trials that submitted timing tasks."""
        return [task.trial for task in self.tasks if task.kind == "timing"]

    def measured_with(self) -> dict[int, Mapping[str, Any]]:
        """The payload of each trial's measure task."""
        return {task.trial: task.payload for task in self.tasks if task.kind == "measure"}


def run(folder: Path, workers: Workers, *, direct: int = 1, parallel: int = 3) -> Outcome:
    folder.mkdir(exist_ok=True)
    path = folder / "shapes.yaml"
    path.write_text(SPACE.replace("DIRECT", str(direct)).replace("PARALLEL", str(parallel)))
    config, storage = SweepConfig.read(str(path)), Storage(str(folder))
    workers.storage = storage
    driver = make_driver(config, storage, workers, [Metric("speedup", "maximize"), Metric("fid", "minimize")])
    return driver.run(read_trials(storage))


def owners(records: tuple[TrialRecord, ...] | Any) -> dict[int, int]:
    """For each complete trial, the first one that has its timing files."""
    first: dict[str, int] = {}
    return {r.number: first.setdefault(r.shape, r.number) for r in records if r.state == "complete"}


def of_trial(number: int, kind: str) -> Fault:
    return lambda task: task.trial == number and task.kind == kind


def test_one_trial_of_a_shape_is_timed(tmp_path: Path) -> None:
    workers = Workers()
    records = run(tmp_path, workers).records
    assert workers.timed() == [0, 1]
    assert owners(records) == {0: 0} | dict.fromkeys(range(1, TRIALS), 1)
    measured = workers.measured_with()
    assert {tuple(measured[number]["timing"]) for number in range(1, TRIALS)} == {tuple(measured[1]["own_timing"])}
    assert [number for number in range(TRIALS) if measured[number]["own_timing"]] == [0, 1]
    assert all(records[1].shape in record.shards for record in records[1:])


@pytest.mark.parametrize("direct", [2, 4, 99])
def test_further_trials_are_timed_as_checks(direct: int, tmp_path: Path) -> None:
    workers = Workers()
    records = run(tmp_path, workers, direct=direct).records
    assert workers.timed() == list(range(min(TRIALS, direct + 1)))
    assert owners(records) == {0: 0} | dict.fromkeys(range(1, TRIALS), 1)
    own = [tuple(payload["own_timing"]) for _, payload in sorted(workers.measured_with().items())]
    assert sum(map(bool, own)) == len({*own} - {()}) == min(TRIALS, direct + 1)


@pytest.mark.parametrize(("kind", "timed"), [("quality", [0, 1]), ("timing", [0, 1, 2])])
def test_when_the_timing_fails_the_next_trial_is_timed(kind: str, timed: list[int], tmp_path: Path) -> None:
    """A trial of which only the images fail still times its shape, because others want the file."""
    workers = Workers(of_trial(1, kind))
    records = run(tmp_path, workers).records
    assert [record.number for record in records if record.state == "failed"] == [1]
    assert sorted(workers.timed()) == timed
    assert owners(records) == {0: 0} | dict.fromkeys(range(2, TRIALS), 2)


def test_a_check_that_takes_over_is_not_timed_twice(tmp_path: Path) -> None:
    workers = Workers(of_trial(1, "timing"))
    records = run(tmp_path, workers, direct=3).records
    assert owners(records) == {0: 0} | dict.fromkeys(range(2, TRIALS), 2)
    assert max(Counter(task.name for task in workers.tasks).values()) == 1


def test_files_of_a_failed_trial_are_used(tmp_path: Path) -> None:
    """Its timing shard is in the store, only its images could not be drawn."""

    class TimingFirst(Workers):
        def collect(self, timeout: float) -> list[TaskResult]:
            self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda task: task.kind != "timing"))
            return super().collect(timeout)

    workers = TimingFirst(of_trial(1, "quality"))
    records = run(tmp_path, workers).records
    assert workers.timed() == [0, 1]
    assert {record.shape for record in records[2:]} == {name for name in records[2].shards if "timing" in name}
    assert records[2].shape == next(task.name for task in workers.tasks if (task.trial, task.kind) == (1, "timing"))


@pytest.mark.parametrize("results", range(1, 26, 2))
@pytest.mark.parametrize("permanent", [True, False], ids=["failed", "lost"])
def test_a_killed_sweep_times_each_shape_once_more_at_most(results: int, permanent: bool, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Workers(of_trial(1, "quality"), permanent=permanent, left=results))
    workers = Workers(of_trial(1, "quality"), permanent=permanent)
    records = run(tmp_path, workers).records
    assert [record.number for record in records if record.state == "failed"] == [1]
    assert all(record.shape in record.shards for record in records if record.state == "complete")
    assert len(set(owners(records).values())) == 2
    assert len(workers.timed()) <= 3


@pytest.mark.parametrize("parallel", [1, 3, 30])
def test_the_number_of_workers_changes_no_assignment(parallel: int, tmp_path: Path) -> None:
    records = run(tmp_path, Workers(), parallel=parallel).records
    assert owners(records) == {0: 0} | dict.fromkeys(range(1, TRIALS), 1)
