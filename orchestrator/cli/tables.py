"""Tables and numbers as text."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Container, Sequence

_ROUNDING = 1e-12  # relative to values above 1
_ANY_WIDTH = 100_000  # of a table that is not shown on a terminal


def measured(value: float | None, error: float | None = None) -> str:
    """`2.135 ± 0.041`: two digits of the error, and the value to the same place; four digits without an error.

    An error at the level of rounding is left out.
    """
    if value is None or math.isnan(value):
        return "-"
    if error is None or not math.isfinite(error) or error <= _ROUNDING * max(1.0, abs(value)):
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def clean(text: str) -> str:
    """Text without control characters: a name in a file must not control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def shown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> str:
    """Aligned columns for standard output: folded to a terminal's width, else as wide as needed and without colours.

    right: indices of right-aligned columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    padding = (0, 1, 0, 1) if is_terminal else (0, 2, 0, 0)
    table = Table(box=SIMPLE_HEAD if is_terminal else None, pad_edge=False, padding=padding)
    for column, name in enumerate(head):
        table.add_column(Text(clean(name)), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    buffer = io.StringIO()
    width = Console().width if is_terminal else _ANY_WIDTH
    Console(file=buffer, force_terminal=is_terminal, width=width).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))
