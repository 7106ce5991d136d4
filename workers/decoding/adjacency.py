"""ADT-Tree (first submitted as PEANUT): the tree's depth and width adapt to the regions of the
image.

Neighbouring tokens are about equally hard to draft. So a pass starts from the depth and width of
the tree that drafted a neighbour of its first token, and changes them by one step: deeper and
narrower if alpha is at least `beta`, shallower and wider if not. Alpha is the share of an earlier
tree's levels that was accepted (see `SizeMap`). The tree is grown as in EAGLE-2. In this file, rows
and columns are those of the image's grid of tokens; B counts the images of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.trees import Adjacency
from search_spaces.trial import DecodingConfig
from workers.data.grid import Grid
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.dynamic_tree import DynamicTree
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Prompt, Target

_NO_ALPHA = -1.0  # alpha of a token that no pass has emitted: the size does not change


class SizeMap:
    """The sizes of adjacency trees: the depth, width and alpha of the pass that emitted a token,
    for all of B images. This includes the bonus token, which a pass emits after the accepted
    drafts. alpha = accepted drafts (or emitted tokens) divided by the levels of the tree.
    """

    # [B, 1 + image_len, 3] depth, width, alpha. Entry 0 stands for what is outside the image.
    history: Tensor

    def __init__(self, policy: Adjacency, grid: Grid, max_width: int) -> None:
        """A map for images of `grid`. `max_width` bounds the shallowest trees, whose width may
        leave the policy's range.
        """
        self.policy = policy
        self._grid = grid
        self._max_width = max_width

    def prepare(self, size: int, image_len: int, device: torch.device) -> None:
        """An empty map of `size` images."""
        self.start = torch.tensor(
            [self.policy.start_depth, self.policy.start_width, _NO_ALPHA], device=device
        )
        self.history = self.start.expand(size, 1 + image_len, 3).clone()
        self._token = torch.arange(-1, image_len, device=device)  # each entry's token
        self._steps = torch.tensor(
            [float(self.policy.depth_step), -self.policy.width_step], device=device
        )
        if self.policy.initialisation == "tokenflock":
            self._flock_places, self._flock_weights = self._flock_cells(image_len, device)
        else:
            self._sources = self._source_entries(torch.arange(image_len + 1, device=device))
        ranges = torch.tensor([self.policy.depth_range, self.policy.width_range], device=device)
        # [2] for depth and width
        self._range_min = ranges[:, 0]
        self._range_size = ranges[:, 1] - ranges[:, 0] + 1
        self._shape_slots = torch.arange(2, device=device)

    def admit(self, indices: Tensor) -> None:
        """Start new images at indices [n]."""
        self.history = self.history.clone()
        self.history[indices] = self.start

    def next_size(self, keys: Tensor, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """Depth and width [B] (int64) of the trees of images with random keys [B] that have
        `emitted` tokens [B].
        """
        return self.adapt(*self.inherited_state(keys, emitted))

    def inherited_state(self, keys: Tensor, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """Depth and width [B, 2] (float) from which the next pass's tree starts, and the alpha [B]
        that decides how they change.
        """
        policy = self.policy
        if policy.initialisation == "tokenflock":
            entries, weights = self.flock(emitted)
            size = self.mean_size(entries, weights)
            alpha = entries[:, 0, 2]
            if policy.alpha == "neighbour":
                alpha = self.mean_alpha(entries, weights)
        else:
            previous, neighbour = self._entries(self._sources[emitted]).unbind(1)
            size = neighbour[:, :2]
            alpha = (neighbour if policy.alpha == "neighbour" else previous)[:, 2]
            if policy.initialisation == "random":
                uniforms = rng.uniform(
                    keys[:, None], emitted[:, None], rng.Purpose.SHAPE, self._shape_slots
                )
                size = self._range_min + (uniforms * self._range_size).floor()
        fixed = [policy.fixed_depth, policy.fixed_width]
        if fixed != [None, None]:
            columns = [
                size[:, i] if value is None else torch.full_like(alpha, value)
                for i, value in enumerate(fixed)
            ]
            size = torch.stack(columns, dim=1)
        return size, alpha

    def _entries(self, places: Tensor) -> Tensor:
        """The entries [B, n, 3] of the history at these places [B, n]."""
        return self.history.gather(1, places[..., None].expand(-1, -1, 3))

    def _source_entries(self, token: Tensor) -> Tensor:
        """For each token [n], the places [n, 2] in the history of the token before it, and of the
        neighbour whose tree its own starts from: the left token (in the first column the upper
        one), the upper token, or with random starts the token before.
        """
        above = self._grid.neighbour(token, 1, 0)
        left = self._grid.neighbour(token, 0, -1)
        left = torch.where(left < 0, above, left)
        neighbour = {"horizontal": left, "vertical": above}.get(
            self.policy.initialisation, token - 1
        )
        return torch.stack([token, neighbour + 1], dim=1)

    def flock(self, emitted: Tensor) -> tuple[Tensor, Tensor]:
        """TokenFlock: the entries [B, n, 3] near the token that follows `emitted` tokens [B], and
        their weights [B, n]. The first is the previous token's.
        """
        return self._entries(self._flock_places[emitted]), self._flock_weights[emitted]

    @staticmethod
    def mean_size(entries: Tensor, weights: Tensor) -> Tensor:
        """TokenFlock: depth and width [B, 2], the weighted means of entries [B, n, 3]."""
        mean = (weights[..., None] * entries[..., :2]).sum(1) / weights.sum(1, keepdim=True)
        return mean.round()

    @staticmethod
    def mean_alpha(entries: Tensor, weights: Tensor) -> Tensor:
        """TokenFlock: alpha [B], the weighted mean of the entries [B, n, 3] that have one; the
        prefill's has none.
        """
        alpha = entries[..., 2]
        weights = weights * (alpha >= 0)
        total = weights.sum(1)
        return torch.where(total > 0, (weights * alpha).sum(1) / total, _NO_ALPHA)

    def _flock_cells(self, image_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """TokenFlock: for each token, the places [1 + image_len, n] in the history of the cells
        within `radius` of it, the token before it first, and their weights: 0 outside the grid. As
        printed in the paper, weights decrease with the row distance only. A grid's first token has
        the entry of what is outside.
        """
        reach = int(self.policy.radius)
        cols = max(self._grid.lines)
        near = [(0, -1)]  # rows above and columns to the right, the previous token first
        for rows in range(reach + 1):
            for right in range(max(-reach, 1 - cols), min(reach, cols - 1) + 1):
                is_before = (rows > 0 or right < 0) and (rows, right) != (0, -1)
                if is_before and math.hypot(rows, right) <= self.policy.radius:
                    near.append((rows, right))
        rows_above, cols_right = torch.tensor(near, device=device).unbind(1)
        token = torch.arange(image_len + 1, device=device)
        places = 1 + self._grid.neighbour(token[:, None], rows_above, cols_right)
        weights = (places > 0) * (self.policy.radius - rows_above + 1)
        weights[:, -1] += ~(places > 0).any(1)
        # the token before, which may be of another row or of the preview
        return torch.cat([token[:, None], places[:, 1:]], dim=1), weights

    def adapt(self, size: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the policy from depth and width [B, 2]: depth and width [B] (int64), clamped
        to their ranges. As in the paper, the shallowest tree may have any width.
        """
        policy = self.policy
        direction = torch.where(alpha < 0, 0.0, torch.where(alpha >= policy.beta, 1.0, -1.0))
        depth, width = torch.addcmul(size, direction[:, None], self._steps).long().unbind(1)
        depth = depth.clamp(*policy.depth_range)
        least, most = policy.width_range
        in_range = width.clamp(min(least, self._max_width), min(most, self._max_width))
        return depth, torch.where(
            depth > policy.depth_range[0], in_range, width.clamp(1, self._max_width)
        )

    def record(self, emitted: Tensor, depth: Tensor, width: Tensor, num_accepted: Tensor) -> None:
        """Record a pass after `emitted` tokens [B]: it accepted `num_accepted` drafts [B] of trees
        of this depth and width [B].
        """
        used = num_accepted
        if self.policy.numerator == "tokens":
            used = num_accepted + 1
        entry = torch.stack([depth, width, used / depth], dim=1)[:, None]
        emitted_now = (self._token >= emitted[:, None]) & (
            self._token <= (emitted + num_accepted)[:, None]
        )
        self.history = torch.where(emitted_now[..., None], entry, self.history)


class AdjacencyTree(DynamicTree):
    """A dynamic tree whose size follows from those of earlier trees nearby in the image."""

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        policy = config.policy
        assert isinstance(policy, Adjacency)
        self._set_size(
            policy.bounds.depth, min(target.vocab_size, policy.widest), policy.bounds.nodes
        )
        self._usual_width = min(self.width, policy.bounds.width)  # width of trees within the ranges
        self.sizes = SizeMap(policy, target.grid, self.width)

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        self.sizes.prepare(batch.size, batch.image_len, batch.keys.device)
        self._row_depth = self.row_width = torch.zeros_like(batch.emitted)
        batch.buffers.add(self.sizes, "history")
        batch.buffers.add(self, "_row_depth", "row_width")
        self._bounds: Sequence[int] | None = None
        self._planned_size = batch.size

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        super().admit(indices, prompt, captions, features, first_tokens)
        self.sizes.admit(indices)
        self._bounds = None

    def next_bounds(self, batch: Batch) -> Tensor:
        """The largest depth and width of the next pass's trees, whose sizes it decides."""
        self._row_depth, self.row_width = self.sizes.next_size(batch.keys, batch.emitted)
        return torch.stack([self._row_depth, self.row_width]).amax(1)

    def set_bounds(self, bounds: Sequence[int]) -> None:
        self._bounds = bounds

    def plan(self, batch: Batch) -> tuple[int, int]:
        """The largest depth and width of any image's tree. A static batch, whose shapes CUDA graphs
        fix, has two sizes only: the largest within the ranges, and one for the shallowest trees,
        which may be wider.
        """
        if self._bounds is None or self._planned_size != batch.size:  # the rows have changed
            self._bounds = self.next_bounds(batch).tolist()
            self._planned_size = batch.size
            batch.buffers.copy_back()
        (depth, width), self._bounds = self._bounds, None
        if batch.static:
            depth = self.max_levels
            is_usual = width <= self._usual_width
            width = self._usual_width if is_usual else self.width
        self._depth = depth
        self._width = width
        return depth, width

    def size_limits(self) -> tuple[Tensor | None, Tensor | None, int, int]:
        """Each image's depth and width [B], and the largest depth and width."""
        return self._row_depth, self.row_width, self._depth, self._width

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> None:
        super().commit(batch, tree, result, logits, features)
        self.sizes.record(batch.emitted, tree.levels, self.row_width, result.num_accepted)
