"""The build: files that trials want, made by workers out of other files.

A file's name follows from its content, so a task whose file exists is done. One whose needs are
missing waits for them. A file that a worker finds damaged or missing is set aside, and those who
wanted what is made from it want it again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from sys import intern
from typing import Any

from orchestrator.cluster.tasks import SweepError, Task, TaskResult, Workers
from orchestrator.store import events
from workers.data.records import ShardError, read_shard
from workers.data.shards import FACTS, SHARDS, TIMINGS
from workers.data.storage import Storage

DAMAGED = "damaged"  # folder of the files that were set aside
_MAX_REPEATS = 3  # times that one file is made again


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a measurement."""

    trials: tuple[int, ...]  # the numbers of those that wanted it
    output: Mapping[str, Any] | None = None  # of the worker; None if it was not made
    lost: frozenset[str] = frozenset()  # names of the needs that could not be made or read
    cause: str | None = None  # why it failed; None if it can be wanted again at once
    permanent: bool = True  # see `TaskResult`


@dataclass(slots=True)
class _Wanted:
    """A file that trials want, and that does not exist yet."""

    task: Task
    unseen: list[str]  # names of the needs that were not among the files at the last look
    trials: set[int] = field(default_factory=set)  # the numbers of those that want it

    def is_ready(self, files: Collection[str]) -> bool:
        """Whether all needs are among the files. A need is looked for until it is seen once."""
        while self.unseen and self.unseen[-1] in files:
            self.unseen.pop()
        return not self.unseen


class Build:
    """Has workers make the files that trials want. Trials are numbers; those of lower ones are made
    first.

    files: names of the shards in the store. seconds: of workers, by the trial that they were spent
    on.
    """

    def __init__(self, storage: Storage, workers: Workers, emit: events.EventSink) -> None:
        self.files = {
            intern(f"{folder}/{name}")
            for folder in (SHARDS, TIMINGS)
            for name in storage.names(folder)
        }
        self.seconds: defaultdict[int, float] = defaultdict(float)
        self._storage = storage
        self._workers = workers
        self._emit = emit
        self._wanted: dict[str, _Wanted] = {}
        self._waiting: dict[str, _Wanted] = {}  # those that are not submitted to the workers
        self._results: list[Result] = []
        # by a file that was damaged, or a measurement whose worker could not read one
        self._repeats = Counter[str]()
        self._alive = -1

    def want(self, trial: int, *tasks: Task) -> None:
        """Make the files of tasks, and all that they need, unless they exist. trial: `SWEEP` for
        all of them.
        """
        for task in tasks:
            self._add(task, trial)
        self._submit_ready()

    def withdraw(self, trial: int) -> None:
        """Make nothing for this trial that no other one wants."""
        obsolete = []
        for name, wanted in list(self._wanted.items()):
            wanted.trials.discard(trial)
            if not wanted.trials:
                if name not in self._waiting:
                    obsolete.append(name)
                self._forget(name)
        self._workers.withdraw(obsolete)

    def collect(self, timeout: float) -> list[Result]:
        """The measurements that ended since the last call. Waits up to `timeout` seconds for a
        worker's next result.

        Raises:
            PoolError: no worker is left and none can be started.
            SweepError: the sweep cannot go on without a task that failed, or a file is damaged
                again and again.
        """
        if not self._results:
            self._work(timeout)
        results = self._results
        self._results = []
        return results

    def wait(self, name: str) -> None:
        """Wait for a wanted file. Results that arrive meanwhile are kept for `collect`.

        Raises:
            PoolError, SweepError: see `collect`.
        """
        while name in self._wanted:
            self._work(1.0)

    def _add(self, task: Task, trial: int) -> None:
        if task.name in self.files:
            return
        if task.name not in self._wanted:
            wanted = _Wanted(task, [need.name for need in task.needs])
            self._wanted[task.name] = self._waiting[task.name] = wanted
            self._emit_phase(task)
        self._wanted[task.name].trials.add(trial)
        for need in task.needs:
            self._add(need, trial)

    def _submit_ready(self) -> None:
        for name, wanted in list(self._waiting.items()):
            if wanted.is_ready(self.files):
                del self._waiting[name]
                self._workers.submit(replace(wanted.task, trial=min(wanted.trials)))

    def _work(self, timeout: float) -> None:
        """Collect workers' results, and submit the tasks that have become ready."""
        for result in self._workers.collect(timeout):
            if result.task.name in self._wanted:
                self._take(result)
        if (alive := self._workers.alive) != self._alive:
            self._alive = alive
            note = None if alive else "no worker is running; waiting for one"
            self._emit(events.Workers(alive, note=note))
        self._submit_ready()

    def _take(self, result: TaskResult) -> None:
        task = result.task
        output = result.output
        if output is None:
            self._fail(task, result.cause or "failed", permanent=result.permanent)
        elif unusable := output.get("unusable"):
            self._set_aside(task, unusable)
        elif task.is_measurement:
            self.seconds[task.trial] += output.get("seconds", 0.0)
            self._end(task.name, Result((), output))
        elif output["name"] != task.name:
            cause = (
                f"{output['worker']} wrote {output['name']} instead of {task.name}: its models or "
                "captions differ"
            )
            self._fail(task, cause, permanent=False)
        else:
            self._add_file(task, output)

    def _add_file(self, task: Task, output: Mapping[str, Any]) -> None:
        self._forget(task.name)
        self.files.add(task.name)
        self.seconds[task.trial] += output["seconds"]
        if task.about:
            self._emit_phase(task)
            return
        facts = {key: output[key] for key in FACTS if key in output}
        self._emit(events.Shard(task.trial, task.kind, **facts))

    def _fail(self, task: Task, cause: str, *, permanent: bool) -> None:
        """End the task and the measurements that need it."""
        if task.about:
            raise SweepError(f"{task.name}: {cause}")
        if task.is_measurement:
            self._end(task.name, Result((), cause=cause, permanent=permanent))
            return
        self._forget(task.name)
        self._drop(frozenset([task.name]), cause, permanent)

    def _drop(self, lost: frozenset[str], cause: str | None = None, permanent: bool = True) -> None:
        """End the measurements that wait for one of these files. Those who want them decide what
        follows.
        """
        for name, wanted in list(self._waiting.items()):
            if needs := lost.intersection(need.name for need in wanted.task.needs):
                self._end(name, Result((), None, needs, cause, permanent))

    def _end(self, name: str, result: Result) -> None:
        """End a measurement for all trials that want it."""
        self._results.append(replace(result, trials=tuple(self._forget(name).trials)))

    def _forget(self, name: str) -> _Wanted:
        self._waiting.pop(name, None)
        return self._wanted.pop(name)

    def _set_aside(self, task: Task, unusable: Mapping[str, str]) -> None:
        """Set damaged files aside, and end the measurements that need them. unusable: the reasons
        by name.
        """
        # a worker found the task's own file, which an earlier launch had written
        if not task.is_measurement:
            self.files.add(task.name)
        removed = frozenset(name for name, reason in unusable.items() if self._remove(name, reason))
        if task.name in removed:
            self._waiting[task.name] = self._wanted[task.name]
            return
        if not task.is_measurement:
            self._forget(task.name)
            return
        self._repeats[task.name] += not removed
        if self._repeats[task.name] <= _MAX_REPEATS:
            self._end(task.name, Result((), None, removed))
            self._drop(removed)
        else:
            cause = (
                f"{'; '.join(unusable.values())}; only its worker cannot read it: check that "
                "machine"
            )
            self._fail(task, cause, permanent=False)

    def _remove(self, name: str, reason: str) -> bool:
        """Move a file aside, unless it is readable by now, or already removed; whether it was."""
        if name not in self.files:
            return False
        kept = ""
        try:
            read_shard(self._storage, name, [])
            return False
        except FileNotFoundError:
            pass
        except ShardError:
            kept = f"; the old file is kept as {self._move(name)}"
        self.files.discard(name)
        self._repeats[name] += 1
        if self._repeats[name] > _MAX_REPEATS:
            raise SweepError(
                f"{reason}: made {_MAX_REPEATS} times and damaged again; check the disk or bucket"
            )
        self._emit(events.ShardDamaged(note=f"{reason}, so it is made again{kept}"))
        return True

    def _move(self, name: str) -> str:
        """Rename a file to a name that no other has; returns it."""
        stem, dot, ending = name.rpartition("/")[2].rpartition(".")
        existing = set(self._storage.names(DAMAGED))
        candidates = (f"{stem}-{number}{dot}{ending}" for number in count())
        free = next(candidate for candidate in candidates if candidate not in existing)
        self._storage.move(name, f"{DAMAGED}/{free}")
        return f"{DAMAGED}/{free}"

    def _emit_phase(self, changed: Task) -> None:
        """Say what the sweep still waits for, if it waited for this task or does now."""
        if changed.about:
            waiting = dict.fromkeys(
                wanted.task.about for wanted in self._wanted.values() if wanted.task.about
            )
            self._emit(events.Phase("; ".join(waiting)))
