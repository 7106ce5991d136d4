"""What ends a sweep."""

from __future__ import annotations

import pytest

from orchestrator.cluster.tasks import Limits, seconds_taken
from orchestrator.store.records import TrialRecord
from search_spaces.sweep_sections import Budget


@pytest.mark.parametrize("source", ["space", "pool"])
def test_the_limit_that_is_reached_is_named(source: str) -> None:
    limits = Limits(Budget(trials=5, images=100), lambda number: number >= 4, source)
    assert limits.reached(3, is_stored=False) is None
    assert limits.reached(4, is_stored=False) == source
    limits.images = 100
    assert limits.reached(3, is_stored=False) == "images"
    endless = Limits(Budget(trials=5), lambda number: False, source)
    assert [endless.reached(number, is_stored=False) for number in (4, 5)] == [None, "trials"]


def test_stored_trials_take_no_time() -> None:
    limits = Limits(Budget(trials=5, hours=1e-15), lambda number: False, "space")
    assert limits.is_time_spent
    assert limits.reached(1, is_stored=True) is None
    assert limits.reached(1, is_stored=False) == "hours"


def record(number: int, started: str, finished: str) -> TrialRecord:
    at = "2026-01-02T{}:00.000+00:00"
    return TrialRecord(
        number, "", "complete", None, started=at.format(started), finished=at.format(finished)
    )


def test_the_time_of_earlier_launches_counts() -> None:
    """Two trials at a time from 10:00 to 11:30, nothing until 20:00, and half an hour then."""
    records = [
        record(2, "20:00", "20:30"),
        record(0, "10:00", "11:00"),
        record(1, "10:30", "11:30"),
        record(3, "10:10", "10:20"),
    ]
    assert seconds_taken(records) == 2 * 3600
    assert seconds_taken([]) == 0
    for hours, is_spent in ((2.0, True), (2.1, False)):
        limits = Limits(
            Budget(trials=9, hours=hours),
            lambda number: False,
            "space",
            earlier_s=seconds_taken(records),
        )
        assert limits.is_time_spent == is_spent
        assert limits.reached(4, is_stored=False) == ("hours" if is_spent else None)
