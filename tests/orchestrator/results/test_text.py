"""Numbers and shares as text."""

from __future__ import annotations

import pytest

from orchestrator.results.text import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.265, "27 %"), (0.875, "88 %"), (0.5, "50 %"), (0.991, ">99 %"), (1.0, ">99 %"), (0.009, "<1 %"), (0.0, "<1 %")],
)
def test_shares_are_rounded_as_the_report_rounds_them(share: float, text: str) -> None:
    """JavaScript's Math.round takes halves up; Python's formatting takes them to the even digit."""
    assert percent(share) == text
