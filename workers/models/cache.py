"""The key-value cache: one preallocated block for all layers, written and moved by flat row indices.

The caller assigns columns. Nothing is ever cleared: the attention mask decides what a query sees, so a rejected draft
only leaves a column that the next round overwrites.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of `rows` sequences, `columns` positions each.

    The storage has shape [layers, 2, rows * columns, kv_heads * head_dim]; a flat index is `row * columns + column`.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        columns: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rows, self.columns, self.kv_heads, self.head_dim = rows, columns, kv_heads, head_dim
        self._capacity = rows  # sequences that the block has space for
        self._set_storage(torch.zeros(layers, 2, rows * columns, kv_heads * head_dim, dtype=dtype, device=device))

    def _set_storage(self, storage: Tensor) -> None:
        """Set `storage` and its per-layer views for writing (flat) and reading (by head)."""
        self.storage = storage
        self._flat = [layer.unbind() for layer in storage]
        blocks = storage.view(*storage.shape[:2], self.rows, self.columns, self.kv_heads, self.head_dim)
        self._heads = [layer.unbind() for layer in blocks.transpose(3, 4)]
        self._first = torch.arange(0, self.rows * self.columns, self.columns, device=storage.device)[:, None]

    def flat(self, columns: Tensor) -> Tensor:
        """Flat indices [R * S] of per-row columns [R, S]."""
        return (columns + self._first).flatten()

    def write(self, layer: int, keys: Tensor, values: Tensor, flat: Tensor) -> None:
        """Store keys and values [R, S, kv_heads, head_dim] of one layer at flat indices [R * S]."""
        for stored, new in zip(self._flat[layer], (keys, values), strict=True):
            stored.index_copy_(0, flat, new.reshape(-1, stored.shape[1]))

    def read(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """Views of the first `span` columns of one layer: keys and values, each [R, kv_heads, span, head_dim]."""
        keys, values = self._heads[layer]
        return keys.narrow(2, 0, span), values.narrow(2, 0, span)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy columns `source` [R, n] to columns `target` [R, n] in all layers. The two may overlap."""
        self.storage.index_copy_(2, self.flat(target), self.storage.index_select(2, self.flat(source)))

    def put(self, rows: Tensor, other: KVCache) -> None:
        """Copy all of `other`'s sequences and columns into the first columns of `rows` [other.rows]."""
        layers, two, _, width = self.storage.shape
        block = self.storage.view(layers, two, self.rows, self.columns, width)
        block[:, :, rows, : other.columns] = other.storage.view(layers, two, other.rows, other.columns, width)

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` [n] (sequence indices), in that order.

        They move to the front of the block, layer by layer. Once they fill at most half of it, they get a new block,
        and the old one's memory is freed.
        """
        layers, two, _, width = self.storage.shape
        block = self.storage.view(layers, two, self.rows, self.columns * width)
        self.rows = int(rows.numel())
        if 2 * self.rows <= self._capacity:
            block = block.index_select(2, rows)
            self._capacity = self.rows
        else:
            for layer in block:
                layer[:, : self.rows] = layer.index_select(1, rows)
            block = block[:, :, : self.rows]
        self._set_storage(block.view(layers, two, self.rows * self.columns, width))
