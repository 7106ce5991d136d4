"""The images of a report: scaled down and embedded in the page, up to a total size."""

from __future__ import annotations

import base64
import io
from typing import Any, Literal

from PIL import Image

from orchestrator.results.store import HEAT_MAPS, IMAGE_GRIDS, image_shards, read_table
from orchestrator.results.trials import TrialRecord
from workers.data.storage import Storage

Kind = Literal["grid", "heat"]
_FOLDERS: dict[Kind, str] = {"grid": IMAGE_GRIDS, "heat": HEAT_MAPS}
_MAX_CHARACTERS = 800_000  # of all embedded images together
GRID_SIDE, HEAT_SIDE = 288, 640  # pixels of the longer side
GRID_IMAGES = 16
JPEG_QUALITY, HEAT_COLOURS = 78, 128


class Thumbnails:
    """Images and captions by config.

    images: {digest: {"grid", "heat": {"uri", "width", "height"}, "captions": index}}; entries may be missing.
    captions: the distinct lists of captions, in the order of a grid's images.
    """

    def __init__(self, storage: Storage, max_characters: int = _MAX_CHARACTERS) -> None:
        self._storage, self._left = storage, max_characters
        self.images: dict[str, dict[str, Any]] = {}
        self.captions: list[list[str]] = []
        self._full: set[Kind] = set()
        self._captions_by_shard: dict[tuple[str, ...], list[str]] = {}

    def add(self, record: TrialRecord, kind: Kind) -> None:
        """Embed an image of a trial, and the captions of a grid. Skips a missing or too large image."""
        digest = record.digest
        if not digest or kind in self._full or kind in self.images.get(digest, {}):
            return
        image = _embed(self._read(f"{_FOLDERS[kind]}/{digest}.png"), kind)
        if image is None:
            return
        if len(image["uri"]) > self._left:  # later images matter less: read no more of this kind
            self._full.add(kind)
            return
        self._left -= len(image["uri"])
        entry = self.images.setdefault(digest, {})
        entry[kind] = image
        if kind == "grid" and (captions := self._captions_of(record)):
            if captions not in self.captions:
                self.captions.append(captions)
            entry["captions"] = self.captions.index(captions)

    def _captions_of(self, record: TrialRecord) -> list[str]:
        """The captions of a grid's images, from the trial's first shard; [] if it cannot be read."""
        shards = tuple(image_shards(record)[:1])
        if shards not in self._captions_by_shard:
            self._captions_by_shard[shards] = read_captions(self._storage, shards[0]) if shards else []
        return self._captions_by_shard[shards]

    def _read(self, name: str) -> bytes | None:
        try:
            return self._storage.read(name)
        except OSError:  # a missing image must not fail the report
            return None


def read_captions(storage: Storage, shard: str) -> list[str]:
    """The captions of the first images of a shard; [] if it cannot be read."""
    try:
        table = read_table(storage, shard, ["caption"])
    except ValueError:
        return []
    return [str(caption) for caption in table["caption"].to_pylist()[:GRID_IMAGES]]


def _embed(data: bytes | None, kind: Kind) -> dict[str, Any] | None:
    """An image as a data URI with its size in pixels; None if it is missing or damaged."""
    if data is None:
        return None
    try:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
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
