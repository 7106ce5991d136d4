"""Drafting: a tree policy asks a drafter for laws level by level and makes a draft tree of them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from search_spaces.trees import StaticTree
from search_spaces.trial import Sampling
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.rng import Purpose
from workers.decoding.sampling import apply_cfg, to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape, shape_from_parents
from workers.models.target import Prompt


class Drafting(ABC):
    """Makes one draft tree a round. `max_levels` and `max_nodes` bound it."""

    max_levels: int
    max_nodes: int

    @abstractmethod
    def draft(self, batch: Batch) -> DraftTree:
        """The tree below each row's root."""

    def prepare(self, batch: Batch) -> None:
        """Called once, before the first caption is admitted."""

    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        """New captions at indices [n] (see `Drafter.admit`)."""

    def commit(self, batch: Batch, tree: DraftTree, walk: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """What the round decided: the walk, the target's guided logits [B, N+1, V] and its features [R, W, D] along
        the path.
        """

    def keep(self, captions: Tensor) -> None:
        """Keep only captions [n] (indices), in that order."""


class TreeDrafting(Drafting):
    """Drafting with a drafter that expands nodes on demand."""

    expanded: int  # nodes that the drafter expands below the root, over all levels of a round

    def __init__(self, drafter: Drafter, sampling: Sampling) -> None:
        self.drafter, self.sampling = drafter, sampling

    def prepare(self, batch: Batch) -> None:
        self.drafter.prepare(batch, self.max_levels, self.expanded)

    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        self.drafter.admit(captions, prompt, names, features, first)

    def commit(self, batch: Batch, tree: DraftTree, walk: AcceptResult, logits: Tensor, features: Tensor) -> None:
        self.drafter.commit(batch, walk.tokens, features, walk.emitted)

    def keep(self, captions: Tensor) -> None:
        self.drafter.keep(captions)

    def law(self, logits: Tensor) -> Tensor:
        """Processed law [B, F, V] of drafter logits [R, F, V]: the same processing as the target's."""
        nodes = logits.shape[1]
        if nodes > 1 and logits.stride(1) == 0:  # one law repeated (Medusa): once is enough
            return self.law(logits[:, :1]).expand(-1, nodes, -1)
        return to_probs(apply_cfg(logits, self.sampling.cfg), self.sampling)


class FixedTree(TreeDrafting):
    """A chain or a static tree (EAGLE-1, LANTERN++): the shape is data; a node's children are drawn without
    replacement, or are the drafter's top tokens (at temperature 0, and where the policy says so)."""

    def __init__(
        self, drafter: Drafter, layout: StaticTree, sampling: Sampling, *, drawn: bool, device: torch.device
    ) -> None:
        super().__init__(drafter, sampling)
        self.drawn = drawn and sampling.temperature > 0
        self.shape = fixed_shape(layout.parents, layout.depth, device)
        self.max_levels, self.max_nodes = self.shape.max_depth, self.shape.nodes
        self.plan = _level_plan(layout, device)
        self.expanded = sum(level.parents for level in self.plan[1:])
        self.law_of = torch.zeros(1, self.shape.nodes + 1, dtype=torch.int64, device=device)
        row = 0
        for level in self.plan:
            self.law_of[0, level.parent_slots] = torch.arange(row, row + level.parents, device=device)
            row += level.parents
        self.law_of_node = self.law_of.gather(1, self.shape.parents + 1)  # [1, N] the law each node was drawn from
        self.levels = torch.full((1,), self.max_levels, dtype=torch.int64, device=device)
        self.all_exist = torch.ones(1, self.shape.nodes, dtype=torch.bool, device=device)

    def draft(self, batch: Batch) -> DraftTree:
        levels: list[Tensor] = []
        laws: list[Tensor] = []
        for index, level in enumerate(self.plan):
            if index == 0:
                logits = self.drafter.root_logits(batch)[:, None]
            else:
                logits = self.drafter.expand(batch, _select(levels[-1], level.expanded), level.parent_rank)
            law = self.law(logits)
            if index == 0 and self.drawn:
                # all parents of a level share its clocks: the walk visits one of them, and chooses it by numbers of
                # earlier positions only
                exponential_noise = batch.numbers.exponential_noise(
                    Purpose.DRAFT, batch.places[:, : self.max_levels], law.shape[2]
                )
            odds = law / exponential_noise.narrow(1, index, 1) if self.drawn else law
            order = odds.topk(level.width, dim=-1).indices if level.width > 1 else odds.argmax(-1, keepdim=True)
            levels.append(_select(order.flatten(1), level.picked))
            laws.append(law)
        tokens, every_law = torch.cat(levels, dim=1), torch.cat(laws, dim=1)
        if self.shape.width > 1:  # the drafter's support may be smaller than the tree is wide
            chance = every_law.flatten(1).gather(1, tokens + self.law_of_node * every_law.shape[2])
        return DraftTree(
            tokens=tokens,
            exists=chance > 0 if self.shape.width > 1 else self.all_exist.expand(batch.size, -1),
            shape=self.shape,
            levels=self.levels.expand(batch.size),
            laws=every_law if self.drawn else None,
            law_of=self.law_of if self.drawn else None,
            broken=every_law[..., 0].isnan().any(1),  # a law is not a number everywhere or nowhere
        )


def _select(x: Tensor, index: Tensor | None) -> Tensor:
    """Columns of x [B, n]; None: all of them."""
    return x if index is None else x.index_select(1, index)


class _Level:
    """One level of a fixed tree: which nodes of the level before it are expanded, and which of their children it
    keeps.
    """

    def __init__(
        self,
        parent_slots: list[int],
        above: int,
        expanded: list[int],
        parent_rank: list[int],
        width: int,
        picked: list[int],
        device: torch.device,
    ) -> None:
        self.parents, self.width = len(parent_slots), width
        self.parent_slots = torch.tensor(parent_slots, device=device)
        self.expanded = _indices(expanded, above, device)
        self.parent_rank = torch.tensor([parent_rank], dtype=torch.int64, device=device) if parent_rank else None
        self.picked = _indices(picked, len(parent_slots) * width, device)


def _indices(chosen: list[int], total: int, device: torch.device) -> Tensor | None:
    """Indices to select; None where all `total` stay as they are."""
    return None if chosen == list(range(total)) else torch.tensor(chosen, dtype=torch.int64, device=device)


def _level_plan(layout: StaticTree, device: torch.device) -> list[_Level]:
    """The levels of a fixed tree, in drafting order."""
    plan: list[_Level] = []
    expanded_before: list[int] = []
    for index, nodes in enumerate(layout.levels):
        parents = list(dict.fromkeys(layout.parents[n] for n in nodes))  # node ids, in order; -1 is the root
        width = max(layout.rank[n] for n in nodes) + 1
        picked = [parents.index(layout.parents[n]) * width + layout.rank[n] for n in nodes]
        above = list(layout.levels[index - 1]) if index else []
        expanded = [above.index(p) for p in parents] if index else []
        # where several nodes were expanded one level up, the expanded nodes' parents among them
        ranks = [expanded_before.index(layout.parents[p]) for p in parents] if len(expanded_before) > 1 else []
        plan.append(_Level([p + 1 for p in parents], len(above), expanded, ranks, width, picked, device))
        expanded_before = parents
    return plan


class DynamicTree(TreeDrafting):
    """EAGLE-2: grow by cumulative confidence, then keep the most confident nodes. Nothing is drawn, so p counts as 1.

    `depth` counts levels. Ties are broken towards shallower, earlier nodes, so that a node never loses its parent.
    """

    def __init__(self, drafter: Drafter, sampling: Sampling, *, depth: int, width: int, nodes: int) -> None:
        super().__init__(drafter, sampling)
        self.max_levels, self.width = depth, width
        self.max_nodes = min(nodes, width + (depth - 1) * width * width)
        self.expanded = (depth - 1) * width

    def bounds(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, int, int]:
        """Each row's depth and width limits [B] (None: the policy's), and the largest of each over the rows."""
        return None, None, self.max_levels, self.width

    def draft(self, batch: Batch) -> DraftTree:
        row_depth, row_width, depth, width = self.bounds(batch)
        score, tokens = self.best(self.drafter.root_logits(batch)[:, None], row_width, width)
        score, tokens = score[:, 0], tokens[:, 0]
        parents = torch.full_like(tokens, -1)
        all_tokens, all_scores, all_parents = [tokens], [score], [parents]
        frontier = torch.arange(width, device=tokens.device).expand(batch.size, width)  # candidate ids
        links: Tensor | None = None
        created = width
        for level in range(2, depth + 1):
            step, children = self.best(self.drafter.expand(batch, tokens, links), row_width, width)
            grown = score[..., None] + step
            if row_depth is not None:
                grown = grown.masked_fill((row_depth < level)[:, None, None], -torch.inf)
            all_tokens.append(children.flatten(1))
            all_scores.append(grown.flatten(1))
            all_parents.append(frontier.repeat_interleave(width, dim=1))
            if level < depth:
                score, best = grown.flatten(1).topk(width, dim=1)
                if row_width is not None:  # a row expands as many nodes as its own width, whatever the others' widths
                    score = score.masked_fill(beyond(row_width, width), -torch.inf)
                tokens = children.flatten(1).gather(1, best)
                links, frontier = best // width, created + best
                created += width * width
        return self.prune(
            torch.cat(all_tokens, 1), torch.cat(all_scores, 1), torch.cat(all_parents, 1), depth, width, row_depth
        )

    def best(self, logits: Tensor, row_width: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """Log chances and tokens [B, F, width] of the drafter's top tokens; beyond a row's own width they count as
        impossible.
        """
        chance, tokens = self.law(logits).topk(width, dim=-1)
        chance = chance.log()
        if row_width is not None:
            chance = chance.masked_fill(beyond(row_width, width)[:, None], -torch.inf)
        return chance, tokens

    def prune(
        self, tokens: Tensor, scores: Tensor, parents: Tensor, depth: int, width: int, row_depth: Tensor | None
    ) -> DraftTree:
        """Keep the best nodes of all candidates [B, C], in creation order."""
        batch, candidates = tokens.shape
        kept = min(self.max_nodes, candidates)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :kept].sort(dim=1).values
        place = torch.full_like(tokens, -1).scatter_(
            1, order, torch.arange(kept, device=order.device).expand(batch, kept)
        )
        parent = parents.gather(1, order)
        parent = torch.where(parent < 0, -1, place.gather(1, parent.clamp(min=0)))
        level = torch.where(order < width, 1, (order - width) // (width * width) + 2)
        exists = scores.gather(1, order) > -torch.inf
        broken = scores.isnan().any(1)
        shape = shape_from_parents(parent, level, exists, max_depth=depth, width=min(width, kept))
        levels = torch.full((batch,), depth, device=order.device) if row_depth is None else row_depth
        return DraftTree(tokens.gather(1, order), exists, shape, levels, broken=broken)


def beyond(row_width: Tensor, width: int) -> Tensor:
    """Which of `width` places [B, width] lie beyond the rows' own widths [B]."""
    return torch.arange(width, device=row_width.device) >= row_width[:, None]
