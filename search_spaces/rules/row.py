"""The modulation by the row of the image. Shapes as in `modulations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.modulations import MODULATIONS, Modulation, Nodes
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor


@MODULATIONS.register
@dataclass(frozen=True, slots=True)
class RowModulation(Modulation):
    """m goes in a straight line from `first`, in the first row of the image, to `last`, in the last
    one.

    By default the mean over the image is 1, and the first row, which sets the layout, is exact.
    """

    kind: ClassVar[str] = "row"
    summary: ClassVar[str] = (
        "the relaxation is multiplied by {first} in the first row of the image, by {last} in the "
        "last one"
    )
    reads_row: ClassVar[bool] = True
    first: Annotated[float, "factor in the first row", Range(0, 1000), Symbol("f")] = 0.0
    last: Annotated[float, "factor in the last row", Range(0, 1000), Symbol("l")] = 2.0

    def factor(self, nodes: Nodes) -> Tensor:
        return self.first + (self.last - self.first) * nodes.row
