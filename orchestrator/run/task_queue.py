"""The tasks that wait for a worker, in the order in which they run."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from orchestrator.run.tasks import Task


class TaskQueue:
    """By trial; a trial's urgent tasks first; then in submission order."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, bool, int, Task]] = []  # a heap
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, task: object) -> bool:
        return any(entry[-1] is task for entry in self._entries)

    def push(self, task: Task) -> None:
        heapq.heappush(self._entries, (task.trial, not task.urgent, next(self._count), task))

    def pop(self, can_run: Callable[[Task], bool]) -> Task | None:
        """Remove the first task that can run; None if there is none."""
        blocked, found = [], None
        while self._entries and found is None:
            entry = heapq.heappop(self._entries)
            if can_run(entry[-1]):
                found = entry[-1]
            else:
                blocked.append(entry)
        for entry in blocked:
            heapq.heappush(self._entries, entry)
        return found

    def remove(self, is_obsolete: Callable[[Task], bool]) -> None:
        self._entries = [entry for entry in self._entries if not is_obsolete(entry[-1])]
        heapq.heapify(self._entries)
