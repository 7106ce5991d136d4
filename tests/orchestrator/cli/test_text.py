"""What commands print."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.text import _describe_within_error as describe_within_error
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
    expected = {
        "coverage": None,
        "rows": [{"epsilon": None}, {"epsilon": None}],
        "pair": [1.5, None],
        "n": 2,
    }
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == expected


def test_names_in_json_neither_control_the_terminal_nor_break_its_encoding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # the last: a path that is not UTF-8
    names = ["a\x9b31mred", "\u202egpj.exe", "λ ± 2", "\U0001f680", "caf\udcff"]
    show(names, [], as_json=True)
    printed = capsys.readouterr().out
    assert json.loads(printed) == names
    assert all(letter.isprintable() or letter == "\n" for letter in printed)
    assert "λ ± 2" in printed


def rows_of(count: int, pairs: Iterable[tuple[int, int]]) -> list[Any]:
    """Trials named by their numbers, of which these pairs are within error of each other."""
    near: list[list[str]] = [[] for _ in range(count)]
    for first, second in pairs:
        near[first].append(str(second))
        near[second].append(str(first))
    return [
        SimpleNamespace(name=str(number), within_error_of=others)
        for number, others in enumerate(near)
    ]


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([(0, 1)], "0 and 1"),
        ([(0, 1), (0, 2), (1, 2)], "0, 1 and 2"),
        ([(0, 1), (1, 2)], "0 and 1; 1 and 2"),
        ([(3, 4), (0, 2), (0, 4), (2, 4)], "0, 2 and 4; 3 and 4"),
    ],
)
def test_trials_within_error_of_each_other_are_groups(
    pairs: list[tuple[int, int]], groups: str
) -> None:
    """Of a group any two are, so none is said of 0 and 2 in the third case."""
    assert describe_within_error(rows_of(5, pairs)) == f"within error of each other: {groups}"


def test_many_equal_trials_are_one_short_group() -> None:
    """48 of them are 1,128 pairs."""
    text = describe_within_error(rows_of(48, combinations(range(48), 2)))
    assert text.count("and") == 1
    assert text.endswith(", 11 and 36 more")


def test_what_is_left_out_of_many_groups_is_counted() -> None:
    text = describe_within_error(rows_of(49, ((number, number + 1) for number in range(48))))
    assert "7 and 8; " in text
    assert text.endswith("; and 40 pairs more")
