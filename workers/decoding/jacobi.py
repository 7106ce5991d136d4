"""Speculative Jacobi decoding (Teng et al. 2024): the target is its own drafter.

A window of tokens follows the root. One pass verifies it and, at no extra cost, gives new probs at
every position: rejected tokens are resampled from those, under a context that is partly wrong, and
verified in the next pass under a better one. Each token keeps the probs that it was really sampled
from, which makes the rule lossless. GSD (So et al. 2025) is the same window under the grouped
neighbourhood.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from search_spaces.drafters import Jacobi
from search_spaces.static_trees import StaticTree
from search_spaces.trial import DecodingConfig
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import AnyBatch, Drafting
from workers.decoding.redraws import REDRAWS, Redraw
from workers.decoding.rng import Purpose
from workers.decoding.sampling import largest_index, to_probs
from workers.decoding.tree import DraftTree, fixed_shape, gather_rows, row_starts
from workers.models.target import Prompt, Target


class JacobiWindow(Drafting[AnyBatch]):
    """N drafts, one for each level; the published window size counts the root too, so N is one
    less. They are the first path of the tree, which is all of it in a chain.

    The window's last positions may be new: no pass has given probs there. They are filled at
    random, with the token to their left, or with that position's most likely token. The probs of
    such a token are a point mass, which is correct for any choice that does not depend on the
    target's next probs; for random tokens the uniform probs are correct too, and accepted more
    often. `redraws` has the ways in which drafts after a rejection are replaced.

    Where the tree branches (SJD-PAC), a level's further drafts are sampled anew in every pass from
    the probs of its first one, without replacement; all siblings of a level share them. Each is
    tested in order, after those before it (see `accept`), and the window follows the path that was
    accepted. SJD-PAC's code takes the longest path of independent tests and samples further drafts
    from another residual, which is not lossless.
    """

    tokens: Tensor  # [B, N] the drafts of the first path
    probs: Tensor  # [B, N, V] what the tokens were sampled from; V = 0 at temperature 0
    known: Tensor  # [B] how many positions are not new
    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.drafter, Jacobi)
        assert config.policy.fixed is not None
        tree = config.policy.fixed.tree
        self._shape = fixed_shape(tree.parents, tree.depth, target.device)
        self._params = config.drafter
        self._vocab_size = target.vocab_size
        device = target.device
        self._sampled = self.sampling.temperature > 0
        self._redraw = REDRAWS[config.drafter.redraw]
        length = self.max_levels = len(tree.levels)
        self.max_nodes = len(tree.parents)
        self._nodes = torch.arange(length, device=device)  # nodes of the first path
        # row i of the probs belongs to level i
        self._probs_index = self._shape.offsets.clamp(max=length - 1)
        self._levels = torch.full((1,), length, dtype=torch.int64, device=device)
        self._all_exist = torch.ones(1, length, dtype=torch.bool, device=device)
        if self._shape.is_chain:
            self._branches = None
        else:
            self._branches = _Branches.of(tree, self._vocab_size, device)

    def prepare(self, batch: AnyBatch) -> None:
        size = batch.size
        codes = 0
        if self._sampled:
            codes = self._vocab_size
        self.tokens = torch.zeros(
            size, self.max_levels, dtype=torch.int64, device=batch.keys.device
        )
        self.probs = torch.zeros(size, self.max_levels, codes, device=batch.keys.device)
        self.known = torch.zeros_like(batch.emitted)
        batch.buffers.add(self, "tokens", "probs", "known")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.known = self.known.index_fill(0, indices, 0)

    def draft(self, batch: AnyBatch) -> DraftTree:
        new = self._nodes >= self.known[:, None]
        tokens = torch.where(new, self._new_tokens(batch), self.tokens)
        if self._sampled and self._params.initialisation == "uniform":
            self.probs.masked_fill_(new[..., None], 1 / self._vocab_size)
        elif self._sampled:
            index = tokens[..., None]
            self.probs.masked_fill_(new[..., None], 0)
            self.probs.scatter_(
                2, index, self.probs.gather(2, index).masked_fill(new[..., None], 1)
            )
        exists = self._all_exist.expand(batch.size, -1)
        if self._branches is not None:
            tokens, exists = self._branch(self._branches, batch, tokens, exists)
        return DraftTree(
            tokens=tokens,
            exists=exists,
            shape=self._shape,
            levels=self._levels.expand(batch.size),
            probs=self.probs if self._sampled else None,
            probs_index=self._probs_index if self._sampled else None,
            counts=self._levels.expand(batch.size) if self._branches is None else None,
        )

    def _branch(
        self, branches: _Branches, batch: AnyBatch, tokens: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens and existence [B, nodes] of all nodes, from those [B, N] of the first path."""
        levels = branches.levels
        width = branches.width
        if self._sampled:  # new numbers, as a position is at another level in every pass
            first = tokens[:, :levels, None]
            probs = self.probs[:, :levels]
            positions = batch.token_positions[:, :levels, None]
            noise = rng.exponential(
                batch.keys[:, None, None], positions, Purpose.WINDOW, branches.slots
            )
            others = (probs.scatter(2, first, 0) / noise).topk(width - 1, dim=-1).indices
            possible = probs.gather(2, others) > 0  # sampled codes may be fewer than siblings
            possible &= others != first
        else:
            others = tokens[:, :levels, None].expand(-1, -1, width - 1)
            possible = torch.zeros_like(others, dtype=torch.bool)
        columns = branches.columns
        tokens = torch.cat([tokens, others.flatten(1)], 1).index_select(1, columns)
        return tokens, torch.cat([exists, possible.flatten(1)], 1).index_select(1, columns)

    def _new_tokens(self, batch: AnyBatch) -> Tensor:
        """Tokens [B, N|1] for new positions."""
        if self._params.initialisation in ("uniform", "random"):
            positions = batch.token_positions[:, : self.max_levels]
            return batch.rng.by_slot(
                self._random_codes, Purpose.WINDOW, positions, self._vocab_size
            )
        last = (self.known - 1).clamp(min=0)  # the last position that is not new
        token = gather_rows(self.tokens[..., None], last)[:, 0]
        if self._params.initialisation == "sample_left" and self._sampled:
            token = largest_index(gather_rows(self.probs, last))
        return torch.where(self.known > 0, token, batch.root)[:, None]

    def _random_codes(
        self, keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor
    ) -> Tensor:
        """Uniform codes, as the numbers of `rng.uniform`."""
        return (rng.bits(keys, positions, purpose, slots) >> 1 & 0x7FFFFFFFFFFF) % self._vocab_size

    def commit(
        self,
        batch: AnyBatch,
        tree: DraftTree,
        result: AcceptResult,
        logits: Tensor,
        features: Tensor,
    ) -> None:
        """Slide the window: the new level i was level num_accepted + i + 1. A slot gave the probs
        of the token after it.
        """
        length = self.max_levels
        branches = self._branches
        # the old slots that gave the probs of the new levels
        depths = (result.num_emitted[:, None] + self._nodes).clamp(max=length)
        self.known = length - result.num_accepted
        slots = depths
        if branches is not None:
            assert result.path is not None
            slots = branches.contexts[gather_rows(result.path, result.num_accepted)].gather(
                1, depths
            )
        if not self._sampled:
            self.tokens = largest_index(logits).gather(1, slots)
            return
        drafts = depths.clamp(max=length - 1)
        old_probs = self.probs
        memory: Tensor | None = self.probs  # what the old probs take is free unless drafts are kept
        if self._params.keeps_drafts:
            old_probs = self._rows(self.probs, drafts)
            memory = None
        if result.probs is not None:
            target = self._rows(result.probs, slots, out=memory)
        else:
            target = to_probs(self._rows(logits, slots), self.sampling)
        if branches is None:
            tokens = tree.tokens
        else:
            tokens = tree.tokens.index_select(1, branches.first_path)
        window = Redraw(
            self._params,
            batch.rng,
            target=target,
            positions=batch.token_positions[:, 1 : length + 1] + result.num_accepted[:, None],
            first_slot=self._vocab_size + length,
            tokens=tokens.gather(1, drafts),
            probs=old_probs,
            drafted=self._may_stay(depths, batch, tree, result),
        )
        self.tokens, self.probs = self._redraw(window)

    def _may_stay(
        self, depths: Tensor, batch: AnyBatch, tree: DraftTree, result: AcceptResult
    ) -> Tensor:
        """Whether each new level has an old draft that a redraw may keep, [B, N]. The draft follows
        the old slots `depths` [B, N].
        """
        return depths < self.max_levels

    @staticmethod
    def _rows(values: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows [B, N, V] of values [B, n, V] at index [B, N], written to `out` if given."""
        size, count, codes = values.shape
        rows = index + row_starts(size, count, index.device)[:, None]
        flat = None if out is None else out.flatten(0, 1)
        return torch.index_select(values.flatten(0, 1), 0, rows.flatten(), out=flat).view(
            size, -1, codes
        )


@dataclass(frozen=True, slots=True)
class _Branches:
    """Where the nodes of a window that branches come from."""

    levels: int  # the first levels, which have siblings
    width: int  # most siblings of a level
    # [nodes] each node's column when the first path's drafts [N] are followed by the further drafts
    # [levels * (width - 1)].
    columns: Tensor
    first_path: Tensor  # [N] the first path's nodes
    # [slots, N + 1] for each slot that a pass may accept last, the slot at each level whose probs
    # the window takes: the slot's first descendants, and the first path's where it has none.
    contexts: Tensor
    slots: Tensor  # [levels, V] slots of random numbers

    @classmethod
    def of(cls, tree: StaticTree, codes: int, device: torch.device) -> _Branches:
        length = len(tree.levels)
        width = tree.max_width
        levels = max(depth for depth, rank in zip(tree.depth, tree.rank, strict=True) if rank)
        columns = [
            depth - 1 if rank == 0 else length + (depth - 1) * (width - 1) + rank - 1
            for depth, rank in zip(tree.depth, tree.rank, strict=True)
        ]
        first_path = [nodes[0] for nodes in tree.levels]
        slot = {(): 0} | {path: node + 1 for node, path in enumerate(tree.paths)}
        contexts = [[0] * (length + 1) for _ in slot]
        for path, below in slot.items():
            for depth in range(len(path) + 1, length + 1):
                path = (*path, 0) if (*path, 0) in slot else (0,) * depth
                contexts[below][depth] = slot[path]
        first = codes + 3 * length  # after the slots of new tokens and of two streams of redraws
        slots = torch.arange(first, first + levels * codes, device=device).view(levels, codes)
        as_tensor = partial(torch.tensor, device=device)
        return cls(
            levels, width, as_tensor(columns), as_tensor(first_path), as_tensor(contexts), slots
        )
