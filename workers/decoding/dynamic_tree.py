"""EAGLE-2's dynamic trees: grow by cumulative confidence, then keep the most confident nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.drafter import Drafter
from workers.decoding.drafting import TreeDrafting
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, shape_from_parents
from workers.models.target import Target

_Candidates = tuple[Tensor, Tensor, Tensor]  # tokens, scores and parents (candidates, -1 for the root) [B, C]


class DynamicTree(TreeDrafting):
    """A node's confidence is the product of the drafter's probabilities along its path. Children are top tokens and not
    sampled, so p counts as 1. Ties are broken towards shallower, earlier nodes, so that no node loses its parent.
    """

    static_shapes = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        self._set_size(config.policy.bounds.depth, config.policy.bounds.width, config.policy.bounds.nodes)

    def _set_size(self, levels: int, width: int, max_nodes: int) -> None:
        self.max_levels, self.max_nodes, self.width = levels, max_nodes, width
        self.expanded = (levels - 1) * width

    def size_limits(self) -> tuple[Tensor | None, Tensor | None, int, int]:
        """Each row's depth and width limits [B] (None: the policy's), and the largest of each over the rows."""
        return None, None, self.max_levels, self.width

    def draft(self, batch: Batch) -> DraftTree:
        row_depth, row_width, depth, width = self.size_limits()
        limits = None if row_depth is None or row_width is None else _limits(row_depth, row_width, depth, width)
        scores, tokens = self.top_children(self.drafter.root_logits(batch)[:, None], width)
        scores, tokens = scores[:, 0], tokens[:, 0]  # log confidence and token of the nodes to expand
        if limits is not None:
            scores = scores + limits[:, 0]
        all_tokens, all_scores = [tokens], [scores]
        frontiers: list[Tensor] = []  # candidate ids of the nodes that were expanded
        frontier = torch.arange(width, device=tokens.device).expand(batch.size, width)
        parents: Tensor | None = None  # their parents among the nodes expanded before
        created = width
        for level in range(2, depth + 1):
            step, children = self.top_children(self.drafter.expand(batch, tokens, parents), width)
            if limits is not None:
                step = step + limits[:, level - 1, None]
            children, child_scores = children.flatten(1), (scores[..., None] + step).flatten(1)
            all_tokens.append(children)
            all_scores.append(child_scores)
            frontiers.append(frontier)
            if level < depth:
                scores, best = child_scores.topk(width, dim=1)
                if limits is not None:  # each row expands only as many nodes as its own width
                    scores = scores + limits[:, level - 1]
                tokens = children.gather(1, best)
                parents, frontier = best // width, created + best
                created += width * width
        no_parent = torch.full_like(all_tokens[0], -1)
        expanded = torch.cat(frontiers, 1).repeat_interleave(width, dim=1) if frontiers else no_parent[:, :0]
        candidates = torch.cat(all_tokens, 1), torch.cat(all_scores, 1), torch.cat([no_parent, expanded], 1)
        return self._prune(candidates, depth, width, row_depth)

    def _prune(self, candidates: _Candidates, depth: int, width: int, row_depth: Tensor | None) -> DraftTree:
        """Keep the best nodes of all candidates, in creation order."""
        scores = candidates[1]
        nodes = min(self.max_nodes, scores.shape[1])
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :nodes].sort(dim=1).values
        level = torch.where(order < width, 1, (order - width) // (width * width) + 2)
        return self._assemble(candidates, order, level, depth, width, row_depth)

    def _assemble(
        self,
        candidates: _Candidates,
        order: Tensor,
        level: Tensor,
        depth: int,
        width: int,
        row_depth: Tensor | None = None,
    ) -> DraftTree:
        """The tree of the candidates at indices `order` [B, N], which are at levels [B, N] up to `depth`."""
        tokens, scores, parents = candidates
        batch, nodes = order.shape
        node_of_candidate = torch.full_like(tokens, -1).scatter_(
            1, order, torch.arange(nodes, device=order.device).expand(batch, nodes)
        )
        parent = parents.gather(1, order)
        parent = torch.where(parent < 0, -1, node_of_candidate.gather(1, parent.clamp(min=0)))
        kept_scores = scores.gather(1, order)
        exists = kept_scores > -torch.inf
        shape = shape_from_parents(parent, level, exists, max_depth=depth, width=min(width, nodes))
        levels = torch.full((batch,), depth, device=order.device) if row_depth is None else row_depth
        nonfinite = scores.isnan().any(1)
        return DraftTree(tokens.gather(1, order), exists, shape, levels, nonfinite=nonfinite, scores=kept_scores)


def _limits(row_depth: Tensor, row_width: Tensor, depth: int, width: int) -> Tensor:
    """[B, depth, width] -inf for the levels and ranks beyond each row's own depth [B] and width [B], elsewhere 0."""
    level, rank = (torch.arange(size, device=row_depth.device) for size in (depth, width))
    beyond = (level >= row_depth[:, None])[..., None] | (rank >= row_width[:, None])[:, None]
    return torch.zeros(beyond.shape, device=row_depth.device).masked_fill_(beyond, -torch.inf)
