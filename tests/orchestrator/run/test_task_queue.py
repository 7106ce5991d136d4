"""The order of waiting tasks, and when one is given up."""

from __future__ import annotations

from orchestrator.run.task_queue import Attempts, TaskQueue
from orchestrator.run.tasks import Task


def test_tasks_run_by_trial_then_urgent_then_as_submitted() -> None:
    queue = TaskQueue()
    for trial, name, urgent in ((1, "a", False), (0, "b", False), (1, "c", True), (0, "d", False)):
        queue.push(Task(trial, name, {"kind": "quality"}, urgent))
    assert queue.has("quality")
    assert not queue.has("timing")
    popped = [queue.pop(lambda task: task.name != "b") for _ in range(4)]
    assert [task and task.name for task in popped] == ["d", "c", "a", None]
    assert len(queue) == 1


def test_a_task_is_given_up_after_three_attempts() -> None:
    attempts, task = Attempts(), Task(0, "a", {"kind": "quality"})
    assert [attempts.last(task) for _ in range(3)] == [None, None, 3]
    attempts.forget(task)
    assert attempts.last(task) is None


def test_attempts_on_nodes_that_were_lost_count_a_quarter() -> None:
    """Whether a node was lost may be known only when the next attempt fails."""
    attempts, task = Attempts(), Task(0, "a", {"kind": "quality"})
    alive = [f"node-{n}" for n in range(20)]
    counts = [attempts.last(task, f"node-{n}", alive[n:]) for n in range(9)]
    assert counts == [None] * 8 + [9]
