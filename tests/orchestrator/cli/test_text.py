"""What commands print."""

from __future__ import annotations

import json
import math

import pytest

from orchestrator.cli.text import show


def test_json_has_null_for_numbers_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has neither NaN nor Infinity: other programs cannot read them."""
    facts = {
        "coverage": math.nan,
        "rows": [{"epsilon": math.inf}, {"epsilon": -math.inf}],
        "pair": (1.5, math.nan),
        "n": 2,
    }
    show(facts, ["a line"], as_json=True)
    expected = {"coverage": None, "rows": [{"epsilon": None}, {"epsilon": None}], "pair": [1.5, None], "n": 2}
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == expected
