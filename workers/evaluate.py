"""The evaluator: turns a sweep's tasks into files. It does not know Ray or the search.

The name of a result's file follows from its task: a file that exists is not computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.data.records import ShardError
from workers.data.shards import ReferenceTask, Serializable
from workers.runtime.loaded import LoadedSweep
from workers.runtime.specification import WorkerSpec
from workers.runtime.targets import TASK_KINDS, parse_task


class Evaluator(LoadedSweep):
    """Runs a sweep's tasks on this machine, one at a time.

    Raises:
        ValueError, WeightsError: see `LoadedSweep`.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._running: dict[str, Any] | None = None

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stops the running task before its next round; with `task`, only if that is the running one."""
        if task is None or task == self._running:
            self._cancelled.set()

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Make the file of a task in plain data, unless it exists; see `workers.runtime.targets` for what is returned.

        If shards are damaged or missing, the result is {"unusable": the reason by the shard's name} instead.

        Raises:
            ConfigError: no such kind of task.
            Cancelled: `cancel` was called while it ran.
        """
        self._cancelled.clear()
        self._running = dict(task)
        try:
            return self.make(parse_task(task))
        except ShardError as error:
            if task["kind"] == ReferenceTask.kind:  # no task's result: only the user can replace it
                raise
            return {"unusable": error.reasons}

    def make(self, task: Serializable) -> dict[str, Any]:
        """As `run`, but shards that are damaged or missing raise ShardError."""
        return TASK_KINDS[task.kind].make(self, task)
