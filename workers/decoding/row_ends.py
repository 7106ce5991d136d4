"""Fixed tokens at the ends of image rows (Lumina-mGPT), which the passes of the target carry along.

The engine's tokens are the image's own, whatever the family. Where the target was trained with a fixed token after
every row, a pass that holds the last token of a row holds the row's end behind it: what it leaves in the cache is
seen by all later tokens, and the law of the next row's first token is read off it. So a row's end is neither drafted
nor drawn nor tried, it meets no neighbourhood, and it counts nowhere: an image of rows x cols has rows * cols tokens,
and accepted lengths count these alone, for vanilla (1) as for every other method.

Drafters see the image's tokens alone, at the places that these have in the whole sequence; the target's feature before
a row's first token is that of the row's end.

The target's cache holds: prompt | one column for each row's end | image tokens | a round's drafts. A chain has at most
one token in a cell, so that its row ends stand in their final columns at once. In a tree, any slot may end a row: each
gets a companion in the columns behind the tree, and those along the accepted path are moved into place.

Shape legend: R rows of the transformer, S slots of a round, E row ends in the pass, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workers.decoding.tree import TreeShape, additive_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig

if TYPE_CHECKING:
    from workers.decoding.state import Batch


class RowEnds:
    """Where the ends of rows stand: in the cache, in the sequence and in the rotation table."""

    def __init__(self, config: TransformerConfig, embedding: Tensor) -> None:
        """embedding [D]: that of the fixed token."""
        self.rows, self.cols, self.embedding = config.rows, config.cols, embedding
        self.column, self.position = config.prompt_len, config.positions  # of the first row's end

    def order(self, columns: int, device: torch.device) -> Tensor:
        """[columns] where each column of the cache stands in the sequence."""
        prompt = torch.arange(self.column, device=device)
        ends = torch.arange(1, self.rows + 1, device=device) * (self.cols + 1) - 1
        cells = torch.arange(columns - self.column - self.rows, device=device)
        return torch.cat([prompt, self.column + ends, self.column + cells + cells // self.cols])

    def until(self, cell: int) -> int:
        """Cells between `cell` and the last one of its row."""
        return self.cols - 1 - cell % self.cols

    def crossing(self, batch: Batch, shape: TreeShape) -> RowEndPass | None:
        """The row ends that this round's pass needs, or None: then no slot can end a row."""
        beyond = shape.max_depth - batch.to_row_end
        return RowEndPass(self, batch, shape, beyond // self.cols + 1) if beyond >= 0 else None


@dataclass(slots=True)
class RowEndPass:
    """A round in which some slot may end a row; `most`: row ends that any one path can meet."""

    ends: RowEnds
    batch: Batch
    shape: TreeShape
    most: int

    def cells(self, offsets: Tensor) -> Tensor:
        """Cells [R, n] at these distances [n] or [R|1, n] from the root."""
        return self.batch.columns[:, :1] - self.batch.first + offsets

    def last(self, cells: Tensor) -> Tensor:
        """Which cells are the last of their row."""
        return cells % self.ends.cols == self.ends.cols - 1

    def row(self, cells: Tensor) -> Tensor:
        """The cells' rows. Cells past the image share the last one, whose end no kept token ever sees."""
        return (cells // self.ends.cols).clamp(max=self.ends.rows - 1)

    @property
    def slots(self) -> Tensor:
        """Cells [R, S] of the slots."""
        return self.cells(self.batch.shared(self.shape.offsets))

    def extend(self, x: Tensor, columns: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [R, S, D], columns and positions [R, S] of the slots, and behind them those of the row ends."""
        if self.shape.chain:
            ahead = torch.arange(self.most, device=columns.device) * self.ends.cols
            rows = self.row(self.cells(ahead))
            where = self.ends.column + rows
        else:
            slots = columns.shape[1]
            rows, where = self.row(self.slots), self.batch.columns[:, slots : 2 * slots]
        added = self.ends.embedding.to(x.dtype).expand(*rows.shape, -1)
        return (
            torch.cat([x, added], dim=1),
            torch.cat([columns, where], dim=1),
            torch.cat([positions, self.ends.position + rows], dim=1),
        )

    def additive_mask(self) -> Tensor:
        """Of a tree: what its slots and their companions see of each other, additive [R, 2S, 2S]."""
        visible = self.batch.shared(self.shape.visible)
        itself = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)
        ended = visible & self.last(self.slots)[:, None]  # a companion is there for those that end a row
        visible = visible.expand_as(ended)
        slots = torch.cat([visible, ended & ~itself], dim=2)
        return additive_mask(torch.cat([slots, torch.cat([visible, ended | itself], dim=2)], dim=1))

    def after(self, features: Tensor) -> Tensor:
        """Features [R, S, D] that the next token follows from: a slot's own or, where it ends a row, the row end's."""
        cells = self.slots
        slots = torch.arange(cells.shape[1], device=cells.device)
        if self.shape.chain:
            companion = cells.shape[1] + cells // self.ends.cols - cells[:, :1] // self.ends.cols
        else:
            companion = cells.shape[1] + slots
        source = torch.where(self.last(cells), companion, slots)
        return features.gather(1, source[..., None].expand(-1, -1, features.shape[2]))

    def settle(self, path: Tensor, source: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Columns to move of a tree's accepted path [R, W], from `source` to `place` [R, W], and those of its row ends.

        Companions that end nothing go where the last row's end would stand.
        """
        cells = self.cells(torch.arange(path.shape[1], device=path.device))
        row = torch.where(self.last(cells), self.row(cells), self.ends.rows - 1)
        companions = self.batch.columns.gather(1, path + self.shape.nodes + 1)
        return torch.cat([source, companions], dim=1), torch.cat([place, self.ends.column + row], dim=1)


@torch.no_grad()
def teacher_forced(target: Target, prompt: Prompt, tokens: Tensor) -> Tensor:
    """Features [R, P + n, D] of prompts and of the first n tokens [R, n] of their images in one pass: those that the
    next token follows from, as decoding computes them one by one.
    """
    x, valid = torch.cat([prompt.embeds, target.embed(tokens)], dim=1), prompt.valid
    positions = order = torch.arange(x.shape[1], device=x.device)
    if target.row_end is not None:
        ends = RowEnds(target.transformer.config, target.row_end)
        cells = torch.arange(tokens.shape[1], device=x.device)
        last = cells[ends.cols - 1 :: ends.cols]  # of the rows that are whole
        x = torch.cat([x, ends.embedding.to(x.dtype).expand(len(x), len(last), -1)], dim=1)
        positions = torch.cat([positions, ends.position + last // ends.cols])
        image = torch.cat([cells + cells // ends.cols, last + last // ends.cols + 1])
        order = torch.cat([order[: ends.column], ends.column + image])
    valid = torch.nn.functional.pad(valid, (0, len(order) - valid.shape[1]), value=True)
    itself = torch.eye(len(order), dtype=torch.bool, device=x.device)  # padding sees itself, as when decoding
    mask = (order[:, None] >= order) & valid[:, None] | itself
    out: Tensor = target.transformer(x, positions, mask=mask[:, None])
    if target.row_end is None:
        return out
    slots = torch.arange(ends.column + len(cells), device=x.device)
    slots[ends.column + last] = len(slots) + torch.arange(len(last), device=x.device)
    return out[:, slots]
