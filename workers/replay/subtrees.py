"""One recording for many trees: the tree to record, and each policy's own tree inside it.

For policies with `sizes` the recorded tree contains the trees of several sizes, each whole. A wide
tree alone would not do: with flat distributions, the children of its many shallow nodes leave no
place for the deep nodes of a narrow tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from search_spaces.params import ConfigError, Range
from search_spaces.trees import Static, TreeBounds, TreePolicy, TreeSize
from search_spaces.trial import DecodingConfig
from workers.decoding.drafter import Drafter
from workers.decoding.dynamic_tree import DynamicTree
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Target
from workers.replay.recording import RecordedSteps

_MAX_NODES = 256  # nodes of a recorded tree: the most likely ones


@dataclass(frozen=True, slots=True)
class NestedTrees(TreePolicy):
    """All nodes of dynamic trees of several sizes. Only replay records it; no sweep can ask for
    it.
    """

    kind: ClassVar[str] = "nested"
    implementation: ClassVar[str] = "workers.replay.subtrees:NestedDrafting"
    trees: Annotated[
        tuple[tuple[int, int, int], ...], "depth, width and nodes of each dynamic tree", Range(1)
    ]

    @classmethod
    def of(cls, policies: Iterable[TreePolicy]) -> Self:
        """The trees of all sizes that these policies draft."""
        nodes: dict[tuple[int, int], int] = {}
        for depth, width, count in (size for policy in policies for size in policy.sizes):
            nodes[depth, width] = max(nodes.get((depth, width), 0), count)
        return cls(tuple((*size, nodes[size]) for size in sorted(nodes)))

    def contains(self, tree: TreeSize) -> bool:
        """Whether a tree is, or is a part of, one of these."""
        return any(
            tree[:2] == (depth, width) and tree.nodes <= nodes for depth, width, nodes in self.trees
        )

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        return tuple(TreeSize(*tree) for tree in self.trees)

    @property
    def bounds(self) -> TreeBounds:
        depth, width, _ = (max(column) for column in zip(*self.trees, strict=True))
        return TreeBounds(depth, min(_MAX_NODES, sum(nodes for _, _, nodes in self.trees)), width)


def union_policy(policies: Sequence[TreePolicy]) -> TreePolicy:
    """A policy whose trees contain those of all `policies`.

    Raises:
        ConfigError: no recording serves them all, or one of them has no fixed place in a larger
            tree.
    """
    fixed = {policy: policy.fixed for policy in policies if policy.fixed is not None}
    if len(fixed) == len(set(policies)) and len({shape.sampled for shape in fixed.values()}) == 1:
        paths = {path for shape in fixed.values() for path in shape.tree.paths}
        largest, shape = max(fixed.items(), key=lambda entry: len(entry[1].tree.paths))
        if len(paths) == len(shape.tree.paths) and largest.implementation == Static.implementation:
            return largest
        return Static(paths=tuple(paths), children="sampled" if shape.sampled else "top")
    kinds = sorted({policy.kind for policy in policies})
    if len(kinds) == 1 and all(
        policy.sizes and bool(policy.size_map) == policy.adapts_to_rule for policy in policies
    ):
        return NestedTrees.of(policies)
    problem = (
        f"replay cannot describe {', '.join(kinds)} by one recording; it can for fixed trees, and "
        "for a policy that declares its trees' sizes"
    )
    raise ConfigError(("tree", "policy"), problem)


def subtree(
    steps: RecordedSteps, recorded: TreePolicy, policy: TreePolicy
) -> tuple[Tensor, Tensor]:
    """The nodes [S, N] of the policy's own trees in recorded ones, and their drafted levels [S].

    Raises:
        ConfigError: the recorded policy does not contain this one.
    """
    levels = torch.full_like(steps.levels, policy.bounds.depth)
    if len(policy.sizes) == 1 and isinstance(recorded, NestedTrees):
        if recorded.contains(policy.sizes[0]):
            return _dynamic_nodes(steps, policy.sizes[0]), levels
    elif policy.fixed is not None and recorded.fixed is not None:
        paths = recorded.fixed.tree.paths
        own = set(policy.fixed.tree.paths)
        if own <= set(paths) and policy.fixed.sampled == recorded.fixed.sampled:
            nodes = torch.tensor([path in own for path in paths], device=levels.device)
            return nodes.expand(len(steps), -1), levels
    raise ConfigError(
        ("tree",),
        f"the recorded {recorded.kind} tree does not contain {policy}; record a larger one",
    )


def _dynamic_nodes(steps: RecordedSteps, size: TreeSize) -> Tensor:
    """EAGLE-2's two choices: the `width` surest nodes of a level are expanded, and the `nodes`
    surest of all are kept.
    """
    assert steps.scores is not None, "a dynamic tree is recorded with its scores"
    count, nodes = steps.tokens.shape
    row = torch.arange(count, device=steps.tokens.device)[:, None]
    drafted = steps.depth > 0
    no_slot = nodes + 1
    # The children of each slot; padding of smaller trees goes to `no_slot`.
    children_of = steps.children.new_full((count, no_slot + 1, steps.children.shape[2]), -1)
    slots = torch.where((steps.children >= 0).any(2), steps.inner, no_slot)
    children_of[row, slots] = steps.children
    candidates = torch.zeros_like(drafted)
    expanded = torch.zeros_like(row).expand(count, 1)
    for _ in range(size.depth):
        children = children_of[row, expanded][..., : size.width].flatten(1)
        # Entries without a child go to an extra last column, which is dropped.
        place = torch.where(children < 0, nodes, children)
        level = drafted.new_zeros(count, nodes + 1).scatter(1, place, True)[:, :nodes] & drafted
        candidates |= level
        best = surest(steps.scores, level, size.width)
        order = (~best).int().sort(dim=1, stable=True).indices[:, : size.width]
        expanded = torch.where(best.gather(1, order), order + 1, no_slot)
    return surest(steps.scores, candidates, size.nodes)


class _Level(NamedTuple):
    """Candidates of one level."""

    tokens: Tensor  # [B, C]
    scores: Tensor  # [B, C] log confidences
    parents: Tensor  # [B, C] indices among the candidates of all levels, -1 for the root
    members: Tensor  # [B, W, C] which of them the trees of each width have


class NestedDrafting(DynamicTree):
    """Grows the trees of all widths together: a node that one of them expands is expanded once."""

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert isinstance(config.policy, NestedTrees)
        self.sizes = config.policy.sizes
        self.depths: dict[int, int] = {}  # depth of the deepest tree of each width
        for depth, width, _ in self.sizes:
            self.depths[width] = max(depth, self.depths.get(width, 0))
        self.expanded = sum(width * (depth - 1) for width, depth in self.depths.items())
        self._widths = torch.tensor(list(self.depths), device=target.device)

    def draft(self, batch: Batch) -> DraftTree:
        scores, tokens = self.top_children(self.drafter.root_logits(batch)[:, None], self.width)
        # [W, width]
        narrow = torch.arange(self.width, device=tokens.device) < self._widths[:, None]
        levels = [
            _Level(
                tokens[:, 0],
                scores[:, 0],
                torch.full_like(tokens[:, 0], -1),
                narrow.expand(batch.size, -1, -1),
            )
        ]
        start = 0  # first id of the level above
        for depth in range(2, self.max_levels + 1):
            above = levels[-1]
            expanded = self._expanded(above, depth)
            index, exists = _first(expanded.any(1))
            parents = index // self.width if depth > 2 else None
            logits = self.drafter.expand(batch, above.tokens.gather(1, index), parents)
            step, tokens = self.top_children(logits, self.width)
            reached = above.scores.gather(1, index).masked_fill(~exists, -torch.inf)
            scores = reached[..., None] + step
            own = expanded.gather(2, index[:, None].expand(-1, len(self._widths), -1))
            own = own & exists[:, None]
            levels.append(
                _Level(
                    tokens.flatten(1),
                    scores.flatten(1),
                    (start + index).repeat_interleave(self.width, dim=1),
                    (own[..., None] & narrow[:, None]).flatten(2),
                )
            )
            start += above.tokens.shape[1]
        return self._choose(levels)

    def _expanded(self, level: _Level, depth: int) -> Tensor:
        """The nodes [B, W, C] that the trees of each width expand into a level of this depth."""
        expanded = torch.zeros_like(level.members)
        for tree, (width, deepest) in enumerate(self.depths.items()):
            if depth <= deepest:
                expanded[:, tree] = surest(level.scores, level.members[:, tree], width)
        return expanded

    def _choose(self, levels: list[_Level]) -> DraftTree:
        """The tree of all nodes that the tree of at least one size keeps."""
        tokens, scores, parents = (
            torch.cat(column, 1) for column in list(zip(*levels, strict=True))[:3]
        )
        members = torch.cat([level.members for level in levels], 2)
        sizes = torch.tensor([level.tokens.shape[1] for level in levels], device=tokens.device)
        depth = torch.arange(1, len(levels) + 1, device=tokens.device).repeat_interleave(sizes)
        trees = list(self.depths)
        kept = torch.zeros_like(tokens, dtype=torch.bool)
        for deepest, width, nodes in self.sizes:
            kept |= surest(scores, members[:, trees.index(width)] & (depth <= deepest), nodes)
        order, _ = _first(surest(scores, kept, self.max_nodes))
        parents = parents.gather(1, order)
        root = tokens.shape[1]
        candidates = tokens, scores.masked_fill(~kept, -torch.inf)
        drafted = torch.full_like(order[:, 0], len(levels))
        parents = torch.where(parents < 0, root, parents)
        return self._assemble(
            candidates, order, parents, depth[order], drafted, len(levels), self.width
        )


def surest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """Which nodes [B, C] are the `count` of the highest scores [B, C]; the earlier one on a tie."""
    masked = scores.masked_fill(~among, -torch.inf)
    best = masked.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(among).scatter(1, best, True) & (masked > -torch.inf)


def _first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The indices [B, E] of each row's true entries in order, padded with others, and which of them
    are true. Waits for the device to read their largest number: a recording need not be fast.
    """
    index = (~mask).int().sort(dim=1, stable=True).indices[:, : int(mask.sum(1).max())]
    return index, mask.gather(1, index)
