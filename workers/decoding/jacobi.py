"""Speculative Jacobi decoding (Teng et al. 2024): the target is its own drafter.

A window of tokens follows the root. One pass verifies it and, at no extra cost, gives new probs at every position:
rejected tokens are resampled from those, under a context that is partly wrong, and verified in the next pass under a
better one. Each token keeps the probs that it was really sampled from, which makes the rule lossless. GSD (So et al.
2025) is the same window under the grouped neighbourhood.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.drafters import Jacobi
from search_spaces.trial import DecodingConfig
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import Drafting
from workers.decoding.sampling import sample_with_exponentials, to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape
from workers.models.target import Prompt, Target

_EMPTY = -1  # in place of a token: the position has no probs yet


class JacobiWindow(Drafting):
    """A chain of N drafts; the published window size counts the root too, so N is one less.

    A position without probs is initialised at random, with its left neighbour's token, or with the left neighbour's
    most likely token. Its proposal is then a point mass, which is correct for any choice that does not depend on the
    target's next probs. With `redraw = "fresh"` (as published) every resampling of a position uses new random numbers;
    "coupled" reuses the position's numbers, so that probs that hardly changed give the same token again.
    """

    tokens: Tensor  # [B, N]
    probs: Tensor  # [B, N, V]
    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.drafter, Jacobi)
        self._params, self._vocab_size, device = config.drafter, target.vocab_size, target.device
        length = self.max_levels = self.max_nodes = config.policy.bounds.depth
        self._shape = fixed_shape(range(-1, length - 1), range(1, length + 1), device)
        self._slots = torch.arange(length + 1, device=device)
        # row i of the probs belongs to node i, the child of slot i
        self._probs_index = self._slots.clamp(max=length - 1)[None]
        self._codes = torch.arange(self._vocab_size, device=device)
        self._levels = torch.full((1,), length, dtype=torch.int64, device=device)
        self._all_exist = torch.ones(1, length, dtype=torch.bool, device=device)

    def prepare(self, batch: Batch) -> None:
        self.tokens = torch.zeros(batch.size, self.max_levels, dtype=torch.int64, device=batch.keys.device)
        self.probs = torch.zeros(batch.size, self.max_levels, self._vocab_size, device=batch.keys.device)
        batch.buffers.add(self, "tokens", "probs")

    def admit(
        self, indices: Tensor, prompt: Prompt, captions: list[str], features: Tensor, first_tokens: Tensor
    ) -> None:
        # an empty window: the first pass initialises every position
        tokens, probs = self.tokens.clone(), self.probs.clone()
        tokens[indices], probs[indices] = _EMPTY, 0.0
        self.tokens, self.probs = tokens, probs

    def draft(self, batch: Batch) -> DraftTree:
        empty = self.tokens < 0
        tokens = torch.where(empty, self._initial_tokens(batch), self.tokens)
        point_masses = torch.zeros_like(self.probs).scatter_(2, tokens[..., None], 1.0)
        probs = torch.where(empty[..., None], point_masses, self.probs)
        sampled = self.sampling.temperature > 0
        return DraftTree(
            tokens=tokens,
            exists=self._all_exist.expand(batch.size, -1),
            shape=self._shape,
            levels=self._levels.expand(batch.size),
            probs=probs if sampled else None,
            probs_index=self._probs_index if sampled else None,
        )

    def _initial_tokens(self, batch: Batch) -> Tensor:
        """Tokens [B, N] for positions without probs."""
        if self._params.initialisation == "random":
            ahead = self._slots[: self.max_levels]
            bits = rng.bits(
                batch.keys[:, None], batch.emitted[:, None] + ahead, rng.Purpose.WINDOW, ahead + self._vocab_size
            )
            return (bits >> 1 & 0x7FFFFFFFFFFF) % self._vocab_size
        # the nearest token to the left: the window's own last one, or the root
        left = torch.cat([batch.root[:, None], self.tokens], dim=1)
        if self._params.initialisation == "sample_left":
            most_likely = torch.cat([batch.root[:, None], self.probs.argmax(-1)], dim=1)
            left = torch.where(left < 0, left, most_likely)
        nearest = torch.where(left >= 0, self._slots, 0).cummax(1).values
        return left.gather(1, nearest)[:, : self.max_levels]

    def commit(self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """Slide the window: the new node i is at the old slot num_accepted + i + 2. Slot s gave the probs of the token
        after it.
        """
        source = result.num_accepted[:, None] + 1 + self._slots[: self.max_levels]  # old slots before the new nodes
        inside = source <= self.max_levels
        index = source.clamp(max=self.max_levels)[..., None].expand(-1, -1, logits.shape[2])
        if result.probs is None:
            probs = to_probs(logits.gather(1, index), self.sampling)
        else:
            probs = result.probs.gather(1, index)
        tokens = probs.argmax(-1) if self.sampling.temperature == 0 else self._resample(batch, result, probs)
        self.tokens = torch.where(inside, tokens, _EMPTY)
        self.probs = probs.masked_fill(~inside[..., None], 0.0)

    def _resample(self, batch: Batch, result: AcceptResult, probs: Tensor) -> Tensor:
        ahead = self._slots[1 : self.max_levels + 1]
        position = batch.emitted[:, None] + result.num_emitted[:, None] + ahead - 1
        slots = self._codes
        if self._params.redraw == "fresh":
            slots = slots + (ahead[:, None] + 1) * self._vocab_size
        noise = rng.exponential(batch.keys[:, None, None], position[..., None], rng.Purpose.WINDOW, slots)
        return sample_with_exponentials(probs, noise)
