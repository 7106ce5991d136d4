"""Pictures of tensors, drawn with Pillow: images, grids of them, heat maps. Pure: numbers in, a picture out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from torch import Tensor

INK, PAPER, FAINT = (32, 32, 36), (255, 255, 255), (224, 224, 228)
MARGIN, TEXT_SIZE, LINE = 12, 12, 15
# Dark blue over green to yellow in even steps of lightness (five colours of viridis): the colour-blind can read it too.
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
NO_VALUE = (240, 240, 240)


def to_pictures(images: Tensor) -> list[Image.Image]:
    """Pictures of images [B, 3, H, W] with values in [0, 1]."""
    pixels = images.mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().contiguous().numpy()
    return [Image.fromarray(image) for image in pixels]


def centre_square(picture: Image.Image, side: int) -> Image.Image:
    """The picture's centre square, resized to `side` pixels by the antialiased Lanczos filter if it has another."""
    short = min(picture.size)
    left, top = (picture.width - short) // 2, (picture.height - short) // 2
    return picture.crop((left, top, left + short, top + short)).resize((side, side), Image.Resampling.LANCZOS)


def enlarge(picture: Image.Image, side: int) -> Image.Image:
    """Nearest-neighbour by the largest whole factor (at least 1) that keeps the longer side within `side`."""
    factor = max(1, side // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def image_grid(pictures: Sequence[Image.Image], columns: int, *, gap: int = 2) -> Image.Image:
    """Pictures of one size in rows of `columns`, nothing written; places that are left over stay blank."""
    if not pictures:
        raise ValueError("a grid needs at least one picture")
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    grid = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), PAPER)
    for number, picture in enumerate(pictures):
        grid.paste(picture, (number % columns * (width + gap), number // columns * (height + gap)))
    return grid


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file's bytes."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def accepted_by_cell(images: Iterable[Sequence[int]], rows: int, columns: int) -> list[list[float | None]]:
    """Mean accepted length of the rounds that drew each cell of the token grid, from images' tokens per round.

    None at cells that no round drew: the first token comes from the prefill.
    """
    total, count = [0.0] * (rows * columns), [0] * (rows * columns)
    for rounds in images:
        cell = 1
        for emitted in rounds:
            for place in range(cell, min(cell + emitted, rows * columns)):
                total[place] += emitted
                count[place] += 1
            cell += emitted
    cells = [total[i] / count[i] if count[i] else None for i in range(rows * columns)]
    return [cells[row * columns : (row + 1) * columns] for row in range(rows)]


def wrap(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """Lines of `text` that fit `width` pixels; a word that is wider by itself is cut to fit."""
    lines: list[str] = []
    for word in text.split():
        while len(word) > 1 and font.getlength(word) > width:
            word = word[:-2] + "…"
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def heat_map(values: Sequence[Sequence[float | None]], title: str, *, cell: int = 32) -> Image.Image:
    """A grid of values as colours with a scale beside it; None (no value) is left grey. `title` stands above.

    The scale runs from the smallest to the largest value that is there.
    """
    font = ImageFont.load_default(TEXT_SIZE)
    known = [value for row in values for value in row if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    rows, columns = len(values), max(len(row) for row in values)
    heading = wrap(title, columns * cell + 80, font)
    top = MARGIN + LINE * len(heading) + 6
    size = (2 * MARGIN + columns * cell + 80, top + rows * cell + MARGIN)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(heading):
        draw.text((MARGIN, MARGIN + number * LINE), line, INK, font)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            fill = NO_VALUE if value is None else shade(value, low, high)
            corner = (MARGIN + x * cell, top + y * cell)
            draw.rectangle((*corner, corner[0] + cell - 1, corner[1] + cell - 1), fill)
    _scale(draw, (2 * MARGIN + columns * cell, top), rows * cell, low, high, font)
    return picture


def _scale(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    height: int,
    low: float,
    high: float,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    """The colour bar, the largest value at the top."""
    left, top = corner
    for y in range(height):
        draw.line((left, top + y, left + 14, top + y), shade(height - 1 - y, 0, height - 1))
    draw.rectangle((left, top, left + 14, top + height - 1), outline=FAINT)
    for share in (0.0, 0.5, 1.0):
        y = top + round((1 - share) * (height - 1))
        draw.text(
            (left + 20, min(max(y - LINE // 2, top), top + height - LINE)),
            f"{low + share * (high - low):.2f}",
            INK,
            font,
        )


def shade(value: float, low: float, high: float) -> tuple[int, int, int]:
    """The colour of a value on the ramp from low to high; the middle one if there is no range."""
    place = (value - low) / (high - low) if high > low else 0.5
    place = min(max(place, 0.0), 1.0) * (len(RAMP) - 1)
    index = min(int(place), len(RAMP) - 2)
    part = place - index
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(RAMP[index], RAMP[index + 1], strict=True))
    return red, green, blue
