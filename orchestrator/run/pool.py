"""Ray actors that hold the models, and a small scheduler that gives each task to a free one.

If an actor or a node dies or falls silent, only the task that it was running is repeated elsewhere; a new actor
replaces it as soon as the cluster has room. Ray itself restarts nothing, so that the attempts of a task can be counted.
A task that takes much longer than others of its kind is given to a second worker too: the first result counts.
A requested number of workers is a maximum: idle ones give their nodes back.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from orchestrator.run.agreement import WorkerAgreement
from orchestrator.run.cluster import alive_nodes
from orchestrator.run.cluster_monitor import ClusterMonitor
from orchestrator.run.leases import AwakeClock, Durations, Lasting
from orchestrator.run.placement import ANYWHERE, NODE_ID_LABEL, Node, Placement, Slots, describe_labels, worker_capacity
from orchestrator.run.pool_worker import PoolWorker, describe_error, start_worker
from orchestrator.run.task_queue import Attempts, TaskQueue
from orchestrator.run.tasks import Loss, PoolError, SweepError, Task, TaskResult
from search_spaces.params import ConfigError
from workers.data.local_files import StorageError
from workers.data.shards import TimingShard
from workers.runtime.logs import describe_task

_REFUSAL = "ValueError: "  # the start of a worker refused the sweep on its node: other files, another store
_MAX_FAILED_STARTS = 3  # of workers in a row, while none is alive
_PERMANENT_ERRORS = (ConfigError.__name__, "OutOfMemory", "DecodingError")  # the config causes them: a retry is useless
_STORAGE_ERROR = StorageError.__name__
_DRAWING_TASKS = ("quality", "timing")
_GROW_INTERVAL_S = 5.0  # between checks for new nodes
_WATCH_INTERVAL_S = 2.0  # between looks at late and silent workers
_TIMING_DELAY_S = 60.0  # without a worker that may time, until the user is told
_RELEASE_TIMEOUT_S = 300.0  # for workers that no task needs
_START_TIMEOUT_S = 1800.0


class Pool:
    """Actors, and the tasks that wait for them.

    spec: plain data from which an actor loads its models. environment: variables of the actors' processes. warn: called
    with a message about each worker that cannot be used. placement: on which nodes workers draw and time. stored: facts
    of a resumed sweep's images, which workers that draw must share. lose: called with each worker that had started
    and died or fell silent, when `alive` no longer counts it, and with each node of one that left the cluster.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        slots: Slots,
        environment: Mapping[str, str] | None = None,
        warn: Callable[[str], None] = lambda message: None,
        placement: Placement = ANYWHERE,
        stored: Mapping[str, Any] | None = None,
        lose: Callable[[Loss], None] = lambda loss: None,
    ) -> None:
        self._spec, self._slots, self._placement = dict(spec), slots, placement
        self._environment, self._warn, self._lose = dict(environment or {}), warn, lose
        self._facts: Mapping[str, Any] | None = None
        self._busy: list[PoolWorker] = []
        self._idle: list[PoolWorker] = []
        self._waiting, self._attempts = TaskQueue(), Attempts()
        self._worker_count = itertools.count()
        self._failed_starts, self._next_grow, self._next_watch = 0, 0.0, 0.0
        self._released = 0  # workers of the requested number that were not needed
        self._clock, self._durations, self._monitor = AwakeClock(), Durations(), ClusterMonitor()
        self._untimed, self._nodes = Lasting(_TIMING_DELAY_S), list[Node]()
        self._suspects: dict[str, str] = {}  # nodes on which a worker died: machines by Ray's id
        self._grow()
        self._agreement = WorkerAgreement({worker.name for worker in self._busy}, placement, stored or {})

    @property
    def alive(self) -> int:
        return sum(worker.ready for worker in self._busy) + len(self._idle)

    @property
    def names(self) -> list[str]:
        """Names of the workers that have started, idle or busy."""
        return sorted(worker.name for worker in self._workers if worker.ready)

    @property
    def _workers(self) -> list[PoolWorker]:
        return self._busy + self._idle

    def first_facts(self, timeout: float = _START_TIMEOUT_S) -> Mapping[str, Any]:
        """The facts of the first worker that draws: its models, captions and device.

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
        self._waiting.push(task)
        self._assign()

    def withdraw(self, trial: int) -> None:
        self._waiting.remove(lambda task: task.trial == trial)
        for worker in self._busy:
            if worker.task and worker.task.trial == trial:
                worker.abandon(self._clock.now)

    def collect(self, timeout: float) -> list[TaskResult]:
        self._monitor.responds()
        self._clock.advance()
        if time.monotonic() > self._next_grow:
            self._grow()
        results = [result for worker in self._replied(timeout) if (result := self._take(worker))]
        results += self._watch()
        self._assign()
        return results

    def close(self) -> None:
        """Kill all actors. Their running tasks are lost; files that they wrote are not."""
        for worker in self._workers:
            worker.kill()
        self._busy, self._idle = [], []

    def _replied(self, timeout: float) -> list[PoolWorker]:
        """Wait for the reply of one worker; returns it and all others that have replied by then."""
        workers = {worker.reply: worker for worker in self._busy}
        if not workers:
            time.sleep(timeout)
            return []
        replies, _ = ray.wait(list(workers), num_returns=1, timeout=timeout)
        if replies:
            replies, _ = ray.wait(list(workers), num_returns=len(workers), timeout=0)
        return [workers[reply] for reply in replies]

    def _take(self, worker: PoolWorker) -> TaskResult | None:
        """Process the reply of a worker, and make the worker idle if it can be used."""
        self._busy.remove(worker)
        output, cause = None, None
        try:
            output = ray.get(worker.reply)
        except RayTaskError as error:
            cause = describe_error(error)
        except RayError as error:  # the actor died, or the node that held the result
            return self._handle_death(worker, describe_error(error))
        if not worker.ready and not self._accept_start(worker, output, cause):
            return None
        self._idle.append(worker)
        task, is_final = worker.finish(self._clock.now), cause is None or cause.startswith(_PERMANENT_ERRORS)
        if task is None or (worker.is_copied and not self._settle(task, is_final)):
            return None
        if cause and cause.startswith(_STORAGE_ERROR):
            self._retry(worker, task, cause)
            return None
        if output and output.get("ran", True):
            self._durations.add(task.kind, self._clock.now - worker.since)
        self._attempts.forget(task)
        self._agreement.active &= task.kind not in _DRAWING_TASKS
        return TaskResult(task, output, cause, is_final)

    def _retry(self, worker: PoolWorker, task: Task, cause: str) -> None:
        """Submit a task again that the store prevented. No trial is to blame, and the search must not count it as one.

        Raises:
            SweepError: it was prevented too often.
        """
        if self._attempts.last(task):
            raise SweepError(f"{worker.name} cannot use the store ({cause})")
        self._warn(f"{worker.name} runs {task.name} again: {cause}")
        self.submit(task)

    def _settle(self, task: Task, is_final: bool) -> bool:
        """Whether a result counts of a task that was given to two workers: if final, or the other one has failed."""
        others = self._running(task)
        if is_final:
            self._waiting.remove(lambda other: other is task)
            for worker in others:
                worker.abandon(self._clock.now)
        return is_final or not (others or task in self._waiting)

    def _running(self, task: Task) -> list[PoolWorker]:
        return [worker for worker in self._busy if worker.task is task and not worker.is_obsolete]

    def _watch(self) -> list[TaskResult]:
        """Replace workers that are of no use, and give tasks that take too long to other workers too."""
        if self._clock.now < self._next_watch:
            return []
        self._next_watch = self._clock.now + _WATCH_INTERVAL_S
        results = []
        for worker in [worker for worker in self._workers if worker.ready]:
            if problem := worker.problem(self._clock.now):
                (self._busy if worker in self._busy else self._idle).remove(worker)
                results.append(self._handle_death(worker, problem))
        for worker in self._busy:
            task, seconds = worker.task, self._clock.now - worker.since
            if task is None or worker.is_copied or worker.is_obsolete or seconds < self._durations.deadline(task.kind):
                continue
            worker.is_copied = True
            self._warn(f"a {task.kind} task takes long ({worker.name}: {seconds:.0f} s); another worker runs it too")
            self.submit(task)
        can_time = any(worker.times for worker in self._workers)
        if self._untimed.begins(not can_time and self._waiting.has(TimingShard.kind), self._clock.now):
            self._warn(f"timing shards wait for a worker on {describe_labels(self._placement.times or {})}")
        self._release()
        return [result for result in results if result]

    def _release(self) -> None:
        """Give up workers that no task needs: an autoscaling cluster stops their nodes. Keep one of each role."""
        if self._slots.count is None or self._waiting:
            return
        for worker in self._workers:
            others = [other for other in self._workers if other.ready and other is not worker]
            is_last = not all(any(getattr(other, role) for other in others) for role in self._placement.roles)
            if worker.task is None and not is_last and self._clock.now - worker.since > _RELEASE_TIMEOUT_S:
                (self._busy if worker in self._busy else self._idle).remove(worker)
                worker.kill()
                self._released += 1

    def _accept_start(self, worker: PoolWorker, facts: Mapping[str, Any] | None, cause: str | None) -> bool:
        """Whether a worker started, and may draw or time."""
        roles = self._agreement.add(worker.name, facts)
        problem = cause or (None if roles.draws or roles.times else roles.drawing_problem)
        if problem:
            self._handle_failed_start(worker, problem)
        else:
            if not roles.draws:
                self._warn(f"{worker.name} runs timing shards only: {roles.drawing_problem}")
            worker.ready, worker.draws, worker.times = True, roles.draws, roles.times
            worker.labels, worker.node = (facts or {}).get("labels", {}), (facts or {}).get("node", "")
            self._failed_starts = 0
            if roles.draws:
                self._facts = self._facts or facts
        self._agreement.check()
        return not problem

    def _handle_death(self, worker: PoolWorker, death: str) -> TaskResult | None:
        """Submit the task of a dead worker again, unless too many workers died running it."""
        if not worker.ready:
            self._agreement.add(worker.name, None)
            self._handle_failed_start(worker, death)
            return None
        worker.kill()
        self._lose(Loss(f"{worker.name} on {worker.node}" if worker.node else worker.name, death))
        self._suspects[worker.labels.get(NODE_ID_LABEL, "")] = worker.node
        for other in self._idle:  # the whole node may have died: give the others no task before they reply
            other.request_facts()
        self._busy += self._idle
        self._idle.clear()
        self._grow()
        task = worker.finish(self._clock.now)
        if task is None or (worker.is_copied and not self._settle(task, is_final=False)):
            return None
        alive = {"", *(node.id for node in self._nodes)}
        if attempts := self._attempts.last(task, worker.labels.get(NODE_ID_LABEL, ""), alive):
            what = describe_task(task.payload, self._spec.get("captions"))
            cause = f"its worker died {attempts} times while running {task.name} ({what}): {death}"
            return TaskResult(task, None, cause, permanent=False)
        self.submit(task)
        return None

    def _handle_failed_start(self, worker: PoolWorker, cause: str) -> None:
        """Schedule the next start with exponential backoff: one broken node must not stop the others.

        Raises:
            PoolError: no worker is alive, and the last one of all was refused, or too many starts have failed in a row.
        """
        worker.kill()
        self._failed_starts += 1
        is_final = cause.startswith(_REFUSAL) and all(other is worker for other in self._workers)
        if (is_final or self._failed_starts >= _MAX_FAILED_STARTS) and not self.alive:
            raise PoolError(f"workers fail to start: {cause}")
        delay = _GROW_INTERVAL_S * (2 ** min(self._failed_starts - 1, 6) - 1)
        self._next_grow = time.monotonic() + delay
        self._warn(f"{worker.name} cannot be used: {cause}; retrying in {delay:.0f} s")

    def _assign(self) -> None:
        """Give waiting tasks to idle workers. Those that time are the last to get other tasks."""
        while self._idle and (task := self._waiting.pop(lambda task: any(w.can_run(task) for w in self._idle))):
            able = [worker for worker in reversed(self._idle) if worker.can_run(task)]
            worker = min(able, key=lambda worker: worker.times)
            self._idle.remove(worker)
            worker.run(task, self._clock.now, is_copied=bool(self._running(task)))
            self._busy.append(worker)

    def _grow(self) -> None:
        """Start actors up to the requested number, or as many as the cluster has room for."""
        self._next_grow = time.monotonic() + _GROW_INTERVAL_S
        if not self._monitor.responds():
            return
        self._monitor.check_node()
        self._nodes = alive_nodes()
        alive = {"", *(node.id for node in self._nodes)}
        for node in self._suspects.keys() - alive:
            self._lose(Loss(f"node {self._suspects.pop(node)}", "it has left the cluster"))
        for _ in range(self._target_count() - len(self._workers)):
            spec = self._spec | {"worker": f"worker-{next(self._worker_count)}"}
            labels = self._placement.next_labels([worker.labels for worker in self._workers])
            self._busy.append(start_worker(spec, self._slots, self._environment, labels, self._clock.now))

    def _target_count(self) -> int:
        if self._slots.count is None:
            return worker_capacity(self._slots, [node for node in self._nodes if self._placement.uses(node)])
        starting = sum(not worker.ready for worker in self._busy)
        self._released = max(0, self._released - max(0, len(self._waiting) - starting))
        return self._slots.count - self._released
