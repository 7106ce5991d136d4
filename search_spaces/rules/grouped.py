"""The group neighbourhood of grouped speculative decoding (GSD). Shapes as in `neighbourhoods`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.neighbourhoods import (
    CHUNK,
    NEIGHBOURHOODS,
    NO_NEIGHBOURHOOD,
    NeededCodes,
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    chunks,
    exact_residual,
)
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor

_ROW_WEIGHT = 32  # rows are summed in chunks that stay in a processor's cache


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Grouped(Neighbourhood):
    """GSD: a token is accepted or rejected by its group's mass, f = min(1, omega sum_G r / sum_G
    p).

    Tokens are ranked by r, least likely first, ties by index. G holds x and, of the tokens from
    `below` ranks under it to `above` ranks over it, those with |r(y) - r(x)| < tolerance and a
    squared l2 distance of codes to x < radius. The window is cut at the upper end of the ranking;
    if it runs off the lower end, G is x alone, as in the authors' code. Where sum_G r / sum_G p <
    r(x) / p(x), f is less than the exact rule's: GSD is not a pure relaxation. An accepted draft
    emits x itself, not another member of G. The authors measure the distance between input
    embeddings; here it is between codebook rows, so `radius` is on the codebook's scale.

    There is no group rule for greedy decoding: at temperature 0 only omega relaxes.
    """

    kind: ClassVar[str] = "grouped"
    short: ClassVar[str] = "grp"
    summary: ClassVar[str] = "a draft counts with a group of similar codes"
    paper: ClassVar[str] = "GSD (arXiv:2508.07747)"
    never_stricter: ClassVar[bool] = False
    reads_codebook: ClassVar[bool] = True
    reads_ranking: ClassVar[bool] = True
    below: Annotated[
        int,
        "ranks under the token, towards the less likely, that its window spans",
        Range(0),
        Symbol("b"),
    ] = 7
    above: Annotated[
        int,
        "ranks over the token, towards the more likely, that its window spans",
        Range(0),
        Symbol("a"),
    ] = 6
    tolerance: Annotated[
        float, "largest difference of probs within a group; 0 is exact", Range(0, 1), Symbol("t")
    ] = 0.15
    radius: Annotated[
        float, "largest squared distance of codes within a group; 0 is exact", Range(0), Symbol("r")
    ] = 0.5

    @property
    def exact(self) -> bool:
        return self.below + self.above == 0 or self.tolerance == 0 or self.radius == 0

    @property
    def needed_codes(self) -> NeededCodes:
        return NeededCodes("below", "ranks in a window", self.below + 1 + self.above)

    @property
    def at_temperature_zero(self) -> Neighbourhood:
        return NO_NEIGHBOURHOOD

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        codebook = _codebook(tables)
        order = _ranking(r, tables)
        rank = (order == x[:, None]).int().argmax(1, keepdim=True)
        window = rank + (count(rank, self.below + 1 + self.above) - self.below)  # [B, W]
        inside = (rank >= self.below) & (window < r.shape[1])
        tokens = order.gather(1, window.clamp(0, r.shape[1] - 1)).long()
        masses = r.gather(1, tokens)
        codes = codebook[tokens]
        own = slice(self.below, self.below + 1)
        near = (codes - codes[:, own]).square().sum(-1) < self.radius * tables.factor
        group = inside & near & ((masses - masses[:, own]).abs() < self.tolerance)
        group[:, own] = True
        target = (masses * group).sum(1)
        if p is None:
            return NeighbourhoodMass(target, target.new_ones(target.shape))
        masses = p.gather(1, tokens)
        return NeighbourhoodMass(
            target, (masses * group).sum(1).masked_fill(masses[:, self.below] <= 0, 0)
        )

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        codebook = _codebook(tables)
        order = _ranking(r, tables)
        vocabulary = r.shape[1]
        squares = _squares(codebook) if vocabulary**2 <= CHUNK else None
        target = r.new_empty(r.shape)
        proposal = r.new_ones(r.shape)
        for rows in chunks(r.shape[0], _ROW_WEIGHT * vocabulary):
            tokens = order[rows].long()
            ranked = [probs[rows].gather(1, tokens) for probs in (r, p) if probs is not None]
            radius = self.radius * tables.factor
            if not isinstance(radius, float):
                radius = radius[rows]
            sums = self._group_sums(ranked, tokens, codebook, squares, radius)
            target[rows] = sums[0].scatter(1, tokens, sums[0])
            if p is not None:
                proposal[rows] = sums[1].scatter(1, tokens, sums[1]).masked_fill(p[rows] <= 0, 0)
        return target, proposal

    def paper_residual(
        self, r: Tensor, p: Tensor | None, x: Tensor, mass: NeighbourhoodMass
    ) -> Tensor | None:
        """[r - p]_+, token by token, although acceptance was by group."""
        return exact_residual(r, p, x)

    def _group_sums(
        self,
        ranked: Sequence[Tensor],
        tokens: Tensor,
        codebook: Tensor,
        squares: Tensor | None,
        radius: Tensor | float,
    ) -> list[Tensor]:
        """Group sums [B, V] of r and other probs, `ranked` by r, for the `tokens` [B, V] in this
        order.

        Every pair of ranks is read once. `squares` [V * V] is the result of `_squares`, or None
        where that would be too large; `radius` [B, 1] is the bound in each row.
        """
        r = ranked[0]
        vocabulary = tokens.shape[1]
        sums = [probs.clone() for probs in ranked]
        short = tokens.int()
        rows_of_squares = short * vocabulary
        for distance in range(1, min(max(self.below, self.above) + 1, vocabulary)):
            lower, upper = slice(None, -distance), slice(distance, None)
            if squares is None:
                apart = (codebook[tokens[:, lower]] - codebook[tokens[:, upper]]).square().sum(-1)
            else:
                pairs = rows_of_squares[:, lower] + short[:, upper]
                apart = squares.index_select(0, pairs.flatten()).view(len(r), -1)
            close = (apart < radius) & (r[:, upper] - r[:, lower] < self.tolerance)
            weight = close.to(r.dtype)
            for probs, total in zip(ranked, sums, strict=True):
                if distance <= self.above:
                    total[:, lower].addcmul_(probs[:, upper], weight)
                if distance <= self.below:
                    total[:, upper].addcmul_(probs[:, lower], weight)
        for probs, total in zip(ranked, sums, strict=True):
            total[:, : self.below] = probs[:, : self.below]
        return sums


def _squares(codebook: Tensor) -> Tensor:
    """The squared distance of the codes of two tokens, for tokens i and j at i * V + j: [V * V]."""
    squares = codebook.new_zeros(codebook.shape[0], codebook.shape[0])
    for column in codebook.unbind(1):
        squares += (column[:, None] - column).square()
    return squares.flatten()


def _codebook(tables: NeighbourTables) -> Tensor:
    assert tables.codebook is not None, "the rule needs the codebook"
    return tables.codebook


def _ranking(r: Tensor, tables: NeighbourTables) -> Tensor:
    """The tokens [B, V] of every row of r, least likely first."""
    if tables.ranking is None:
        return r.sort(dim=1, stable=True).indices
    return tables.ranking


def count(like: Tensor, n: int) -> Tensor:
    """0 .. n-1, computed on the device of `like` (a list would be copied from the host)."""
    return like.new_ones(n).cumsum(0) - 1
