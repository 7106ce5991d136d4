"""The Ray shell: what it hands on, one task at a time, and that asking and stopping need not wait
for it.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import workers.evaluate
from tests.fakes.waiting import HANG_S
from workers.actor import MAX_CONCURRENCY, Worker, actor_class
from workers.runtime.specification import WorkerSpec


class SlowEvaluator:
    """Stands in for the evaluator: a task lasts until it is called off."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec, self.off = spec, threading.Event()
        self.started, self.running, self.most = threading.Event(), 0, 0

    def facts(self) -> dict[str, Any]:
        return {"target": "toy"}

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        self.off.set()

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.set()
        self.off.wait(HANG_S)
        self.running -= 1
        return {"kind": task["kind"]}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    monkeypatch.setattr(workers.evaluate, "Evaluator", SlowEvaluator)
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    yield Worker({"store": str(tmp_path), "worker": "w7"})
    # the log of a process that goes on
    for handler in [entry for entry in root.handlers if entry not in before]:
        root.removeHandler(handler)
        handler.close()


def test_calls_are_handed_on_while_a_task_runs(worker: Worker) -> None:
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: results.append(worker.run({"kind": "quality"})))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    slow = worker.evaluator
    assert isinstance(slow, SlowEvaluator)
    assert slow.started.wait(HANG_S)
    assert worker.facts() == {"target": "toy", "node": platform.node(), "labels": {}}
    worker.cancel()
    for thread in threads:
        thread.join(HANG_S)
    assert results == [{"kind": "quality"}] * 2
    assert slow.most == 1


def test_a_worker_answers_while_it_loads(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    """So a worker that hangs while it loads can be told from one that waits for a node."""
    loading, loaded = threading.Event(), threading.Event()

    class Loading(SlowEvaluator):
        def __init__(self, spec: WorkerSpec) -> None:
            super().__init__(spec)
            loading.set()
            assert loaded.wait(HANG_S)

    monkeypatch.setattr(workers.evaluate, "Evaluator", Loading)
    facts: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: facts.append(worker.facts()))
    thread.start()
    assert loading.wait(HANG_S)
    worker.ping()
    assert facts == []
    loaded.set()
    thread.join(HANG_S)
    assert [found["target"] for found in facts] == ["toy"]


def test_a_wrong_spec_is_refused() -> None:
    with pytest.raises(TypeError, match="wieghts"):
        Worker({"store": "somewhere", "wieghts": "builtin"})


def test_ray_gets_a_class_that_answers_while_it_works() -> None:
    actor = actor_class()
    assert hasattr(actor, "remote")
    assert actor._default_options["max_concurrency"] == MAX_CONCURRENCY == 2
