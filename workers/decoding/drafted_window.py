"""A Jacobi window whose new positions a drafter fills.

A pass of the target gives probs for all positions of the window but as many as it has accepted
drafts: those enter the window behind the others. A drafter fills them, one after the other, and
from the next pass on the target's probs redraw them, as any draft of the window (see `jacobi`).

The drafter is fed the window's drafts in one forward, each with the target's features of the token
before it. The last pass has computed these for the drafts that it has seen, so after a redraw they
are partly wrong. That costs acceptance, not exactness: whatever the drafter reads was decided by
earlier positions, so a new draft is a sample from the probs that are stated for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.drafters import Window
from search_spaces.trial import DecodingConfig
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.rng import Purpose, uniform_double
from workers.decoding.sampling import largest_index, sample_by_inversion, to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, gather_rows
from workers.models.target import Prompt, Target


class DraftedWindow(JacobiWindow[Batch]):
    """A window of N drafts. The drafter follows the first `known` of them, which have probs."""

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        assert isinstance(config.policy, Window)
        assert drafter is not None, "the engine has checked that there is a drafter"
        window, chain = config.policy.parts
        super().__init__(replace(config, drafter=window, policy=chain), target, None)
        self._drafter = drafter
        self._order = torch.arange(self.max_levels + 1, device=target.device)

    def plan(self, batch: Batch) -> tuple[int, ...]:
        return (self._steps,)

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        self._drafter.prepare(batch, self.max_levels, self.max_levels - 1)
        self._steps = self.max_levels  # most new positions of a row
        self._is_static = batch.static

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        super().admit(indices, prompt, captions, features, first_tokens)
        self._drafter.admit(indices, prompt, captions, features, first_tokens)
        self._steps = self.max_levels

    def next_bounds(self, batch: Batch) -> Tensor:
        return (self.max_levels - self.known).amax()[None]

    def set_bounds(self, bounds: Sequence[int]) -> None:
        for new in bounds:
            if self._is_static:  # whole quarters of the window, so that few graphs serve all passes
                quarter = -(-self.max_levels // 4)
                new = -(-max(new, 1) // quarter) * quarter
            self._steps = min(self.max_levels, new)

    def draft(self, batch: Batch) -> DraftTree:
        new_tokens, new_probs = self._new_drafts(batch)
        known = self.known[:, None]
        # the first `known` levels are the window's, the others the drafter's
        index = torch.where(self._nodes < known, self._nodes, self._nodes + self.max_levels - known)
        if self._sampled:
            self.probs = self._rows(torch.cat([self.probs, new_probs], 1), index)
        return DraftTree(
            tokens=torch.cat([self.tokens, new_tokens], 1).gather(1, index),
            exists=self._all_exist.expand(batch.size, -1),
            shape=self._shape,
            levels=self._levels.expand(batch.size),
            probs=self.probs if self._sampled else None,
            probs_index=self._probs_index if self._sampled else None,
            nonfinite=new_probs[..., 0].isnan().any(1),
            counts=self._levels.expand(batch.size),
        )

    def _new_drafts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The drafter's tokens [B, S] behind the drafts that the window has, and the probs [B, S,
        V] that they were sampled from.
        """
        ahead = self._ahead(batch)
        uniforms = self._uniforms(batch)
        # a pass without new positions feeds the drafter all the same
        logits = self._drafter.root_logits(ahead)[:, None]
        tokens = [self.tokens[:, :0]]
        probs = [logits[:, :0]]
        for step in range(self._steps):
            if step:
                logits = self._drafter.expand(ahead, tokens[-1], None)
            probs.append(to_probs(logits.float(), self.sampling))
            tokens.append(self._sample(probs[-1], uniforms, ahead, step))
        return torch.cat(tokens, 1), torch.cat(probs, 1)

    def _ahead(self, batch: Batch) -> Batch:
        """The batch as it is after the drafts that the window has."""
        ahead = copy(batch)
        ahead.emitted = batch.emitted + self.known
        ahead.max_emitted = batch.max_emitted + self.max_levels
        ahead.root = gather_rows(torch.cat([batch.root[:, None], self.tokens], 1), self.known)
        positions = batch.token_positions[:, : self.max_levels]
        ahead._tokens = batch._tokens.scatter(1, positions, self.tokens)
        ahead._update_positions()
        return ahead

    def _uniforms(self, batch: Batch) -> Tensor | None:
        """Fresh uniform numbers for the window's levels [B, N]; None if drafts are sampled with
        those of their position.
        """
        if not self._sampled or self._params.redraw == "coupled":
            return None
        positions = batch.token_positions[:, : self.max_levels]
        return batch.rng.by_slot(uniform_double, Purpose.WINDOW, positions, self._vocab_size)

    def _sample(self, probs: Tensor, uniforms: Tensor | None, ahead: Batch, step: int) -> Tensor:
        """Tokens [B, 1] from probs [B, 1, V], for the new positions number `step`."""
        if not self._sampled:
            return largest_index(probs)
        if uniforms is None:
            positions = ahead.token_positions[:, step : step + 1]
            return ahead.rng.sample(Purpose.WINDOW, probs, positions)
        level = (self.known + step).clamp(max=self.max_levels - 1)
        return sample_by_inversion(probs, uniforms.gather(1, level[:, None]))

    def accept(
        self, acceptor: Acceptor, tree: DraftTree, logits: Tensor, batch: Batch
    ) -> AcceptResult:
        """`commit` gets the features of all slots: their number is that of the tokens."""
        result = super().accept(acceptor, tree, logits, batch)
        result.tokens = pad(result.tokens, (0, self.max_levels + 1 - result.tokens.shape[1]))
        return result

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> None:
        super().commit(batch, tree, result, logits, features)
        # slot i gave the probs of the token after it: an emitted one, or a draft of the window
        emitted = result.num_emitted[:, None]
        slots = self._order
        index = torch.where(slots < emitted, slots, slots + len(slots) - emitted)
        tokens = torch.cat([result.tokens, self.tokens], 1).gather(1, index)
        counts = torch.full_like(result.num_emitted, len(slots))
        self._drafter.commit(batch, tokens, features, counts)
