"""Tasks for workers and their results, and the interface of the pool that runs them (Ray, or a fake in tests)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.results.trials import TrialRecord

Event = Mapping[str, Any]  # `event` names its kind
EventSink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a worker for trial `trial`.

    name: the file that the worker writes. payload: the argument of the worker's `run`. urgent: runs before the other
    tasks of its trial.
    """

    trial: int
    name: str
    payload: Mapping[str, Any]
    urgent: bool = False

    @property
    def kind(self) -> str:
        return str(self.payload["kind"])


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task: its output, or the cause of its failure.

    permanent: the config caused the failure, so a retry would fail again; otherwise a machine, network or file failed.
    """

    task: Task
    output: Mapping[str, Any] | None
    cause: str | None = None
    permanent: bool = True


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that died or fell silent after it had started, or the node of one. what: it, and where it was."""

    what: str
    cause: str


class PoolError(RuntimeError):
    """No worker is available; the message says why and how to fix it."""


class ClusterLost(PoolError):
    """A process died that the local cluster cannot do without. A new cluster can go on."""


class SweepError(RuntimeError):
    """The sweep cannot continue. Finished trials are kept; --resume continues after them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended. stopped_by: the budget of `trials`, `images` or `hours`, or the `space` or `pool` that is
    exhausted. lost: trials that failed because of a machine, a network or a file; --resume runs them again.
    """

    records: Sequence[TrialRecord]
    stopped_by: str
    lost: Collection[int] = ()


class Workers(Protocol):
    """Runs tasks on any free worker; tasks of the oldest trial run first."""

    def submit(self, task: Task) -> None: ...

    def withdraw(self, names: Collection[str]) -> None:
        """Drop tasks that wait, and cancel those that run. Their results are not collected."""

    def collect(self, timeout: float) -> list[TaskResult]:
        """Results since the last call; waits up to `timeout` seconds for the first. Raises PoolError."""

    @property
    def alive(self) -> int:
        """Number of workers that have started, idle or busy."""

    def close(self) -> None: ...
