"""Several rows of an image at once (ZipAR, PJD): row r + 1 begins when row r has `lag` tokens.

An image has F wavefronts, each of which decodes one row; wavefront f has the rows f, f + F, and so
on. To drafters and to the acceptor a wavefront is a chain of its own: a root, its drafts, and the
tokens emitted, never past the row's end. A pass of the target has the chains of all wavefronts of
an image side by side.

A cell has the column and the position that it has in raster order, so nothing is ever moved. A
query sees the prompt, the tokens that were emitted in the rows above, and its own row up to itself:
not the cells above that are still empty, and not the drafts of other rows. That is less than in
raster order, so images do not have the target's distribution, unless the target reads no more than
the cells to the left and above, of which a chain always has the tokens.

The row's first token is predicted by the end of the row above: by its row end, if the target has
them, else by its last token. Where that is not emitted yet, a stand-in takes its place: the last
token there is of the row above that one. Its keys and values are overwritten when the row's last
token is fed, one pass after it was emitted. Without row ends, the first row is decoded alone, as
there is nothing to stand in for its end.

Sources: ZipAR (arXiv 2412.04062) with the authors' code for LlamaGen and Lumina-mGPT, PJD (arXiv
2606.05703).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.drafters import DrafterChoice
from workers.data.grid import Grid
from workers.decoding.rng import CounterRNG, Generate, Purpose
from workers.decoding.row_ends import RowEndPass
from workers.decoding.sampling import stream_rows
from workers.decoding.state import Batch
from workers.decoding.tree import TreeShape

# odd and large, so that no other key, position or purpose has the same numbers
_KEY_STEP = 0x632BE59BD9B4E019


def wavefront_count(grid: Grid, lag: int) -> int:
    """Rows that can be active at once if each emits one token a pass. The pass that feeds a row's
    last token counts.
    """
    return min(grid.rows, grid.cols // min(lag, grid.cols) + 1)


class WavefrontRNG(CounterRNG):
    """The random numbers of F wavefronts of B images: those of their images, by token position.

    The `keys` [F * B] are the images', or others in wavefronts that decide a position more than
    once (see `renew`). Samples and exponential noise always have the images' keys.
    """

    def __init__(self, images: CounterRNG, wavefronts: int) -> None:
        super().__init__(images.keys.repeat(wavefronts), images.positions)
        self.images = images

    def renew(self, where: Tensor) -> None:
        """Give new keys to the wavefronts at which `where` [F * B] is 1."""
        self.keys = self.keys + where * _KEY_STEP

    def by_slot(
        self, generate: Generate, purpose: Purpose, positions: Tensor, first: int
    ) -> Tensor:
        slots = torch.arange(first, first + positions.shape[1], device=positions.device)
        return generate(self.keys[:, None], positions.clamp(max=self.positions - 1), purpose, slots)

    def _numbers(
        self, generate: Generate, purpose: Purpose, positions: Tensor, slots: int, first: int = 0
    ) -> Tensor:
        wavefronts = len(positions) // len(self.images.keys)
        if purpose == Purpose.ACCEPT:
            places = positions.clamp(max=self.positions - 1)[..., None]
            return generate(
                self.keys[:, None, None],
                places,
                purpose,
                torch.arange(slots, device=positions.device),
            )
        by_image = positions.view(wavefronts, -1, positions.shape[1]).transpose(0, 1).flatten(1)
        numbers = self.images._numbers(generate, purpose, by_image, slots)
        return numbers.view(-1, wavefronts, positions.shape[1], slots).transpose(0, 1).flatten(0, 1)


class RowsBatch(Batch):
    """A batch whose images are decoded at several rows at once, one for each wavefront (see
    `Batch`). `emitted` counts the image tokens up to the wavefront's next one in raster order.
    """

    # [B, rows + 2] how many tokens of each image row are emitted, between two complete rows above
    # and below the image.
    counts: Tensor
    row: Tensor  # [F * B] each wavefront's row; `rows` when none is left
    above: Tensor  # [F * B] how many tokens of the row above are emitted
    own: Tensor  # [F * B] how many tokens of the row are emitted
    is_open: Tensor  # [F * B] whether a pass emits tokens: the row has begun and is not complete
    # Whether, in targets without row ends, the second row waits for the whole first row.
    first_row_is_alone: ClassVar[bool] = True

    @classmethod
    def of(cls, choice: DrafterChoice, grid: Grid, size: int, **arguments: Any) -> Self:
        assert choice.row_lag is not None
        return cls(size, grid=grid, lag=choice.row_lag, image_len=grid.tokens, **arguments)

    def __init__(self, size: int, *, grid: Grid, lag: int, **arguments: Any) -> None:
        self.grid = grid
        self.lag = min(lag, grid.cols)
        wavefronts = wavefront_count(grid, lag)
        device = arguments["cache"].storage.device
        # tokens of the row above with which a row begins; the first row begins with the prefill
        lags = [0, *[self.lag] * (grid.rows - 1), grid.cols]
        if arguments["row_ends"] is None and self.first_row_is_alone:
            lags[1] = grid.cols
        self._lags = torch.tensor(lags, device=device)
        self._first_counts = torch.tensor(
            [grid.cols, 1, *[0] * (grid.rows - 1), grid.cols], device=device
        )
        self._first_rows = torch.arange(wavefronts, device=device).clamp(max=grid.rows)
        self._cells = torch.arange(grid.tokens, device=device)
        self.counts = self._first_counts.repeat(size, 1)
        self.row = self._first_rows.repeat_interleave(size)
        super().__init__(size, wavefronts=wavefronts, **arguments)
        self.image_rng = self.rng
        self.rng: WavefrontRNG = WavefrontRNG(self.image_rng, wavefronts)
        self.buffers.add(self.rng, "keys")
        self.buffers.add(self, "counts", "row", "above", "own", "is_open")

    def wavefronts_of(self, indices: Tensor) -> Tensor:
        """The wavefronts [F * n] of the captions at indices [n]."""
        return stream_rows(indices, self.wavefronts, self.images)

    @property
    def so_far(self) -> Tensor:
        return self.counts[:, 1:-1].sum(1)

    def only_open(self, x: Tensor) -> Tensor:
        return torch.where(self.is_open, x, -1)

    def sync_host_counts(self, emitted: Sequence[int]) -> None:
        # the last token of an image with so many tokens is at most `missing` cells farther: all
        # rows above the wavefronts' are complete, and those between have `lag` tokens or more
        missing = (self.wavefronts - 1) * (self.grid.cols - self.lag)
        super().sync_host_counts([min(count + missing, self.image_len) for count in emitted])

    def row_end_pass(self, shape: TreeShape) -> RowEndPass | None:
        return None  # a row's first token comes from the wavefront's own root

    def join_wavefronts(
        self, x: Tensor, columns: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.row_ends:
            begins = self.per_row(self.own == 0)
            root = torch.where(begins[:, None, None], self.row_ends.embedding.to(x.dtype), x[:, :1])
            x = torch.cat([root, x[:, 1:]], dim=1)
        return self._join(x), self._join(columns), self._join(positions)

    def _join(self, x: Tensor) -> Tensor:
        """[R, F * S, ...], of each image, from [F * R, S, ...], of each wavefront."""
        by_wavefront = x.reshape(self.streams, self.wavefronts, self.images, *x.shape[1:])
        return by_wavefront.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def split_wavefronts(self, features: Tensor) -> Tensor:
        x = features.view(self.streams, self.images, self.wavefronts, -1, features.shape[2])
        return x.transpose(1, 2).flatten(0, 2)

    def chain_mask(self, columns: Tensor) -> Tensor:
        mask = super().chain_mask(columns)
        is_emitted = (
            torch.arange(self.grid.cols, device=columns.device) < self.counts[:, 1:-1, None]
        )
        root = self.emitted - 1  # the wavefront's first own cell, where it has its stand-in
        if self.row_ends:
            root = root + (self.own == 0)
        is_above = self._cells < root.view(self.wavefronts, -1).T[..., None]  # [B, F, cells]
        hidden = self.per_row(is_above & ~is_emitted.flatten(1)[:, None])
        hidden = pad(
            hidden, (self.image_column, mask.shape[3] - self.image_column - self.image_len)
        )
        by_wavefront = mask.view(len(mask), self.wavefronts, -1, mask.shape[3])
        return by_wavefront.masked_fill_(hidden[:, :, None], -torch.inf).view_as(mask)

    def admit(
        self,
        indices: Tensor,
        keys: Tensor,
        first_tokens: Tensor,
        valid: Tensor,
        nonfinite: Tensor | None = None,
    ) -> None:
        wavefronts = self.wavefronts_of(indices)
        self.image_rng.admit(indices, keys)
        self.rng.keys = self.rng.keys.index_copy(0, wavefronts, keys.repeat(self.wavefronts))
        self._advances[wavefronts] = 1
        if nonfinite is None:
            self.failed_prefills[indices] = torch.zeros_like(indices)
        else:
            self.failed_prefills[indices] = nonfinite.long()
        self._tokens[indices, 0] = first_tokens
        self.attention_mask.admit(self.rows(indices), valid)
        self._restart(indices)

    def idle(self, indices: Tensor) -> None:
        self._advances[self.wavefronts_of(indices)] = 0
        self._restart(indices)
        self.buffers.copy_back()

    def _restart(self, indices: Tensor) -> None:
        self.counts[indices] = self._first_counts
        self.row[self.wavefronts_of(indices)] = self._first_rows.repeat_interleave(len(indices))
        self._update_positions()

    def keep(self, indices: Tensor) -> None:
        self.image_rng.keep(indices)
        self.buffers.keep(indices)

    def commit(self, tokens: Tensor, counts: Tensor, root: Tensor) -> Tensor:
        width = tokens.shape[1]
        counts = counts * self.is_open
        is_new = torch.arange(width, device=tokens.device) < counts[:, None]
        # the entry after the image's last takes the surplus
        places = torch.where(is_new, self.token_positions[:, :width], self.image_len)
        self._tokens.scatter_(1, self._by_image(places), self._by_image(tokens))
        self.counts = self.counts.scatter_add(
            1, self._by_image(self.row + 1), self._by_image(counts)
        )
        is_fed = self.own >= self.grid.cols  # the pass has fed the row's last token
        self.row = torch.where(is_fed, self.row + self.wavefronts, self.row).clamp(
            max=self.grid.rows
        )
        self._update_positions()
        return self.by_image(counts, torch.sum)

    def _by_image(self, x: Tensor) -> Tensor:
        """[B, F * ...], from values [F * B, ...]."""
        return x.view(self.wavefronts, -1, *x.shape[1:]).transpose(0, 1).flatten(1)

    def _update_positions(self) -> None:
        cols = self.grid.cols
        row = self.row
        near = torch.stack([(row - 1).clamp(min=0), row, row + 1], dim=1)
        upper, self.above, self.own = (
            self.counts.repeat(self.wavefronts, 1).gather(1, near).unbind(1)
        )
        self.is_open = (self.above >= self._lags[row]) & (self.own < cols) & (self._advances > 0)
        self.emitted = (row * cols + self.own).clamp(max=self.image_len)
        begins = self.own == 0
        stands_in = begins & (self.above < cols)
        root = torch.where(stands_in, (row - 2) * cols + upper, self.emitted).sub(1).clamp(min=0)
        self.root = self._tokens.gather(1, self._by_image(root)).T.flatten()
        super()._update_positions()
        # drafts in a row's last cell and after it are never accepted; columns after the image's
        # take them
        cells = self.token_positions - 1
        is_surplus = (self._offsets > 0) & (cells >= row[:, None] * cols + (cols - 1))
        spare = self._offsets + (self.image_column + self.image_len - 1)
        self.columns = torch.where(self.per_row(is_surplus), spare, self.columns)
        if self.row_ends:
            starts = self.per_row(begins[:, None] & (self._offsets == 0))
            end = self.per_row(row[:, None] - 1)
            self.columns = torch.where(starts, self.row_ends.first_column + end, self.columns)
            self.rope_positions = torch.where(
                starts, self.row_ends.first_position + end, self.rope_positions
            )
