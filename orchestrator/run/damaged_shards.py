"""Shards that a worker could not read: set aside, and drawn again for the trials in flight that need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from orchestrator.run.pending import PendingTrial, Planner
from orchestrator.run.tasks import EventSink, SweepError, Task
from workers.data.records import ShardError, read_shard
from workers.data.storage import Storage

FOLDER = "damaged"  # of the files that were set aside
_MAX_REDRAWS = 3  # of one shard


class DamagedShards:
    """Replaces damaged and missing shards. existing: the files in the store, from which it takes them out.

    Images do not depend on when they are drawn, so a finished trial's metrics stay valid if the baseline's shards are
    drawn again. Timings do: a shape whose timing file is lost after its owner has finished is timed anew, under the
    name of the trial that needs it (see `ShapeTimings.reassign`).
    """

    def __init__(self, storage: Storage, planner: Planner, existing: set[str], emit: EventSink) -> None:
        self._storage, self._planner, self._existing, self._emit = storage, planner, existing, emit
        self._redraws = Counter[str]()

    def redraw(self, found_by: Task, unusable: Mapping[str, str], trials: Iterable[PendingTrial]) -> list[Task]:
        """The tasks that draw unusable shards of these trials again. unusable: the reason by the shard's name.
        found_by: the task that has ended with them, which measures, or found its own file damaged.

        Raises:
            SweepError: a shard was drawn again too often.
        """
        flying = {trial.number: trial for trial in trials}.values()
        if found_by.name in unusable:
            self._existing.add(found_by.name)
            for trial in flying:
                trial.missing.discard(found_by.name)
        for name, reason in unusable.items():
            self._remove(name, reason)
        tasks = []
        for trial in flying:
            lost = trial.needs & unusable.keys() - self._existing
            tasks += [task for task in self._planner.tasks(trial) if task.name in lost - trial.missing]
            trial.missing |= lost
        return tasks

    def _remove(self, name: str, reason: str) -> None:
        """Move a shard aside, unless it is readable by now or was already removed."""
        if name not in self._existing:
            return
        kept = ""
        try:
            read_shard(self._storage, name, [])
            return
        except FileNotFoundError:
            pass
        except ShardError:
            kept = f"; the old file is kept as {self._set_aside(name)}"
        self._existing.discard(name)
        self._redraws[name] += 1
        if self._redraws[name] > _MAX_REDRAWS:
            raise SweepError(f"{reason}: drawn {_MAX_REDRAWS} times and damaged again; check the disk or bucket")
        self._emit({"event": "shard_damaged", "note": f"{reason}, so it is drawn again{kept}"})

    def _set_aside(self, name: str) -> str:
        """Rename a file; returns its new name, which no other file has."""
        stem, dot, ending = name.rpartition("/")[2].rpartition(".")
        taken = set(self._storage.names(FOLDER))
        free = next(new for n in range(len(taken) + 1) if (new := f"{stem}-{n}{dot}{ending}") not in taken)
        self._storage.move(name, f"{FOLDER}/{free}")
        return f"{FOLDER}/{free}"
