"""What ends a sweep."""

from __future__ import annotations

import pytest

from orchestrator.run.limits import Limits
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
