"""ADT-Tree (first submitted as PEANUT): the tree's depth and width adapt to the regions of the image.

Neighbouring tokens are about equally hard to draft. So a round starts from the depth and width of the tree that drafted
a neighbour of its first token, and changes them by one step: deeper and narrower if alpha (see `AdjacencyTree`) is at
least `beta`, shallower and wider if not. The tree is grown as in EAGLE-2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.trees import Adjacency
from search_spaces.trial import DecodingConfig
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.dynamic_tree import DynamicTree
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Prompt, Target

_NO_ALPHA = -1.0  # alpha of a token that no round has emitted: the size does not change


class AdjacencyTree(DynamicTree):
    """The policy's state is a map over the image: for every token, bonus tokens included, the depth, width and alpha of
    the round that emitted it. alpha = accepted drafts (or emitted tokens) divided by the levels of the tree.
    """

    history: Tensor  # [B, image_len, 3] depth, width, alpha

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.policy, Adjacency)
        self.policy, self._cols = config.policy, target.grid.cols
        self._set_size(self.policy.bounds.depth, min(target.vocab_size, self.policy.widest), self.policy.bounds.nodes)

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        device = batch.keys.device
        self.start = torch.tensor([self.policy.start_depth, self.policy.start_width, _NO_ALPHA], device=device)
        self.history = self.start.expand(batch.size, batch.image_len, 3).clone()
        ranges = torch.tensor([self.policy.depth_range, self.policy.width_range], device=device)
        self._range_min, self._range_size = ranges[:, 0], ranges[:, 1] - ranges[:, 0] + 1  # [2] depth, width
        self._shape_slots = torch.arange(2, device=device)

    def admit(
        self, indices: Tensor, prompt: Prompt, captions: list[str], features: Tensor, first_tokens: Tensor
    ) -> None:
        super().admit(indices, prompt, captions, features, first_tokens)
        self.history = self.history.clone()
        self.history[indices] = self.start

    def keep(self, indices: Tensor) -> None:
        super().keep(indices)
        self.history = self.history[indices]

    def size_limits(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, int, int]:
        depth, width = self.adapt(*self.inherited_size(batch))
        self.row_width = width
        # read from the device, which is idle now, even if it is an accelerator: with the policy's upper bounds instead,
        # verification would take ten times as long
        max_depth, max_width = torch.stack([depth, width]).amax(1).tolist()
        return depth, width, max_depth, max_width

    def inherited_size(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Depth and width (float) [B] from which the next round's tree starts, and the alpha [B] that decides how they
        change.
        """
        row = torch.arange(batch.size, device=batch.keys.device)
        token, cols = batch.emitted, self._cols
        above, left = token - cols, torch.where(token % cols == 0, token - cols, token - 1)
        previous = self.history[row, token - 1]
        if self.policy.initialisation == "random":
            uniforms = rng.uniform(batch.keys[:, None], token[:, None], rng.Purpose.SHAPE, self._shape_slots)
            size = self._range_min + (uniforms * self._range_size).floor()
            alpha = previous[:, 2]
        elif self.policy.initialisation == "tokenflock":
            size, alpha = self.tokenflock(batch)
        else:
            source = left if self.policy.initialisation == "horizontal" else above
            neighbour = torch.where((source >= 0)[:, None], self.history[row, source.clamp(min=0)], self.start)
            size, alpha = neighbour[:, :2], neighbour[:, 2]
        if self.policy.alpha == "previous":
            alpha = previous[:, 2]
        depth, width = size[:, 0], size[:, 1]
        if self.policy.fixed_depth is not None:
            depth = torch.full_like(depth, self.policy.fixed_depth)
        if self.policy.fixed_width is not None:
            width = torch.full_like(width, self.policy.fixed_width)
        return depth, width, alpha

    def tokenflock(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """TokenFlock: weighted means of (depth, width) [B, 2] and alpha [B] over the earlier tokens within `radius` of
        the cell. As printed in the paper, weights decrease with the row distance only.
        """
        cell = torch.arange(batch.image_len, device=batch.keys.device)
        token = batch.emitted[:, None]
        rows = token // self._cols - cell // self._cols
        distance = (rows**2 + (token % self._cols - cell % self._cols) ** 2).sqrt()
        near = (cell < token) & (distance <= self.policy.radius)
        weight = near * (self.policy.radius - rows + 1)
        mean = (weight[..., None] * self.history[..., :2]).sum(1) / weight.sum(1, keepdim=True)
        alpha = self.history[..., 2]
        alpha_weight = weight * (alpha >= 0)  # the prefill's token has no alpha
        total = alpha_weight.sum(1)
        return mean.round(), torch.where(total > 0, (alpha_weight * alpha).sum(1) / total, _NO_ALPHA)

    def adapt(self, depth: Tensor, width: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the policy: depth and width [B] (int64), clamped to their ranges. As in the paper, the shallowest
        tree may have any width.
        """
        policy = self.policy
        direction = torch.where(alpha < 0, 0.0, torch.where(alpha >= policy.beta, 1.0, -1.0))
        depth = (depth + direction * policy.depth_step).clamp(*policy.depth_range).long()
        width = (width - direction * policy.width_step).long()
        in_range = width.clamp(*policy.width_range).clamp(max=self.width)
        return depth, torch.where(depth > policy.depth_range[0], in_range, width.clamp(1, self.width))

    def commit(self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor) -> None:
        super().commit(batch, tree, result, logits, features)
        used = result.num_accepted if self.policy.numerator == "accepted" else result.num_emitted
        entry = torch.stack([tree.levels, self.row_width, used / tree.levels], dim=1)[:, None]
        cell = torch.arange(batch.image_len, device=used.device)
        emitted_now = (cell >= batch.emitted[:, None]) & (cell < (batch.emitted + result.num_emitted)[:, None])
        self.history = torch.where(emitted_now[..., None], entry, self.history)
