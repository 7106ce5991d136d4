"""Tokens as cells: in the grid, and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.pictures.svg import Picture

COLUMNS = 12  # of the built-in model's grid, which has as many rows


@dataclass(frozen=True, slots=True)
class Grid:
    """The token grid at a place of a picture, in its units."""

    x: float
    y: float
    cell: float

    @property
    def side(self) -> float:
        return self.cell * COLUMNS

    def place(self, index: int) -> tuple[float, float]:
        """The upper left corner of a token's cell."""
        return self.x + index % COLUMNS * self.cell, self.y + index // COLUMNS * self.cell

    def image(self, picture: Picture, data: str) -> None:
        """The whole image, and the pattern of `cover`. data: a PNG in base64."""
        picture.image(self.x, self.y, self.side, data)
        places = {"x": self.x, "y": self.y, "width": self.cell, "height": self.cell}
        with picture.group("pattern", id=self._pattern, patternUnits="userSpaceOnUse", **places):
            picture.rect(1, 1, self.cell - 2, self.cell - 2, "blank", rx=1.5)

    def cover(self, picture: Picture, counts: Sequence[int]) -> None:
        """Blank cells over the tokens that are not emitted. counts: emitted tokens of each row."""
        row = 0
        for count, rows in groupby(counts):
            length = len(list(rows))
            height = length * self.cell
            if count < COLUMNS:
                x, y = self.place(row * COLUMNS + count)
                width = self.side - count * self.cell
                picture.rect(x, y, width + 0.5, height + 0.5, "cover")  # no seam
                fill = f"url(#{self._pattern})"
                picture.add("rect", x=x, y=y, width=width, height=height, fill=fill)
            row += length

    @property
    def _pattern(self) -> str:
        return f"blank-{round(self.x)}"


def in_raster_order(count: int) -> list[int]:
    """How many tokens each row of the grid has when so many are emitted in raster order."""
    return [min(max(count - COLUMNS * row, 0), COLUMNS) for row in range(COLUMNS)]


def swatch(picture: Picture, x: float, y: float, side: float, colour: str) -> None:
    """A token in the colour of its code."""
    picture.rect(x, y, side, side, "cell", rx=3, fill=colour)


def mark_test(picture: Picture, x: float, y: float, side: float, is_accepted: bool) -> None:
    """The result of a draft's test: an outline and a sign."""
    picture.rect(x, y, side, side, "yes" if is_accepted else "no", rx=3)
    if is_accepted:
        picture.tick(x + side, y, 9)
    else:
        picture.cross(x + side, y, 9)
