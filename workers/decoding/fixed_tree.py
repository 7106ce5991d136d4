"""Trees of one shape for all passes: chains and static trees (EAGLE-1, LANTERN++)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.static_trees import StaticTree
from search_spaces.trial import DecodingConfig
from workers.decoding import rng
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import TreeDrafting
from workers.decoding.rng import Purpose
from workers.decoding.sampling import largest_index
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape
from workers.models.target import Target


class FixedTree(TreeDrafting):
    """A tree whose shape the policy lists. The children of a node are sampled without replacement,
    or are the drafter's top tokens (at temperature 0, and where the policy says so).
    """

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert config.policy.fixed is not None
        tree, sampled = config.policy.fixed
        device = target.device
        self._sampled = sampled and self.sampling.temperature > 0
        self._codes = target.vocab_size
        self._shape = fixed_shape(tree.parents, tree.depth, device)
        self.max_levels = self._shape.max_depth
        self.max_nodes = self._shape.nodes
        self._plan = _level_plan(tree, device)
        self.expanded = sum(level.parents for level in self._plan[1:])
        self._probs_index = torch.zeros(1, self._shape.nodes + 1, dtype=torch.int64, device=device)
        row = 0
        for level in self._plan:
            self._probs_index[0, level.parent_slots] = torch.arange(
                row, row + level.parents, device=device
            )
            row += level.parents
        # [1, N] where the probs of a node and its siblings begin, when the rows of probs are
        # flattened
        self._node_probs = self._probs_index.gather(1, self._shape.parents + 1) * self._codes
        # Where drafts are verified together, the children of every parent are sampled with numbers
        # of their own: those of the parent's slot. They are new in every pass, as a position's
        # distance to the root falls from pass to pass.
        self._fresh_slots: Tensor | None = None
        if config.acceptance.verification.reads_later_drafts:
            slots = torch.cat([level.parent_slots for level in self._plan])
            codes = torch.arange(self._codes, device=device)
            # [1, M, V]
            self._fresh_slots = (slots[None, :, None] + 1) * self._codes + codes
            depths = [depth for depth, level in enumerate(self._plan) for _ in range(level.parents)]
            self._parent_depths = _indices(depths, self.max_levels, device)  # [M]; of no chain
        self._levels = torch.full((1,), self.max_levels, dtype=torch.int64, device=device)
        self._all_exist = torch.ones(1, self._shape.nodes, dtype=torch.bool, device=device)

    def draft(self, batch: Batch) -> DraftTree:
        tokens_by_level: list[Tensor] = []
        probs_by_level: list[Tensor] = []
        noise = self._noise(batch) if self._sampled else [None] * len(self._plan)
        for level, level_noise in zip(self._plan, noise, strict=True):
            if not tokens_by_level:
                logits = self.drafter.root_logits(batch)[:, None]
            else:
                logits = self.drafter.expand(
                    batch, _select(tokens_by_level[-1], level.expanded), level.parent_rank
                )
            level_probs = self.probs(logits)
            order = self._children(level.width, level_probs, level_noise).expand(
                -1, level.parents, -1
            )
            tokens_by_level.append(_select(order.flatten(1), level.kept))
            probs_by_level.append(level_probs)
        tokens = torch.cat(tokens_by_level, dim=1)
        probs = torch.cat(probs_by_level, dim=1)
        levels = self._levels.expand(batch.size)
        counts = None
        if self._shape.is_chain:
            exists = self._all_exist.expand(batch.size, -1)
            counts = levels
        else:  # the drafter's support may be smaller than the tree is wide
            exists = probs.flatten(1).gather(1, tokens + self._node_probs) > 0
        return DraftTree(
            tokens=tokens,
            exists=exists,
            shape=self._shape,
            levels=levels,
            probs=probs if self._sampled else None,
            probs_index=self._probs_index if self._sampled else None,
            nonfinite=probs[..., 0].isnan().any(1),  # a softmax is NaN everywhere or nowhere
            counts=counts,
        )

    def _noise(self, batch: Batch) -> Sequence[Tensor]:
        """Exponential numbers of each level: [B, 1, V], keyed by the position, or [B, F, V] for F
        parents, keyed by the position and the parent.
        """
        positions = batch.token_positions[:, : self.max_levels]
        if self._fresh_slots is None:
            noise = batch.rng.exponential_noise(Purpose.DRAFT, positions, self._codes)
            return torch.split(noise, 1, 1)
        positions = _select(positions, self._parent_depths)[..., None]
        noise = rng.exponential(
            batch.keys[:, None, None], positions, Purpose.DRAFT, self._fresh_slots
        )
        return torch.split(noise, [level.parents for level in self._plan], 1)

    @staticmethod
    def _children(width: int, probs: Tensor, noise: Tensor | None) -> Tensor:
        """Tokens [B, F, width] of the children of a level's F parents, from the parents' probs [B,
        F, V]: sampled with the exponential `noise` [B, F|1, V], or without one the top tokens. If
        all probs are the same (Medusa) and share the noise, F = 1.

        Parents may share the noise of a level if drafts are tested one at a time: the tests reach
        only one of the parents, and which one depends only on the random numbers of earlier
        positions.
        """
        if probs.stride(1) == 0 and (noise is None or noise.shape[1] == 1):
            probs = probs[:, :1]
        scores = probs
        if noise is not None:
            scores = probs / noise
        if width > 1:
            return scores.topk(width, dim=-1).indices
        return largest_index(scores)[..., None]


def _select(x: Tensor, index: Tensor | None) -> Tensor:
    """The columns `index` of x [B, n]; all of them if it is None."""
    if index is None:
        return x
    return x.index_select(1, index)


@dataclass(frozen=True, slots=True)
class _Level:
    """One level of a fixed tree."""

    parents: int  # nodes of the level above that are expanded
    width: int  # children sampled for each of them
    parent_slots: Tensor  # [parents] the parents' slots
    # [1, parents] each one's parent among the nodes expanded one level above. None if that level
    # expands one node.
    parent_rank: Tensor | None
    # The nodes of the level above that are expanded. None for all of them, in order.
    expanded: Tensor | None
    # Which of the parents * width children are nodes of the tree. None for all of them, in order.
    kept: Tensor | None


def _indices(indices: list[int], total: int, device: torch.device) -> Tensor | None:
    """`indices` as a tensor; None if they are range(total)."""
    if indices == list(range(total)):
        return None
    return torch.tensor(indices, dtype=torch.int64, device=device)


def _level_plan(tree: StaticTree, device: torch.device) -> list[_Level]:
    """The levels of a fixed tree, in drafting order."""
    plan: list[_Level] = []
    expanded_before: list[int] = []
    for index, nodes in enumerate(tree.levels):
        # node ids, in order; -1 is the root
        parents = list(dict.fromkeys(tree.parents[n] for n in nodes))
        width = max(tree.rank[n] for n in nodes) + 1
        kept = [parents.index(tree.parents[n]) * width + tree.rank[n] for n in nodes]
        above: list[int] = []
        expanded: list[int] = []
        if index:
            above = list(tree.levels[index - 1])
            expanded = [above.index(p) for p in parents]
        parent_rank = None
        if len(expanded_before) > 1:
            ranks = [expanded_before.index(tree.parents[p]) for p in parents]
            parent_rank = torch.tensor([ranks], dtype=torch.int64, device=device)
        plan.append(
            _Level(
                parents=len(parents),
                width=width,
                parent_slots=torch.tensor([p + 1 for p in parents], device=device),
                parent_rank=parent_rank,
                expanded=_indices(expanded, len(above), device),
                kept=_indices(kept, len(parents) * width, device),
            )
        )
        expanded_before = parents
    return plan
