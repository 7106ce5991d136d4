"""Faults of many rows or files at once: the first in full, and how many others there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def faults(unit: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Go on after a fault: ValueErrors inside `with noted():` are kept, and the first is raised at the end.

    Raises:
        ValueError: the first one's words, and how many more `unit`s are wrong.
    """
    kept: list[ValueError] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            kept.append(error)

    yield noted
    if kept:
        raise ValueError(f"{kept[0]}{and_more(len(kept) - 1, unit)}") from kept[0]


def and_more(count: int, unit: str) -> str:
    """` (3 more rows are wrong)`; nothing for 0."""
    return f" ({count} more {unit}{' is' if count == 1 else 's are'} wrong)" if count else ""
