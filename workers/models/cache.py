"""The key-value cache: one preallocated block for all layers, written and moved by flat row indices.

Columns are handed out by the caller. Nothing is ever cleared: what a query may see is decided by its attention mask,
so a rejected draft costs nothing but the column that the next round overwrites.
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
        self.storage = torch.zeros(layers, 2, rows * columns, kv_heads * head_dim, dtype=dtype, device=device)

    def flat(self, columns: Tensor) -> Tensor:
        """Flat indices [R * S] of per-row columns [R, S]."""
        offset = torch.arange(0, self.rows * self.columns, self.columns, device=columns.device)
        return (columns + offset[:, None]).reshape(-1)

    def write(self, layer: int, keys: Tensor, values: Tensor, flat: Tensor) -> None:
        """Store keys and values [R, S, kv_heads, head_dim] of one layer at flat indices [R * S]."""
        width = self.kv_heads * self.head_dim
        self.storage[layer, 0].index_copy_(0, flat, keys.reshape(-1, width))
        self.storage[layer, 1].index_copy_(0, flat, values.reshape(-1, width))

    def read(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """Views of the first `span` columns of one layer: keys and values, each [R, kv_heads, span, head_dim]."""
        block = self.storage[layer].view(2, self.rows, self.columns, self.kv_heads, self.head_dim)[:, :, :span]
        return block[0].transpose(1, 2), block[1].transpose(1, 2)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy rows from flat indices `source` to `target` (both [n]) in all layers. The two may overlap: read first,
        then write.
        """
        self.storage.index_copy_(2, target, self.storage.index_select(2, source))

    def put(self, rows: Tensor, other: KVCache) -> None:
        """Copy all of `other`'s sequences and columns into the first columns of `rows` [other.rows]."""
        layers, two, _, width = self.storage.shape
        block = self.storage.view(layers, two, self.rows, self.columns, width)
        block[:, :, rows, : other.columns] = other.storage.view(layers, two, other.rows, other.columns, width)

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` [n] (sequence indices), in that order. Frees the others' memory."""
        layers, two, _, width = self.storage.shape
        block = self.storage.view(layers, two, self.rows, self.columns * width)
        self.rows = int(rows.numel())
        self.storage = block.index_select(2, rows).view(layers, two, self.rows * self.columns, width)
