"""Best-first trees (DDTree, arXiv 2604.12989): the likeliest drafts of all, where the probs of a
level do not depend on the tokens of the levels before it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.drafter import Drafter
from workers.decoding.dynamic_tree import DynamicTree
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Target


class BestFirstTree(DynamicTree):
    """A node is a rank at each level of its path, and its confidence is the product of the probs
    that the levels give to these ranks. No ancestor and no earlier sibling is less confident, so
    the best nodes of all are a tree. They are found level by level and without a heap: the best
    nodes of a level are children of the best ones of the level above.
    """

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        device = target.device
        self.width = min(self.max_nodes, target.vocab_size)
        self.expanded = self.max_levels - 1
        sizes = [self.width]  # how many nodes of each level are candidates
        self._below: list[_Children] = []  # the levels below the first
        for _ in range(self.expanded):
            children = _children(self.max_nodes, sizes[-1], self.width)
            parents, ranks = torch.tensor(children, device=device).unbind(1)
            first = sum(sizes[:-1])
            self._below.append(_Children(parents.clone(), ranks.clone(), first))
            sizes.append(min(self.max_nodes, len(children)))
        total = sum(sizes)
        self._roots = torch.full((1, self.width), total, device=device)
        depths = [depth for depth, size in enumerate(sizes, 1) for _ in range(size)]
        self._depths = torch.tensor([depths], device=device)
        self._levels = torch.tensor([self.max_levels], device=device)

    def draft(self, batch: Batch) -> DraftTree:
        step, tokens = self.top_children(self.drafter.root_logits(batch)[:, None], self.width)
        scores = step[:, 0]  # log confidences of the level's nodes, in falling order
        tokens = tokens[:, 0]
        all_scores = [scores]
        all_tokens = [tokens]
        parents = [self._roots.expand(batch.size, -1)]
        for children in self._below:
            logits = self.drafter.expand(batch, tokens[:, :1], None)
            step, codes = self.top_children(logits, self.width)
            above = scores.index_select(1, children.parents)
            ranked = (above + step[:, 0].index_select(1, children.ranks)).sort(
                dim=1, descending=True, stable=True
            )
            scores = ranked.values[:, : self.max_nodes]
            best = ranked.indices[:, : self.max_nodes]
            tokens = codes[:, 0].gather(1, children.ranks[best])
            all_scores.append(scores)
            all_tokens.append(tokens)
            parents.append(children.parents[best] + children.first)
        candidates = torch.cat(all_tokens, 1), torch.cat(all_scores, 1)
        order = self._most_confident(candidates[1])
        return self._assemble(
            candidates,
            order,
            torch.cat(parents, 1).gather(1, order),
            self._depths.expand(batch.size, -1).gather(1, order),
            self._levels.expand(batch.size),
            self.max_levels,
            self.max_nodes,
        )


class _Children(NamedTuple):
    """Which children of a level's nodes are candidates for the level below."""

    parents: Tensor  # [C] the places of their parents among the level's nodes
    ranks: Tensor  # [C] their ranks among their siblings
    first: int  # the place of the level's first node among the candidates of all levels


def _children(nodes: int, above: int, width: int) -> list[tuple[int, int]]:
    """The parents and ranks of the children that may be among the `nodes` best nodes of all, if the
    level above has `above` candidates, in order of their confidence, with `width` children each.

    The child of rank r of node m is at most as confident as the children of ranks 0 to r of nodes 0
    to m, and as these nodes themselves: (m + 1) (r + 2) nodes of a tree that has it. For 64 nodes,
    216 of 4,096 children remain.
    """
    return [
        (parent, rank)
        for parent in range(above)
        for rank in range(min(width, nodes // (parent + 1) - 1))
    ]
