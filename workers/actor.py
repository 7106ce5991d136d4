"""The Ray shell around the evaluator: an actor that loads a sweep's models once and runs its
tasks.
"""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Mapping
from functools import cached_property
from logging import Logger
from typing import TYPE_CHECKING, Any

from workers.data.storage import Storage
from workers.runtime.logs import describe_task, log_duration, open_log
from workers.runtime.specification import WorkerSpec

if TYPE_CHECKING:
    from workers.evaluate import Evaluator

MAX_CONCURRENCY = 2  # calls at a time: a task, and a ping, a query or a cancellation


class Worker:
    """Loads the models that the fields of a `WorkerSpec` name at the first call that needs them,
    and runs one task at a time. So it answers a heartbeat while it loads.

    Errors of a task are logged with their traceback (see `workers.runtime.logs`) and raised to the
    caller; the worker is then ready for the next task.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises TypeError for unknown fields."""
        self.spec = WorkerSpec(**spec)
        self.busy = threading.Lock()

    @cached_property
    def log(self) -> Logger:
        return open_log(Storage(self.spec.store), self.spec.worker)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Raises ValueError for invalid fields, models or captions."""
        with log_duration(self.log, f"loading {self.spec.what} for {self.spec.device}"):
            from workers.evaluate import Evaluator

            evaluator = Evaluator(self.spec)
        self.log.info("facts: %s", json.dumps(evaluator.facts(), ensure_ascii=False))
        return evaluator

    def facts(self) -> dict[str, Any]:
        """See `Evaluator.facts`; also the name of the machine, and the labels that Ray gives the
        node.
        """
        import ray

        labels = ray.get_runtime_context().get_node_labels() if ray.is_initialized() else {}
        return {**self.evaluator.facts(), "node": platform.node(), "labels": dict(labels)}

    def ping(self) -> None:
        """A heartbeat."""

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """See `Evaluator.run`. A second task waits for the first."""
        with self.busy, log_duration(self.log, describe_task(task)):
            return self.evaluator.run(task)

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stops the running task (or only this one) before its next pass; it raises `Cancelled`."""
        self.evaluator.cancel(task)


def actor_class() -> Any:
    """`Worker` as a Ray actor class; the caller sets resources, restarts and environment."""
    import ray

    options: dict[str, Any] = {"max_concurrency": MAX_CONCURRENCY}
    return ray.remote(**options)(Worker)
