"""The Ray shell around the evaluator: an actor that loads a sweep's models once and runs its tasks."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Mapping
from typing import Any

from workers.data.storage import Storage
from workers.runtime.logs import logged, open_log, task_in_words
from workers.runtime.specification import WorkerSpec

RUNNING_AND_ONE = 2  # calls at a time: a task, and whoever asks or stops it meanwhile


class Worker:
    """Loads what a `WorkerSpec` mapping names; then answers calls, of which one at a time is a task.

    What goes wrong in a task is logged with its traceback (see `workers.runtime.logs`) and raised to the caller;
    the worker is ready for the next.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Raises ValueError when the spec, the models or the captions are not as they must be."""
        told = WorkerSpec.from_mapping(spec)
        self.log = open_log(Storage(told.store), told.worker)
        with logged(self.log, f"loading {told.what} for {told.device}"):
            from workers.evaluate import Evaluator

            self.evaluator = Evaluator(told)
        self.log.info("facts: %s", json.dumps(self.evaluator.facts(), ensure_ascii=False))
        self.busy = threading.Lock()

    def facts(self) -> dict[str, Any]:
        """See `Evaluator.facts`; and the name of the machine."""
        return {**self.evaluator.facts(), "node": platform.node()}

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """See `Evaluator.run`. A second task waits for the first."""
        with self.busy, logged(self.log, task_in_words(task)):
            return self.evaluator.run(task)

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stop the running task (or only this one) before its next round; it raises `Cancelled`."""
        self.evaluator.cancel(task)


def actor_class() -> Any:
    """`Worker` as a Ray actor class; resources, restarts and environment are its caller's to set."""
    import ray

    options: dict[str, Any] = {"max_concurrency": RUNNING_AND_ONE}
    return ray.remote(**options)(Worker)
