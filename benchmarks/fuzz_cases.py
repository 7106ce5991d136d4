"""A case of `benchmarks.fuzz_surroundings`: a command, its surroundings, and what is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Case:
    """A command and its surroundings.

    may_pass, must_pass: whether exit code 0 is right, and whether it alone is.
    named: what a refusal must name.
    output: what a command that passed must have printed.
    environment: variables of the command.
    closed: its standard streams that are closed; then it runs in a process of its own.
    check: whether the result of a command that passed is right.
    """

    words: tuple[str, ...]
    may_pass: bool = False
    must_pass: bool = False
    named: str = ""
    output: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    closed: tuple[int, ...] = ()
    check: Callable[[], bool] = lambda: True


Maker = Callable[[random.Random, Path, ExitStack], Case]
