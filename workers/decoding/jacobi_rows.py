"""A Jacobi window in each of several rows of an image (PJD, arXiv 2606.05703).

A row's window ends with the row, and before the token that has no upper neighbour yet. Each row is
verified by itself: accepted drafts, then the residual's token. So a row follows the target's probs
in the context that its pass saw. PJD's code corrects only the uppermost incomplete row. In the rows
below it, a rejected draft is sampled anew and tested again in the next pass, and no token follows
accepted drafts (`lower: redrawn`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.drafters import JacobiRows
from search_spaces.trial import DecodingConfig
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.redraws import Redraw
from workers.decoding.rows import RowsBatch
from workers.decoding.tree import DraftTree
from workers.models.target import Prompt, Target


def reuse_as_pjd(window: Redraw) -> tuple[Tensor, Tensor]:
    """`redraws.reuse` with the probs of PJD's code: the old ones where a draft stays, else the
    target's.
    """
    q = window.target
    p = window.probs
    threshold = window.params.threshold
    assert threshold is not None
    stays = window.drafted & (window.of_drafts(q) > window.of_drafts(p) * threshold)
    tokens = torch.where(stays, window.tokens, window.sample(q))
    return tokens, torch.where(stays[..., None], p, q)


class RowWindows(JacobiWindow[RowsBatch]):
    """The windows of a batch's wavefronts. A wavefront's window is emptied in every pass in which
    the wavefront is not open, so that it is new when a row begins; `admit` empties all windows of a
    new image.
    """

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.drafter, JacobiRows)
        self._redraws_lower = config.drafter.lower == "redrawn"
        if config.drafter.redraw == "reuse" and config.drafter.probs == "published":
            self._redraw = reuse_as_pjd

    def prepare(self, batch: RowsBatch) -> None:
        super().prepare(batch)
        self._wavefronts = batch.wavefronts

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.known = self.known.view(self._wavefronts, -1).index_fill(1, indices, 0).flatten()

    def _emits_no_token(self, batch: RowsBatch) -> Tensor:
        """1 for wavefronts that emit accepted drafts only, else 0: [F * B]."""
        is_lower = batch.is_open & (batch.above < batch.grid.cols)
        if self._redraws_lower:
            return is_lower.long()
        return torch.zeros_like(batch.own)

    def draft(self, batch: RowsBatch) -> DraftTree:
        tree = super().draft(batch)
        # the upper neighbour of the last token that the pass may emit has been emitted before
        drafts = (batch.above - batch.own - 1 + self._emits_no_token(batch)) * batch.is_open
        tree.exists = self._nodes < drafts[:, None]
        tree.counts = drafts.clamp(0, self.max_levels)
        return tree

    def _may_stay(
        self, depths: Tensor, batch: RowsBatch, tree: DraftTree, result: AcceptResult
    ) -> Tensor:
        may_stay = super()._may_stay(depths, batch, tree, result)
        if not self._redraws_lower:
            return may_stay
        # where no token follows the accepted drafts, the window begins with the one that was
        # rejected
        is_lower = batch.is_open & (batch.above < batch.grid.cols)
        is_rejected = is_lower & (result.num_emitted < tree.num_nodes)
        return may_stay & (depths >= (result.num_emitted + is_rejected)[:, None])

    def commit(
        self,
        batch: RowsBatch,
        tree: DraftTree,
        result: AcceptResult,
        logits: Tensor,
        features: Tensor,
    ) -> None:
        withheld = self._emits_no_token(batch)
        result.num_accepted = result.num_accepted - withheld  # the window slides by what is emitted
        result.num_emitted = result.num_emitted - withheld
        super().commit(batch, tree, result, logits, features)
        self.known = self.known * batch.is_open
        batch.rng.renew(withheld)  # the positions are tested again
