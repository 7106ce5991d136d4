"""The committed state of the captions that are decoded together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.models.cache import KVCache


@dataclass(frozen=True, slots=True)
class Job:
    """One image to draw: a caption, its id and sample index (which key its random numbers)."""

    caption_id: int
    caption: str
    sample: int = 0


class Batch:
    """B captions in flight. Rows of the transformer are the B conditional streams, then (guided) the B unconditional
    ones.

    keys [B]: random keys. emitted [B]: image tokens drawn so far. tokens [B, image_len]: them. root [B]: the last of
    them; its keys and values are not cached yet. The cache of row b holds prompt_len + emitted[b] - 1 positions, and
    `seen` [R, columns] marks those a query may attend to (padding of the prompt excluded).
    """

    def __init__(
        self, size: int, *, guided: bool, prompt_len: int, image_len: int, cache: KVCache, device: torch.device
    ) -> None:
        self.size, self.guided, self.prompt_len, self.image_len, self.cache = size, guided, prompt_len, image_len, cache
        self.streams = 2 if guided else 1
        self.keys = torch.zeros(size, dtype=torch.int64, device=device)
        self.emitted = torch.ones(size, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(size, image_len, dtype=torch.int64, device=device)
        self.root = torch.zeros(size, dtype=torch.int64, device=device)
        self.furthest = 1  # the largest of `emitted`, as the host knows it between rounds
        self.seen = torch.zeros(self.streams * size, cache.columns, dtype=torch.bool, device=device)
        self._column = torch.arange(cache.columns, device=device)

    def rows(self, captions: Tensor) -> Tensor:
        """Transformer rows of captions [n]: the conditional ones, then the unconditional ones."""
        return torch.cat([captions + stream * self.size for stream in range(self.streams)])

    def per_row(self, x: Tensor) -> Tensor:
        """Repeat a per-caption tensor [B, ...] for every stream: [R, ...]."""
        return torch.cat([x] * self.streams) if self.streams > 1 else x

    @property
    def cached(self) -> Tensor:
        """[B] cached positions, which is also the column and the position of the root."""
        return self.emitted + (self.prompt_len - 1)

    @property
    def missing(self) -> Tensor:
        """[B] tokens still to draw."""
        return self.image_len - self.emitted

    def admit(self, captions: Tensor, keys: Tensor, first: Tensor, valid: Tensor) -> None:
        """Put new captions at indices [n]: their keys [n], first tokens [n] and prompt validity [n * streams, P]."""
        self.keys[captions] = keys
        self.emitted[captions] = 1
        self.tokens[captions, 0] = first
        self.root[captions] = first
        padded = torch.nn.functional.pad(valid, (0, self.cache.columns - valid.shape[1]))
        self.seen[self.rows(captions)] = padded

    def commit(self, path_tokens: Tensor, counts: Tensor, root: Tensor) -> None:
        """Append each row's first counts [B] of path_tokens [B, W] (accepted drafts, then the resampled or bonus
        token).
        """
        width = path_tokens.shape[1]
        place = self.emitted[:, None] + self._column[:width]
        kept = self._column[:width] < counts[:, None]
        # surplus entries rewrite the row's first token with itself
        place = torch.where(kept, place, 0)
        self.tokens.scatter_(1, place, torch.where(kept, path_tokens, self.tokens[:, :1]))
        before = self.per_row(self.cached)[:, None]
        self.emitted = self.emitted + counts
        after = self.per_row(self.cached)[:, None]
        self.seen |= (self._column >= before) & (self._column < after)
        self.root = root

    def keep(self, captions: Tensor) -> None:
        """Keep only captions [n] (indices), in that order."""
        rows = self.rows(captions)
        self.cache.keep(rows)
        self.seen = self.seen[rows]
        self.keys, self.emitted = self.keys[captions], self.emitted[captions]
        self.tokens, self.root = self.tokens[captions], self.root[captions]
        self.size = int(captions.numel())


def block_mask(seen: Tensor, start: Tensor, visible: Tensor, span: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The additive attention mask [R, 1, S, span] of a block of queries.

    A query sees the committed columns `seen` [R, columns] and, of the W block columns from start [R] on, those that
    visible [R|1, S, W] marks.
    """
    rows, (_, queries, width) = seen.shape[0], visible.shape
    # 0 where seen, -inf elsewhere; built from a float so that attention need not convert it in every layer
    mask = torch.zeros(rows, span, dtype=dtype, device=seen.device).masked_fill_(~seen[:, :span], -torch.inf)
    mask = mask[:, None].repeat(1, queries, 1)
    block = torch.zeros(visible.shape, dtype=dtype, device=seen.device).masked_fill_(~visible, -torch.inf)
    columns = start[:, None] + torch.arange(width, device=seen.device)
    mask.scatter_(2, columns[:, None].expand(rows, queries, width), block.expand(rows, queries, width))
    return mask[:, None]
