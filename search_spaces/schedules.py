"""Schedules: how much relaxation each draft position gets.

A schedule maps the depth i = 1..L of a drafted token to its relaxation budget omega_i; a child is
accepted with probability min(1, omega_i S / p). In a tree all nodes of one depth share omega_i. L
is the depth of the current tree.

Source: Cool-SD. Its text gives neither the decay `nu`, nor the linear slope, nor the normaliser.
Here every schedule's mean over the L levels is the budget, so schedules with equal budgets differ
only in how they spread it over the levels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.params import ConfigError, Params, Range, Symbol, class_error, class_errors
from search_spaces.plugins import Registry


class Schedule(Params, ABC):
    """Draft position -> relaxation budget."""

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checked_omegas(1)

    @abstractmethod
    def omegas(self, levels: int) -> tuple[float, ...]:
        """omega_1 .. omega_L for L = `levels`; their mean is the budget. Raises ValueError if one
        is not positive.
        """

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest omega that any position can get, in trees of any depth."""

    def checked_omegas(self, levels: int) -> tuple[float, ...]:
        """The `omegas`, after a check that there is one for each level and that all are within
        `bounds`, which decide whether a rule is exact.

        Raises:
            ConfigError: the class contradicts this (the message names its file), or `omegas`
                refuses the number of levels.
        """
        with class_errors(type(self), f"omegas({levels}) or bounds"):
            omegas = tuple(map(float, self.omegas(levels)))
            least, most = self.bounds
        if len(omegas) != levels:
            raise class_error(
                type(self), f"omegas({levels}) must return {levels} numbers, got {len(omegas)}"
            )
        for omega in omegas:
            if not (
                0 < omega < math.inf and least - _SLACK * omega <= omega <= most + _SLACK * omega
            ):
                problem = (
                    f"omegas({levels}) has {omega:g}, which is not within bounds, ({least:g}, "
                    f"{most:g})"
                )
                raise class_error(type(self), f"{problem}; correct one of the two")
        return omegas

    @property
    def exact(self) -> bool:
        """True if every omega is 1 in trees of any depth."""
        return self.bounds == (1, 1)

    def largest(self, levels: int) -> float:
        """The largest omega in trees of at most so many levels."""
        least, most = self.bounds
        if least == most:
            return most
        depths = range(1, levels + 1)
        return max(omega for depth in depths for omega in self.checked_omegas(depth))

    @property
    def at_least_one(self) -> bool:
        """True if no omega is below 1 at any depth: then no token is accepted less often than by
        the exact rule.
        """
        return self.bounds[0] >= 1


_SLACK = 1e-9  # relative: rounding of `omegas` against `bounds`
SCHEDULES: Registry[type[Schedule]] = Registry("schedule", "search_spaces.rules")


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Constant(Schedule):
    """omega_i = budget: 1 is the exact rule, a budget above 1 is UniformRSD."""

    kind: ClassVar[str] = "constant"
    short: ClassVar[str] = "const"
    summary: ClassVar[str] = (
        "each draft is accepted with {budget} times the exact rule's probability"
    )
    paper: ClassVar[str] = "Cool-SD (arXiv:2601.09212)"
    budget: Annotated[
        float,
        "relaxation budget of every draft position; 1 is exact",
        Range(0, open_low=True),
        Symbol("b"),
    ] = 1.0

    def omegas(self, levels: int) -> tuple[float, ...]:
        return (self.budget,) * _checked(levels)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.budget, self.budget


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Linear(Schedule):
    """omega_i = budget + slope ((L + 1) / 2 - i): early drafts get more, late ones less
    (Cool-SD).
    """

    kind: ClassVar[str] = "linear"
    short: ClassVar[str] = "lin"
    summary: ClassVar[str] = (
        "drafts are accepted with {budget} times the exact rule's probability on average, "
        "early ones with more than late ones"
    )
    paper: ClassVar[str] = "Cool-SD (arXiv:2601.09212)"
    budget: Annotated[
        float,
        "mean relaxation budget over the draft positions",
        Range(0, open_low=True),
        Symbol("b"),
    ] = 1.1
    slope: Annotated[
        float, "decrease of the budget from one draft position to the next", Range(0), Symbol("s")
    ] = 0.1

    def omegas(self, levels: int) -> tuple[float, ...]:
        last = self.budget - self.slope * (_checked(levels) - 1) / 2
        if last <= 0:
            limit = 2 * self.budget / (levels - 1)
            raise ConfigError(
                ("slope",),
                f"must be less than {limit:g} for a mean budget of {self.budget:g} over {levels} "
                f"levels, got {self.slope:g}: the last level's budget would be {last:g}",
            )
        return tuple(
            self.budget + self.slope * ((levels + 1) / 2 - i) for i in range(1, levels + 1)
        )

    @property
    def bounds(self) -> tuple[float, float]:
        if self.slope:
            return (0, math.inf)
        return (self.budget, self.budget)


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Exponential(Schedule):
    """omega_i = budget L exp(-nu i) / sum_j exp(-nu j): the annealing of Cool-SD."""

    kind: ClassVar[str] = "exponential"
    short: ClassVar[str] = "exp"
    summary: ClassVar[str] = (
        "drafts are accepted with {budget} times the exact rule's probability on average, "
        "early ones with more than late ones"
    )
    paper: ClassVar[str] = "Cool-SD (arXiv:2601.09212)"
    budget: Annotated[
        float,
        "mean relaxation budget over the draft positions",
        Range(0, open_low=True),
        Symbol("b"),
    ] = 1.1
    nu: Annotated[
        float, "rate of decay from one draft position to the next", Range(0, 10), Symbol("n")
    ] = 0.1

    def omegas(self, levels: int) -> tuple[float, ...]:
        # i counts from 0 here: the shift cancels.
        decay = [math.exp(-self.nu * i) for i in range(_checked(levels))]
        scale = self.budget * levels / math.fsum(decay)
        return tuple(scale * value for value in decay)

    @property
    def bounds(self) -> tuple[float, float]:
        if self.nu:
            return (0, math.inf)
        return (self.budget, self.budget)


def _checked(levels: int) -> int:
    if levels < 1:
        raise ValueError(f"a schedule needs at least 1 draft level, got {levels}")
    return levels
