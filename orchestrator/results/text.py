"""Numbers and names as text."""

from __future__ import annotations

import math

_ROUNDING = 1e-12  # relative to values above 1


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


def percent(share: float) -> str:
    """`87 %` of draws; `>99 %` at most and `<1 %` at least, because draws make nothing certain. Halves are rounded up,
    as the report's script does."""
    return ">99 %" if share > 0.99 else "<1 %" if share < 0.01 else f"{math.floor(100 * share + 0.5)} %"


def signed_percent(value: float, error: float) -> str:
    """`+2.3 ± 5.9 %`, from a change in per cent and its standard error."""
    return f"{'+' if value >= 0 else ''}{measured(value, error)} %"


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def clean(text: str) -> str:
    """Text without control characters: a name in a file must not control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
