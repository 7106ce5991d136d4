"""A race: stop a candidate that a rival beats significantly in every objective, for any search with
per-item results.

All candidates are measured on the same items (images, prompts, folds), in growing prefixes of one
list: the rungs. The items of a rung are divided into G blocks. A candidate stops if one rival that
was measured on the same items is better in all objectives:

 - One objective: Student's t with G - 1 degrees of freedom, on the differences of the two by block;
   with fewer if noise of few measurements is added (Welch 1947, Satterthwaite 1946). What items
   share cancels. A statistic other than a mean (a distance between distributions) has pseudo-values
   instead of block means (Tukey 1958), from which the bias of order 1 / n is gone. The jackknife
   takes a bias of order 1 / n^k off about k times. So, as long as its parts have one sign, the
   truth is between the values with and without this correction, and a rival must be better by both.
 - All objectives: the largest of their p-values (intersection-union test, Berger 1982). It needs no
   correction, and a rival that ties in one objective never stops a candidate, however good it is in
   the others.
 - The whole search: the share of the error rate for candidate i at each of `rungs` looks is fixed
   in advance, error_rate * h / ((h + i) * (h + i + 1)) / rungs, and divided by the number of
   rivals. The shares of all candidates sum to error_rate, however many there are. So (Bonferroni)
   the probability that the search stops any candidate that no rival beats is at most error_rate.
   Rivals that were chosen by their results on the same items, such as the front of an earlier
   search, are lucky there: all that they were chosen from count as rivals.

Without an error rate a candidate stops if a rival dominates it by the measured values. This is not
a test: noise may decide. It suits a search that tries hundreds of candidates whose objectives
differ by less than their errors on few items, and that revives stopped candidates in the end where
they may be good.

The items must be independent or in random order. A rung is the first items, and the t test assumes
independent blocks: on items in the order of their times (requests, frames), where differences
between candidates drift, the error rate does not hold. Shuffle such items once, in one order for
all candidates.

The t test assumes blocks that are about normal, and the last line that the search does not choose
candidates by the noise of their differences to rivals. A search chooses candidates that look good,
so this makes wrong stops rarer. `benchmarks/racing.py` measures all three.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
_HALF = 32  # half of the error rate is for the first `_HALF` candidates
_ROUNDING = 1e-9  # relative; smaller differences are ties


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The objectives of one candidate on the items of one rung."""

    blocks: Floats  # [G, m] each objective on each block of items; the objective is their mean
    # [m] the standard error that does not come from the items, such as a clock's
    noise: Floats = field(default_factory=lambda: np.zeros(1))
    # Candidates with the same source share the noise, at the same share of their values; others
    # have independent noise.
    source: Hashable = None
    noise_dof: float = np.inf  # degrees of freedom with which the noise was estimated
    # [m] what the jackknife took off the values
    bias: Floats = field(default_factory=lambda: np.zeros(1))
    # by objective, what its value is known to be of: all scores with the same have the same value
    known: Mapping[int, Hashable] = field(default_factory=dict)

    @property
    def values(self) -> Floats:
        """[m] the objectives as measured."""
        measured: Floats = self.blocks.mean(axis=0) + self.bias
        return measured

    @classmethod
    def from_replicates(
        cls,
        values: ArrayLike,
        replicates: ArrayLike,
        noise: ArrayLike = 0.0,
        source: Hashable = None,
        noise_dof: float = np.inf,
        known: Mapping[int, Hashable] | None = None,
    ) -> Scores:
        """Scores of statistics that are not means.

        Args:
            values: [m] the objectives on all items.
            replicates: [m, G] the objectives without each block of items.
            noise: see `Scores`.
            source: see `Scores`.
            noise_dof: see `Scores`.

        Raises:
            ValueError: other shapes, or fewer than two blocks.
        """
        value = np.asarray(values, dtype=np.float64)
        left_out = np.asarray(replicates, dtype=np.float64)
        if left_out.ndim != 2 or value.shape != left_out.shape[:1] or left_out.shape[1] < 2:
            raise ValueError(
                f"give values [m] and replicates [m, G] with G >= 2, got {value.shape} and "
                f"{left_out.shape}"
            )
        count = left_out.shape[1]
        blocks = count * value - (count - 1) * left_out.T
        errors = np.broadcast_to(np.asarray(noise, dtype=np.float64), value.shape)
        bias = value - blocks.mean(axis=0)
        return cls(blocks, errors, source, noise_dof, bias, known or {})


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a candidate stops."""

    rival: int  # the one that beats it
    # that the race stops it wrongly, at most 1; with an error rate, at most the candidate's share
    chance: float


@dataclass(frozen=True, slots=True)
class Race:
    """The rule of one search.

    Raises:
        ValueError: an error rate outside of (0, 1), no rung, or an unknown direction.
    """

    directions: Sequence[Literal["maximize", "minimize"]]
    # the probability that it stops any candidate that no rival beats; None: it stops dominated
    # candidates
    error_rate: float | None
    rungs: int  # how often a candidate is looked at, at most

    def __post_init__(self) -> None:
        if self.error_rate is not None and not 0 < self.error_rate < 1:
            raise ValueError(f"error_rate must be between 0 and 1, got {self.error_rate}")
        if self.rungs < 1:
            raise ValueError(f"rungs must be at least 1, got {self.rungs}")
        if not self.directions or set(self.directions) - {"maximize", "minimize"}:
            raise ValueError(
                f"give 'maximize' or 'minimize' for each objective, got {list(self.directions)}"
            )

    @property
    def _signs(self) -> Floats:
        """1 where less is better."""
        return np.array([-1.0 if direction == "maximize" else 1.0 for direction in self.directions])

    def level(self, candidate: int) -> float:
        """A candidate's share of the error rate (1 without one); they count from 0 in the order of
        the search.
        """
        if self.error_rate is None:
            return 1.0
        return self.error_rate * _HALF / ((_HALF + candidate) * (_HALF + candidate + 1))

    def decide(
        self, candidate: int, scores: Scores, rivals: Mapping[int, Scores], eligible: int
    ) -> Stop | None:
        """Whether the candidate stops at a rung. None: it goes on.

        Args:
            candidate: its place in the order of the search, from 0.
            scores: of the candidate.
            rivals: those that were measured on the rung's items.
            eligible: how many could have been, with those that stopped before the rung, and those
                that rivals were chosen from by their results on these items; at least
                `len(rivals)`. It must not depend on results.

        Raises:
            ValueError: fewer than two blocks, scores of other shapes, or too few `eligible`.
        """
        if eligible < len(rivals):
            raise ValueError(
                f"eligible must be at least the number of rivals, {len(rivals)}, got {eligible}"
            )
        if not rivals:
            return None
        if self.error_rate is None:
            rivals = {
                number: rival for number, rival in rivals.items() if self._dominates(rival, scores)
            }
            if not rivals:
                return None
        chances = np.minimum(
            self.p_values(scores, list(rivals.values())) * eligible * self.rungs, 1.0
        )
        best = int(chances.argmin())
        if chances[best] > self.level(candidate):
            return None
        return Stop(list(rivals)[best], float(chances[best]))

    def _dominates(self, rival: Scores, scores: Scores) -> bool:
        """Whether none of a rival's values is worse and one is better, beyond rounding."""
        gains = (scores.values - rival.values) * self._signs
        tie = _ROUNDING * (np.abs(scores.values) + np.abs(rival.values))
        return bool((gains >= -tie).all() and (gains > tie).any())

    def p_values(self, scores: Scores, rivals: Sequence[Scores]) -> Floats:
        """For each rival [K], the p-value of "the rival is not better in all objectives", without
        any correction. Objectives in which both are known to have one value are left out; 1 if that
        leaves none.
        """
        from scipy.special import stdtr

        t, degrees = self._statistics(scores, rivals)
        p: Floats = stdtr(degrees, -t)
        for row, rival in enumerate(rivals):
            equal = [
                objective
                for objective, source in scores.known.items()
                if rival.known.get(objective) == source
            ]
            p[row, equal] = 0.0 if len(equal) < len(self.directions) else 1.0
        found: Floats = p.max(axis=1)
        return found

    def _statistics(self, scores: Scores, rivals: Sequence[Scores]) -> tuple[Floats, Floats]:
        """Student's t [K, m] of every objective's difference, positive if the rival is better;
        degrees of freedom.
        """
        signs = self._signs
        others = np.stack([rival.blocks for rival in rivals])  # [K, G, m]
        count = len(scores.blocks)
        if count < 2 or others.shape[1:] != scores.blocks.shape or others.shape[2] != len(signs):
            raise ValueError(
                f"scores must be [blocks, {len(signs)}] with the same blocks, at least 2, got "
                f"{scores.blocks.shape} and {others.shape[1:]}"
            )
        differences = (scores.blocks - others) * signs
        mean = differences.mean(axis=1)
        mean += np.minimum((scores.bias - np.stack([rival.bias for rival in rivals])) * signs, 0.0)
        by_items = differences.std(axis=1, ddof=1) / np.sqrt(count)
        noise = np.array([_noise_of_difference(scores, rival) for rival in rivals])  # [K, 2, m]
        noise_dof = np.array([[scores.noise_dof, rival.noise_dof] for rival in rivals])[:, :, None]
        variance = by_items**2 + np.square(noise).sum(axis=1)
        spread = by_items**4 / (count - 1) + (noise**4 / noise_dof).sum(axis=1)
        degrees = np.divide(
            variance**2, spread, out=np.full(variance.shape, count - 1.0), where=spread > 0
        )
        scale = np.abs(others.mean(axis=1)) + np.abs(scores.blocks.mean(axis=0))
        tie = np.abs(mean) <= _ROUNDING * scale
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(tie, 0.0, mean / np.sqrt(variance)), degrees


def _noise_of_difference(scores: Scores, rival: Scores) -> tuple[Floats, Floats]:
    """The independent parts [m] of the noise in the difference of two."""
    if scores.source is not None and scores.source == rival.source:
        return scores.noise - rival.noise, np.zeros_like(rival.noise)
    return scores.noise, rival.noise
