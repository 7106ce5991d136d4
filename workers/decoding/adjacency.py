"""ADT-Tree (first submitted as PEANUT): the tree's depth and width follow the image's own regions.

Neighbouring tokens are about equally hard to draft. So a round starts from the depth and width with which a neighbour
of its first token was drafted, and moves one step: deeper and narrower where the last tree was used to the full,
shallower and wider where it was not. The tree itself is EAGLE-2's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.trees import Adjacency
from search_spaces.trial import Sampling
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.draft import DynamicTree
from workers.decoding.drafter import Drafter
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Grid, Prompt

_NEVER = -1.0  # alpha of a token that no round has drafted: nothing to adapt to


class AdjacencyTree(DynamicTree):
    """The policy's state is a map over the image: every token keeps the depth, width and alpha of the round that
    emitted it (bonus tokens too). alpha = how much of the tree was used, accepted drafts (or emitted tokens) over its
    levels."""

    history: Tensor  # [B, image_len, 3] depth, width, alpha

    def __init__(self, drafter: Drafter, sampling: Sampling, policy: Adjacency, grid: Grid, vocab_size: int) -> None:
        self.ceiling = min(vocab_size, policy.widest)
        super().__init__(drafter, sampling, depth=policy.depth_range[1], width=self.ceiling, nodes=policy.nodes)
        self.max_nodes = policy.nodes
        self.policy, self.grid = policy, grid

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        start = torch.tensor([self.policy.start_depth, self.policy.start_width, _NEVER], device=batch.keys.device)
        self.history = start.expand(batch.size, batch.image_len, 3).clone()
        self.start = start
        ranges = torch.tensor([self.policy.depth_range, self.policy.width_range], device=start.device)
        self.lowest, self.choices = ranges[:, 0], ranges[:, 1] - ranges[:, 0] + 1  # depth, width
        self.both = torch.arange(2, device=start.device)

    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        super().admit(captions, prompt, names, features, first)
        self.history = self.history.clone()
        self.history[captions] = self.start

    def keep(self, captions: Tensor) -> None:
        super().keep(captions)
        self.history = self.history[captions]

    def bounds(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, int, int]:
        depth, width = self.adapt(*self.inherit(batch))
        self.row_width = width
        # read even from an accelerator, which is idle now: the policy's own bounds would make the walk ten times longer
        deepest, widest = torch.stack([depth, width]).amax(1).tolist()
        return depth, width, deepest, widest

    def inherit(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Depth and width (float) [B] to start from for the token about to be drafted, and the alpha to judge them
        by.
        """
        row = torch.arange(batch.size, device=batch.keys.device)
        token, cols = batch.emitted, self.grid.cols
        above, left = token - cols, torch.where(token % cols == 0, token - cols, token - 1)
        previous = self.history[row, token - 1]
        if self.policy.initialisation == "random":
            draw = rng.uniform(batch.keys[:, None], token[:, None], rng.Purpose.SHAPE, self.both)
            shape = self.lowest + (draw * self.choices).floor()
            alpha = previous[:, 2]
        elif self.policy.initialisation == "tokenflock":
            shape, alpha = self.flock(batch)
        else:
            source = left if self.policy.initialisation == "horizontal" else above
            found = torch.where((source >= 0)[:, None], self.history[row, source.clamp(min=0)], self.start)
            shape, alpha = found[:, :2], found[:, 2]
        if self.policy.alpha == "previous":
            alpha = previous[:, 2]
        depth, width = shape[:, 0], shape[:, 1]
        if self.policy.fixed_depth is not None:
            depth = torch.full_like(depth, self.policy.fixed_depth)
        if self.policy.fixed_width is not None:
            width = torch.full_like(width, self.policy.fixed_width)
        return depth, width, alpha

    def flock(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """TokenFlock: a weighted mean over the earlier tokens within `radius` of the cell; weights fall with the row
        distance only, as the paper prints them."""
        cell = torch.arange(batch.image_len, device=batch.keys.device)
        token = batch.emitted[:, None]
        rows = token // self.grid.cols - cell // self.grid.cols
        distance = (rows**2 + (token % self.grid.cols - cell % self.grid.cols) ** 2).sqrt()
        near = (cell < token) & (distance <= self.policy.radius)
        weight = near * (self.policy.radius - rows + 1)
        mean = (weight[..., None] * self.history[..., :2]).sum(1) / weight.sum(1, keepdim=True)
        alpha = self.history[..., 2]
        judged = weight * (alpha >= 0)  # the prefill's token has no alpha
        total = judged.sum(1)
        return mean.round(), torch.where(total > 0, (judged * alpha).sum(1) / total, _NEVER)

    def adapt(self, depth: Tensor, width: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the policy: depth and width [B] (int64), clamped. As in the paper, the shallowest tree may be of
        any width.
        """
        policy = self.policy
        turn = torch.where(alpha < 0, 0.0, torch.where(alpha >= policy.beta, 1.0, -1.0))
        depth = (depth + turn * policy.depth_step).clamp(*policy.depth_range).long()
        width = (width - turn * policy.width_step).long()
        free = width.clamp(1, self.ceiling)
        return depth, torch.where(
            depth > policy.depth_range[0], width.clamp(*policy.width_range).clamp(max=self.ceiling), free
        )

    def commit(self, batch: Batch, tree: DraftTree, walk: AcceptResult, logits: Tensor, features: Tensor) -> None:
        super().commit(batch, tree, walk, logits, features)
        used = walk.accepted if self.policy.numerator == "accepted" else walk.emitted
        entry = torch.stack([tree.levels, self.row_width, used / tree.levels], dim=1)[:, None]
        cell = torch.arange(batch.image_len, device=used.device)
        fresh = (cell >= batch.emitted[:, None]) & (cell < (batch.emitted + walk.emitted)[:, None])
        self.history = torch.where(fresh[..., None], entry, self.history)
