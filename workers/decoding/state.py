"""The committed state of the captions that are decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from workers.decoding.rng import CounterRNG
from workers.decoding.row_ends import RowEnds
from workers.decoding.tree import additive_mask
from workers.models.cache import KVCache


@dataclass(frozen=True, slots=True)
class Request:
    """One image to draw: a caption, its id and sample index (which key its random numbers)."""

    caption_id: int
    caption: str
    sample: int = 0


class Batch:
    """B captions in flight. Rows of the transformer are the B conditional streams, then (guided) the B unconditional
    ones.

    numbers: the images' random numbers. emitted [B]: image tokens drawn so far. root [B]: the last of them; its keys
    and values are not cached yet. The cache of row b holds prompt_len + emitted[b] - 1 positions.

    A round's first numbers, the same for all that take part in it: places [B, reach]: indices of the image tokens from
    the next one on; columns [R, reach]: the cache's columns from the root's on; positions [R, reach]: their entries in
    the rotation table, the same numbers unless `row_ends` have columns between prompt and image.
    """

    places: Tensor
    columns: Tensor
    positions: Tensor

    def __init__(
        self,
        size: int,
        *,
        guided: bool,
        prompt_len: int,
        image_len: int,
        reach: int,
        cache: KVCache,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        row_ends: RowEnds | None = None,
    ) -> None:
        self.size, self.guided, self.prompt_len, self.image_len, self.cache = size, guided, prompt_len, image_len, cache
        self.streams = 2 if guided else 1
        self.numbers = CounterRNG(torch.zeros(size, dtype=torch.int64, device=device), image_len)
        self.emitted = torch.ones(size, dtype=torch.int64, device=device)
        self.root = torch.zeros(size, dtype=torch.int64, device=device)
        self.row_ends = row_ends
        self.first = prompt_len + (row_ends.rows if row_ends else 0)  # column of the image's first token
        self.sync_host_counts([1])
        order = row_ends.order(cache.columns, device) if row_ends else None
        self.attention_mask = AttentionMask(self.streams * size, cache.columns, dtype=dtype, device=device, order=order)
        self._tokens = torch.zeros(size, image_len + reach, dtype=torch.int64, device=device)
        self._ahead = torch.arange(reach, device=device)
        self._look_ahead()

    def rows(self, captions: Tensor) -> Tensor:
        """Transformer rows of captions [n]: the conditional ones, then the unconditional ones."""
        return torch.cat([captions + stream * self.size for stream in range(self.streams)])

    def per_row(self, x: Tensor) -> Tensor:
        """Repeat a per-caption tensor [B, ...] for every stream: [R, ...]."""
        return torch.cat([x] * self.streams) if self.streams > 1 else x

    def shared(self, x: Tensor) -> Tensor:
        """`per_row` of a tensor [B|1, ...], left as it is where one entry serves all."""
        return x if x.shape[0] == 1 else self.per_row(x)

    @property
    def keys(self) -> Tensor:
        """[B] what the images' random numbers are keyed by."""
        return self.numbers.keys

    @property
    def tokens(self) -> Tensor:
        """[B, image_len] the image tokens; from index emitted[b] on they mean nothing."""
        return self._tokens[:, : self.image_len]

    @property
    def missing(self) -> Tensor:
        """[B] tokens still to draw."""
        return self.image_len - self.emitted

    def sync_host_counts(self, emitted: Sequence[int]) -> None:
        """What the host knows between rounds: `furthest`, the largest of `emitted`, and `to_row_end`, the fewest cells
        that lie between a root and the end of its row.
        """
        self.max_emitted = max(emitted, default=1)
        if self.row_ends:
            self.to_row_end = min((self.row_ends.until(count - 1) for count in emitted), default=0)

    def admit(self, captions: Tensor, keys: Tensor, first: Tensor, valid: Tensor) -> None:
        """Put new captions at indices [n]: their keys [n], first tokens [n] and prompt validity [n * streams, P]."""
        self.numbers.admit(captions, keys)
        self.emitted[captions] = 1
        self._tokens[captions, 0] = first
        self.root[captions] = first
        self.attention_mask.admit(self.rows(captions), valid)
        self._look_ahead()

    def commit(self, path_tokens: Tensor, counts: Tensor, root: Tensor) -> None:
        """Append each row's first counts [B] of path_tokens [B, W] (accepted drafts, then the resampled or bonus
        token).
        """
        # surplus entries lie where the next round writes
        self._tokens.scatter_(1, self.places[:, : path_tokens.shape[1]], path_tokens)
        self.emitted = self.emitted + counts
        self.root = root
        self._look_ahead()

    def keep(self, captions: Tensor) -> None:
        """Keep only captions [n] (indices), in that order."""
        rows = self.rows(captions)
        self.cache.keep(rows)
        self.attention_mask.keep(rows)
        self.numbers.keep(captions)
        self.emitted, self._tokens, self.root = self.emitted[captions], self._tokens[captions], self.root[captions]
        self.size = int(captions.numel())
        self._look_ahead()

    def _look_ahead(self) -> None:
        self.places = self.emitted[:, None] + self._ahead
        self.columns = self.per_row(self.places) + (self.first - 1)
        self.positions = self.columns - self.row_ends.rows if self.row_ends else self.columns


class AttentionMask:
    """What the queries of R rows may attend to: every column of the cache up to their own, except the prompt's padding.

    Masks are additive (0 or -inf), in the cache's own dtype. What a round leaves behind needs no bookkeeping: accepted
    tokens fill the columns up to the next root, and no query looks past itself.
    """

    def __init__(
        self, rows: int, columns: int, *, dtype: torch.dtype, device: torch.device, order: Tensor | None = None
    ) -> None:
        """order [columns]: where each column stands in the sequence (None: as they are numbered)."""
        order = torch.arange(columns, device=device) if order is None else order
        self.upto = additive_mask(order[:, None] >= order).to(dtype)  # [columns, columns]
        self.padding = torch.zeros(rows, columns, dtype=dtype, device=device)

    def admit(self, rows: Tensor, valid: Tensor) -> None:
        """New captions at rows [n], with these prompts' validity [n, P]."""
        everything = pad(valid, (0, self.padding.shape[1] - valid.shape[1]), value=True)
        self.padding[rows] = additive_mask(everything).to(self.padding.dtype)

    def keep(self, rows: Tensor) -> None:
        """Keep only rows [n], in that order."""
        self.padding = self.padding[rows]

    def chain(self, columns: Tensor) -> Tensor:
        """The mask [R, 1, S, columns] of S queries at `columns` [R, S]."""
        return embedding(columns, self.upto).add_(self.padding[:, None])[:, None]

    def tree(self, columns: Tensor, block: Tensor) -> Tensor:
        """The mask [R, 1, S, columns] of a root and the tree below it at `columns` [R, S].

        All see what the root sees; of the tree's own columns, a slot sees what block [R|1, S, S] (additive) leaves it.
        """
        rows, slots = columns.shape
        seen = self.chain(columns[:, :1])[:, 0].expand(rows, slots, -1)
        own = columns[:, None].expand(rows, slots, slots)
        return seen.scatter(2, own, block.to(seen.dtype).expand(rows, slots, slots))[:, None]
