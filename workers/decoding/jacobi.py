"""Speculative Jacobi decoding (Teng et al. 2024): the target drafts for itself.

A window of tokens follows the root. One pass verifies it and, at no extra cost, gives fresh laws at every position:
what was rejected is drawn anew from those, on a context that is partly wrong, and verified next time against better
ones. Each token keeps the law it was really drawn from, and that makes the rule lossless. GSD (So et al. 2025) is the
same window under the grouped neighbourhood.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.trial import Jacobi, Sampling
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.draft import Drafting
from workers.decoding.sampling import sample_with_exponentials, to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape
from workers.models.target import Prompt


class JacobiWindow(Drafting):
    """A chain of `length` drafts: the published window size, which counts the root, minus one.

    A token nobody has a law for yet is initialised at random, by repeating its left neighbour, or by the left
    neighbour's most likely token; its proposal law is then a point mass, which is right for any choice that ignores
    the target's next law. Under `redraw = "fresh"` (as published) every redraw of a position uses new random numbers;
    "coupled" keeps a position's numbers, so that a law that barely moved gives the same token again.
    """

    tokens: Tensor  # [B, N]
    laws: Tensor  # [B, N, V]

    def __init__(
        self, settings: Jacobi, length: int, vocab_size: int, sampling: Sampling, device: torch.device
    ) -> None:
        self.settings, self.sampling, self.vocab_size = settings, sampling, vocab_size
        self.max_levels = self.max_nodes = length
        self.shape = fixed_shape(range(-1, length - 1), range(1, length + 1), device)
        self.slot = torch.arange(length + 1, device=device)
        # node i's law stands in row i; the law of a slot's child is that child's row
        self.law_of = self.slot.clamp(max=length - 1)[None]
        self.vocabulary = torch.arange(vocab_size, device=device)
        self.levels = torch.full((1,), length, dtype=torch.int64, device=device)
        self.all_exist = torch.ones(1, length, dtype=torch.bool, device=device)

    def prepare(self, batch: Batch) -> None:
        self.tokens = torch.zeros(batch.size, self.max_levels, dtype=torch.int64, device=batch.keys.device)
        self.laws = torch.zeros(batch.size, self.max_levels, self.vocab_size, device=batch.keys.device)

    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        # an empty window: every position is initialised when the first round drafts
        tokens, laws = self.tokens.clone(), self.laws.clone()
        tokens[captions], laws[captions] = -1, 0.0
        self.tokens, self.laws = tokens, laws

    def keep(self, captions: Tensor) -> None:
        self.tokens, self.laws = self.tokens[captions], self.laws[captions]

    def draft(self, batch: Batch) -> DraftTree:
        unknown = self.tokens < 0
        fresh = self.initial(batch)
        tokens = torch.where(unknown, fresh, self.tokens)
        certain = torch.zeros_like(self.laws).scatter_(2, tokens[..., None], 1.0)
        laws = torch.where(unknown[..., None], certain, self.laws)
        drawn = self.sampling.temperature > 0
        return DraftTree(
            tokens=tokens,
            exists=self.all_exist.expand(batch.size, -1),
            shape=self.shape,
            levels=self.levels.expand(batch.size),
            laws=laws if drawn else None,
            law_of=self.law_of if drawn else None,
        )

    def initial(self, batch: Batch) -> Tensor:
        """Tokens [B, N] for positions without a law."""
        if self.settings.initialisation == "random":
            ahead = self.slot[: self.max_levels]
            draws = rng.bits(
                batch.keys[:, None], batch.emitted[:, None] + ahead, rng.Purpose.WINDOW, ahead + self.vocab_size
            )
            return (draws >> 1 & 0x7FFFFFFFFFFF) % self.vocab_size
        # the nearest known token to the left: the window's own last one, or the root
        known = torch.cat([batch.root[:, None], self.tokens], dim=1)
        if self.settings.initialisation == "sample_left":
            likely = torch.cat([batch.root[:, None], self.laws.argmax(-1)], dim=1)
            known = torch.where(known < 0, known, torch.cat([batch.root[:, None], likely[:, 1:]], dim=1))
        latest = torch.where(known >= 0, self.slot, 0).cummax(1).values
        return known.gather(1, latest)[:, : self.max_levels]

    def commit(self, batch: Batch, tree: DraftTree, walk: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """Slide the window: new node i stands where old slot accepted + 1 + i + 1 stood; slot s gave the law of the
        token after it.
        """
        source = walk.accepted[:, None] + 1 + self.slot[: self.max_levels]  # old slots whose law is the new node's
        inside = source <= self.max_levels
        index = source.clamp(max=self.max_levels)[..., None].expand(-1, -1, logits.shape[2])
        laws = to_probs(logits.gather(1, index), self.sampling)
        tokens = laws.argmax(-1) if self.sampling.temperature == 0 else self.redraw(batch, walk, laws)
        self.tokens = torch.where(inside, tokens, -1)
        self.laws = laws.masked_fill(~inside[..., None], 0.0)

    def redraw(self, batch: Batch, walk: AcceptResult, laws: Tensor) -> Tensor:
        ahead = self.slot[1 : self.max_levels + 1]
        position = batch.emitted[:, None] + walk.emitted[:, None] + ahead - 1
        slots = self.vocabulary
        if self.settings.redraw == "fresh":
            slots = slots + (ahead[:, None] + 1) * self.vocab_size
        exponential_noise = rng.exponential(batch.keys[:, None, None], position[..., None], rng.Purpose.WINDOW, slots)
        return sample_with_exponentials(laws, exponential_noise)
