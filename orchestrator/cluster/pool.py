"""Ray actors that hold the models, and a small scheduler that gives each task to an idle one.

If an actor or a node dies or stops responding, only the task that it was running is repeated
elsewhere; a new actor replaces it as soon as the cluster has room. Ray itself restarts nothing, so
that the attempts of a task can be counted. A requested number of workers is a maximum: idle ones
give their nodes back.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from orchestrator.cluster import ray_internals
from orchestrator.cluster.cluster import ClusterMonitor, alive_nodes
from orchestrator.cluster.placement import (
    ANYWHERE,
    GENERATE,
    ROLES,
    TIME,
    Labels,
    Node,
    Placement,
    Slots,
    WorkerAgreement,
)
from orchestrator.cluster.pool_worker import (
    START_TIMEOUT_S,
    Attempts,
    AwakeClock,
    PoolWorker,
    describe_error,
)
from orchestrator.cluster.tasks import PoolError, SweepError, Task, TaskResult
from orchestrator.store import events
from search_spaces.params import ConfigError
from workers.actor import actor_class
from workers.data.shards import TimingSession
from workers.data.storage import StorageError
from workers.runtime.logs import describe_task

# the start of a worker refused the sweep on its node: other files, another store
_REFUSAL = "ValueError: "
_MAX_FAILED_STARTS = 3  # in a row, while no worker is alive
# the config causes them: a retry is useless
_PERMANENT_ERRORS = (ConfigError.__name__, "OutOfMemory", "DecodingError")
_IMAGE_TASKS = ("quality", "timing")
_GROW_INTERVAL_S = 5.0  # between checks for new nodes
_WATCH_INTERVAL_S = 2.0  # between checks for silent and unneeded workers
_TIMING_DELAY_S = 60.0  # without a worker that may time, until the user is told
_RELEASE_TIMEOUT_S = 300.0  # until a worker that no task needs is released


class Pool:
    """Actors, and the tasks that wait for them.

    Args:
        spec: plain data from which an actor loads its models.
        slots: the number of actors, and the resources of each.
        environment: variables of the actors' processes.
        emit: called with events of workers that cannot be used, and of lost workers and nodes.
        placement: on which nodes workers generate and time.
        stored: facts of a resumed sweep that its workers must share (see `WorkerAgreement`).
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        slots: Slots,
        environment: Mapping[str, str] | None = None,
        emit: events.EventSink = lambda event: None,
        placement: Placement = ANYWHERE,
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = dict(spec)
        self._slots = slots
        self._placement = placement
        self._environment = dict(environment or {})
        self._emit = emit
        self._facts: Mapping[str, Any] | None = None
        self._workers: list[PoolWorker] = []
        self._waiting: list[Task] = []  # in the order in which they run
        self._attempts = Attempts()
        self._worker_count = itertools.count()
        self._failed_starts = 0  # in a row
        self._next_grow = 0.0  # when to look for new nodes
        self._next_watch = 0.0  # when to look for silent workers
        self._released = 0  # workers of the requested number that were not needed
        self._clock = AwakeClock()
        self._monitor = ClusterMonitor()
        self._untimed_since: float | None = None  # inf: the user was told
        self._nodes: list[Node] = []
        self._suspects: dict[str, str] = {}  # nodes on which a worker died: machines by Ray's id
        self._grow()
        self._agreement = WorkerAgreement(
            {worker.name for worker in self._workers}, placement, stored or {}
        )

    @property
    def alive(self) -> int:
        return sum(worker.ready for worker in self._workers)

    @property
    def _node_ids(self) -> set[str]:
        """Ids of the cluster's nodes, and "" for a node without one."""
        return {"", *(node.id for node in self._nodes)}

    def first_facts(self, timeout: float = START_TIMEOUT_S) -> Mapping[str, Any]:
        """The facts of the first worker that generates images: its models, captions and device.

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
        # after those with the same key
        bisect.insort(self._waiting, task, key=lambda task: (task.trial, not task.is_measurement))
        self._assign()

    def withdraw(self, names: Collection[str]) -> None:
        self._waiting = [task for task in self._waiting if task.name not in names]
        for worker in self._workers:
            if worker.task and worker.task.name in names:
                worker.abandon(self._clock.now)

    def collect(self, timeout: float) -> list[TaskResult]:
        self._monitor.responds()
        self._clock.advance()
        if time.monotonic() > self._next_grow:
            self._grow()
        results = [result for worker in self._replied(timeout) if (result := self._take(worker))]
        if self._clock.now >= self._next_watch:
            self._next_watch = self._clock.now + _WATCH_INTERVAL_S
            results += self._watch()
        self._assign()
        return results

    def close(self) -> None:
        """Kill all actors. Their running tasks are lost; files that they wrote are not."""
        for worker in [*self._workers]:
            self._remove(worker)

    def _replied(self, timeout: float) -> list[PoolWorker]:
        """Wait for the reply of one worker; returns it and all others that have replied by then."""
        workers = {worker.reply: worker for worker in self._workers if not worker.is_idle}
        if not workers:
            time.sleep(timeout)
            return []
        replies, _ = ray.wait(list(workers), num_returns=1, timeout=timeout)
        if replies:
            replies, _ = ray.wait(list(workers), num_returns=len(workers), timeout=0)
        return [workers[reply] for reply in replies]

    def _take(self, worker: PoolWorker) -> TaskResult | None:
        """Process the reply of a worker, and make the worker idle if it can be used."""
        reply = worker.reply
        worker.reply = None
        output = None
        cause = None
        try:
            output = ray.get(reply)
        except RayTaskError as error:
            cause = describe_error(error)
        except RayError as error:  # the actor died, or the node that held the result
            return self._handle_death(worker, describe_error(error))
        if not worker.ready:
            self._handle_start(worker, output, cause)
        if (task := self._finish(worker)) is None:
            return None
        if cause and cause.startswith(StorageError.__name__):
            # No trial is to blame, and the search must not count it as one that failed.
            if self._attempts.last(task, "", self._node_ids):
                raise SweepError(f"{worker.name} cannot use the store ({cause})")
            self._warn(f"{worker.name} runs {task.name} again: {cause}")
            self.submit(task)
            return None
        self._attempts.forget(task)
        self._agreement.active &= task.kind not in _IMAGE_TASKS
        return TaskResult(
            task, output, cause, permanent=cause is None or cause.startswith(_PERMANENT_ERRORS)
        )

    def _watch(self) -> list[TaskResult]:
        """Replace workers that do not respond, and release those that no task needs."""
        self._find_processes()
        problems = [(worker, worker.problem(self._clock.now)) for worker in self._workers]
        results = [self._handle_death(worker, problem) for worker, problem in problems if problem]
        self._warn_of_untimed()
        self._release()
        return [result for result in results if result]

    def _find_processes(self) -> None:
        """Note which workers that waited for a node have a process: one that hangs may never answer
        a heartbeat.
        """
        waiting = [worker for worker in self._workers if math.isinf(worker.since)]
        if waiting and self._monitor.responds(max_age=0.0):
            found = ray_internals.have_processes([worker.handle for worker in waiting])
            for worker in itertools.compress(waiting, found):
                worker.since = self._clock.now

    def _warn_of_untimed(self) -> None:
        """Say once that timing sessions have waited for a while because no worker may time."""
        is_waiting = any(task.kind == TimingSession.kind for task in self._waiting)
        if not is_waiting or any(TIME in worker.roles for worker in self._workers):
            self._untimed_since = None
        elif self._untimed_since is None:
            self._untimed_since = self._clock.now
        elif self._clock.now - self._untimed_since >= _TIMING_DELAY_S:
            self._untimed_since = math.inf
            self._warn(f"timing sessions wait for a worker on {self._agreement.timing_place}")

    def _release(self) -> None:
        """Give up workers that no task needs: an autoscaling cluster stops their nodes. Keep one of
        each role.
        """
        if self._slots.count is None or self._waiting:
            return
        for worker in [*self._workers]:
            others = [other for other in self._workers if other.ready and other is not worker]
            covered = {role for other in others for role in other.roles}
            if worker.task is not None or not covered.issuperset(self._placement.roles):
                continue
            if self._clock.now - worker.since > _RELEASE_TIMEOUT_S:
                self._remove(worker)
                self._released += 1

    def _warn(self, note: str) -> None:
        self._emit(events.Workers(self.alive, note=note))

    def _remove(self, worker: PoolWorker) -> None:
        self._workers.remove(worker)
        worker.kill()

    def _handle_start(
        self, worker: PoolWorker, facts: Mapping[str, Any] | None, cause: str | None
    ) -> None:
        """Use a worker that has started for what it may do, or replace it."""
        problems = self._agreement.add(worker.name, facts)
        roles = frozenset(ROLES) - problems.keys()
        if problem := cause or (None if roles else problems[GENERATE]):
            self._handle_failed_start(worker, problem)
        else:
            assert facts is not None
            worker.ready = True
            worker.roles = roles
            worker.labels = facts.get("labels", {})
            worker.node = facts.get("node", "")
            self._failed_starts = 0
            if GENERATE in roles:
                self._facts = self._facts or facts
            else:
                self._warn(f"{worker.name} runs timing sessions only: {problems[GENERATE]}")
        self._agreement.check()

    def _handle_death(self, worker: PoolWorker, death: str) -> TaskResult | None:
        """Submit the task of a dead worker again, unless too many workers died running it."""
        if not worker.ready:
            self._agreement.add(worker.name, None)
            self._handle_failed_start(worker, death)
            return None
        self._remove(worker)
        what = f"{worker.name} on {worker.node}" if worker.node else worker.name
        self._emit(events.Workers.losing(what, death, self.alive))
        self._suspects[worker.node_id] = worker.node
        # the whole node may have died: give the others no task before they reply
        for other in self._workers:
            if other.is_idle:
                other.request_facts()
        self._grow()
        if (task := self._finish(worker)) is None:
            return None
        if attempts := self._attempts.last(task, worker.node_id, self._node_ids):
            what = describe_task(task.payload, self._spec.get("captions"))
            cause = f"its worker died {attempts} times while running {task.name} ({what}): {death}"
            return TaskResult(task, None, cause, permanent=False)
        self.submit(task)
        return None

    def _handle_failed_start(self, worker: PoolWorker, cause: str) -> None:
        """Schedule the next start with exponential backoff: one broken node must not stop the
        others.

        Raises:
            PoolError: no worker is alive, and the last one of all was refused, or too many starts
                have failed in a row.
        """
        self._remove(worker)
        self._failed_starts += 1
        is_final = cause.startswith(_REFUSAL) and not self._workers
        if (is_final or self._failed_starts >= _MAX_FAILED_STARTS) and not self.alive:
            raise PoolError(f"workers fail to start: {cause}")
        delay = _GROW_INTERVAL_S * (2 ** min(self._failed_starts - 1, 6) - 1)
        self._next_grow = time.monotonic() + delay
        self._warn(f"{worker.name} cannot be used: {cause}; retrying in {delay:.0f} s")

    def _assign(self) -> None:
        """Give waiting tasks to idle workers. Those that time are the last to get other tasks."""
        idle = [worker for worker in self._workers if worker.is_idle]
        for task in [*self._waiting]:
            able = [worker for worker in idle if worker.can_run(task)]
            if able:
                worker = min(able, key=lambda worker: (TIME in worker.roles, -worker.since))
                self._run(task, worker)
                idle.remove(worker)
                self._waiting.remove(task)
            if not idle:
                break

    def _run(self, task: Task, worker: PoolWorker) -> None:
        worker.run(task, self._clock.now)
        if task.kind == TimingSession.kind:
            self._emit(events.Timing(worker.name, len(task.payload["configs"])))

    def _finish(self, worker: PoolWorker) -> Task | None:
        """End a worker's task; returns it, None if its result is not needed."""
        if worker.task is not None and worker.task.kind == TimingSession.kind:
            self._emit(events.Timing(worker.name, 0))
        return worker.finish(self._clock.now)

    def _grow(self) -> None:
        """Start actors up to the requested number, or as many as the cluster has room for."""
        self._next_grow = time.monotonic() + _GROW_INTERVAL_S
        if not self._monitor.responds(max_age=0.0):
            return
        self._monitor.check_node()
        self._nodes = alive_nodes()
        for node in self._suspects.keys() - self._node_ids:
            what = f"node {self._suspects.pop(node)}"
            self._emit(events.Workers.losing(what, "it has left the cluster", self.alive))
        for _ in range(self._target_count() - len(self._workers)):
            labels = self._placement.next_labels([worker.labels for worker in self._workers])
            self._workers.append(self._start_worker(labels))

    def _start_worker(self, labels: Sequence[Labels]) -> PoolWorker:
        """Start an actor and ask for its facts. labels: alternatives, one of which its node must
        have; none: any.
        """
        spec = self._spec | {"worker": f"worker-{next(self._worker_count)}"}
        options: dict[str, Any] = {"runtime_env": {}}
        if self._environment:
            options["runtime_env"] = {"env_vars": dict(self._environment)}
        if labels:
            first, *others = ({"label_selector": dict(alternative)} for alternative in labels)
            options |= {**first, "fallback_strategy": others}
        actor = actor_class().options(
            num_cpus=self._slots.cpus,
            num_gpus=self._slots.gpus,
            max_restarts=0,
            max_task_retries=0,
            **options,
        )
        selected = labels[0] if len(labels) == 1 else {}
        worker = PoolWorker(actor.remote(spec), spec["worker"], selected)
        worker.request_facts()
        return worker

    def _target_count(self) -> int:
        if self._slots.count is None:
            return self._placement.capacity(self._slots, self._nodes)
        starting = sum(not worker.ready for worker in self._workers)
        self._released = max(0, self._released - max(0, len(self._waiting) - starting))
        return self._slots.count - self._released
