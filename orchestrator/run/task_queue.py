"""The tasks that wait for a worker, in the order in which they run, and how often one was tried in vain."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection

from orchestrator.run.tasks import Task

MAX_ATTEMPTS = 3  # at a task whose worker dies, or cannot use the store
LOST_NODE = 0.25  # of an attempt: spot nodes are reclaimed whatever runs on them


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

    def has(self, kind: str) -> bool:
        return any(entry[-1].kind == kind for entry in self._entries)

    def remove(self, is_obsolete: Callable[[Task], bool]) -> None:
        self._entries = [entry for entry in self._entries if not is_obsolete(entry[-1])]
        heapq.heapify(self._entries)


class Attempts:
    """Remembers where each task was tried in vain, and says which attempt was the last."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[str]] = {}

    def last(self, task: Task, node: str = "", alive: Collection[str] = ("",)) -> int | None:
        """Count one on a node; returns how many there were if the task should be given up. alive: nodes that are.

        A node's death is known some time after its worker's. So earlier attempts are looked at again each time.
        """
        nodes = self._nodes.setdefault(task.name, [])
        nodes.append(node)
        total = sum(1.0 if node in alive else LOST_NODE for node in nodes)
        return len(nodes) if total >= MAX_ATTEMPTS else None

    def forget(self, task: Task) -> None:
        self._nodes.pop(task.name, None)
