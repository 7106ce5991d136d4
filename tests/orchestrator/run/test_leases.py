"""Deadlines from the durations of finished tasks, and the clock that they are measured with."""

from __future__ import annotations

import math
import random

from orchestrator.run.leases import MIN_DEADLINE_S, AwakeClock, Durations, Lasting


def test_a_deadline_needs_a_history_of_its_own_kind() -> None:
    durations = Durations()
    for _ in range(4):
        durations.add("quality", 100.0)
        durations.add("timing", 1.0)
    assert durations.deadline("quality") == math.inf
    durations.add("quality", 100.0)
    durations.add("timing", 1.0)
    assert durations.deadline("quality") == 500.0
    assert durations.deadline("timing") == MIN_DEADLINE_S
    assert durations.deadline("measure") == math.inf


def test_one_straggler_moves_no_deadline_and_slower_settings_do() -> None:
    generator, durations = random.Random(0), Durations()
    for _ in range(50):
        durations.add("quality", generator.uniform(50, 100))
    before = durations.deadline("quality")
    assert 5 * 85 < before < 5 * 100
    durations.add("quality", 36_000.0)
    assert durations.deadline("quality") < 1.05 * before
    for _ in range(50):
        durations.add("quality", generator.uniform(500, 1000))
    assert durations.deadline("quality") > 5 * 700


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    times = iter([0.0, 0.5, 1.0, 601.0, 601.5])
    clock = AwakeClock(lambda: next(times))
    for _ in range(4):
        clock.advance()
    assert clock.now == 0.5 + 0.5 + 5.0 + 0.5


def test_a_state_is_noticed_once_when_it_has_lasted() -> None:
    lasting = Lasting(10.0)
    looks = [(False, 0), (True, 1), (True, 10), (True, 11), (True, 30), (False, 31), (True, 32), (True, 41), (True, 42)]
    assert [now for is_so, now in looks if lasting.begins(is_so, now)] == [11, 42]
