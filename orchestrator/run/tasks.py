"""What the driver gives to workers and gets back, and what it asks of whoever runs it (Ray, or a stand-in in a
test).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a worker, for trial `trial`. `payload` is what the worker's `run` takes; `name` is the file it
    writes.

    urgent: to be run before the other tasks of its trial.
    """

    trial: int
    name: str
    payload: Mapping[str, Any]
    urgent: bool = False

    @property
    def kind(self) -> str:
        return str(self.payload["kind"])


@dataclass(frozen=True, slots=True)
class Done:
    """A task that came back: with its result, or with the cause of its failure in words.

    lasting: the fault lies in the setting, so that the task would fail again; else in a machine, a network or a file.
    """

    task: Task
    result: Mapping[str, Any] | None
    cause: str | None = None
    lasting: bool = True


class PoolError(RuntimeError):
    """No worker can be had; the message says why and what to do."""


class Workers(Protocol):
    """Runs tasks somewhere, the oldest trial's first, each on whichever worker is free."""

    def submit(self, task: Task) -> None: ...

    def withdraw(self, trial: int) -> None:
        """Forget a trial's waiting tasks and stop its running ones; none of them comes back."""

    def collect(self, timeout: float) -> list[Done]:
        """What has come back; waits up to `timeout` seconds for the first. Raises PoolError."""

    @property
    def alive(self) -> int:
        """Workers that are ready or busy."""

    def close(self) -> None: ...
