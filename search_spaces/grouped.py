"""The group neighbourhood of grouped speculative decoding (GSD). Shapes as in `neighbourhoods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.neighbourhoods import (
    NEIGHBOURHOODS,
    NO_NEIGHBOURHOOD,
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    chunks,
    exact_residual,
)
from search_spaces.params import Range

if TYPE_CHECKING:
    from torch import Tensor


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Grouped(Neighbourhood):
    """GSD: a token is accepted or rejected by its group's mass, f = min(1, omega sum_G r / sum_G p).

    Tokens are ranked by r, least likely first, ties by index. G holds x and, of the tokens from `below` ranks under it
    to `above` ranks over it, those with |r(y) - r(x)| < tolerance and a squared l2 distance of codes to x < radius.
    The window is cut at the upper end of the ranking; if it runs off the lower end, G is x alone, as in the authors'
    code. Where sum_G r / sum_G p < r(x) / p(x), f is less than the exact rule's: GSD is not a pure relaxation.
    An accepted draft emits x itself, not another member of G. The authors measure the distance between input
    embeddings; here it is between codebook rows, so `radius` is on the codebook's scale.

    There is no group rule for greedy decoding: at temperature 0 only omega relaxes.
    """

    kind: ClassVar[str] = "grouped"
    never_stricter: ClassVar[bool] = False
    reads_codebook: ClassVar[bool] = True
    below: Annotated[int, "ranks under the token, towards the less likely, that its window spans", Range(0)] = 7
    above: Annotated[int, "ranks over the token, towards the more likely, that its window spans", Range(0)] = 6
    tolerance: Annotated[float, "largest difference of probs within a group; 0 is exact", Range(0, 1)] = 0.15
    radius: Annotated[float, "largest squared distance of codes within a group; 0 is exact", Range(0)] = 0.5

    @property
    def exact(self) -> bool:
        return self.below + self.above == 0 or self.tolerance == 0 or self.radius == 0

    @property
    def at_temperature_zero(self) -> Neighbourhood:
        return NO_NEIGHBOURHOOD

    def mass(self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables) -> NeighbourhoodMass:
        order = r.sort(dim=1, stable=True).indices
        rank = (order == x[:, None]).int().argmax(1, keepdim=True)
        target, proposal = self._sums(r, p, order, rank, tables)
        return NeighbourhoodMass(target[:, 0], proposal[:, 0])

    def all_masses(self, r: Tensor, p: Tensor | None, tables: NeighbourTables) -> tuple[Tensor, Tensor]:
        order = r.sort(dim=1, stable=True).indices
        assert tables.codebook is not None, "the rule needs the codebook"
        window = self.below + 1 + self.above
        ranks = count(order, r.shape[1])
        target, proposal = r.new_empty(r.shape), r.new_empty(r.shape)
        for part in chunks(r.shape[1], r.shape[0] * window * tables.codebook.shape[1]):
            part_ranks = ranks[part].expand(r.shape[0], -1)
            for masses, sums in zip((target, proposal), self._sums(r, p, order, part_ranks, tables), strict=True):
                masses.scatter_(1, order[:, part], sums)
        return target, proposal

    def paper_residual(self, r: Tensor, p: Tensor | None, x: Tensor, mass: NeighbourhoodMass) -> Tensor | None:
        """[r - p]_+, token by token, although acceptance was by group."""
        return exact_residual(r, p, x)

    def _sums(
        self, r: Tensor, p: Tensor | None, order: Tensor, ranks: Tensor, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        """Group sums of r and p, both [B, C], for the tokens at `ranks` [B, C] of the ranking `order` [B, V]."""
        assert tables.codebook is not None, "the rule needs the codebook"
        vocabulary = r.shape[1]
        window = ranks[..., None] + (count(ranks, self.below + 1 + self.above) - self.below)  # [B, C, W]
        inside = (ranks >= self.below)[..., None] & (window < vocabulary)
        tokens = order.gather(1, window.clamp(0, vocabulary - 1).flatten(1)).view_as(window)
        masses = r.gather(1, tokens.flatten(1)).view_as(window)
        codes = tables.codebook[tokens]  # [B, C, W, d]
        own = slice(self.below, self.below + 1)
        near = (codes - codes[..., own, :]).square().sum(-1) < self.radius
        group = inside & near & ((masses - masses[..., own]).abs() < self.tolerance)
        group[..., own] = True
        target = (masses * group).sum(-1)
        if p is None:
            return target, target.new_ones(target.shape)
        p_window = p.gather(1, tokens.flatten(1)).view_as(window)
        return target, (p_window * group).sum(-1).masked_fill(p_window[..., self.below] <= 0, 0)


def count(like: Tensor, n: int) -> Tensor:
    """0 .. n-1, computed on the device of `like` (a list would be copied from the host)."""
    return like.new_ones(n).cumsum(0) - 1
