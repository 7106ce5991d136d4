"""The key-value cache: one preallocated block for all layers, written and moved by flat row indices.

The caller assigns columns. Nothing is ever cleared: the attention mask decides what a query sees, so a rejected draft
only leaves a column that the next round overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        self.by_position = [layer.unbind() for layer in storage]
        blocks = storage.view(*storage.shape[:2], self.rows, self.columns, self.kv_heads, self.head_dim)
        self._heads = [layer.unbind() for layer in blocks.transpose(3, 4)]
        self._first = torch.arange(0, self.rows * self.columns, self.columns, device=storage.device)[:, None]

    def at(self, columns: Tensor, span: int) -> CacheView:
        """A pass at per-row columns [R, S], whose queries see the first `span` columns."""
        return CacheView(self, self._flat_index(columns), span)

    def prompts(self, rows: Tensor, length: int) -> CacheView:
        """A pass over whole prompts for the first columns of `rows` [n]; its queries see the prompts only."""
        return CacheView(self, (self._first[rows] + torch.arange(length, device=rows.device)).flatten(), None)

    def _flat_index(self, columns: Tensor) -> Tensor:
        return (columns + self._first).flatten()

    def read(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """Views of the first `span` columns of one layer: keys and values, each [R, kv_heads, span, head_dim]."""
        keys, values = self._heads[layer]
        return keys.narrow(2, 0, span), values.narrow(2, 0, span)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy columns `source` [R, n] to columns `target` [R, n] in all layers. The two may overlap."""
        self.storage.index_copy_(2, self._flat_index(target), self.storage.index_select(2, self._flat_index(source)))

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


@dataclass(frozen=True, slots=True)
class CacheView:
    """The cache for one pass of a transformer.

    flat [R * S]: where the pass stores its keys and values. span: columns that its queries see; None: its own inputs.
    """

    cache: KVCache
    flat: Tensor
    span: int | None

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values [R, S, kv_heads, head_dim]; returns the visible ones, each
        [R, kv_heads, span, head_dim].
        """
        for stored, new in zip(self.cache.by_position[layer], (keys, values), strict=True):
            stored.index_copy_(0, self.flat, new.reshape(-1, stored.shape[1]))
        if self.span is None:
            return keys.transpose(1, 2), values.transpose(1, 2)
        return self.cache.read(layer, self.span)
