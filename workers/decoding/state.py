"""The committed state of the captions that are decoded together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.rng import Numbers
from workers.decoding.tree import barrier
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

    numbers: the images' random numbers. emitted [B]: image tokens drawn so far. tokens [B, image_len]: them. root [B]:
    the last of them; its keys and values are not cached yet. The cache of row b holds prompt_len + emitted[b] - 1
    positions; `barrier` [R, columns] is 0 at those a query may attend to (the prompt's padding excluded), else -inf.
    """

    def __init__(
        self,
        size: int,
        *,
        guided: bool,
        prompt_len: int,
        image_len: int,
        cache: KVCache,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.size, self.guided, self.prompt_len, self.image_len, self.cache = size, guided, prompt_len, image_len, cache
        self.streams = 2 if guided else 1
        self.numbers = Numbers(torch.zeros(size, dtype=torch.int64, device=device), image_len)
        self.emitted = torch.ones(size, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(size, image_len, dtype=torch.int64, device=device)
        self.root = torch.zeros(size, dtype=torch.int64, device=device)
        self.furthest = 1  # the largest of `emitted`, as the host knows it between rounds
        self.barrier = torch.full((self.streams * size, cache.columns), -torch.inf, dtype=dtype, device=device)
        self._column = torch.arange(cache.columns, device=device)

    def rows(self, captions: Tensor) -> Tensor:
        """Transformer rows of captions [n]: the conditional ones, then the unconditional ones."""
        return torch.cat([captions + stream * self.size for stream in range(self.streams)])

    def per_row(self, x: Tensor) -> Tensor:
        """Repeat a per-caption tensor [B, ...] for every stream: [R, ...]."""
        return torch.cat([x] * self.streams) if self.streams > 1 else x

    @property
    def keys(self) -> Tensor:
        """[B] what the images' random numbers are keyed by."""
        return self.numbers.keys

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
        self.numbers.admit(captions, keys)
        self.emitted[captions] = 1
        self.tokens[captions, 0] = first
        self.root[captions] = first
        padded = torch.nn.functional.pad(valid, (0, self.barrier.shape[1] - valid.shape[1]))
        self.barrier[self.rows(captions)] = barrier(padded).to(self.barrier.dtype)

    def commit(self, path_tokens: Tensor, counts: Tensor, root: Tensor) -> None:
        """Append each row's first counts [B] of path_tokens [B, W] (accepted drafts, then the resampled or bonus
        token).
        """
        order = self._column[: path_tokens.shape[1]]
        place = self.emitted[:, None] + order
        kept = order < counts[:, None]
        # what was cached for the root and the accepted drafts may be seen from now on; later columns may not
        shut = torch.where(kept, 0.0, -torch.inf).to(self.barrier.dtype)
        self.barrier.scatter_(1, self.per_row(place + (self.prompt_len - 1)), self.per_row(shut))
        # surplus entries rewrite the row's first token with itself
        self.tokens.scatter_(1, torch.where(kept, place, 0), torch.where(kept, path_tokens, self.tokens[:, :1]))
        self.emitted = self.emitted + counts
        self.root = root

    def keep(self, captions: Tensor) -> None:
        """Keep only captions [n] (indices), in that order."""
        rows = self.rows(captions)
        self.cache.keep(rows)
        self.barrier = self.barrier[rows]
        self.numbers.keep(captions)
        self.emitted, self.tokens, self.root = self.emitted[captions], self.tokens[captions], self.root[captions]
        self.size = int(captions.numel())


def block_mask(committed: Tensor, start: Tensor, block: Tensor, span: int) -> Tensor:
    """The additive attention mask [R, 1, S, span] of a block of S queries.

    A query sees what the barrier `committed` [R, columns] leaves open and, of the W columns from start [R] on, what
    block [R|1, S, W] (additive) does.
    """
    rows, (_, queries, width) = committed.shape[0], block.shape
    mask = committed[:, None, :span].repeat(1, queries, 1)
    columns = start[:, None] + torch.arange(width, device=start.device)
    mask.scatter_(2, columns[:, None].expand(rows, queries, width), block.to(mask.dtype).expand(rows, queries, width))
    return mask[:, None]
