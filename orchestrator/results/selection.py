"""Which trial a user means. The commands read it before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """The trial that is meant: the one with a number; else the knee; else the best one within the limits, of the
    lossless ones if `lossless`."""

    number: int | None = None
    limits: tuple[str, ...] = ()
    lossless: bool = False
    knee: bool = False

    def __bool__(self) -> bool:
        return self != Selection()
