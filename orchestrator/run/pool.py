"""The one door to Ray's actors: they hold the models, and a small scheduler gives a task to whichever is free.

An actor or a node that dies costs only the task it was running, which runs again elsewhere; a new actor takes its place
as soon as the cluster has room. Ray restarts nothing by itself, so that the attempts of a task can be counted.
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

from orchestrator.run.cluster import Slots, resources, room
from orchestrator.run.tasks import Done, PoolError, Task
from workers.actor import actor_class

ATTEMPTS = 3  # a task whose worker died so often is taken for the cause
FAILED_STARTS = 3  # workers in a row that did not come up, and none that did
LASTING = ("ConfigError", "OutOfMemory", "DecodingError")  # exceptions that a setting brings about by itself
ALIKE = ("models", "extractors", "captions", "precision", "device", "threads")  # facts that all workers must share
DRAWING = ("quality", "timing")  # kinds of tasks that draw images
LOOK_AROUND = 5.0  # seconds between looks for nodes that joined


@dataclass(eq=False)
class _Worker:
    handle: Any
    name: str
    answer: Any = None  # the reference to what it says next
    ready: bool = False
    task: Task | None = None

    def end(self) -> None:
        """End the actor, which may have ended already."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.handle)


@dataclass(order=True)
class _Waiting:
    order: tuple[int, int, int]
    task: Task = field(compare=False)


@dataclass(slots=True)
class _Census:
    """Which nodes agree with each other. The first worker to answer is the measure of all others; where it turns out to
    be the odd one, before anything has been drawn, it is better to stop than to go on with it alone.

    awaited: the first workers, as long as they have not answered.
    """

    awaited: set[str]
    open: bool = True
    nodes: dict[str, set[str]] = field(default_factory=dict)  # by what their workers say
    said: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def hear(self, worker: str, facts: Mapping[str, Any] | None) -> None:
        """`facts` None: it did not come up."""
        self.awaited.discard(worker)
        if facts is not None:
            self.nodes.setdefault(_alike(facts), set()).add(str(facts.get("node")))
            self.said.setdefault(_alike(facts), facts)

    def check(self, first: Mapping[str, Any] | None) -> None:
        """PoolError when all have answered, and more nodes agree on something else than agree with the first."""
        if first is None or self.awaited or not self.open:
            return
        most = max(self.nodes, key=lambda kind: len(self.nodes[kind]))
        if len(self.nodes[most]) > len(self.nodes[_alike(first)]):
            raise PoolError(
                f"workers on {len(self.nodes[most])} nodes agree with each other and not with the first: "
                f"{unlike(first, self.said[most])}. Keep the odd node out, and begin anew"
            )


def _alike(facts: Mapping[str, Any]) -> str:
    return repr([facts.get(key) for key in ALIKE])


class Pool:
    """Actors and the tasks that wait for them. `spec`: plain data from which an actor loads its models. `tell`: hears
    of workers that cannot be used.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        slots: Slots,
        environment: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.spec, self.slots = dict(spec), slots
        self.environment, self.tell = dict(environment or {}), tell
        self.facts: Mapping[str, Any] | None = None
        self._busy: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._waiting: list[_Waiting] = []
        self._withdrawn: set[int] = set()
        self._attempts: dict[str, int] = {}
        self._count, self._names = itertools.count(), itertools.count()
        self._failed_starts, self._look = 0, 0.0
        self._grow()
        self._census = _Census({worker.name for worker in self._busy})

    @property
    def alive(self) -> int:
        return sum(worker.ready for worker in self._busy) + len(self._idle)

    @property
    def names(self) -> list[str]:
        """Names of the workers that are ready or busy."""
        return sorted(worker.name for worker in (*self._busy, *self._idle) if worker.ready)

    def first_facts(self, timeout: float = 1800.0) -> Mapping[str, Any]:
        """What the first worker that comes up says of its models.

        Raises:
            PoolError: none came up.
        """
        end = time.monotonic() + timeout
        while self.facts is None:
            if time.monotonic() > end:
                raise PoolError(f"no worker came up within {timeout:g} s; see Ray's logs")
            self.collect(1.0)
        return self.facts

    def submit(self, task: Task) -> None:
        self._withdrawn.discard(task.trial)
        order = (task.trial, 0 if task.urgent else 1, next(self._count))
        heapq.heappush(self._waiting, _Waiting(order, task))
        self._assign()

    def withdraw(self, trial: int) -> None:
        self._withdrawn.add(trial)
        self._waiting = [entry for entry in self._waiting if entry.task.trial != trial]
        heapq.heapify(self._waiting)
        for worker in self._busy:
            if worker.task and worker.task.trial == trial:
                worker.handle.cancel.remote(dict(worker.task.payload))  # that task, and no later one

    def collect(self, timeout: float) -> list[Done]:
        if time.monotonic() > self._look:
            self._grow()
        if not self._busy:
            time.sleep(timeout)
            return []
        done = [outcome for worker in self._answered(timeout) if (outcome := self._take(worker))]
        self._assign()
        return [outcome for outcome in done if outcome.task.trial not in self._withdrawn]

    def close(self) -> None:
        """Stop all actors; what they were running is lost, what they had written is not."""
        for worker in (*self._busy, *self._idle):
            worker.end()
        self._busy.clear()
        self._idle.clear()

    def _answered(self, timeout: float) -> list[_Worker]:
        """Wait for one worker's answer; gives it, and the others that are there as well."""
        asked = {worker.answer: worker for worker in self._busy}
        arrived, _ = ray.wait(list(asked), num_returns=1, timeout=timeout)
        if arrived:
            arrived, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return [asked[answer] for answer in arrived]

    def _take(self, worker: _Worker) -> Done | None:
        self._busy.remove(worker)
        task, worker.task = worker.task, None
        result, cause, death = None, None, None
        try:
            result = ray.get(worker.answer)
        except RayTaskError as error:
            cause = _in_words(error)
        except RayError as error:  # the actor died, or the node that held the result
            death = _in_words(error)
        if death is not None:
            return self._lost(worker, task, death)
        if not worker.ready:
            self._census.hear(worker.name, result)
            if problem := cause or unlike(self.facts, result or {}):
                self._failed_to_start(worker, problem)
            else:
                worker.ready, self._failed_starts, self.facts = True, 0, self.facts or result
            self._census.check(self.facts)
            if problem:
                return None
        self._idle.append(worker)
        if task is None:
            return None
        self._attempts.pop(task.name, None)
        self._census.open &= task.kind not in DRAWING
        return Done(task, result, cause, cause is None or cause.startswith(LASTING))

    def _lost(self, worker: _Worker, task: Task | None, death: str) -> Done | None:
        """A worker died: its task waits again, unless it has cost too many workers."""
        if not worker.ready:
            self._census.hear(worker.name, None)
            self._failed_to_start(worker, death)
            return None
        worker.end()
        for other in self._idle:  # they may have gone with the same node: none gets a task before it has answered
            self._ask(other)
        self._idle.clear()
        self._grow()
        if task is None:
            return None
        tries = self._attempts[task.name] = self._attempts.get(task.name, 0) + 1
        if tries >= ATTEMPTS:
            cause = f"its worker died {tries} times while running {task.name}: {death}"
            return Done(task, None, cause, lasting=False)
        if task.trial not in self._withdrawn:
            self.submit(task)
        return None

    def _failed_to_start(self, worker: _Worker, cause: str) -> None:
        """Try again, ever more seldom. A node that cannot serve does not stop those that can."""
        worker.end()
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS and not self.alive:
            raise PoolError(f"{self._failed_starts} workers in a row did not come up: {cause}")
        wait = LOOK_AROUND * (2 ** min(self._failed_starts - 1, 6) - 1)
        self._look = time.monotonic() + wait
        self.tell(f"{worker.name} cannot be used: {cause}; another is tried in {wait:.0f} s")

    def _assign(self) -> None:
        while self._waiting and self._idle:
            worker, task = self._idle.pop(), heapq.heappop(self._waiting).task
            worker.task = task
            worker.answer = worker.handle.run.remote(dict(task.payload))
            self._busy.append(worker)

    def _grow(self) -> None:
        """Start actors until there are as many as wanted, or as the cluster has room for."""
        self._look = time.monotonic() + LOOK_AROUND
        wanted = self.slots.count or room(self.slots, resources())
        for _ in range(wanted - len(self._busy) - len(self._idle)):
            name = f"worker-{next(self._names)}"
            handle = (
                actor_class()
                .options(
                    num_cpus=self.slots.cpus,
                    num_gpus=self.slots.gpus,
                    max_restarts=0,
                    max_task_retries=0,
                    runtime_env={"env_vars": self.environment},
                )
                .remote(self.spec | {"worker": name})
            )
            self._ask(_Worker(handle, name))

    def _ask(self, worker: _Worker) -> None:
        """Hear from a worker that it is there; then it is free."""
        worker.answer = worker.handle.facts.remote()
        self._busy.append(worker)


def unlike(first: Mapping[str, Any] | None, other: Mapping[str, Any]) -> str | None:
    """In what a worker differs from the first one, in words; its results must not stand beside the first's."""
    different = [key for key in ALIKE if first is not None and first.get(key) != other.get(key)]
    if first is None or not different:
        return None
    key = different[0]
    return f"a worker has other {key} than the first: {other.get(key)} and {first.get(key)}; all must be alike"


def _in_words(error: BaseException) -> str:
    """The cause behind Ray's wrapping, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, RayError):  # a traceback as text: its last line is the exception itself
        return lines[-1] if lines else type(cause).__name__
    return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
