"""ADT-Tree (first submitted as PEANUT): the tree's depth and width adapt to the regions of the image.

Neighbouring tokens are about equally hard to draft. So a round starts from the depth and width of the tree that drafted
a neighbour of its first token, and changes them by one step: deeper and narrower if alpha (see `SizeMap`) is at
least `beta`, shallower and wider if not. The tree is grown as in EAGLE-2.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class SizeMap:
    """The sizes of adjacency trees: for every token of B images, bonus tokens included, the depth, width and alpha of
    the round that emitted it. alpha = accepted drafts (or emitted tokens) divided by the levels of the tree.

    max_width: of the shallowest trees, whose width may leave the policy's range.
    """

    history: Tensor  # [B, image_len, 3] depth, width, alpha

    def __init__(self, policy: Adjacency, cols: int, max_width: int) -> None:
        self.policy, self._cols, self._max_width = policy, cols, max_width

    def prepare(self, size: int, image_len: int, device: torch.device) -> None:
        """An empty map of `size` images."""
        self.start = torch.tensor([self.policy.start_depth, self.policy.start_width, _NO_ALPHA], device=device)
        self.history = self.start.expand(size, image_len, 3).clone()
        self._cell = torch.arange(image_len, device=device)
        if self.policy.initialisation == "tokenflock":
            self._flock = self._flock_weights()
        ranges = torch.tensor([self.policy.depth_range, self.policy.width_range], device=device)
        self._range_min, self._range_size = ranges[:, 0], ranges[:, 1] - ranges[:, 0] + 1  # [2] depth, width
        self._shape_slots = torch.arange(2, device=device)

    def admit(self, indices: Tensor) -> None:
        """Start new images at indices [n]."""
        self.history = self.history.clone()
        self.history[indices] = self.start

    def next_size(self, keys: Tensor, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """Depth and width [B] (int64) of the trees of images with random keys [B] that have `emitted` tokens [B]."""
        return self.adapt(*self.inherited_size(keys, emitted))

    def inherited_size(self, keys: Tensor, emitted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Depth and width (float) [B] from which the next round's tree starts, and the alpha [B] that decides how they
        change.
        """
        row = torch.arange(len(keys), device=keys.device)
        token, cols = emitted, self._cols
        above, left = token - cols, torch.where(token % cols == 0, token - cols, token - 1)
        previous = self.history[row, token - 1]
        if self.policy.initialisation == "random":
            uniforms = rng.uniform(keys[:, None], token[:, None], rng.Purpose.SHAPE, self._shape_slots)
            size = self._range_min + (uniforms * self._range_size).floor()
            alpha = previous[:, 2]
        elif self.policy.initialisation == "tokenflock":
            weight = self._flock[emitted]
            size = self.mean_size(weight)
            alpha = previous[:, 2] if self.policy.alpha == "previous" else self.mean_alpha(weight)
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

    def mean_size(self, weight: Tensor) -> Tensor:
        """TokenFlock: depth and width [B, 2], means over the tokens of weights [B, image_len]."""
        mean = (weight[..., None] * self.history[..., :2]).sum(1) / weight.sum(1, keepdim=True)
        return mean.round()

    def mean_alpha(self, weight: Tensor) -> Tensor:
        """TokenFlock: alpha [B], the mean over the tokens of weights [B, image_len] that have one; the prefill's has
        none.
        """
        alpha = self.history[..., 2]
        known = weight * (alpha >= 0)
        total = known.sum(1)
        return torch.where(total > 0, (known * alpha).sum(1) / total, _NO_ALPHA)

    def _flock_weights(self) -> Tensor:
        """TokenFlock: the weights [image_len + 1, image_len] of the cells for the token that follows so many: of those
        within `radius` of its own. As printed in the paper, they decrease with the row distance only.
        """
        cell, token = self._cell, torch.arange(len(self._cell) + 1, device=self._cell.device)[:, None]
        rows = token // self._cols - cell // self._cols
        distance = (rows**2 + (token % self._cols - cell % self._cols) ** 2).sqrt()
        near = (cell < token) & (distance <= self.policy.radius)
        return near * (self.policy.radius - rows + 1)

    def adapt(self, depth: Tensor, width: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the policy: depth and width [B] (int64), clamped to their ranges. As in the paper, the shallowest
        tree may have any width.
        """
        policy = self.policy
        direction = torch.where(alpha < 0, 0.0, torch.where(alpha >= policy.beta, 1.0, -1.0))
        depth = (depth + direction * policy.depth_step).clamp(*policy.depth_range).long()
        width = (width - direction * policy.width_step).long()
        in_range = width.clamp(*policy.width_range).clamp(max=self._max_width)
        return depth, torch.where(depth > policy.depth_range[0], in_range, width.clamp(1, self._max_width))

    def record(self, emitted: Tensor, depth: Tensor, width: Tensor, num_accepted: Tensor) -> None:
        """Enter a round: so many drafts [B] of trees of this depth and width [B] followed the `emitted` tokens [B]."""
        used = num_accepted + (self.policy.numerator == "tokens")
        entry = torch.stack([depth, width, used / depth], dim=1)[:, None]
        emitted_now = (self._cell >= emitted[:, None]) & (self._cell <= (emitted + num_accepted)[:, None])
        self.history = torch.where(emitted_now[..., None], entry, self.history)


class AdjacencyTree(DynamicTree):
    """A dynamic tree in the size that the earlier trees near its place in the image suggest."""

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        policy = config.policy
        assert isinstance(policy, Adjacency)
        self._set_size(policy.bounds.depth, min(target.vocab_size, policy.widest), policy.bounds.nodes)
        self._usual_width = min(self.width, policy.bounds.width)
        self.sizes = SizeMap(policy, target.grid.cols, self.width)

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        self.sizes.prepare(batch.size, batch.image_len, batch.keys.device)
        self._row_depth = self.row_width = torch.zeros_like(batch.emitted)
        batch.carried.add(self.sizes, "history")
        batch.carried.add(self, "_row_depth", "row_width")
        self._bounds: Sequence[int] | None = None
        self._planned = batch.size

    def admit(
        self, indices: Tensor, prompt: Prompt, captions: list[str], features: Tensor, first_tokens: Tensor
    ) -> None:
        super().admit(indices, prompt, captions, features, first_tokens)
        self.sizes.admit(indices)
        self._bounds = None

    def next_bounds(self, batch: Batch) -> Tensor:
        """The largest depth and width of the next round's trees, whose sizes it decides."""
        self._row_depth, self.row_width = self.sizes.next_size(batch.keys, batch.emitted)
        return torch.stack([self._row_depth, self.row_width]).amax(1)

    def set_bounds(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds

    def plan(self, batch: Batch) -> tuple[int, int]:
        """The largest depth and width of any row's tree. A static batch drafts in two sizes only: within the ranges,
        and for shallow trees that are wider.
        """
        if self._bounds is None or self._planned != batch.size:  # the rows have changed
            self._bounds, self._planned = self.next_bounds(batch).tolist(), batch.size
            batch.carried.settle()
        (depth, width), self._bounds = self._bounds, None
        if batch.static:
            depth, width = self.max_levels, self._usual_width if width <= self._usual_width else self.width
        self._depth, self._width = depth, width
        return depth, width

    def size_limits(self) -> tuple[Tensor | None, Tensor | None, int, int]:
        return self._row_depth, self.row_width, self._depth, self._width

    def commit(self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor) -> None:
        super().commit(batch, tree, result, logits, features)
        self.sizes.record(batch.emitted, tree.levels, self.row_width, result.num_accepted)
