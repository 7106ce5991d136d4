"""Sweeps whose workers make their files at once, with real timing sessions in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.instant import InstantWorkers, Numbers, make_driver, plausible
from benchmarks.simulated import write_session
from orchestrator.cluster.tasks import Outcome, Task, TaskResult
from orchestrator.run.timing import time_front
from orchestrator.store.events import Note
from orchestrator.store.prices import read_prices
from orchestrator.store.records import TrialRecord, read_trials
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.synthetic_sweeps import METRICS, NEEDS, identity
from workers.data.shards import TimingSession
from workers.data.storage import Storage
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

NAMES = ("speedup", "fid")
TRIALS = 9
SPACE = """
name: shapes
captions: {source: scenes, count: 16, seed: 1}
quality: {batch: 8, shard: 8}
timing: {batch: 1, images: 2, repetitions: 2}
search: {sampler: random, parallel: PARALLEL}
budget: {trials: 9}
objectives: [{metric: speedup, direction: maximize}, {metric: fid, direction: minimize}]
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
enqueue:
  - vanilla
  - {label: chain, drafter: eagle, tree: {policy: chain, length: 3}}
  - {label: window, drafter: jacobi, tree: {policy: chain, length: 4}}
space:
  drafter: eagle
  tree: {policy: chain, length: {low: 3, high: 5}}
  acceptance:
    - {schedule: constant, budget: {low: 1, high: 3, log: true}}
    - {schedule: exponential, budget: {low: 1, high: 3, log: true}, nu: {low: 0.1, high: 0.5}}
"""
Fault = Callable[[Task], bool]


class Workers(InstantWorkers):
    """They write an empty file for each shard. Tasks for which `fault` holds fail. A driver that
    waits for nothing ends the test instead of hanging. left: results after which the driver is
    killed.
    """

    def __init__(
        self,
        fault: Fault = lambda task: False,
        *,
        permanent: bool = True,
        left: int = 10_000,
        numbers: Numbers = plausible,
        last_first: bool = False,
    ) -> None:
        super().__init__(numbers, last_first)
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
            TaskResult(result.task, None, "no", permanent=self.permanent)
            if self.fault(result.task)
            else result
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


def run(folder: Path, workers: Workers, *, parallel: int = 3) -> Outcome:
    folder.mkdir(exist_ok=True)
    path = folder / "shapes.yaml"
    path.write_text(SPACE.replace("PARALLEL", str(parallel)))
    config, storage = SweepConfig.read(str(path)), Storage(str(folder))
    workers.storage = storage
    driver = make_driver(
        config, storage, workers, [Metric("speedup", "maximize"), Metric("fid", "minimize")]
    )
    return driver.run(read_trials(storage))


def sessions(workers: Workers) -> list[list[str]]:
    """The digests that each session times, in the order of their numbers."""
    found = {task.name: task.payload for task in workers.tasks if task.kind == "timing"}
    ordered = sorted(found.values(), key=lambda payload: int(payload["number"]))
    return [
        [DecodingConfig.from_mapping(config).digest() for config in payload["configs"]]
        for payload in ordered
    ]


def digests(records: Sequence[TrialRecord], *numbers: int) -> list[str]:
    return [records[number].digest for number in numbers]


class TimedWorkers(Workers):
    """They write real sessions, and price trials by them. at_session: what to do when a session of
    this number, and what it times, is about to be made. seed, noise: of the speeds. timed: a store
    whose sessions are copied.
    """

    def __init__(
        self,
        at_session: Callable[[Task], None] = lambda task: None,
        seed: int = 0,
        noise: float = 0.01,
        timed: Storage | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.at_session, self.seed, self.noise, self.copied = at_session, seed, noise, timed

    def answer(self, task: Task) -> Mapping[str, Any]:
        if task.kind == "timing" and not self.fault(task):
            self.at_session(task)
            assert self.storage is not None
            if self.copied is not None:
                self.storage.write(task.name, self.copied.read(task.name))
            else:
                session = TimingSession.from_mapping(task.payload)
                write_session(self.storage, task.name, session, 100 * self.seed, self.noise)
            return InstantWorkers.answer(self, task)
        output = super().answer(task)
        if task.kind != "measure":
            return output
        assert self.storage is not None
        config = DecodingConfig.from_mapping(task.payload["config"])
        passes = [144.0 if config.is_vanilla else 48.0] * 9
        prices, _ = read_prices(self.storage, task.payload["timing"]).of(config.shape)
        speed = {"speedup": prices.speedup(config.shape, np.array(passes), 16).to_mapping()}
        return {**output, "passes": {"1": passes}, "metrics": output["metrics"] | speed}


@dataclass(frozen=True, slots=True)
class Timed:
    """A sweep that has ended, the sessions that it wanted (names by number), the notes of its end,
    the limit that ended it, and why its front was not timed once more.
    """

    sweep: Sweep
    sessions: Mapping[int, str]
    notes: Sequence[str]
    limit: str
    untimed: str


def launch(
    folder: Path, workers: TimedWorkers, text: str = SPACE, *, front: Sequence[str] = NAMES
) -> Timed:
    """Run a sweep and its last session, or the rest of them. front: its objectives."""
    folder.mkdir(exist_ok=True)
    path, notes = folder / "shapes.yaml", list[str]()
    path.write_text(text.replace("PARALLEL", "3"))
    config, storage = SweepConfig.read(str(path)), Storage(str(folder))
    workers.storage = storage
    driver = make_driver(
        config, storage, workers, [Metric("speedup", "maximize"), Metric("fid", "minimize")]
    )
    outcome, trials = driver.run(read_trials(storage)), driver.trials
    goals = [{"metric": name, "direction": METRICS[name]["direction"]} for name in front]
    baseline = trials.plan.baseline.to_mapping()
    metrics = {
        name: {**METRICS[name], "needs": NEEDS[name]} for name in dict.fromkeys([*front, "speedup"])
    }
    facts = identity("shapes", baseline=baseline, metrics=metrics, objectives=goals, constraints=[])
    sweep = Sweep(storage, facts, tuple(outcome.records))
    untimed = time_front(
        sweep,
        trials.plan.session,
        trials.sessions.made,
        trials.build,
        lambda event: notes.append(event.note or "") if isinstance(event, Note) else None,
    )
    found = {
        int(task.payload["number"]): task.name for task in workers.tasks if task.kind == "timing"
    }
    return Timed(sweep.priced(), found, notes, outcome.stopped_by, untimed)


def results(timed: Timed) -> list[tuple[int, Mapping[str, Estimate]]]:
    return [(record.number, record.metrics) for record in timed.sweep.records]
