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
from workers.decoding.redraws import REDRAWS, Redraw
from workers.decoding.rng import Purpose
from workers.decoding.sampling import largest_index
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape, gather_rows
from workers.models.target import Prompt, Target


class JacobiWindow(Drafting):
    """A chain of N drafts; the published window size counts the root too, so N is one less.

    The window's last positions may be new: no pass has given probs there. They are filled at random, with the token to
    their left, or with that position's most likely token. The probs of such a token are a point mass, which is correct
    for any choice that does not depend on the target's next probs; for random tokens the uniform probs are correct too,
    and accepted more often. `redraws` has the ways in which drafts behind a rejection are replaced.
    """

    tokens: Tensor  # [B, N]
    probs: Tensor  # [B, N, V] what the tokens were sampled from; V = 0 at temperature 0
    known: Tensor  # [B] positions that are not new
    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.drafter, Jacobi)
        self._params, self._vocab_size, device = config.drafter, target.vocab_size, target.device
        self._sampled, self._redraw = self.sampling.temperature > 0, REDRAWS[config.drafter.redraw]
        length = self.max_levels = self.max_nodes = config.policy.bounds.depth
        self._shape = fixed_shape(range(-1, length - 1), range(1, length + 1), device)
        self._nodes = torch.arange(length, device=device)
        # row i of the probs belongs to node i, the child of slot i
        self._probs_index = torch.arange(length + 1, device=device).clamp(max=length - 1)[None]
        self._levels = torch.full((1,), length, dtype=torch.int64, device=device)
        self._all_exist = torch.ones(1, length, dtype=torch.bool, device=device)

    def prepare(self, batch: Batch) -> None:
        size, codes = batch.size, self._vocab_size if self._sampled else 0
        self.tokens = torch.zeros(size, self.max_levels, dtype=torch.int64, device=batch.keys.device)
        self.probs = torch.zeros(size, self.max_levels, codes, device=batch.keys.device)
        self.known = torch.zeros_like(batch.emitted)
        batch.buffers.add(self, "tokens", "probs", "known")

    def admit(
        self, indices: Tensor, prompt: Prompt, captions: list[str], features: Tensor, first_tokens: Tensor
    ) -> None:
        self.known = self.known.index_fill(0, indices, 0)

    def draft(self, batch: Batch) -> DraftTree:
        new = self._nodes >= self.known[:, None]
        tokens = torch.where(new, self._new_tokens(batch), self.tokens)
        if self._sampled and self._params.initialisation == "uniform":
            self.probs.masked_fill_(new[..., None], 1 / self._vocab_size)
        elif self._sampled:
            index = tokens[..., None]
            self.probs.masked_fill_(new[..., None], 0)
            self.probs.scatter_(2, index, self.probs.gather(2, index).masked_fill(new[..., None], 1))
        return DraftTree(
            tokens=tokens,
            exists=self._all_exist.expand(batch.size, -1),
            shape=self._shape,
            levels=self._levels.expand(batch.size),
            probs=self.probs if self._sampled else None,
            probs_index=self._probs_index if self._sampled else None,
        )

    def _new_tokens(self, batch: Batch) -> Tensor:
        """Tokens [B, N|1] for new positions."""
        if self._params.initialisation in ("uniform", "random"):
            slots = self._nodes + self._vocab_size
            bits = rng.bits(batch.keys[:, None], batch.token_positions[:, : self.max_levels], Purpose.WINDOW, slots)
            return (bits >> 1 & 0x7FFFFFFFFFFF) % self._vocab_size
        last = (self.known - 1).clamp(min=0)  # position that is not new
        token = gather_rows(self.tokens[..., None], last)[:, 0]
        if self._params.initialisation == "sample_left" and self._sampled:
            token = largest_index(gather_rows(self.probs, last))
        return torch.where(self.known > 0, token, batch.root)[:, None]

    def commit(self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """Slide the window: the new node i is at the old slot num_accepted + i + 2. Slot s gave the probs of the token
        after it.
        """
        length = self.max_levels
        sources = (result.num_emitted[:, None] + self._nodes).clamp(max=length)  # old slots before the new nodes
        self.known = length - result.num_accepted
        if not self._sampled:
            self.tokens = largest_index(logits).gather(1, sources)
            return
        assert result.probs is not None, "the window is a chain"
        keeps, drafted = self._params.keeps_drafts, sources < length
        drafts = sources.clamp(max=length - 1)  # the old nodes at the slots of the new ones
        old_probs = self._rows(self.probs, drafts) if keeps else self.probs
        draft = Redraw(
            self._params,
            batch.rng,
            self._rows(result.probs, sources, out=None if keeps else self.probs),
            batch.token_positions[:, 1 : length + 1] + result.num_accepted[:, None],
            self._nodes + (self._vocab_size + length),
            tree.tokens.gather(1, drafts),
            old_probs,
            drafted,
        )
        self.tokens, self.probs = self._redraw(draft)

    @staticmethod
    def _rows(probs: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows [B, N, V] of probs [B, n, V] at index [B, N]."""
        size, count, codes = probs.shape
        rows = index + torch.arange(0, size * count, count, device=index.device)[:, None]
        flat = None if out is None else out.flatten(0, 1)
        return torch.index_select(probs.flatten(0, 1), 0, rows.flatten(), out=flat).view(size, -1, codes)
