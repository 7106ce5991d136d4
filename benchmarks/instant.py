"""Workers that return at once, with metrics computed from the config: what remains is the driver's
own cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.cluster.tasks import Task, TaskResult, Workers
from orchestrator.run.build import Build
from orchestrator.run.driver import Driver
from orchestrator.run.search import Search
from orchestrator.run.trial import Plan, Trials
from orchestrator.store.events import EventSink
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.shards import Experiment
from workers.data.storage import Storage
from workers.decoding.token_check import TokenCheck
from workers.metrics.definition import Metric

EXPERIMENT = Experiment({"target": "0"}, "captions", 0, {"features": "0"}, "float32")
DEFAULT_SAMPLING = Sampling()
_COLS = 8  # tokens of an image row
Numbers = Callable[[DecodingConfig], dict[str, float]]


def plausible(config: DecodingConfig) -> dict[str, float]:
    """A speed-up and a distance that trade off along the relaxation; a function of the config
    alone.
    """
    numbers = [value for value in config.flat().values() if isinstance(value, int | float)]
    relaxed = math.tanh(sum(math.log1p(abs(value)) for value in numbers) / 20)
    wobble = int(config.digest(), 16) % 1000 / 1e4
    return {"speedup": 1 + 2 * relaxed + wobble, "fid": 4 + 3 * relaxed**2 - wobble}


class InstantWorkers:
    """Replaces the pool: every task is finished at once. `first`: which of the waiting tasks is
    returned next.
    """

    alive = 1

    def __init__(self, numbers: Numbers = plausible, last_first: bool = False) -> None:
        self.numbers, self.last_first = numbers, last_first
        self.waiting: deque[Task] = deque()
        self.ran: list[str] = []

    def submit(self, task: Task) -> None:
        self.waiting.append(task)

    def withdraw(self, names: Collection[str]) -> None:
        self.waiting = deque(task for task in self.waiting if task.name not in names)

    def collect(self, timeout: float) -> list[TaskResult]:
        if not self.waiting:
            return []
        task = self.waiting.pop() if self.last_first else self.waiting.popleft()
        self.ran.append(task.name)
        return [TaskResult(task, self.answer(task))]

    def answer(self, task: Task) -> Mapping[str, Any]:
        """The result that a worker would return."""
        payload = task.payload
        if task.kind != "measure":
            images = payload["stop"] - payload["start"]
            return {
                "name": task.name,
                "images": images,
                "seconds": 0.0,
                "ran": True,
                "worker": "instant",
            }
        config = DecodingConfig.from_mapping(payload["config"])
        images = 8 * len(payload["quality"])
        check = TokenCheck(images, images, z=0.0, p_value=1.0, impossible=0)
        return {
            "check": asdict(check) if payload["check"] else None,
            "metrics": {
                name: {
                    "value": value,
                    "error": 0.05,
                    "n": images,
                    "replicates": self.replicates(config, value, images),
                }
                for name, value in self.numbers(config).items()
                if name in payload["metrics"] or not payload["check"]
            },
        }

    def replicates(self, config: DecodingConfig, value: float, images: int) -> list[float]:
        """The value without each block of captions."""
        return []

    def close(self) -> None: ...


def make_driver(
    sweep: SweepConfig,
    storage: Storage,
    workers: Workers,
    objectives: Sequence[Metric],
    *,
    experiment: Experiment = EXPERIMENT,
    sampling: Sampling = DEFAULT_SAMPLING,
    check: Callable[[DecodingConfig], None] = lambda config: None,
    emit: EventSink = lambda event: None,
    update: Callable[[TrialRecord], object] = lambda record: None,
) -> Driver:
    """The driver of a sweep without a model. sampling: of its baseline."""
    baseline = DecodingConfig(sampling=sampling)
    groups = QualityGroups({metric.name: metric for metric in objectives}, sampling, _COLS)
    build = Build(storage, workers, emit)
    trials = Trials(
        Plan(sweep, experiment, baseline, sweep.captions.count, groups),
        build,
        objectives,
        emit,
        earlier=0,
    )
    search = Search(sweep, [objective.direction for objective in objectives])
    return Driver(storage, trials, search, check=check, update=update)
