"""Tasks for workers and their results, and the interface of the pool that runs them (Ray, or a fake
in tests).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, Self

from orchestrator.store.records import TrialRecord
from search_spaces.sweep_sections import Budget
from workers.data.shards import MeasureTask, Serializable

SWEEP = -1  # in the place of a trial: what all trials need


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A file of the store, and what a worker must be told to make it."""

    name: str  # relative to the storage's root
    payload: Mapping[str, Any]  # the argument of the worker's `run`
    needs: tuple[Task, ...] = ()  # make the files that it is made from
    about: str = ""  # what is done, for a task without which the sweep cannot go on
    trial: int = SWEEP  # the first one that wants the file, once workers have the task

    @classmethod
    def of(cls, name: str, work: Serializable, needs: Iterable[Task] = (), about: str = "") -> Self:
        """The task of a file. work: what its worker is told."""
        return cls(name, {"kind": work.kind, **work.to_mapping()}, tuple(needs), about)

    @property
    def kind(self) -> str:
        return str(self.payload["kind"])

    @property
    def is_measurement(self) -> bool:
        """Whether a trial waits for its content. It runs before the trial's other tasks; a worker
        that finds the file reads it.
        """
        return self.kind == MeasureTask.kind


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A finished task."""

    task: Task
    output: Mapping[str, Any] | None  # None if it failed
    cause: str | None = None  # of the failure
    # the config caused the failure, so a retry would fail again; otherwise a machine, network or
    # file failed
    permanent: bool = True


class PoolError(RuntimeError):
    """No worker is available; the message says why and how to fix it."""


class ClusterLost(PoolError):
    """A process died that the local cluster cannot do without. A new cluster can go on."""


class SweepError(RuntimeError):
    """The sweep cannot continue. Finished trials are kept; --resume continues after them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended."""

    records: Sequence[TrialRecord]
    # the budget of `trials`, `images` or `hours`, a `plateau` of the front, or the `space` or
    # `pool` that is exhausted
    stopped_by: str
    # trials that failed because of a machine, a network or a file; --resume runs them again
    lost: Collection[int] = ()
    # why the front was not timed once more at the end; "" if it was, or nothing is timed
    untimed: str = ""


class Workers(Protocol):
    """Runs tasks on any free worker; tasks of the oldest trial run first."""

    def submit(self, task: Task) -> None: ...

    def withdraw(self, names: Collection[str]) -> None:
        """Drop tasks that wait, and cancel those that run. Their results are not collected."""

    def collect(self, timeout: float) -> list[TaskResult]:
        """Results since the last call; waits up to `timeout` seconds for the first. Raises
        PoolError.
        """

    @property
    def alive(self) -> int:
        """Number of workers that have started, idle or busy."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Limits:
    """What ends a sweep: its budget, or a search that has nothing left to propose."""

    budget: Budget
    is_exhausted: Callable[[int], bool]  # whether the search has no setting for a trial's number
    source: str  # of the search: a space or a pool
    # whether the front no longer moves, by the trials that the search was told
    is_plateau: Callable[[], bool] = lambda: False
    images: int = 0  # generated or planned so far
    earlier_s: float = 0.0  # that earlier launches took
    _start_time: float = field(default_factory=time.monotonic)
    _on_plateau: bool = False

    def reached(self, number: int, *, is_stored: bool) -> str | None:
        """The limit (see `Outcome.stopped_by`) that keeps trial `number` from starting; None if it
        may start.

        is_stored: the trial has finished in an earlier run, so it takes no time.
        """
        budget = self.budget
        if number >= budget.trials or self.is_exhausted(number):
            return "trials" if number == budget.trials else self.source
        if budget.images is not None and self.images >= budget.images:
            return "images"
        if is_stored:
            return None
        # what trials in flight find then changes nothing, as in a resumed sweep
        self._on_plateau = self._on_plateau or self.is_plateau()
        if self._on_plateau:
            return "plateau"
        return "hours" if self.is_time_spent else None

    @property
    def is_time_spent(self) -> bool:
        hours = self.budget.hours
        if hours is None:
            return False
        return self.earlier_s + time.monotonic() - self._start_time >= hours * 3600


def seconds_taken(records: Iterable[TrialRecord]) -> float:
    """Wall clock in which the trials of earlier launches ran; several at a time count once.

    Trials that did not finish are not counted, nor revived ones: their spans hold the time between
    launches.
    """
    finished = [record for record in records if record.finished and not record.is_revived]
    spans = [(record.started, record.finished) for record in finished]
    total = 0.0
    end = 0.0
    for start_s, end_s in sorted(
        tuple(datetime.fromisoformat(at).timestamp() for at in span) for span in spans
    ):
        total += max(0.0, end_s - max(start_s, end))
        end = max(end, end_s)
    return total
