"""A sweep's one worker in the test's own process, in the place of `Pool` and its Ray cluster.

A launch on Ray costs 25 seconds of CPU time, most of them for imports in three kinds of processes.
Tests that show nothing about processes launch with this.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from orchestrator.cluster.placement import ANYWHERE, Placement, Slots
from orchestrator.cluster.pool import _PERMANENT_ERRORS
from orchestrator.cluster.tasks import Task, TaskResult
from orchestrator.launch import launch
from orchestrator.store.events import EventSink
from workers.actor import Worker


class LocalPool:
    """Runs each task when its result is collected: the oldest trial's first, as `Pool` does."""

    alive = 1

    def __init__(
        self,
        spec: Mapping[str, Any],
        slots: Slots,
        environment: Mapping[str, str] | None = None,
        emit: EventSink = lambda event: None,
        placement: Placement = ANYWHERE,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        self.worker = Worker(_sent({**spec, "worker": "local"}))
        self.queue: list[tuple[tuple[int, int, int], Task]] = []
        self.count = itertools.count()

    def first_facts(self) -> Mapping[str, Any]:
        return _sent(self.worker.facts())

    def submit(self, task: Task) -> None:
        heapq.heappush(
            self.queue, ((task.trial, 0 if task.is_measurement else 1, next(self.count)), task)
        )

    def withdraw(self, names: Collection[str]) -> None:
        self.queue = [entry for entry in self.queue if entry[1].name not in names]
        heapq.heapify(self.queue)

    def collect(self, timeout: float) -> list[TaskResult]:
        if not self.queue:
            return []
        task = heapq.heappop(self.queue)[1]
        try:
            return [TaskResult(task, _sent(self.worker.run(_sent(task.payload))))]
        except Exception as error:
            cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return [TaskResult(task, None, cause, permanent=cause.startswith(_PERMANENT_ERRORS))]

    def close(self) -> None:
        self.queue.clear()


@contextmanager
def local_launches() -> Iterator[None]:
    """While the block runs, launches of this process use a `LocalPool` and start no Ray."""

    @contextmanager
    def no_cluster(address: str | None, slots: Slots, *rest: object) -> Iterator[Slots]:
        yield slots

    with (
        mock.patch.object(launch, "Pool", LocalPool),
        mock.patch.object(launch, "connected", no_cluster),
    ):
        yield


def _sent(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as another process receives it."""
    received: dict[str, Any] = pickle.loads(pickle.dumps(dict(data)))
    return received
