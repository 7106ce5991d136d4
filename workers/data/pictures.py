"""Pictures made with Pillow: images, grids of images, heat maps."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from workers.data.grid import Grid

if TYPE_CHECKING:
    from torch import Tensor

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_TEXT = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
INK = (32, 32, 36)
PAPER = (255, 255, 255)
FAINT = (224, 224, 228)
MARGIN = 12
TEXT_SIZE = 12
LINE = 15
_GRID_GAP = 2  # pixels between the images of a grid
_THUMBNAIL_SIDE = 192  # pixels
# Five colours of viridis, from dark blue to yellow in even steps of lightness; also readable
# without colour vision.
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
NO_VALUE = (240, 240, 240)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each chunk's kind, start and end; none if the bytes are not a PNG's. The last one may end
    beyond the bytes.
    """
    start = len(_PNG_SIGNATURE)
    kind = b""
    while data.startswith(_PNG_SIGNATURE) and start < len(data) and kind != b"IEND":
        end = start + 12 + int.from_bytes(data[start : start + 4])
        kind = data[start + 4 : start + 8]
        yield kind, start, end
        start = end


def is_intact_png(data: bytes) -> bool:
    """Whether the bytes are a whole PNG whose chunks agree with their checksums. Pillow checks only
    some of them.
    """
    chunks = list(_png_chunks(data))
    if not chunks or chunks[-1][0] != b"IEND" or chunks[-1][2] != len(data):
        return False
    return all(
        data[end - 4 : end] == zlib.crc32(data[start + 4 : end - 4]).to_bytes(4)
        for _, start, end in chunks
    )


def without_png_text(data: bytes) -> bytes:
    """The bytes of a PNG without its texts and colour profile, which Pillow refuses above a size;
    others unchanged.
    """
    kept = 0
    parts = list[bytes]()
    for kind, start, end in _png_chunks(data):
        if kind in _PNG_TEXT:
            parts.append(data[kept:start])
            kept = end
    if not parts:
        return data
    return b"".join([*parts, data[kept:]])


def to_pictures(images: Tensor) -> list[Image.Image]:
    """Pictures of images [B, 3, H, W] with values in [0, 1]."""
    pixels = (
        images.mul(255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().contiguous().numpy()
    )
    return [Image.fromarray(image) for image in pixels]


def centre_square(picture: Image.Image, side: int) -> Image.Image:
    """The picture's centre square, resized by Pillow's antialiased Lanczos filter if it is not
    `side` pixels wide.
    """
    short = min(picture.size)
    left, top = (picture.width - short) // 2, (picture.height - short) // 2
    return picture.crop((left, top, left + short, top + short)).resize(
        (side, side), Image.Resampling.LANCZOS
    )


def enlarge(picture: Image.Image, side: int) -> Image.Image:
    """Nearest-neighbour by the largest whole factor (at least 1) that keeps the longer side within
    `side`.
    """
    factor = max(1, side // max(picture.size))
    return picture.resize(
        (picture.width * factor, picture.height * factor), Image.Resampling.NEAREST
    )


def thumbnail(picture: Image.Image, side: int = _THUMBNAIL_SIDE) -> Image.Image:
    """The picture enlarged to about `side` pixels (see `enlarge`), or reduced to them."""
    if max(picture.size) <= side:
        return enlarge(picture, side)
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def image_grid(
    pictures: Sequence[Image.Image], columns: int, *, gap: int = _GRID_GAP
) -> Image.Image:
    """Pictures of one size in rows of `columns`; unused cells of the last row stay blank."""
    if not pictures:
        raise ValueError("a grid needs at least one picture")
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    grid = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), PAPER)
    for number, picture in enumerate(pictures):
        grid.paste(picture, (number % columns * (width + gap), number // columns * (height + gap)))
    return grid


def grid_tiles(grid: Image.Image, side: int, tokens: tuple[int, ...]) -> list[Image.Image]:
    """The cells of an `image_grid`, blank ones of its last row included; none if it is smaller than
    an image.

    Args:
        grid: the grid.
        side: pixels along the longer side of an image.
        tokens: rows and columns of an image's tokens, which have the image's proportions.
    """
    height, width = (side * count // max(tokens) for count in tokens)
    corners = [
        (left, top)
        for top in range(0, grid.height - height + 1, height + _GRID_GAP)
        for left in range(0, grid.width - width + 1, width + _GRID_GAP)
    ]
    return [grid.crop((left, top, left + width, top + height)) for left, top in corners]


def contact_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], *, side: int = _THUMBNAIL_SIDE
) -> Image.Image:
    """All pictures, each of about `side` pixels, with its caption below. Up to four
    pictures are one row; more are a grid of at most six columns that is as square as possible.
    """
    font = ImageFont.load_default(TEXT_SIZE)
    thumbs = [thumbnail(picture, side) for picture in pictures]
    width, height = max(thumb.width for thumb in thumbs), max(thumb.height for thumb in thumbs)
    texts = [wrap(caption, width, font) for caption in captions]
    columns = len(thumbs)
    if columns > 4:
        columns = min(6, max(3, round(len(thumbs) ** 0.5 + 0.49)))
    rows = [
        range(start, min(start + columns, len(thumbs))) for start in range(0, len(thumbs), columns)
    ]
    row_heights = [height + LINE * max(len(texts[i]) for i in row) + 2 * MARGIN for row in rows]
    sheet = Image.new(
        "RGB", (columns * (width + MARGIN) + MARGIN, sum(row_heights) + MARGIN), PAPER
    )
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


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file's bytes."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def accepted_by_cell(images: Iterable[Sequence[int]], grid: Grid) -> list[list[float | None]]:
    """Mean accepted length of the passes that emitted each cell of the token grid, from images'
    tokens per pass. The rows of a preview and an empty row are above those of the grid.

    None at cells that no pass emitted: the first token comes from the prefill.
    """
    total = np.zeros(grid.tokens)
    count = np.zeros(grid.tokens, dtype=int)
    for passes in images:
        lengths = np.asarray(passes, dtype=int)
        emitted = np.repeat(lengths, lengths)[: grid.tokens - 1]
        total[1 : 1 + len(emitted)] += emitted
        count[1 : 1 + len(emitted)] += 1
    cells = [t / n if n else None for t, n in zip(total.tolist(), count.tolist(), strict=True)]
    found: list[list[float | None]] = []
    start = 0
    width = max(grid.lines)
    for length in grid.lines:
        if grid.preview and start == grid.preview_tokens:
            found.append([None] * width)
        row = cells[start : start + length]
        found.append(row + [None] * (width - length))
        start += length
    return found


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


def heat_map(
    values: Sequence[Sequence[float | None]], title: str, *, cell: int = 32
) -> Image.Image:
    """A grid of values as colours below a title, with a scale from the smallest to the largest
    value. A cell without a value (None) is grey. `cell` is the width of a cell in pixels.
    """
    font = ImageFont.load_default(TEXT_SIZE)
    grid = np.array(values, dtype=float)  # None becomes NaN
    known = grid[~np.isnan(grid)]
    low, high = 0.0, 0.0
    if known.size:
        low, high = float(known.min()), float(known.max())
    height, width = cell * grid.shape[0], cell * grid.shape[1]
    heading = wrap(title, width + 80, font)
    top = MARGIN + LINE * len(heading) + 6
    picture = Image.new("RGB", (2 * MARGIN + width + 80, top + height + MARGIN), PAPER)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(heading):
        draw.text((MARGIN, MARGIN + number * LINE), line, INK, font)
    picture.paste(_coloured(grid, low, high, (width, height)), (MARGIN, top))
    left = 2 * MARGIN + width
    picture.paste(_coloured(np.linspace(1, 0, height)[:, None], 0, 1, (15, height)), (left, top))
    draw.rectangle((left, top, left + 14, top + height - 1), outline=FAINT)
    for share in (0.0, 0.5, 1.0):
        y = top + round((1 - share) * (height - 1)) - LINE // 2
        place = (left + 20, min(max(y, top), top + height - LINE))
        draw.text(place, f"{low + share * (high - low):.2f}", INK, font)
    return picture


def _coloured(
    values: np.ndarray[Any, Any], low: float, high: float, size: tuple[int, int]
) -> Image.Image:
    """Values [rows, columns] in the colours of `shade`, NaN in grey, enlarged to (width,
    height).
    """
    colours = np.where(np.isnan(values)[..., None], NO_VALUE, shade(values, low, high))
    return Image.fromarray(colours.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


def shade(values: np.ndarray[Any, Any], low: float, high: float) -> np.ndarray[Any, Any]:
    """Colours [..., 3] of values [...] on the ramp from low to high; the middle colour if low and
    high are equal.
    """
    share = np.full(np.shape(values), 0.5)
    if high > low:
        share = (values - low) / (high - low)
    steps = np.linspace(0, 1, len(RAMP))
    return np.stack(
        [np.interp(share, steps, channel) for channel in zip(*RAMP, strict=True)], axis=-1
    ).round()
