"""A table of measured settings as a problem of search, and what a strategy buys of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.atlas_table import DIRECTIONS, HALF, RUNGS, Atlas, Floats
from orchestrator.front.compare import hypervolume
from orchestrator.front.pareto import nondominated

Strategy = Callable[["Purchases", int], None]


@dataclass(frozen=True)
class Problem:
    """A table to search. Row 0 is vanilla.

    seen [R, S, m, 1 + G]: the objectives at each rung, then without each block of captions. judged
    [S, m]: on the other captions. reference [m]: of the hypervolume. group [g]: the rows of
    lossless settings, vanilla among them, that are known to have one fid; empty: it is not known.
    """

    atlas: Atlas
    seen: Floats
    judged: Floats
    reference: Floats
    group: NDArray[np.int64]
    rungs: tuple[int, ...] = RUNGS

    @classmethod
    def of(cls, atlas: Atlas, half: int, *, own: bool = False) -> Problem:
        """Search one half of the captions and judge by the other one, where lossless settings have
        the mean of their fids.

        own: the search sees each lossless setting's own measured fid. Otherwise it sees vanilla's,
        which is measured first, as a running sweep does.
        """
        start, other = (0, HALF) if half == 0 else (HALF, 0)
        seen = np.stack([atlas.objectives((start, start + rung)) for rung in RUNGS])
        judged = atlas.objectives((other, other + HALF))[..., 0]
        sampling = atlas.configs[0].sampling
        lossless = np.flatnonzero([config.is_lossless(sampling) for config in atlas.configs])
        judged[lossless, 1] = judged[lossless, 1].mean()
        if own:
            lossless = lossless[:0]
        seen[:, lossless, 1] = seen[:, :1, 1]
        return cls(atlas, seen, judged, reference_point(judged), lossless)

    def __len__(self) -> int:
        return len(self.judged)

    @property
    def images(self) -> int:
        """Of the whole table, as a strategy may see it."""
        return len(self) * self.rungs[-1]

    def believed(self, rung: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The front [S] that a strategy believes in after measuring settings up to these rungs [S]
        (-1: never).
        """
        front = np.zeros(len(self), dtype=np.bool_)
        for level in range(len(self.rungs)):
            rows = np.flatnonzero(rung >= level)
            here = nondominated(self.seen[level, rows, :, 0], DIRECTIONS)
            front[rows] = np.where(rung[rows] == level, here, front[rows])
        return front

    def quality(self, rung: NDArray[np.int64]) -> float:
        """The hypervolume of the believed front, judged by the other captions."""
        return hypervolume(self.judged[self.believed(rung)], self.reference, DIRECTIONS)

    @cached_property
    def exhaustive(self) -> float:
        """The hypervolume after buying everything."""
        return self.quality(np.full(len(self), len(self.rungs) - 1))


def reference_point(values: Floats) -> Floats:
    """Vanilla's speed, and twice its fid: beyond either, a setting is of no use. values [S, m]; row
    0 is vanilla.
    """
    point: Floats = values[0] * [1.0, 2.0]
    return point


class BudgetSpent(Exception):
    """The strategy has bought all that it may."""


@dataclass
class Purchases:
    """What a strategy has bought of a problem. `limit`: images that it may buy, those that it
    records included.
    """

    problem: Problem
    limit: float = math.inf
    images: int = 0
    recorded: int = 0  # of these, for predictions
    rung: NDArray[np.int64] = field(init=False)
    curve: list[tuple[int, float]] = field(default_factory=list)  # (images, judged hypervolume)

    def __post_init__(self) -> None:
        self.rung = np.full(len(self.problem), -1)
        self.measure(0)

    def record(self) -> None:
        """Buy the images that the table's predictions are made from."""
        self.recorded = self.problem.atlas.recorded
        self.images += self.recorded

    def measure(self, row: int, level: int | None = None) -> Floats:
        """The objectives [m, 1 + G] of a setting at a rung (default: the last one).

        Raises:
            BudgetSpent: nothing is left to buy, or the limit is reached.
        """
        rungs = self.problem.rungs
        level = len(rungs) - 1 if level is None else level
        if level > self.rung[row]:
            self.images += rungs[level] - (rungs[self.rung[row]] if self.rung[row] >= 0 else 0)
            self.rung[row] = level
            self.curve.append((self.images, self.problem.quality(self.rung)))
            if self.images >= min(self.limit, self.problem.images + self.recorded):
                raise BudgetSpent
        values: Floats = self.problem.seen[level, row]
        return values

    @property
    def unmeasured(self) -> NDArray[np.int64]:
        """Rows that were never measured."""
        return np.flatnonzero(self.rung < 0)
