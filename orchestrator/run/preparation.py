"""Tasks that a sweep needs and that run beside its first trials: the reference's features, the pool's predictions."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.run.tasks import EventSink, SweepError, Task, TaskResult, Workers
from workers.metrics.definition import REFERENCE


class PreparedWorkers:
    """Workers that run preparations first, while they draw images for the first trials.

    No metrics are computed before the reference is there. A preparation's result is not among those that are collected.
    preparations: what each does, in words; `phase` events name those that are unfinished.
    """

    def __init__(self, workers: Workers, preparations: Sequence[tuple[Task, str]], emit: EventSink) -> None:
        self._workers, self._emit = workers, emit
        self._unfinished = {task.name: task for task, _ in preparations}
        self._phases = {task.name: phase for task, phase in preparations}
        self._held: list[Task] = []  # that need the reference
        self._results: list[TaskResult] = []  # that arrived while `wait` ran
        for task in self._unfinished.values():
            workers.submit(task)
        self._emit_phase()

    @property
    def alive(self) -> int:
        return self._workers.alive

    def submit(self, task: Task) -> None:
        if task.kind == "measure" and REFERENCE in self._unfinished:
            self._held.append(task)
        else:
            self._workers.submit(task)

    def withdraw(self, trial: int) -> None:
        self._held = [task for task in self._held if task.trial != trial]
        self._results = [result for result in self._results if result.task.trial != trial]
        self._workers.withdraw(trial)

    def collect(self, timeout: float) -> list[TaskResult]:
        """See `Workers`. Raises SweepError if a preparation failed."""
        results, self._results = self._results, []
        return results or self._collect(timeout)

    def wait(self, name: str) -> None:
        """Wait for a preparation. Results of other tasks are collected later.

        Raises:
            SweepError: a preparation failed.
        """
        while name in self._unfinished:
            self._results += self._collect(1.0)

    def close(self) -> None:
        self._workers.close()

    def _collect(self, timeout: float) -> list[TaskResult]:
        results = []
        for result in self._workers.collect(timeout):
            if self._unfinished.get(result.task.name) == result.task:
                self._finish(result)
            else:
                results.append(result)
        return results

    def _finish(self, result: TaskResult) -> None:
        if result.output is None:
            raise SweepError(f"{result.task.name}: {result.cause}")
        del self._unfinished[result.task.name]
        self._emit_phase()
        if result.task.name == REFERENCE:
            for task in self._held:
                self._workers.submit(task)
            self._held.clear()

    def _emit_phase(self) -> None:
        self._emit({"event": "phase", "phase": "; ".join(self._phases[name] for name in self._unfinished)})
