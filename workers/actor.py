"""The Ray shell around the evaluator: an actor that loads a sweep's models once and runs its tasks."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Mapping
from typing import Any

from workers.data.storage import Storage
from workers.runtime.logs import describe_task, log_duration, open_log
from workers.runtime.specification import WorkerSpec

MAX_CONCURRENCY = 2  # calls at a time: a task, and a ping, a query or a cancellation


class Worker:
    """Loads the models that the fields of a `WorkerSpec` name, then serves calls; it runs one task at a time.

    Errors of a task are logged with their traceback (see `workers.runtime.logs`) and raised to the caller; the worker
    is then ready for the next task.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises TypeError for unknown fields, ValueError for invalid ones, models or captions."""
        worker_spec = WorkerSpec(**spec)
        self.log = open_log(Storage(worker_spec.store), worker_spec.worker)
        with log_duration(self.log, f"loading {worker_spec.what} for {worker_spec.device}"):
            from workers.evaluate import Evaluator

            self.evaluator = Evaluator(worker_spec)
        self.log.info("facts: %s", json.dumps(self.evaluator.facts(), ensure_ascii=False))
        self.busy = threading.Lock()

    def facts(self) -> dict[str, Any]:
        """See `Evaluator.facts`; also the name of the machine, and the labels that Ray gives the node."""
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
