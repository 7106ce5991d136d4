"""Tables as text."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from orchestrator.results.text import clean

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_ANY_WIDTH = 100_000  # of a table that is not shown on a terminal
_GAP = 2  # spaces between columns


class Shown(str):
    """Text for standard output. Names in it are clean; it may have a terminal's colours."""

    __slots__ = ()


def safe_text(lines: Iterable[str]) -> str:
    """Lines of text and tables for output: names in a sweep's files cannot control the terminal."""
    return "\n".join(line if isinstance(line, Shown) else clean(line) for line in lines)


def terminal_width() -> int:
    """Columns of the terminal; for a file or pipe the variable COLUMNS, else 80."""
    return shutil.get_terminal_size().columns


def table_fits(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table fits into the terminal without folding."""
    return sum(max(map(len, column)) + _GAP for column in zip(head, *rows, strict=True)) - _GAP <= terminal_width()


def shown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> Shown:
    """Aligned columns for standard output: folded to a terminal's width, else as wide as needed and without colours.

    right: indices of right-aligned columns, which are never folded.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    box, padding = (SIMPLE_HEAD, (0, _GAP - 1, 0, 0)) if is_terminal else (None, (0, _GAP, 0, 0))
    table = Table(box=box, show_edge=False, pad_edge=False, padding=padding)
    for column, name in enumerate(head):
        justify: Literal["right", "left"] = "right" if column in right else "left"
        table.add_column(_cell(name), justify=justify, overflow="fold", no_wrap=column in right)
    for row in rows:
        table.add_row(*map(_cell, row))
    return _printed(table)


def heading(text: str) -> Shown:
    """A line that a terminal shows bold."""
    from rich.text import Text

    return _printed(Text(clean(text), style="bold", no_wrap=True, overflow="ignore"))


def _printed(content: Table | Text) -> Shown:
    from rich.console import Console

    buffer, is_terminal = io.StringIO(), sys.stdout.isatty()
    width = terminal_width() if is_terminal else _ANY_WIDTH
    Console(file=buffer, force_terminal=is_terminal, width=width, highlight=False).print(content)
    return Shown("\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n")))


def _cell(text: str) -> Text:
    """A cell of a table; a terminal shows the error of a value dim."""
    from rich.text import Text

    cell = Text(clean(text))
    cell.highlight_regex(r"± \S+$", "dim")
    return cell
