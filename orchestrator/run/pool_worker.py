"""A worker of the pool: a Ray actor, its call in progress, and its signs of life."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from orchestrator.run.placement import Labels, Slots
from orchestrator.run.tasks import Task
from workers.actor import actor_class
from workers.data.shards import TimingShard

PING_INTERVAL_S = 10.0
SILENCE_TIMEOUT_S = 60.0  # a worker that computes answers within milliseconds, unless a library blocks Python
CANCEL_TIMEOUT_S = 60.0  # for a task whose result is not needed


@dataclass(eq=False)
class PoolWorker:
    """An actor. reply: Ray's reference to the result of its current call. labels: that its node must have. node: the
    name of its machine, once it is ready.

    draws, times: what it may do, once it is ready; `draws` includes everything but timing.

    task: the one that it runs, since `since`; if it runs none, `since` its start or the end of its last one.
    `is_copied` if it runs or waits elsewhere too, `is_obsolete` if the result is not needed. All times are those of the
    pool's clock, in seconds.
    """

    handle: Any
    name: str
    labels: Labels = field(default_factory=dict)
    node: str = ""
    reply: Any = None
    ready: bool = False
    draws: bool = False
    times: bool = False
    task: Task | None = None
    since: float = 0.0
    is_copied: bool = False
    is_obsolete: bool = False
    _ping: Any = None
    _pinged: float = 0.0

    def can_run(self, task: Task) -> bool:
        return self.times if task.kind == TimingShard.kind else self.draws

    def request_facts(self) -> None:
        self.reply = self.handle.facts.remote()

    def run(self, task: Task, now: float, *, is_copied: bool) -> None:
        self.task, self.since, self.is_copied, self.is_obsolete = task, now, is_copied, False
        self.reply = self.handle.run.remote(dict(task.payload))

    def finish(self, now: float) -> Task | None:
        """End the task; returns it, None if its result is not needed."""
        task = None if self.is_obsolete else self.task
        self.task, self.is_obsolete, self.since = None, False, now
        return task

    def abandon(self, now: float) -> None:
        """Cancel the task before its next round; its result is not needed."""
        if self.task is not None and not self.is_obsolete:
            self.is_obsolete, self.since = True, now
            self.handle.cancel.remote(dict(self.task.payload))  # the payload identifies it: a later one goes on

    def kill(self) -> None:
        """Kill the actor; it may be dead already."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.handle)

    def problem(self, now: float) -> str | None:
        """Why a worker that has started is of no use any more. Asks it for a sign of life from time to time."""
        if self.is_obsolete and now - self.since > CANCEL_TIMEOUT_S:
            return f"did not stop its task within {CANCEL_TIMEOUT_S:g} s"
        if self._ping is None:
            if now - self._pinged >= PING_INTERVAL_S:
                self._ping, self._pinged = self.handle.ping.remote(), now
            return None
        if not ray.wait([self._ping], timeout=0)[0]:
            is_silent = now - self._pinged > SILENCE_TIMEOUT_S
            return f"no sign of life for {SILENCE_TIMEOUT_S:g} s" if is_silent else None
        try:
            ray.get(self._ping)
        except RayError as error:
            return describe_error(error)
        self._ping = None
        return None


def start_worker(
    spec: Mapping[str, Any], slots: Slots, environment: Mapping[str, str], labels: Sequence[Labels], now: float
) -> PoolWorker:
    """Start an actor and ask for its facts. labels: alternatives, one of which its node must have; none: any node."""
    selectors = [{"label_selector": dict(alternative)} for alternative in labels]
    options = actor_class().options(
        num_cpus=slots.cpus,
        num_gpus=slots.gpus,
        max_restarts=0,
        max_task_retries=0,
        runtime_env={"env_vars": dict(environment)} if environment else {},
        **({**selectors[0], "fallback_strategy": selectors[1:]} if selectors else {}),
    )
    selected = labels[0] if len(labels) == 1 else {}
    worker = PoolWorker(options.remote(dict(spec)), spec["worker"], selected, since=now)
    worker.request_facts()
    return worker


def describe_error(error: BaseException) -> str:
    """The exception that Ray wrapped, in one line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, ActorUnavailableError):
        return "no connection to it: its process, its node or the network failed"
    if isinstance(cause, RayError):  # a traceback as text: its last line is the exception itself
        return lines[-1] if lines else type(cause).__name__
    return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
