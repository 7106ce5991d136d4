"""The state of the captions that are decoded together: tokens, caches, masks and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.rng import CounterRNG
from workers.decoding.row_ends import RowEndPass, RowEnds
from workers.decoding.sampling import repeat_streams, repeat_streams_unless_shared, stream_rows
from workers.decoding.tree import TreeShape
from workers.models.cache import KVCache
from workers.models.masks import AttentionMask


@dataclass(frozen=True, slots=True)
class Request:
    """One image to draw: a caption, its id and a sample index. The id and the sample index seed its random numbers."""

    caption_id: int
    caption: str
    sample: int = 0


class Batch:
    """B captions in flight. Rows of the transformer are the B conditional streams, then, under classifier-free
    guidance, the B unconditional ones.

    rng: the images' random numbers. emitted [B]: image tokens emitted so far. root [B]: the last of them, whose keys
    and values are not cached yet. Row b of the cache holds prompt_len + emitted[b] - 1 positions.

    row_ends: the end-of-row tokens, for targets that have them.

    The next `reach` positions of every row (R = streams x B): token_positions [B, reach], from the next image token on;
    columns [R, reach], from the root's cache column on; rope_positions [R, reach], the entries of those columns in the
    rotation table (the same numbers, unless `row_ends` have columns between prompt and image).
    """

    token_positions: Tensor
    columns: Tensor
    rope_positions: Tensor

    def __init__(
        self,
        size: int,
        *,
        guided: bool,
        prompt_len: int,
        image_len: int,
        reach: int,
        cache: KVCache,
        row_ends: RowEnds | None = None,
    ) -> None:
        device = cache.storage.device
        self.size, self.guided, self.prompt_len, self.image_len, self.cache = size, guided, prompt_len, image_len, cache
        self.streams = 2 if guided else 1
        self.rng = CounterRNG(torch.zeros(size, dtype=torch.int64, device=device), image_len)
        self.emitted = torch.ones(size, dtype=torch.int64, device=device)
        self.root = torch.zeros(size, dtype=torch.int64, device=device)
        self.row_ends = row_ends
        self.image_column = prompt_len + (row_ends.rows if row_ends else 0)  # of the image's first token
        self.sync_host_counts([1])
        order = row_ends.sequence_order(cache.columns, device) if row_ends else None
        self.attention_mask = AttentionMask(
            self.streams * size, cache.columns, dtype=cache.storage.dtype, device=device, order=order
        )
        self._tokens = torch.zeros(size, image_len + reach, dtype=torch.int64, device=device)
        self._offsets = torch.arange(reach, device=device)
        self._update_positions()

    def rows(self, indices: Tensor) -> Tensor:
        """Transformer rows of the captions at indices [n]: the conditional rows, then the unconditional ones."""
        return stream_rows(indices, self.streams, self.size)

    def per_row(self, x: Tensor) -> Tensor:
        """Repeat a per-caption tensor [B, ...] for every stream: [R, ...]."""
        return repeat_streams(x, self.streams)

    def per_row_unless_shared(self, x: Tensor) -> Tensor:
        """`per_row` of a tensor [B|1, ...]; a single entry serves all rows and is returned as it is."""
        return repeat_streams_unless_shared(x, self.streams)

    def row_end_pass(self, shape: TreeShape) -> RowEndPass | None:
        """The row ends that a pass over a tree of this shape needs; None if no tree node can end a row."""
        beyond = shape.max_depth - self.cells_to_row_end
        if self.row_ends is None or beyond < 0:
            return None
        return RowEndPass(self.row_ends, shape, self.columns, self.streams, max_ends=beyond // self.row_ends.cols + 1)

    @property
    def keys(self) -> Tensor:
        """[B] keys of the images' random numbers."""
        return self.rng.keys

    @property
    def tokens(self) -> Tensor:
        """[B, image_len] image tokens; undefined from index emitted[b] on."""
        return self._tokens[:, : self.image_len]

    @property
    def remaining(self) -> Tensor:
        """[B] image tokens that are not emitted yet."""
        return self.image_len - self.emitted

    def sync_host_counts(self, emitted: Sequence[int]) -> None:
        """Update the CPU copies of the token counts between rounds: `max_emitted`, the largest of `emitted`, and
        `cells_to_row_end`, the fewest cells between a root and the end of its image row.
        """
        self.max_emitted = max(emitted, default=1)
        cols = self.row_ends.cols if self.row_ends else 1
        self.cells_to_row_end = min((cols - 1 - (count - 1) % cols for count in emitted), default=0)

    def admit(self, indices: Tensor, keys: Tensor, first_tokens: Tensor, valid: Tensor) -> None:
        """Put new captions at indices [n]: their keys [n], first tokens [n] and prompt validity [n * streams, P]."""
        self.rng.admit(indices, keys)
        self.emitted[indices] = 1
        self._tokens[indices, 0] = first_tokens
        self.root[indices] = first_tokens
        self.attention_mask.admit(self.rows(indices), valid)
        self._update_positions()

    def commit(self, tokens: Tensor, counts: Tensor, root: Tensor) -> None:
        """Append the first counts[b] of tokens [B, W] of each caption b: accepted drafts, then the resampled or bonus
        token.
        """
        # the next round overwrites the surplus entries
        self._tokens.scatter_(1, self.token_positions[:, : tokens.shape[1]], tokens)
        self.emitted = self.emitted + counts
        self.root = root
        self._update_positions()

    def keep(self, indices: Tensor) -> None:
        """Keep only the captions at indices [n], in that order."""
        rows = self.rows(indices)
        self.cache.keep(rows)
        self.attention_mask.keep(rows)
        self.rng.keep(indices)
        self.emitted, self._tokens, self.root = self.emitted[indices], self._tokens[indices], self.root[indices]
        self.size = int(indices.numel())
        self._update_positions()

    def _update_positions(self) -> None:
        self.token_positions = self.emitted[:, None] + self._offsets
        self.columns = self.per_row(self.token_positions) + (self.image_column - 1)
        self.rope_positions = self.columns - self.row_ends.rows if self.row_ends else self.columns
