"""Draft trees as tensors.

A tree of N drafted nodes occupies N + 1 *slots*: slot 0 is the root (the last emitted token, whose keys and values the
target does not have yet), slot i is node i - 1. Parents precede their children. Per-row fields have a leading
dimension B, or 1 where all rows share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class TreeShape:
    """Who hangs below whom, derived once from the parents.

    parents [B|1, N] node index, -1 = root; depth [B|1, N] 1-based; visible [B|1, N+1, N+1]: slot s may see slot t
    (itself, an ancestor, or the root); children [B|1, N+1, C]: the slot of a slot's child of rank c, 0 = none.
    """

    parents: Tensor
    depth: Tensor
    visible: Tensor
    children: Tensor
    max_depth: int
    chain: bool = False  # every slot hangs below the one before it
    offsets: Tensor = field(init=False)  # [B|1, N+1] position of each slot relative to the root
    additive_mask: Tensor = field(init=False)  # [B|1, N+1, N+1] `visible` as an additive mask

    def __post_init__(self) -> None:
        self.offsets = torch.nn.functional.pad(self.depth, (1, 0))
        self.additive_mask = additive_mask(self.visible)

    @property
    def nodes(self) -> int:
        return self.parents.shape[1]

    @property
    def width(self) -> int:
        return self.children.shape[2]


def ancestors(parents: Tensor, max_depth: int) -> Tensor:
    """The ancestor-or-self matrix [B, N+1, N+1] of parents [B, N] (-1 = root), by max_depth row gathers."""
    batch, nodes = parents.shape
    up = torch.nn.functional.pad(parents + 1, (1, 0))[..., None].expand(batch, nodes + 1, nodes + 1)
    seen = torch.eye(nodes + 1, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
    for _ in range(max_depth):
        seen = seen | seen.gather(1, up)
    return seen


def child_table(parents: Tensor, exists: Tensor, width: int) -> Tensor:
    """Child slots [B, N+1, width] by rank. A node's rank is the number of its existing siblings before it."""
    batch, nodes = parents.shape
    siblings = (parents[:, :, None] == parents[:, None, :]) & exists[:, None, :]
    rank = siblings.tril(-1).sum(-1)
    slot = torch.arange(1, nodes + 1, device=parents.device).expand(batch, nodes)
    # nodes that do not exist, or exceed the width, land in a spare last column
    column = torch.where(exists, rank, width).clamp(max=width)
    flat = (parents + 1) * (width + 1) + column
    table = parents.new_zeros(batch, (nodes + 1) * (width + 1)).scatter_(1, flat, slot)
    return table.view(batch, nodes + 1, width + 1)[..., :width]


def shape_from_parents(parents: Tensor, depth: Tensor, exists: Tensor, *, max_depth: int, width: int) -> TreeShape:
    """The shape of per-row trees: parents, depth and exists are [B, N]; ranks follow node order."""
    return TreeShape(parents, depth, ancestors(parents, max_depth), child_table(parents, exists, width), max_depth)


def fixed_shape(parents: Sequence[int], depth: Sequence[int], device: torch.device) -> TreeShape:
    """The shape of one tree that all rows share, from its parent list (siblings in rank order)."""
    parent_row = torch.tensor([list(parents)], dtype=torch.int64, device=device)
    depth_row = torch.tensor([list(depth)], dtype=torch.int64, device=device)
    width = max((list(parents).count(p) for p in set(parents)), default=1)
    shape = shape_from_parents(
        parent_row,
        depth_row,
        torch.ones_like(parent_row, dtype=torch.bool),
        max_depth=max(depth, default=0),
        width=width,
    )
    shape.chain = shape.max_depth == shape.nodes
    return shape


def additive_mask(visible: Tensor) -> Tensor:
    """The additive attention mask of a boolean one: 0 where True, -inf where False (fp32)."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -torch.inf)


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """table[b, index[b]] for every row b of index [B]; a table [1, ...] serves all rows."""
    if table.shape[0] == 1:
        return table[0].index_select(0, index)
    return table[torch.arange(index.shape[0], device=index.device), index]


@dataclass(slots=True)
class DraftTree:
    """One round's drafts.

    tokens [B, N]; exists [B, N]: False for a node that could not be drafted (beyond the drafter's support, or beyond
    this row's own depth or width). `laws` [B, M, V] are the laws the sampled children were drawn from and `law_of`
    [B|1, N+1] says which of them drew the children of a slot; None means that children were chosen, not drawn: their
    proposal probability counts as 1. `levels` [B]: depth drafted for each row. `broken` [B]: a law of the drafter's
    was not finite (None: nothing to tell).
    """

    tokens: Tensor
    exists: Tensor
    shape: TreeShape
    levels: Tensor
    laws: Tensor | None = None
    law_of: Tensor | None = None
    broken: Tensor | None = None

    def proposal(self, slot: Tensor) -> Tensor | None:
        """The law [B, V] that drew the children of slots [B], or None where children are chosen."""
        if self.laws is None or self.law_of is None:
            return None
        return gather_rows(self.laws, gather_rows(self.law_of, slot))
