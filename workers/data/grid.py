"""Where the tokens of an image are.

An image is one grid of tokens in raster order. A target may draw a preview first: a grid of its
own, of the same image, whose tokens come before those of the image's grid (GLM-Image). Neighbours,
rows and columns are those within one of the two grids.

This module does without torch: the same arithmetic serves its tensors and numpy's arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Cells(NamedTuple):
    """Where tokens are; all entries have the tokens' shape."""

    in_preview: Tensor  # bool
    row: Tensor  # in the grid that has the token
    col: Tensor
    rows: Tensor  # sizes of that grid
    cols: Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """The token grid of an image, and that of its preview."""

    rows: int
    cols: int
    preview: tuple[int, ...] = ()  # rows and columns of the preview; (): there is none

    def __post_init__(self) -> None:
        """Raises ValueError for a preview without rows and columns."""
        if self.preview and (len(self.preview) != 2 or min(self.preview) < 1):
            raise ValueError(f"a preview has rows and columns, got {self.preview}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows and columns, then those of the preview, if there is one."""
        return (self.rows, self.cols, *self.preview)

    @property
    def preview_tokens(self) -> int:
        """The tokens before those of the image's own grid."""
        return math.prod(self.preview) if self.preview else 0

    @property
    def tokens(self) -> int:
        """All tokens of an image."""
        return self.preview_tokens + self.rows * self.cols

    @property
    def lines(self) -> tuple[int, ...]:
        """The number of tokens in each row, of the preview's rows first."""
        rows, cols = self.preview or (0, 0)
        return (cols,) * rows + (self.cols,) * self.rows

    def cells(self, tokens: Tensor) -> Cells:
        """Where tokens are, by their places in the sequence, which count from 0. Those after the
        image's last continue its rows.
        """
        rows, cols = self.preview or (self.rows, self.cols)
        in_preview = tokens < self.preview_tokens
        place = tokens - self.preview_tokens * ~in_preview
        rows_there = self.rows + (rows - self.rows) * in_preview
        cols_there = self.cols + (cols - self.cols) * in_preview
        return Cells(in_preview, place // cols_there, place % cols_there, rows_there, cols_there)

    def line(self, tokens: Tensor) -> Tensor:
        """The row of each token, counted from the preview's first on (see `lines`)."""
        cells = self.cells(tokens)
        above = self.preview[0] if self.preview else 0
        return cells.row + above * ~cells.in_preview

    def height(self, tokens: Tensor) -> Tensor:
        """The row of each token in its grid: 0 for the first row, 1 for the last, evenly spaced
        between.
        """
        cells = self.cells(tokens)
        return cells.row / (cells.rows - 1).clip(1)

    def neighbour(self, tokens: Tensor, up: Tensor | int, right: Tensor | int) -> Tensor:
        """The token that is so many rows (0 or more) above each and so many columns to its right,
        in its grid; -1 where that is outside.
        """
        cells = self.cells(tokens)
        col = cells.col + right
        is_inside = (cells.row >= up) & (col >= 0) & (col < cells.cols)
        return (tokens - up * cells.cols + right + 1) * is_inside - 1
