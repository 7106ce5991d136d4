"""How a Jacobi window replaces the drafts after a rejection, whose contexts have changed.

A redraw maps a position's old draft t ~ p and the target's new probs q to a new window. A window is
lossless under every redraw if the probs that it keeps are the distribution of the new draft with t
~ p and fresh numbers, p and q held fixed (`probs: marginal`), as everything that decides p and q
comes from earlier positions. The published code of some redraws keeps other probs (`probs:
published`), and their images then have another distribution.

Sources: SJD (Teng et al. 2024), SCD (arXiv 2510.24211), SJD++ (arXiv 2512.07503).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.drafters import Jacobi
from workers.decoding.rng import CounterRNG, Purpose, uniform_double
from workers.decoding.sampling import sample_by_inversion


@dataclass(frozen=True, slots=True)
class Redraw:
    """N positions of B images. In every pass a position is nearer to the root, so numbers that are
    keyed by position and distance are new ones.
    """

    params: Jacobi  # the window's parameters
    rng: CounterRNG  # the images' random numbers
    target: Tensor  # [B, N, V] the target's new probs, q
    positions: Tensor  # [B, N] token positions, which key the random numbers with the slots
    first_slot: int  # follows the slots of other numbers of `Purpose.WINDOW`
    # Only redraws that keep drafts (`Jacobi.keeps_drafts`) read the other fields.
    tokens: Tensor  # [B, N] the old drafts
    probs: Tensor  # [B, N, V] the probs p that they were sampled from
    drafted: Tensor  # [B, N] whether a position has an old draft that may stay

    def sample(self, probs: Tensor, stream: int = 0) -> Tensor:
        """Tokens [B, N] from probs [B, N, V], with fresh numbers."""
        return sample_by_inversion(probs, self.uniforms(stream))

    def uniforms(self, stream: int) -> Tensor:
        """Fresh uniform fp64 numbers [B, N]; streams are independent."""
        first = self.first_slot + stream * self.positions.shape[1]
        return self.rng.by_slot(uniform_double, Purpose.WINDOW, self.positions, first)

    def of_drafts(self, values: Tensor) -> Tensor:
        """The entries [B, N] of values [B, N, V] at the old drafts."""
        return values.gather(2, self.tokens[..., None]).squeeze(2)


def fresh(window: Redraw) -> tuple[Tensor, Tensor]:
    """A new token from q (SJD)."""
    return window.sample(window.target), window.target


def coupled(window: Redraw) -> tuple[Tensor, Tensor]:
    """A token from q by the position's own exponential noise, which is the same in every pass: the
    Gumbel coupling of SCD. If d is the total variation of p and q, the token stays the same with
    probability (1 - d) / (1 + d) or more.
    """
    return window.rng.sample(Purpose.WINDOW, window.target, window.positions), window.target


def maximal(window: Redraw) -> tuple[Tensor, Tensor]:
    """The old token with probability min(1, q / p), else one from [q - p]_+: the maximal coupling
    of SCD. The token stays the same with probability 1 - d, the largest possible. SCD's code for
    Lumina and Janus keeps p where it does.
    """
    q = window.target
    p = window.probs
    drafted = window.drafted
    stays = drafted & (window.uniforms(1) * window.of_drafts(p) < window.of_drafts(q))
    new = window.sample(torch.where(drafted[..., None], (q - p).clamp_min(0), q))
    tokens = torch.where(stays, window.tokens, new)
    if window.params.probs == "published":
        return tokens, torch.where(stays[..., None], p, q)
    return tokens, q


def reuse(window: Redraw) -> tuple[Tensor, Tensor]:
    """The old token if q / p exceeds the threshold there, else a new one from q (SJD++). The new
    draft's probs are p 1[q > threshold p] + q P(p: q <= threshold p). A port of SJD++ by other
    authors keeps q.
    """
    q = window.target
    p = window.probs
    drafted = window.drafted[..., None]
    threshold = window.params.threshold
    assert threshold is not None
    stays = drafted & (q > p * threshold)
    tokens = torch.where(window.of_drafts(stays), window.tokens, window.sample(q))
    if window.params.probs == "published":
        return tokens, q
    return tokens, torch.where(drafted, p * stays + q * (p * ~stays).sum(2, keepdim=True), q)


REDRAWS: Mapping[str, Callable[[Redraw], tuple[Tensor, Tensor]]] = {
    redraw.__name__: redraw for redraw in (fresh, coupled, maximal, reuse)
}
