"""Draft trees as tensors.

A tree of N drafted nodes occupies N + 1 *slots*: slot 0 is the root (the last emitted token, whose
keys and values the target's cache does not hold yet), slot i is node i - 1. Parents precede their
children. Per-row fields have a leading dimension B, or 1 where all rows share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from search_spaces.verification import Siblings
from workers.decoding.constants import arange, identity
from workers.models.masks import additive_mask


@dataclass(slots=True)
class TreeShape:
    """The parent-child relations of a tree, derived once from the parents."""

    parents: Tensor  # [B|1, N] the index of each node's parent; -1 is the root
    depth: Tensor  # [B|1, N] each node's distance from the root, at least 1
    # [B|1, N+1, N+1] True where slot s attends to slot t (itself, an ancestor, or the root).
    mask: Tensor
    children: Tensor  # [B|1, N+1, C] the slot of a slot's child of rank c; 0 if there is none
    max_depth: int  # the largest depth that a node may have
    is_chain: bool = False  # every slot is the child of the slot before it
    # Of a tree that all rows share: its slots with children, from the root down.
    levels: tuple[Siblings, ...] = ()
    # [N+1] the slots of such a tree, each after its children, and those by rank.
    post_order: Tensor | None = None
    offsets: Tensor = field(init=False)  # [B|1, N+1] each slot's distance from the root
    additive_mask: Tensor = field(init=False)  # [B|1, N+1, N+1] `mask` in additive form

    def __post_init__(self) -> None:
        self.offsets = with_root(self.depth)
        self.additive_mask = additive_mask(self.mask)

    @property
    def nodes(self) -> int:
        return self.parents.shape[1]

    @property
    def width(self) -> int:
        return self.children.shape[2]


def with_root(x: Tensor) -> Tensor:
    """Values [B, N+1] of all slots, from those of the nodes [B, N]; the root's is 0."""
    root = arange(0, 1, 1, x.device).expand(x.shape[0], 1)
    return torch.cat([root, x], dim=1)


def _ancestor_mask(parent_slots: Tensor, max_depth: int) -> Tensor:
    """The ancestor-or-self matrix [B, N+1, N+1] of the nodes' parent slots [B, N]. Each pass
    doubles the distance to the ancestors that it has found.
    """
    batch = parent_slots.shape[0]
    slots = parent_slots.shape[1] + 1
    ancestors = with_root(parent_slots)  # each slot's ancestor at the next distance
    mask = identity(slots, parent_slots.device).expand(batch, -1, -1)
    for doubling in range(max_depth.bit_length()):
        if doubling:
            ancestors = ancestors.gather(1, ancestors)
        mask = mask | mask.gather(1, ancestors[..., None].expand(batch, slots, slots))
    return mask


def _child_table(parent_slots: Tensor, exists: Tensor, width: int) -> Tensor:
    """Child slots [B, N+1, width] by rank. A node's rank is the number of its existing siblings
    before it.
    """
    batch, nodes = parent_slots.shape
    siblings = (parent_slots[:, :, None] == parent_slots[:, None, :]) & exists[:, None, :]
    rank = siblings.tril(-1).sum(-1)
    slot = arange(1, nodes + 1, 1, parent_slots.device).expand(batch, nodes)
    # nodes that do not exist or exceed the width go to a spare last column
    column = torch.where(exists, rank, width).clamp(max=width)
    flat = column.add(parent_slots, alpha=width + 1)
    table = parent_slots.new_zeros(batch, (nodes + 1) * (width + 1)).scatter_(1, flat, slot)
    return table.view(batch, nodes + 1, width + 1)[..., :width]


def shape_from_parents(
    parents: Tensor, depth: Tensor, exists: Tensor, *, max_depth: int, width: int
) -> TreeShape:
    """The shape of per-row trees: parents, depth and exists are [B, N]; ranks follow node order."""
    parent_slots = parents + 1
    mask = _ancestor_mask(parent_slots, max_depth)
    children = _child_table(parent_slots, exists, width)
    return TreeShape(parents, depth, mask, children, max_depth)


def fixed_shape(parents: Sequence[int], depth: Sequence[int], device: torch.device) -> TreeShape:
    """The shape of one tree that all rows share, from its parent list (siblings in rank order)."""
    parent_row = torch.tensor([list(parents)], dtype=torch.int64, device=device)
    depth_row = torch.tensor([list(depth)], dtype=torch.int64, device=device)
    exists = torch.ones_like(parent_row, dtype=torch.bool)
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for slot, parent in enumerate(parents, 1):
        children[parent + 1].append(slot)
    width = max(1, *map(len, children))
    shape = shape_from_parents(
        parent_row, depth_row, exists, max_depth=max(depth, default=0), width=width
    )
    shape.is_chain = shape.max_depth == shape.nodes
    shape.levels = tuple(
        _siblings([slot for slot, own in enumerate([0, *depth]) if own == level], children, device)
        for level in range(shape.max_depth)
    )
    shape.post_order = torch.tensor(_post_order(children), device=device)
    return shape


def _siblings(slots: list[int], children: list[list[int]], device: torch.device) -> Siblings:
    """The slots of a level that have children, from the children of all slots."""
    parents = sorted((slot for slot in slots if children[slot]), key=lambda s: -len(children[s]))
    by_rank: list[int] = []
    counts: list[int] = []
    for rank in range(len(children[parents[0]])):
        of_rank = [children[slot][rank] for slot in parents if len(children[slot]) > rank]
        by_rank += of_rank
        counts.append(len(of_rank))
    return Siblings(
        torch.tensor(parents, device=device), torch.tensor(by_rank, device=device), counts
    )


def _post_order(children: list[list[int]]) -> list[int]:
    """All slots, each after its children."""
    order: list[int] = []
    waiting = [0]
    while waiting:
        slot = waiting.pop()
        order.append(slot)
        waiting += children[slot]
    return order[::-1]


def row_starts(rows: int, entries: int, device: torch.device) -> Tensor:
    """The index [rows] of each row's first entry, when rows of so many entries are flattened."""
    return arange(0, rows * entries, entries, device)


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """table[b, index[b]] for every row b of index [B]; a table [1, ...] serves all rows."""
    if table.shape[0] == 1:
        rows = index
    else:
        rows = index + row_starts(table.shape[0], table.shape[1], index.device)
    return table.flatten(0, 1).index_select(0, rows)


@dataclass(slots=True)
class DraftTree:
    """The drafts of one pass."""

    tokens: Tensor  # [B, N] the nodes' tokens
    # [B, N] False for a node that was not drafted (beyond the drafter's support, or beyond the
    # row's own depth or width).
    exists: Tensor
    shape: TreeShape
    levels: Tensor  # [B] how many levels were drafted for each row
    # [B, M, V] the distributions that children were sampled from. None if the children were chosen
    # and not sampled: their proposal probability counts as 1.
    probs: Tensor | None = None
    # [B|1, N+1] which of the distributions the children of a slot were sampled from.
    probs_index: Tensor | None = None
    # [B] whether the drafter gave a distribution with NaNs. None if that was not checked.
    nonfinite: Tensor | None = None
    # [B, N] the log confidence by which a dynamic tree chose its nodes.
    scores: Tensor | None = None
    counts: Tensor | None = None  # [B] how many nodes exist, if the policy knows it

    @property
    def num_nodes(self) -> Tensor:
        """How many nodes exist, [B]; in a chain they are the first ones."""
        if self.counts is not None:
            return self.counts
        return self.exists.sum(1)

    def proposal_probs(self, slots: Tensor) -> Tensor | None:
        """The distributions [B, V] that the children of `slots` [B] were sampled from; None if they
        were chosen.
        """
        if self.probs is None or self.probs_index is None:
            return None
        return gather_rows(self.probs, gather_rows(self.probs_index, slots))
