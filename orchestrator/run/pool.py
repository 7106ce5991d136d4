"""Ray actors that hold the models, and a small scheduler that gives each task to a free one.

If an actor or a node dies, only the task that it was running is repeated elsewhere; a new actor replaces it as soon as
the cluster has room. Ray itself restarts nothing, so that the attempts of a task can be counted.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from orchestrator.run.cluster import Slots, cluster_resources, worker_capacity
from orchestrator.run.tasks import PoolError, Task, TaskResult
from search_spaces.params import ConfigError
from workers.actor import actor_class

_MAX_ATTEMPTS = 3  # of a task whose worker dies
_MAX_FAILED_STARTS = 3  # of workers in a row, while none is alive
_PERMANENT_ERRORS = (ConfigError.__name__, "OutOfMemory", "DecodingError")  # the config causes them: a retry is useless
# equal for all workers
_SHARED_FACTS = ("models", "extractors", "captions", "precision", "device", "threads", "kernels")
_DRAWING_TASKS = ("quality", "timing")
_GROW_INTERVAL_S = 5.0  # between checks for new nodes
_START_TIMEOUT_S = 1800.0


@dataclass(eq=False)
class _Worker:
    """An actor. reply: Ray's reference to the result of its current call."""

    handle: Any
    name: str
    reply: Any = None
    ready: bool = False
    task: Task | None = None

    def kill(self) -> None:
        """Kill the actor; it may be dead already."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.handle)


@dataclass(slots=True)
class _WorkerAgreement:
    """Which nodes have the same facts. The first worker to start sets the facts that all others must have.

    If more nodes agree with each other than with the first worker before any image is drawn, the sweep stops: it would
    otherwise run on the few workers that agree with the first.

    unstarted: names of the first workers that have not started yet. active: until the first images are drawn.
    """

    unstarted: set[str]
    active: bool = True
    nodes: dict[str, set[str]] = field(default_factory=dict)  # by the key of their facts
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, worker: str, facts: Mapping[str, Any] | None) -> None:
        """Record the facts of a worker. `facts` is None if it did not start."""
        self.unstarted.discard(worker)
        if facts is not None:
            self.nodes.setdefault(_facts_key(facts), set()).add(str(facts.get("node")))
            self.facts.setdefault(_facts_key(facts), facts)

    def check(self, first: Mapping[str, Any] | None) -> None:
        """Raise PoolError if all workers have started and more nodes agree with each other than with the first."""
        if first is None or self.unstarted or not self.active:
            return
        largest = max(self.nodes, key=lambda key: len(self.nodes[key]))
        if len(self.nodes[largest]) > len(self.nodes[_facts_key(first)]):
            raise PoolError(
                f"workers on {len(self.nodes[largest])} nodes agree with each other but not with the first worker: "
                f"{diff_facts(first, self.facts[largest])}. Exclude the first worker's node and start again"
            )


def _facts_key(facts: Mapping[str, Any]) -> str:
    return repr([facts.get(key) for key in _SHARED_FACTS])


class Pool:
    """Actors, and the tasks that wait for them.

    spec: plain data from which an actor loads its models. environment: variables of the actors' processes. warn: called
    with a message about each worker that cannot be used.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        slots: Slots,
        environment: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._spec, self._slots = dict(spec), slots
        self._environment, self._warn = dict(environment or {}), warn
        self._facts: Mapping[str, Any] | None = None
        self._busy: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._waiting: list[tuple[int, bool, int, Task]] = []  # a heap: by trial, urgent first, in submission order
        self._withdrawn: set[int] = set()
        self._attempts: dict[str, int] = {}
        self._task_count, self._worker_count = itertools.count(), itertools.count()
        self._failed_starts, self._next_grow = 0, 0.0
        self._grow()
        self._agreement = _WorkerAgreement({worker.name for worker in self._busy})

    @property
    def alive(self) -> int:
        return sum(worker.ready for worker in self._busy) + len(self._idle)

    @property
    def names(self) -> list[str]:
        """Names of the workers that have started, idle or busy."""
        return sorted(worker.name for worker in (*self._busy, *self._idle) if worker.ready)

    def first_facts(self, timeout: float = _START_TIMEOUT_S) -> Mapping[str, Any]:
        """The facts of the first worker that starts: its models, captions and device.

        Raises:
            PoolError: none started within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while self._facts is None:
            if time.monotonic() > deadline:
                raise PoolError(f"no worker started within {timeout:g} s; see Ray's logs")
            self.collect(1.0)
        return self._facts

    def submit(self, task: Task) -> None:
        self._withdrawn.discard(task.trial)
        heapq.heappush(self._waiting, (task.trial, not task.urgent, next(self._task_count), task))
        self._assign()

    def withdraw(self, trial: int) -> None:
        self._withdrawn.add(trial)
        self._waiting = [entry for entry in self._waiting if entry[0] != trial]
        heapq.heapify(self._waiting)
        for worker in self._busy:
            if worker.task and worker.task.trial == trial:
                # the payload identifies the task, so a later task is not cancelled
                worker.handle.cancel.remote(dict(worker.task.payload))

    def collect(self, timeout: float) -> list[TaskResult]:
        if time.monotonic() > self._next_grow:
            self._grow()
        if not self._busy:
            time.sleep(timeout)
            return []
        results = [result for worker in self._replied(timeout) if (result := self._take(worker))]
        self._assign()
        return [result for result in results if result.task.trial not in self._withdrawn]

    def close(self) -> None:
        """Kill all actors. Their running tasks are lost; files that they wrote are not."""
        for worker in (*self._busy, *self._idle):
            worker.kill()
        self._busy.clear()
        self._idle.clear()

    def _replied(self, timeout: float) -> list[_Worker]:
        """Wait for the reply of one worker; returns it and all others that have replied by then."""
        workers = {worker.reply: worker for worker in self._busy}
        replies, _ = ray.wait(list(workers), num_returns=1, timeout=timeout)
        if replies:
            replies, _ = ray.wait(list(workers), num_returns=len(workers), timeout=0)
        return [workers[reply] for reply in replies]

    def _take(self, worker: _Worker) -> TaskResult | None:
        """Process the reply of a worker, and make the worker idle if it can be used."""
        self._busy.remove(worker)
        task, worker.task = worker.task, None
        output, cause = None, None
        try:
            output = ray.get(worker.reply)
        except RayTaskError as error:
            cause = _describe_error(error)
        except RayError as error:  # the actor died, or the node that held the result
            return self._handle_death(worker, task, _describe_error(error))
        if not worker.ready and not self._accept_start(worker, output, cause):
            return None
        self._idle.append(worker)
        if task is None:
            return None
        self._attempts.pop(task.name, None)
        self._agreement.active &= task.kind not in _DRAWING_TASKS
        return TaskResult(task, output, cause, cause is None or cause.startswith(_PERMANENT_ERRORS))

    def _accept_start(self, worker: _Worker, facts: Mapping[str, Any] | None, cause: str | None) -> bool:
        """Whether a worker started with the facts that all workers share."""
        self._agreement.add(worker.name, facts)
        problem = cause or diff_facts(self._facts, facts or {})
        if problem:
            self._handle_failed_start(worker, problem)
        else:
            worker.ready, self._failed_starts, self._facts = True, 0, self._facts or facts
        self._agreement.check(self._facts)
        return not problem

    def _handle_death(self, worker: _Worker, task: Task | None, death: str) -> TaskResult | None:
        """Submit the task of a dead worker again, unless too many workers died running it."""
        if not worker.ready:
            self._agreement.add(worker.name, None)
            self._handle_failed_start(worker, death)
            return None
        worker.kill()
        for other in self._idle:  # the whole node may have died: give the others no task before they reply
            self._request_facts(other)
        self._idle.clear()
        self._grow()
        if task is None:
            return None
        attempts = self._attempts[task.name] = self._attempts.get(task.name, 0) + 1
        if attempts >= _MAX_ATTEMPTS:
            cause = f"its worker died {attempts} times while running {task.name}: {death}"
            return TaskResult(task, None, cause, permanent=False)
        if task.trial not in self._withdrawn:
            self.submit(task)
        return None

    def _handle_failed_start(self, worker: _Worker, cause: str) -> None:
        """Schedule the next start with exponential backoff: one broken node must not stop the others.

        Raises:
            PoolError: too many starts have failed in a row, and no worker is alive.
        """
        worker.kill()
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS and not self.alive:
            raise PoolError(f"{self._failed_starts} workers in a row failed to start: {cause}")
        delay = _GROW_INTERVAL_S * (2 ** min(self._failed_starts - 1, 6) - 1)
        self._next_grow = time.monotonic() + delay
        self._warn(f"{worker.name} cannot be used: {cause}; retrying in {delay:.0f} s")

    def _assign(self) -> None:
        while self._waiting and self._idle:
            worker, task = self._idle.pop(), heapq.heappop(self._waiting)[-1]
            worker.task = task
            worker.reply = worker.handle.run.remote(dict(task.payload))
            self._busy.append(worker)

    def _grow(self) -> None:
        """Start actors up to the requested number, or as many as the cluster has room for."""
        self._next_grow = time.monotonic() + _GROW_INTERVAL_S
        count = self._slots.count or worker_capacity(self._slots, cluster_resources())
        for _ in range(count - len(self._busy) - len(self._idle)):
            name = f"worker-{next(self._worker_count)}"
            handle = (
                actor_class()
                .options(
                    num_cpus=self._slots.cpus,
                    num_gpus=self._slots.gpus,
                    max_restarts=0,
                    max_task_retries=0,
                    runtime_env={"env_vars": self._environment},
                )
                .remote(self._spec | {"worker": name})
            )
            self._request_facts(_Worker(handle, name))

    def _request_facts(self, worker: _Worker) -> None:
        """Ask a worker for its facts; it becomes idle when it replies."""
        worker.reply = worker.handle.facts.remote()
        self._busy.append(worker)


def diff_facts(first: Mapping[str, Any] | None, other: Mapping[str, Any]) -> str | None:
    """The first shared fact in which a worker differs from the first worker, as a message; None if there is none."""
    if first is None:
        return None
    for key in _SHARED_FACTS:
        if first.get(key) != other.get(key):
            return f"{key}: {other.get(key)}, but the first worker has {first.get(key)}"
    return None


def _describe_error(error: BaseException) -> str:
    """The exception that Ray wrapped, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, RayError):  # a traceback as text: its last line is the exception itself
        return lines[-1] if lines else type(cause).__name__
    return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
