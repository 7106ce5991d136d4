"""Tables and numbers as text."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Sequence


def measured(value: float | None, error: float | None = None) -> str:
    """`2.13 ± 0.04`: two digits of the error, and the value to the same place; four digits without an error."""
    if value is None or math.isnan(value):
        return "-"
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def clean(text: str) -> str:
    """Text without control characters: a name in a file must not control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Aligned columns without trailing blanks. `right`: indices of right-aligned columns."""
    cells = [[clean(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def shown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """The table for standard output: folded to the terminal's width, or plain text if it is not a terminal."""
    if not sys.stdout.isatty():
        return table_text(head, rows, right=right)
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(head):
        table.add_column(Text(clean(name)), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    buffer = io.StringIO()
    Console(file=buffer, force_terminal=True, width=Console().width).print(table)
    return buffer.getvalue().rstrip("\n")
