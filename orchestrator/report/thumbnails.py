"""The images of a report: scaled down and embedded in the page, up to a total size."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from typing import Any, Literal

from PIL import Image

from orchestrator.results.store import HEAT_MAPS, IMAGE_GRIDS, read_table
from orchestrator.results.trials import TrialRecord
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

Kind = Literal["grid", "heat"]
Note = Callable[[str], object]
_FOLDERS: dict[Kind, str] = {"grid": IMAGE_GRIDS, "heat": HEAT_MAPS}
_MAX_CHARACTERS = 800_000  # of all embedded images together
GRID_SIDE, HEAT_SIDE = 288, 640  # pixels of the longer side
GRID_IMAGES = 16
JPEG_QUALITY, HEAT_COLOURS = 78, 128


def ignore(text: str) -> None:
    """A note that nobody reads."""


def embed_thumbnails(
    storage: Storage, wanted: Iterable[tuple[TrialRecord, Kind]], note: Note = ignore
) -> dict[str, Any]:
    """The images of trials in the order of their importance, as far as they fit, with the captions of the grids.

    Skips a missing or damaged image. note: called with a sentence about each damaged file.

    Returns:
        images: {digest of the config: {"grid", "heat": {"uri", "width", "height"}, "captions": index}}; entries may be
        missing. captions: the distinct lists of captions, in the order of a grid's images.
    """
    left = _MAX_CHARACTERS
    images: dict[str, dict[str, Any]] = {}
    captions: list[list[str]] = []
    full: set[Kind] = set()
    for record, kind in wanted:
        if not record.digest or kind in full or kind in images.get(record.digest, {}):
            continue
        image = _embed(storage, f"{_FOLDERS[kind]}/{record.digest}.png", kind, note)
        if image is None:
            continue
        if len(image["uri"]) > left:  # later images matter less: read no more of this kind
            full.add(kind)
            continue
        left -= len(image["uri"])
        entry = images.setdefault(record.digest, {})
        entry[kind] = image
        shards = record.image_shards if kind == "grid" else []
        if shards and (texts := read_captions(storage, shards[0], note)):
            if texts not in captions:
                captions.append(texts)
            entry["captions"] = captions.index(texts)
    return {"images": images, "captions": captions}


def read_captions(storage: Storage, shard: str, note: Note = ignore) -> list[str]:
    """The captions of the first images of a shard; [] if it cannot be read, with a note."""
    try:
        table = read_table(storage, shard, ["caption"], fix="the report lacks its captions")
    except ValueError as error:
        note(str(error))
        return []
    return [str(caption) for caption in table["caption"].to_pylist()[:GRID_IMAGES]]


def _embed(storage: Storage, name: str, kind: Kind, note: Note) -> dict[str, Any] | None:
    """An image as a data URI with its size in pixels; None if it is missing, or damaged, which is noted."""
    if not storage.exists(name):
        return None
    data = storage.read(name)
    if not is_intact_png(data):
        note(f"{storage.locate(name)}: damaged; the report lacks it")
        return None
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    side = GRID_SIDE if kind == "grid" else HEAT_SIDE
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if kind == "grid":
        picture.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0, optimize=True)
    else:
        flat = picture.quantize(HEAT_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        flat.save(buffer, "PNG", optimize=True)
    mime = "image/jpeg" if kind == "grid" else "image/png"
    uri = f"data:{mime};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"uri": uri, "width": picture.width, "height": picture.height}
