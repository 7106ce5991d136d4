"""Attention masks: causal over a padded sequence, and over the columns of a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad


def causal_padding_mask(valid: Tensor, order: Tensor | None = None) -> Tensor:
    """The boolean attention mask [R, 1, S, S] of a padded sequence; True: may be attended to.

    A query attends to the valid positions up to its own and always to itself, so that no row of the
    softmax is empty.

    Args:
        valid: [R, S] whether a position is not padding.
        order: [S] place of each entry in the sequence; None: entries are stored in order.
    """
    order = torch.arange(valid.shape[1], device=valid.device) if order is None else order
    itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    return ((order[:, None] >= order) & valid[:, None] | itself)[:, None]


def additive_mask(mask: Tensor) -> Tensor:
    """The additive mask (fp32) of a boolean one: 0 where True, -inf where False, which are their
    logs.
    """
    return mask.log()


class AttentionMask:
    """Additive attention masks (0 or -inf) of R rows over the columns of their KV cache, in the
    cache's dtype.

    A query attends to every column up to its own, except the prompt's padding. Rejected drafts need
    no bookkeeping: accepted tokens fill the columns up to the next root, and no query attends past
    its own column.
    """

    padding: Tensor  # [R, columns]: 0, or -inf in the columns of a prompt's padding

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        order: Tensor | None = None,
    ) -> None:
        """`order` [columns] is each column's place in the sequence; without one, the columns are in
        order.
        """
        order = torch.arange(columns, device=device) if order is None else order
        self._causal = additive_mask(order[:, None] >= order).to(dtype)  # [columns, columns]
        self.padding = torch.zeros(rows, columns, dtype=dtype, device=device)

    def admit(self, rows: Tensor, valid: Tensor) -> None:
        """Set the prompts of new captions at rows [n], valid [n, P]."""
        valid = pad(valid, (0, self.padding.shape[1] - valid.shape[1]), value=True)
        self.padding[rows] = additive_mask(valid).to(self.padding.dtype)

    def chain(self, columns: Tensor) -> Tensor:
        """The mask [R, 1, S, columns] of a sequence of S queries at `columns` [R, S]."""
        return embedding(columns, self._causal).add_(self.padding[:, None])[:, None]

    def tree(self, columns: Tensor, tree_mask: Tensor) -> Tensor:
        """The mask [R, 1, S, columns] of a root and the draft tree below it at `columns` [R, S].

        All slots attend to what the root attends to; among the tree's own columns tree_mask [R|1,
        S, S] (additive) decides.
        """
        rows, slots = columns.shape
        root = self.chain(columns[:, :1])[:, 0].expand(rows, slots, -1)
        own = columns[:, None].expand(rows, slots, slots)
        return root.scatter(2, own, tree_mask.to(root.dtype).expand(rows, slots, slots))[:, None]
