"""Contact sheets, drawn with Pillow. Pure functions: pictures in, one picture out. Workers draw the rest."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from workers.data.pictures import (
    INK,
    LINE,
    MARGIN,
    NO_VALUE,
    PAPER,
    RAMP,
    TEXT_SIZE,
    enlarge,
    heat_map,
    shade,
    to_pictures,
    wrap,
)

__all__ = [
    "NO_VALUE",
    "RAMP",
    "columns_for",
    "contact_sheet",
    "enlarge",
    "heat_map",
    "shade",
    "to_pictures",
    "wrap",
]


def contact_sheet(pictures: Sequence[Image.Image], captions: Sequence[str], *, side: int = 192) -> Image.Image:
    """All pictures in rows of at most six, each enlarged to about `side` pixels, its caption wrapped below."""
    if not pictures or len(pictures) != len(captions):
        raise ValueError(
            f"a contact sheet needs as many captions as pictures, at least one: got {len(captions)} and {len(pictures)}"
        )
    font = ImageFont.load_default(TEXT_SIZE)
    thumbs = [enlarge(picture, side) for picture in pictures]
    width, height = max(thumb.width for thumb in thumbs), max(thumb.height for thumb in thumbs)
    texts = [wrap(caption, width, font) for caption in captions]
    columns = columns_for(len(thumbs))
    rows = [range(start, min(start + columns, len(thumbs))) for start in range(0, len(thumbs), columns)]
    row_heights = [height + LINE * max(len(texts[i]) for i in row) + 2 * MARGIN for row in rows]
    sheet = Image.new("RGB", (columns * (width + MARGIN) + MARGIN, sum(row_heights) + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = MARGIN
    for row, row_height in zip(rows, row_heights, strict=True):
        for column, index in enumerate(row):
            left = MARGIN + column * (width + MARGIN)
            sheet.paste(thumbs[index], (left, top))
            for number, line in enumerate(texts[index]):
                draw.text((left, top + height + 4 + number * LINE), line, INK, font)
        top += row_height
    return sheet


def columns_for(count: int) -> int:
    """Columns of a sheet: one row up to four, then as square as six columns allow."""
    return count if count <= 4 else min(6, max(3, round(count**0.5 + 0.49)))
