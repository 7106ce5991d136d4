"""One diagonal of an image at a time (FlashAR, arXiv 2605.09430): rows with a lag of one, whose
cells see all that was fed before.

A pass feeds the cells of the diagonal r + c that the pass before has sampled, one of every row that
has begun, and samples the next diagonal. A query sees the prompt and all cells with r' + c' <= r +
c: those of lower rows too. Cells keep their positions in raster order. Row ends are left out.

A row's first token has no cell to its left: its logits come from the cell above, and its slot feeds
a stand-in, as a row's that has not begun. That is written to the last cell of the row above, which
no query sees before its token is fed. See `workers.models.vertical` for the logits.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from search_spaces.drafters import DrafterChoice
from workers.data.grid import Grid
from workers.decoding.rows import RowsBatch
from workers.decoding.sampling import apply_cfg
from workers.decoding.state import Batch


class DiagonalBatch(RowsBatch):
    """A batch whose images are decoded by diagonals (see `RowsBatch`). The features of its target
    are a horizontal and a vertical one, side by side.
    """

    first_row_is_alone = False

    @classmethod
    def of(cls, choice: DrafterChoice, grid: Grid, size: int, **arguments: Any) -> Self:
        return super().of(choice, grid, size, **{**arguments, "row_ends": None})

    def sequence_order(self) -> Tensor:
        columns = torch.arange(self.cache.columns, device=self.cache.storage.device)
        cells = columns - self.image_column
        cols = self.grid.cols
        diagonals = self.image_column + cells // cols + cells % cols
        # no query sees the columns after the image's
        diagonals = torch.where(cells < self.grid.tokens, diagonals, self.cache.columns)
        return torch.where(cells < 0, columns, diagonals)

    def chain_mask(self, columns: Tensor) -> Tensor:
        return Batch.chain_mask(self, columns)  # all emitted cells have been fed

    def split_wavefronts(self, features: Tensor) -> Tensor:
        x = super().split_wavefronts(features)
        x = x.view(self.streams, self.wavefronts, self.images, *x.shape[1:])
        horizontal, vertical = x.chunk(2, dim=-1)
        # the cell above is in the wavefront before
        return torch.cat([horizontal, vertical.roll(1, dims=1)], dim=-1).flatten(0, 2)

    def guided_logits(self, head: nn.Module, features: Tensor) -> Tensor:
        if features.dim() == 2:  # the prompt's last token
            return super().guided_logits(head, features)
        edges = (self.row == 0).long() - (self.own == 0).long()
        return apply_cfg(head(features, self.per_row(edges)[:, None]), self.cfg)
