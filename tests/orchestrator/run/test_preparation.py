"""Preparations run beside the first trials, and what needs them waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.run.preparation import PreparedWorkers
from orchestrator.run.tasks import Event, SweepError, Task, TaskResult

REFERENCE = Task(-1, "reference", {"kind": "reference"})
PREDICT = Task(-1, "pool", {"kind": "predict"})
DRAW, MEASURE = Task(0, "draw", {"kind": "quality"}), Task(0, "measure", {"kind": "measure"})


class Scripted:
    """Workers that finish the named tasks, one at each call."""

    alive = 1

    def __init__(self, *finishing: str, failing: str = "") -> None:
        self.finishing, self.failing = list(finishing), failing
        self.submitted: list[str] = []
        self.tasks: dict[str, Task] = {}

    def submit(self, task: Task) -> None:
        self.submitted.append(task.name)
        self.tasks[task.name] = task

    def withdraw(self, trial: int) -> None: ...

    def close(self) -> None: ...

    def collect(self, timeout: float) -> list[TaskResult]:
        assert self.finishing, "nothing will ever finish"
        name = self.finishing.pop(0)
        output: Mapping[str, Any] | None = None if name == self.failing else {"name": name}
        return [TaskResult(self.tasks[name], output, "out of memory" if output is None else None)]


def prepared(inner: Scripted, events: list[Event] | None = None) -> PreparedWorkers:
    emit = ([] if events is None else events).append
    return PreparedWorkers(inner, [(REFERENCE, "reading"), (PREDICT, "predicting")], emit)


def test_the_preparations_that_are_left_are_said() -> None:
    events: list[Event] = []
    workers = prepared(Scripted("reference", "pool"), events)
    workers.wait("pool")
    assert [event["phase"] for event in events] == ["reading; predicting", "predicting", ""]


def test_images_are_drawn_meanwhile_but_metrics_wait_for_the_reference() -> None:
    inner = Scripted("draw", "reference", "measure")
    workers = prepared(inner)
    workers.submit(DRAW)
    assert [result.task for result in workers.collect(0)] == [DRAW]
    workers.submit(MEASURE)
    assert inner.submitted == ["reference", "pool", "draw"]
    assert workers.collect(0) == [], "a preparation's result is nobody's"
    assert inner.submitted[3:] == ["measure"]
    assert [result.task for result in workers.collect(0)] == [MEASURE]


def test_results_that_arrive_while_a_preparation_is_waited_for_are_kept() -> None:
    workers = prepared(Scripted("draw", "reference", "pool"))
    workers.submit(DRAW)
    workers.wait("pool")
    assert [result.task for result in workers.collect(0)] == [DRAW]
    workers.wait("pool")


def test_a_withdrawn_trial_has_neither_results_nor_metrics() -> None:
    inner = Scripted("draw", "pool", "reference")
    workers = prepared(inner)
    workers.submit(DRAW)
    workers.submit(MEASURE)
    workers.wait("pool")
    workers.withdraw(0)
    assert workers.collect(0) == []
    assert "measure" not in inner.submitted


@pytest.mark.parametrize("failing", ["reference", "pool"])
def test_a_failed_preparation_ends_the_sweep(failing: str) -> None:
    workers = prepared(Scripted("reference", "pool", failing=failing))
    with pytest.raises(SweepError, match=f"{failing}: out of memory"):
        workers.wait("pool")
