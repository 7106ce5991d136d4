"""Fixed tokens at the ends of image rows (Lumina-mGPT), which the target's passes add to the image
tokens.

The engine's tokens are image tokens only, for every family. If a target was trained with a fixed
token after every row, a pass that contains the last token of a row contains the row end after it:
later tokens attend to its keys and values, and its feature gives the probs of the next row's first
token. So a row end is never drafted, sampled or verified, has no neighbourhood, and is not counted:
an image of rows x cols has rows * cols tokens, and accepted lengths count only these, for vanilla
decoding (1) as for every other method.

Drafters see the image tokens only, at their positions in the whole sequence; the target's feature
before a row's first token is the row end's.

The target's cache holds: prompt | one column for each row end | image tokens | the drafts of a
pass. A chain has at most one token in a cell, so its row ends are written to their final columns at
once. In a tree any slot may end a row: each slot has a companion (a possible row end) in the
columns after the tree's, and the companions along the accepted path are moved to their final
columns.

Shape legend: R rows of the transformer, S slots of a pass, E row ends in the pass, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.sampling import repeat_streams_unless_shared
from workers.decoding.tree import TreeShape
from workers.models.masks import additive_mask, causal_padding_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig


class RowEnds:
    """Where the row ends are in the cache, in the sequence and in the rotation table."""

    def __init__(self, config: TransformerConfig, embedding: Tensor) -> None:
        """Row ends with the fixed token's embedding [D]."""
        self.rows = config.rows
        self.cols = config.cols
        self.embedding = embedding
        # the first row's end, in the cache and in the rotation table
        self.first_column = config.prompt_len
        self.first_position = config.positions
        self.image_column = self.first_column + self.rows  # the image's first token

    def sequence_order(self, columns: int, device: torch.device) -> Tensor:
        """Each cache column's index in the token sequence, [columns]."""
        prompt = torch.arange(self.first_column, device=device)
        ends = torch.arange(1, self.rows + 1, device=device) * (self.cols + 1) - 1
        cells = torch.arange(columns - self.image_column, device=device)
        return torch.cat(
            [prompt, self.first_column + ends, self.first_column + cells + cells // self.cols]
        )


@dataclass(slots=True)
class RowEndPass:
    """A pass of the target in which slots may end a row."""

    ends: RowEnds  # where the row ends are
    shape: TreeShape  # the draft tree's shape
    columns: Tensor  # [R, reach] cache columns, from the root's on
    streams: int  # rows of the transformer for each caption
    max_ends: int  # most row ends that a single path can meet

    def _cells(self, offsets: Tensor) -> Tensor:
        """Cells [R, n] at these distances [n] or [R|1, n] from the root."""
        return self.columns[:, :1] - self.ends.image_column + offsets

    def _ends_row(self, cells: Tensor) -> Tensor:
        """True for the cells that are the last of their row."""
        return cells % self.ends.cols == self.ends.cols - 1

    def _row(self, cells: Tensor) -> Tensor:
        """The cells' rows. Cells past the image have the last row, whose end no image token attends
        to.
        """
        return (cells // self.ends.cols).clamp(max=self.ends.rows - 1)

    def _slot_cells(self) -> Tensor:
        """Cells [R, S] of the slots."""
        return self._cells(repeat_streams_unless_shared(self.shape.offsets, self.streams))

    def extend(
        self, x: Tensor, columns: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [R, S + E, D], columns and positions [R, S + E]: those of the slots, then those of
        the row ends.
        """
        if self.shape.is_chain:
            ahead = torch.arange(self.max_ends, device=columns.device) * self.ends.cols
            rows = self._row(self._cells(ahead))
            end_columns = self.ends.first_column + rows
        else:
            slots = columns.shape[1]
            rows = self._row(self._slot_cells())
            end_columns = self.columns[:, slots : 2 * slots]
        embeddings = self.ends.embedding.to(x.dtype).expand(*rows.shape, -1)
        return (
            torch.cat([x, embeddings], dim=1),
            torch.cat([columns, end_columns], dim=1),
            torch.cat([positions, self.ends.first_position + rows], dim=1),
        )

    def tree_mask(self) -> Tensor:
        """The additive mask [R, 2S, 2S] among a tree's slots and their companions."""
        mask = repeat_streams_unless_shared(self.shape.mask, self.streams)
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        # only slots that end a row use their companion
        after_end = mask & self._ends_row(self._slot_cells())[:, None]
        mask = mask.expand_as(after_end)
        slots = torch.cat([mask, after_end & ~itself], dim=2)
        return additive_mask(
            torch.cat([slots, torch.cat([mask, after_end | itself], dim=2)], dim=1)
        )

    def next_token_features(self, features: Tensor) -> Tensor:
        """The features [R, S, D], of all [R, S + E, D], that predict the token after each slot: the
        slot's own, or the row end's where the slot ends a row.
        """
        cells = self._slot_cells()
        slots = torch.arange(cells.shape[1], device=cells.device)
        if self.shape.is_chain:
            companion = cells.shape[1] + cells // self.ends.cols - cells[:, :1] // self.ends.cols
        else:
            companion = cells.shape[1] + slots
        source = torch.where(self._ends_row(cells), companion, slots)
        return features.gather(1, source[..., None].expand(-1, -1, features.shape[2]))

    def cache_moves(
        self, path: Tensor, source: Tensor, destination: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Columns to move for a tree's accepted path [R, W], from `source` to `destination` [R, W],
        and for its row ends. Companions of slots that end no row go to the last row's end.
        """
        cells = self._cells(torch.arange(path.shape[1], device=path.device))
        row = torch.where(self._ends_row(cells), self._row(cells), self.ends.rows - 1)
        companions = self.columns.gather(1, path + self.shape.nodes + 1)
        return torch.cat([source, companions], dim=1), torch.cat(
            [destination, self.ends.first_column + row], dim=1
        )


@torch.no_grad()
def teacher_forced(
    target: Target,
    prompt: Prompt,
    tokens: Tensor,
    taps: Sequence[int] = (),
    change: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The features that predict the next token, as step-by-step decoding computes them, of prompts
    and the first n tokens [R, n] of their images in one pass: [R, P + n, (1 + len(taps)) D]. Each
    is followed by the inputs of the layers `taps` (see `Body.forward`). change: applied to the
    embeddings of prompts and tokens.
    """
    x = torch.cat([prompt.embeds, target.embed(tokens)], dim=1)
    if change is not None:
        x = change(x)
    valid = prompt.valid
    positions = order = torch.arange(x.shape[1], device=x.device)
    if target.row_end is not None:
        ends = RowEnds(target.transformer.config, target.row_end)
        cells = torch.arange(tokens.shape[1], device=x.device)
        last = cells[ends.cols - 1 :: ends.cols]  # last cells of the complete rows
        x = torch.cat([x, ends.embedding.to(x.dtype).expand(len(x), len(last), -1)], dim=1)
        positions = torch.cat([positions, ends.first_position + last // ends.cols])
        image = torch.cat([cells + cells // ends.cols, last + last // ends.cols + 1])
        order = torch.cat([order[: ends.first_column], ends.first_column + image])
    valid = torch.nn.functional.pad(valid, (0, len(order) - valid.shape[1]), value=True)
    out: Tensor = target.transformer(
        x, positions, mask=causal_padding_mask(valid, order), taps=taps
    )
    if target.row_end is None:
        return out
    slots = torch.arange(ends.first_column + len(cells), device=x.device)
    slots[ends.first_column + last] = len(slots) + torch.arange(len(last), device=x.device)
    return out[:, slots]
