"""The state of the captions that are decoded together: tokens, caches, masks and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from search_spaces.drafters import DrafterChoice
from workers.data.grid import Grid
from workers.decoding.graphs import Capture, PassGraphs
from workers.decoding.rng import CounterRNG
from workers.decoding.row_buffers import RowBuffers
from workers.decoding.row_ends import RowEndPass, RowEnds
from workers.decoding.sampling import (
    guided_logits,
    repeat_streams,
    repeat_streams_unless_shared,
    stream_count,
    stream_rows,
)
from workers.decoding.tree import TreeShape
from workers.models.cache import KVCache
from workers.models.masks import AttentionMask


@dataclass(frozen=True, slots=True)
class Request:
    """One image to generate: a caption, its id and a sample index. The id and the sample index seed
    its random numbers.
    """

    caption_id: int
    caption: str
    sample: int = 0


# In static batches `max_emitted` is rounded up to one of so many values, at least so far apart.
_MAX_SPANS = 16
_MIN_SPAN_STEP = 32


class Batch:
    """B captions in flight. Rows of the transformer are the B conditional streams, then, under
    classifier-free guidance of scale `cfg`, the B unconditional ones (R = streams x B). Row b of
    the cache holds prompt_len + emitted[b] - 1 positions.

    Images are decoded in raster order here. A subclass may decode an image at F `wavefronts` at
    once. What drafters and the acceptor read then has an entry for every wavefront, as if each were
    a caption, [F * B]: all captions' first wavefronts come first. Only what is said to be of images
    has B entries.

    A batch with CUDA graphs is `static`: its addresses do not change, and its shapes only with the
    number of rows and in steps of many tokens. A row without an image is idle then: it is computed
    and emits nothing.
    """

    rng: CounterRNG  # the images' random numbers
    emitted: Tensor  # [B] how many image tokens are emitted
    root: Tensor  # [B] the last emitted token, whose keys and values are not cached yet
    # [B] 1 for images whose first token had probs that were not finite, else 0.
    failed_prefills: Tensor
    row_ends: RowEnds | None  # the end-of-row tokens, for targets that have them
    # The tensors that passes replace. A drafter or drafting adds its own.
    buffers: RowBuffers
    graphs: PassGraphs | None  # the CUDA graphs of passes; None if they run eagerly
    # The next `reach` positions of every row.
    token_positions: Tensor  # [B, reach] positions from the next image token on
    columns: Tensor  # [R, reach] cache columns from the root's on
    # [R, reach] the entries of `columns` in the rotation table: the same numbers, unless `row_ends`
    # have columns between prompt and image.
    rope_positions: Tensor

    @classmethod
    def of(cls, choice: DrafterChoice, grid: Grid, size: int, **arguments: Any) -> Self:
        """A batch for the drafter of that declaration, which names this class, and for images of
        `grid`; `arguments` are the others of `Batch`.
        """
        return cls(size, image_len=grid.tokens, **arguments)

    def __init__(
        self,
        size: int,
        *,
        cfg: float,
        prompt_len: int,
        image_len: int,
        reach: int,
        cache: KVCache,
        row_ends: RowEnds | None = None,
        capture: Capture | None = None,
        wavefronts: int = 1,
    ) -> None:
        device = cache.storage.device
        self.cfg = cfg
        self.prompt_len = prompt_len
        self.image_len = image_len
        self.cache = cache
        self.streams = stream_count(cfg)
        self.static = capture is not None
        self.wavefronts = wavefronts
        self.rng = CounterRNG(torch.zeros(size, dtype=torch.int64, device=device), image_len)
        self.emitted = torch.ones(wavefronts * size, dtype=torch.int64, device=device)
        self.root = torch.zeros_like(self.emitted)
        self._advances = torch.ones_like(self.emitted)  # 0 in idle rows
        self.failed_prefills = torch.zeros(size, dtype=torch.int64, device=device)
        self.row_ends = row_ends
        self.image_column = prompt_len  # the column of the image's first token
        if row_ends:
            self.image_column += row_ends.rows
        self.sync_host_counts([1])
        self.attention_mask = AttentionMask(
            self.streams * size,
            cache.columns,
            dtype=cache.storage.dtype,
            device=device,
            order=self.sequence_order(),
        )
        self._tokens = torch.zeros(size, image_len + reach, dtype=torch.int64, device=device)
        self._offsets = torch.arange(reach, device=device)
        # `columns` is this plus `emitted`
        self._columns = (self._offsets + (self.image_column - 1)).expand(self.streams, 1, -1)
        self._update_positions()
        self.buffers = RowBuffers(size, fixed=self.static)
        self.graphs = PassGraphs(capture, self.buffers) if capture else None
        self.buffers.add_cache(cache)
        self.buffers.add(self.rng, "keys")
        self.buffers.add(self.attention_mask, "padding")
        self.buffers.add(self, "emitted", "root", "_advances", "failed_prefills", "_tokens")
        self.buffers.add(self, "token_positions", "columns", "rope_positions")

    def sequence_order(self) -> Tensor | None:
        """Each cache column's place in the sequence, [columns]: a query sees the columns whose
        place is at most its own. None: columns are in order.
        """
        if self.row_ends is None:
            return None
        return self.row_ends.sequence_order(self.cache.columns, self.cache.storage.device)

    @property
    def images(self) -> int:
        """Number of captions, B."""
        return self.buffers.size

    @property
    def size(self) -> int:
        """Number of draft trees of a pass: B, or F * B."""
        return self.wavefronts * self.images

    @property
    def so_far(self) -> Tensor:
        """How many tokens of each image are emitted, [B]."""
        return self.emitted

    def by_image(self, x: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
        """What is reported of each image [B], from values of each wavefront."""
        if self.wavefronts == 1:
            return x
        return reduce(x.view(self.wavefronts, -1), 0)

    def only_open(self, x: Tensor) -> Tensor:
        """Values [B] of each draft tree, with -1 where a pass decides nothing by it."""
        return x

    def rows(self, indices: Tensor) -> Tensor:
        """Transformer rows of the captions at indices [n]: the conditional rows, then the
        unconditional ones.
        """
        return stream_rows(indices, self.streams, self.images)

    def per_row(self, x: Tensor) -> Tensor:
        """Repeat a per-caption tensor [B, ...] for every stream: [R, ...]."""
        return repeat_streams(x, self.streams)

    def per_row_unless_shared(self, x: Tensor) -> Tensor:
        """`per_row` of a tensor [B|1, ...]; a single entry serves all rows and is returned as it
        is.
        """
        return repeat_streams_unless_shared(x, self.streams)

    def guided_logits(self, head: nn.Module, features: Tensor) -> Tensor:
        """Guided logits [B, ..., V] in fp32, from features [R, ..., D] before a head."""
        return guided_logits(head, features, self.cfg)

    def join_wavefronts(
        self, x: Tensor, columns: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A pass's inputs [R, S, D], columns and positions [R, S] as the transformer takes them:
        with the slots of an image's wavefronts side by side.
        """
        return x, columns, positions

    def split_wavefronts(self, features: Tensor) -> Tensor:
        """A pass's features [R, S, D] of each wavefront, from those of each image."""
        return features

    def chain_mask(self, columns: Tensor) -> Tensor:
        """The attention mask [R, 1, S, columns] of a pass whose inputs are chains."""
        return self.attention_mask.chain(columns)

    def row_end_pass(self, shape: TreeShape) -> RowEndPass | None:
        """The row ends that a pass over a tree of this shape needs; None if no tree node can end a
        row.
        """
        beyond = shape.max_depth - self.cells_to_row_end
        if self.row_ends is None or beyond < 0:
            return None
        return RowEndPass(
            self.row_ends,
            shape,
            self.columns,
            self.streams,
            max_ends=beyond // self.row_ends.cols + 1,
        )

    @property
    def keys(self) -> Tensor:
        """The keys [B] of the images' random numbers."""
        return self.rng.keys

    @property
    def tokens(self) -> Tensor:
        """The image tokens [B, image_len]; they are undefined from index emitted[b] on."""
        return self._tokens[:, : self.image_len]

    @property
    def remaining(self) -> Tensor:
        """How many image tokens are not emitted yet, [B]."""
        return self.image_len - self.emitted

    def sync_host_counts(self, emitted: Sequence[int]) -> None:
        """Update the CPU copies of the token counts between passes: `max_emitted`, the largest of
        `emitted`, and `cells_to_row_end`, the fewest cells between a root and the end of its image
        row. In a static batch, the first is rounded up to one of few numbers, and the second is
        always 0.
        """
        self.max_emitted = max(emitted, default=1)
        self.cells_to_row_end = 0
        if self.static:
            step = max(_MIN_SPAN_STEP, -(-self.image_len // _MAX_SPANS))
            self.max_emitted = min(self.image_len, -(-self.max_emitted // step) * step)
        elif self.row_ends:
            cols = self.row_ends.cols
            self.cells_to_row_end = min(
                (cols - 1 - (count - 1) % cols for count in emitted), default=0
            )

    def admit(
        self,
        indices: Tensor,
        keys: Tensor,
        first_tokens: Tensor,
        valid: Tensor,
        nonfinite: Tensor | None = None,
    ) -> None:
        """Put new captions at indices of the batch.

        Args:
            indices: [n] where the captions are put.
            keys: [n] the keys of their random numbers.
            first_tokens: [n] their first tokens.
            valid: [n * streams, P] which tokens of their prompts may be attended to.
            nonfinite: [n] whether the probs of a first token were not finite; None if all were.
        """
        self.rng.admit(indices, keys)
        self.emitted[indices] = 1
        self._advances[indices] = 1
        if nonfinite is None:
            self.failed_prefills[indices] = torch.zeros_like(indices)
        else:
            self.failed_prefills[indices] = nonfinite.long()
        self._tokens[indices, 0] = first_tokens
        self.root[indices] = first_tokens
        self.attention_mask.admit(self.rows(indices), valid)
        self._update_positions()

    def commit(self, tokens: Tensor, counts: Tensor, root: Tensor) -> Tensor:
        """Append the first counts[b] of tokens [B, W] of each caption b: accepted drafts, then the
        resampled or bonus token. Returns how many tokens of each image were appended.
        """
        # the next pass overwrites the surplus entries
        self._tokens.scatter_(1, self.token_positions[:, : tokens.shape[1]], tokens)
        self.emitted = torch.addcmul(self.emitted, counts, self._advances)
        self.root = root
        self._update_positions()
        return counts

    def idle(self, indices: Tensor) -> None:
        """Let the rows at indices [n] emit nothing until new captions are put there."""
        self._advances[indices] = 0
        self.emitted[indices] = 1  # where they need the fewest columns
        self._update_positions()
        self.buffers.copy_back()

    def keep(self, indices: Tensor) -> None:
        """Keep only the captions at indices [n], in that order."""
        self.rng.keep(indices)
        self.buffers.keep(indices)

    def _update_positions(self) -> None:
        self.token_positions = self.emitted[:, None] + self._offsets
        self.columns = (self.emitted[:, None] + self._columns).flatten(0, 1)
        self.rope_positions = self.columns
        if self.row_ends:
            self.rope_positions = self.columns - self.row_ends.rows
