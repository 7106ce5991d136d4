"""A worker of the pool: the actor that holds the models, its task, and whether it still answers."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from orchestrator.cluster.placement import GENERATE, NODE_ID_LABEL, TIME, Labels
from orchestrator.cluster.tasks import Task
from workers.data.shards import TimingSession

MAX_ATTEMPTS = 3  # at a task whose worker dies, or cannot use the store
# attempts that a lost node counts for: spot nodes are reclaimed whatever runs on them
LOST_NODE = 0.25
_MEMORY_MONITOR = re.compile(
    r"low on memory\b.*?\bwas ([\d.]+ ?\w+ used / [\d.]+ ?\w+ limit)", re.DOTALL
)
_MAX_CLOCK_STEP_S = 5.0
_PING_INTERVAL_S = 10.0
# a worker that computes responds within milliseconds, unless a library blocks Python
_SILENCE_TIMEOUT_S = 60.0
_CANCEL_TIMEOUT_S = 60.0  # for a task whose result is not needed
# until the first worker is ready; and for each one's models, once its process runs
START_TIMEOUT_S = 1800.0


class AwakeClock:
    """Counts the seconds in which this process ran.

    If it is stopped together with its workers (Ctrl-Z, a suspended machine), none of them is late
    when they go on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self.now = 0.0

    def advance(self) -> None:
        """Count the time since the last call, at most `_MAX_CLOCK_STEP_S` seconds."""
        present = self._clock()
        self.now += min(present - self._last, _MAX_CLOCK_STEP_S)
        self._last = present


class Attempts:
    """Remembers on which nodes each task has failed."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[str]] = {}

    def last(self, task: Task, node: str = "", alive: Collection[str] = ("",)) -> int | None:
        """Count a failure on a node; returns the number of failures if the task should be given up,
        else None.

        A node's death becomes known some time after its worker's, so earlier failures are weighed
        again each time. alive: ids of the nodes that are alive now.
        """
        nodes = self._nodes.setdefault(task.name, [])
        nodes.append(node)
        total = sum(1.0 if node in alive else LOST_NODE for node in nodes)
        return len(nodes) if total >= MAX_ATTEMPTS else None

    def forget(self, task: Task) -> None:
        self._nodes.pop(task.name, None)


@dataclass(eq=False)
class PoolWorker:
    """An actor. All times are those of the pool's clock, in seconds."""

    handle: Any  # Ray's, of the actor
    name: str
    # labels that its node must have; once it is ready, all of its node's
    labels: Labels = field(default_factory=dict)
    node: str = ""  # the name of its machine, once it is ready
    reply: Any = None  # Ray's reference to the result of its current call; None while it is idle
    ready: bool = False
    roles: frozenset[str] = frozenset()  # what it may do, once it is ready
    task: Task | None = None
    # When its task began. Without a task: the end of its last one, or when it was found to have a
    # process; until then it is infinite, as the actor may wait for a node.
    since: float = math.inf
    is_obsolete: bool = False  # whether the result of its task is not needed
    _ping: Any = None  # Ray's reference to the reply to a heartbeat
    _pinged: float = 0.0  # when that was sent

    @property
    def is_idle(self) -> bool:
        return self.reply is None

    @property
    def node_id(self) -> str:
        return self.labels.get(NODE_ID_LABEL, "")

    def can_run(self, task: Task) -> bool:
        role = TIME if task.kind == TimingSession.kind else GENERATE
        return self.is_idle and role in self.roles

    def request_facts(self) -> None:
        self.reply = self.handle.facts.remote()

    def run(self, task: Task, now: float) -> None:
        self.task = task
        self.since = now
        self.is_obsolete = False
        self.reply = self.handle.run.remote(dict(task.payload))

    def finish(self, now: float) -> Task | None:
        """End the task; returns it, None if its result is not needed."""
        task = None if self.is_obsolete else self.task
        self.task = None
        self.is_obsolete = False
        self.since = now
        return task

    def abandon(self, now: float) -> None:
        """Cancel the task before its next pass; its result is not needed."""
        if self.task is not None and not self.is_obsolete:
            self.is_obsolete = True
            self.since = now
            # the payload identifies it: a later one goes on
            self.handle.cancel.remote(dict(self.task.payload))

    def kill(self) -> None:
        """Kill the actor; it may be dead already."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.handle)

    def problem(self, now: float) -> str | None:
        """Why this worker must be replaced; None if it need not be. Sends heartbeats."""
        if self.is_obsolete and now - self.since > _CANCEL_TIMEOUT_S:
            return f"did not stop its task within {_CANCEL_TIMEOUT_S:g} s"
        if not self.ready and now - self.since > START_TIMEOUT_S:
            return f"did not load its models within {START_TIMEOUT_S:g} s"
        if self._ping is None:
            if now - self._pinged >= _PING_INTERVAL_S:
                self._ping = self.handle.ping.remote()
                self._pinged = now
            return None
        if not ray.wait([self._ping], timeout=0)[0]:
            if self.ready and now - max(self._pinged, self.since) > _SILENCE_TIMEOUT_S:
                return f"no heartbeat for {_SILENCE_TIMEOUT_S:g} s"
            return None
        try:
            ray.get(self._ping)
        except RayError as error:
            return describe_error(error)
        self._ping = None
        self.since = min(self.since, now)
        return None


def describe_error(error: BaseException) -> str:
    """The exception that Ray wrapped, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, ActorUnavailableError):
        return "no connection to it: its process, its node or the network failed"
    if found := _MEMORY_MONITOR.search(str(cause)):  # followed by a page of advice
        return f"its node ran low on memory ({found[1]}), so Ray ended it"
    if isinstance(cause, RayError):  # a traceback as text: its last line is the exception itself
        return lines[-1] if lines else type(cause).__name__
    return ": ".join([type(cause).__name__, *lines[:1]]).rstrip(": ")
