"""EAGLE-2's dynamic trees: grow by cumulative confidence, then keep the most confident nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.constants import arange, constant
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import TreeDrafting
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, shape_from_parents
from workers.models.masks import additive_mask
from workers.models.target import Target


class _Layout(NamedTuple):
    """What all trees of one depth and width share."""

    # [1 + (depth-1) * width] the root's id, the ids of the first level's candidates, and for each
    # further level that is expanded the first candidate's id, `width` times. Ids count the
    # candidates level by level; the root's follows them.
    first_ids: Tensor
    zeros: Tensor  # [1, 1 + width] 0
    level: Tensor  # [depth, 1, 1] the numbers of the levels, from 0
    # [width, width] the larger of a parent's rank in its level and a child's among its siblings.
    rank: Tensor
    levels: Tensor  # [1] the depth


@constant
def _layout(depth: int, width: int, device: torch.device) -> _Layout:
    order = torch.arange((depth - 1) * width + 1, device=device) - 1
    first_ids = torch.where(order < width, order, width + (order // width - 1) * width**2)
    first_ids[0] = width + (depth - 1) * width**2
    rank = torch.arange(width, device=device)
    level = torch.arange(depth, device=device)[:, None, None]
    zeros = first_ids.new_zeros(1, 1 + width)
    levels = first_ids.new_full((1,), depth)
    return _Layout(first_ids, zeros, level, rank.maximum(rank[:, None]), levels)


class DynamicTree(TreeDrafting):
    """A node's confidence is the product of the drafter's probabilities along its path. Children
    are top tokens and not sampled, so p counts as 1. Ties are broken towards shallower, earlier
    nodes, so that no node loses its parent; which of several equal tokens are a node's children is
    up to `top_log_probs`.
    """

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        self._set_size(
            config.policy.bounds.depth, config.policy.bounds.width, config.policy.bounds.nodes
        )

    def _set_size(self, levels: int, width: int, max_nodes: int) -> None:
        self.max_levels = levels
        self.max_nodes = max_nodes
        self.width = width
        self.expanded = (levels - 1) * width

    def size_limits(self) -> tuple[Tensor | None, Tensor | None, int, int]:
        """Each row's depth and width limits [B], or None for the policy's, and the largest of each
        over the rows.
        """
        return None, None, self.max_levels, self.width

    def draft(self, batch: Batch) -> DraftTree:
        row_depth, row_width, depth, width = self.size_limits()
        layout = _layout(depth, width, batch.emitted.device)
        limits = None
        levels = layout.levels.expand(batch.size)
        if row_depth is not None and row_width is not None:
            limits = _limits(row_depth, row_width, layout)
            levels = row_depth
        scores, tokens = self.top_children(self.drafter.root_logits(batch)[:, None], width)
        # log confidences and tokens of the nodes to expand
        scores = scores[:, 0]
        tokens = tokens[:, 0]
        if limits is not None:
            scores = scores + limits[:, 0, 0]
        all_tokens = [tokens]
        all_scores = [scores]
        parents: Tensor | None = None  # parents of the nodes to expand, among those expanded before
        expanded = [layout.zeros.expand(batch.size, -1)]  # each node's index in its level
        for level in range(2, depth + 1):
            step, children = self.top_children(self.drafter.expand(batch, tokens, parents), width)
            child_scores = scores[..., None] + step
            if limits is not None:
                child_scores = child_scores + limits[:, level - 1]
            children = children.flatten(1)
            child_scores = child_scores.flatten(1)
            all_tokens.append(children)
            all_scores.append(child_scores)
            if level < depth:
                # `topk` promises no order of equal scores, of which there are many in 16 bits
                ranked = child_scores.sort(dim=1, descending=True, stable=True)
                scores = ranked.values[:, :width]
                best = ranked.indices[:, :width]
                tokens = children.gather(1, best)
                parents = best // width
                expanded.append(best)
        expanded_ids = torch.cat(expanded, 1)[:, : len(layout.first_ids)] + layout.first_ids
        return self._prune(
            torch.cat(all_tokens, 1), torch.cat(all_scores, 1), expanded_ids, levels, depth, width
        )

    def _prune(
        self,
        tokens: Tensor,
        scores: Tensor,
        expanded_ids: Tensor,
        levels: Tensor,
        depth: int,
        width: int,
    ) -> DraftTree:
        """Keep the best of the candidates [B, C], in creation order. Candidates come in families of
        `width` siblings, family f below the candidate expanded_ids[:, f].
        """
        order = self._most_confident(scores)
        family = order // width
        parents = expanded_ids.gather(1, family)
        depth_of_node = (family + (2 * width - 1)) // width
        return self._assemble((tokens, scores), order, parents, depth_of_node, levels, depth, width)

    def _most_confident(self, scores: Tensor) -> Tensor:
        """The indices [B, N] of the tree's nodes among the candidates [B, C], in creation order."""
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.max_nodes]
        return best.sort(dim=1).values

    @staticmethod
    def _assemble(
        candidates: tuple[Tensor, Tensor],
        order: Tensor,
        parents: Tensor,
        depth_of_node: Tensor,
        levels: Tensor,
        depth: int,
        width: int,
    ) -> DraftTree:
        """The tree of some of the candidates.

        Args:
            candidates: the tokens and the scores [B, C].
            order: [B, N] the indices of the tree's nodes among the candidates.
            parents: [B, N] the indices of the nodes' parents; C is the root.
            depth_of_node: [B, N] the nodes' levels.
            levels: [B] how many levels were drafted for each row.
            depth: the largest of `levels` that is possible.
            width: the number of siblings.
        """
        tokens, scores = candidates
        batch, nodes = order.shape
        slots = arange(1, nodes + 1, 1, order.device).expand(batch, nodes)
        slot_of_candidate = order.new_zeros(batch, scores.shape[1] + 1).scatter_(1, order, slots)
        kept_scores = scores.gather(1, order)
        exists = kept_scores > -torch.inf
        parents = slot_of_candidate.gather(1, parents) - 1
        shape = shape_from_parents(
            parents, depth_of_node, exists, max_depth=depth, width=min(width, nodes)
        )
        nonfinite = scores.isnan().any(1)
        return DraftTree(
            tokens.gather(1, order), exists, shape, levels, nonfinite=nonfinite, scores=kept_scores
        )


def _limits(row_depth: Tensor, row_width: Tensor, layout: _Layout) -> Tensor:
    """[B, depth, width, width] by level, parent's rank and child's rank: -inf beyond each row's own
    depth [B] and width [B], elsewhere 0.
    """
    depth = row_depth[:, None, None, None]
    width = row_width[:, None, None, None]
    return additive_mask((layout.level < depth) & (layout.rank < width))
