"""Numbers and shares as text, and texts in files that have a syntax."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from orchestrator.text import csv_cell, markdown, markdown_block, markdown_code, percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.265, "27 %"),
        (0.875, "88 %"),
        (0.5, "50 %"),
        (0.991, ">99 %"),
        (1.0, ">99 %"),
        (0.009, "<1 %"),
        (0.0, "<1 %"),
    ],
)
def test_shares_are_rounded_as_the_report_rounds_them(share: float, text: str) -> None:
    """JavaScript's Math.round takes halves up; Python's formatting takes them to the even digit."""
    assert percent(share) == text


@pytest.mark.parametrize(
    "text",
    ["- item", "+ item", "1. item", "23) item", "===", "---", "# head", "> quote", "`a", "x\n# y"],
)
def test_a_text_in_markdown_is_one_paragraph_of_text(text: str) -> None:
    (opened, inline, closed) = MarkdownIt().parse(markdown(text))
    assert (opened.type, closed.type) == ("paragraph_open", "paragraph_close")
    assert "".join(part.content for part in inline.children or ()) == text.replace("\n", "\ufffd")


@pytest.mark.parametrize("text", ["1.23 ± 0.02", "-1.5", "+2.3 ± 5.9 %", ".5"])
def test_numbers_in_markdown_have_no_backslash(text: str) -> None:
    assert markdown(text) == text


@pytest.mark.parametrize("text", ["mine.rules", "a`b", "``", "`x`", "a\nb"])
def test_code_in_markdown_stays_code(text: str) -> None:
    (_, inline, _) = MarkdownIt().parse(f"It needs {markdown_code(text)}.")
    before, code, after = inline.children or []
    assert [part.type for part in (before, code, after)] == ["text", "code_inline", "text"]
    assert code.content == text.replace("\n", "\ufffd")
    (block,) = MarkdownIt().parse(markdown_block(f"{text}\n```\nrun me", "sh"))
    assert block.type == "fence"
    assert block.content == f"{text}\n```\nrun me\n"


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|x", "-x", "@SUM(A1)", "\t=1", "\r=1", "-1.5 ± 0.2", "--1", "1e5=2"]
)
def test_no_text_is_a_formula(text: str) -> None:
    assert csv_cell(text) == (text if text.startswith("1") else f"'{text}")


@pytest.mark.parametrize("text", ["-1.5", "+2", "-1e-3", "-.5", "3", "a-b", ""])
def test_numbers_and_other_texts_stay(text: str) -> None:
    assert csv_cell(text) == text
