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


def test_names_in_json_neither_control_the_terminal_nor_break_its_encoding(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a\x9b31mred", "\u202egpj.exe", "λ ± 2", "\U0001f680", "caf\udcff"]  # the last: a path that is not UTF-8
    show(names, [], as_json=True)
    printed = capsys.readouterr().out
    assert json.loads(printed) == names
    assert all(letter.isprintable() or letter == "\n" for letter in printed)
    assert "λ ± 2" in printed
