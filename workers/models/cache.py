"""The key-value cache: one preallocated block for all layers, written and moved by flat row
indices.

The caller assigns columns. Nothing is ever cleared: the attention mask decides what a query sees,
so a rejected draft only leaves a column that the next pass overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.models.attention import aligned


def moved_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows [n] come to lie if they move to the front in that order, and which they are; those
    that stay where they are left out.
    """
    targets = (rows != torch.arange(len(rows), device=rows.device)).nonzero().flatten()
    return targets, rows[targets]


class KVCache:
    """Keys and values of `rows` sequences, `columns` positions each.

    The storage has shape [layers, 2, rows * columns, kv_heads * head_dim]; a flat index is `row *
    columns + column`. head_dim is aligned for attention kernels; the channels beyond the given ones
    are zeros.
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
        self.capacity = rows
        self.columns = columns
        self.kv_heads = kv_heads
        self.head_dim = aligned(head_dim)
        self._block = torch.zeros(
            layers, 2, rows * columns, kv_heads * self.head_dim, dtype=dtype, device=device
        )
        self._starts = torch.arange(0, rows * columns, columns, device=device)[:, None]
        self.resize(rows)

    def resize(self, rows: int) -> None:
        """Use the first `rows` sequences of the block, at most `capacity`."""
        self.rows = rows
        self._first = self._starts[:rows]
        self.storage = self._block[:, :, : rows * self.columns]
        self.by_position = [layer.unbind() for layer in self.storage]
        heads = self._by_row().view(
            *self.storage.shape[:2], rows, self.columns, self.kv_heads, self.head_dim
        )
        self._heads = [layer.unbind() for layer in heads.transpose(3, 4)]

    def _by_row(self) -> Tensor:
        """The sequences in use [layers, 2, rows, columns, kv_heads * head_dim]."""
        layers, two, _, width = self.storage.shape
        return self.storage.view(layers, two, self.rows, self.columns, width)

    def at(self, columns: Tensor, span: int) -> CacheView:
        """A pass at per-row columns [R, S], whose queries see the first `span` columns."""
        return CacheView(self, self._flat_index(columns), span)

    def prompts(self, rows: Tensor, length: int) -> CacheView:
        """A pass over whole prompts for the first columns of `rows` [n]; its queries see the
        prompts only.
        """
        return CacheView(
            self, (self._first[rows] + torch.arange(length, device=rows.device)).flatten(), None
        )

    def _flat_index(self, columns: Tensor) -> Tensor:
        return (columns + self._first).flatten()

    def read(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """Views of the first `span` columns of one layer: keys and values, each [R, kv_heads, span,
        head_dim].
        """
        keys, values = self._heads[layer]
        return keys.narrow(2, 0, span), values.narrow(2, 0, span)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy columns `source` [R, n] to columns `target` [R, n] in all layers. The two may
        overlap.
        """
        self.storage.index_copy_(
            2, self._flat_index(target), self.storage.index_select(2, self._flat_index(source))
        )

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` [n] (sequence indices), in that order, at the front of the block. A row
        that is where it belongs is not copied.
        """
        targets, sources = moved_rows(rows)
        for part in self._by_row().flatten(0, 1).unbind():
            part.index_copy_(0, targets, part.index_select(0, sources))
        self.resize(len(rows))


@dataclass(frozen=True, slots=True)
class CacheView:
    """The cache for one pass of a transformer."""

    cache: KVCache
    flat: Tensor  # [R * S] flat indices at which the pass stores its keys and values
    span: int | None  # columns that its queries see; None: the pass's own inputs

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys and values [R, S, kv_heads, C]; returns the visible ones, each
        [R, kv_heads, span, head_dim].
        """
        if missing := self.cache.head_dim - keys.shape[3]:
            keys = pad(keys, (0, missing))
            values = pad(values, (0, missing))
        for stored, new in zip(self.cache.by_position[layer], (keys, values), strict=True):
            stored.index_copy_(0, self.flat, new.reshape(-1, stored.shape[1]))
        if self.span is None:
            return keys.transpose(1, 2), values.transpose(1, 2)
        return self.cache.read(layer, self.span)

    def fill(self, other: CacheView) -> None:
        """Store what another pass has stored, in all layers."""
        self.cache.storage.index_copy_(
            2, self.flat, other.cache.storage.index_select(2, other.flat)
        )
