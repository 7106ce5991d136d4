"""The limits of a quality bar."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.front.quality_bar import _bar_range


@pytest.mark.parametrize(("low", "high", "direction", "start"), [
    (0.98, 1.01, "maximize", 0.97), (0.5, 1.0, "maximize", 0.97), (0.0, 30.0, "maximize", 0.97),
    (1.3, 2.0, "minimize", 1.2), (1.0, 1.1, "minimize", 1.2), (0.0, 150.0, "minimize", 1.2),
])  # fmt: skip
def test_the_default_bar_is_within_reach(
    low: float, high: float, direction: Any, start: float
) -> None:
    """So that the report opens with the choice that the commands print."""
    limits = _bar_range(low, high, direction, is_relative=True)
    assert limits.start == start
    assert 0 < limits.low <= max(min(low, start), limits.step)
    assert limits.high >= max(high - limits.step, start)
    assert round((start - limits.low) / limits.step, 6).is_integer()


@pytest.mark.parametrize("size", [3.7, 3.7e-9, -3.7e6])
def test_steps_are_no_finer_than_a_thousandth_of_the_value(size: float) -> None:
    limits = _bar_range(size, size + abs(size) * 1e-12, "minimize", is_relative=False)
    assert 1e-4 * abs(size) <= limits.step <= abs(size)
    assert limits.low == pytest.approx(size, rel=1e-2)
    steps = (limits.high - limits.low) / limits.step
    assert steps == pytest.approx(round(steps), abs=1e-6)
