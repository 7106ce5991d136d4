"""The pictures in a report: made smaller and written into the page itself, until the room for them is used."""

from __future__ import annotations

import base64
import io
from typing import Any, Literal

from PIL import Image

from orchestrator.results.store import HEAT_MAPS, IMAGE_GRIDS, image_shards, read_table
from orchestrator.results.trials import TrialRecord
from workers.data.storage import Storage

Kind = Literal["grid", "heat"]
FOLDERS: dict[Kind, str] = {"grid": IMAGE_GRIDS, "heat": HEAT_MAPS}
ROOM = 800_000  # characters of all pictures together
GRID_SIDE, HEAT_SIDE = 288, 640  # pixels of the longer side
GRID_IMAGES = 16
JPEG_QUALITY, HEAT_COLOURS = 78, 128


class Album:
    """Pictures and captions by setting.

    pictures: {digest: {"grid", "heat": {"uri", "width", "height"}, "captions": index}}, each entry where there is one.
    captions: the different lists of captions, in the order of the images of a grid.
    """

    def __init__(self, storage: Storage, room: int = ROOM) -> None:
        self.storage, self.left = storage, room
        self.pictures: dict[str, dict[str, Any]] = {}
        self.captions: list[list[str]] = []
        self._full: set[Kind] = set()
        self._known: dict[tuple[str, ...], list[str]] = {}

    def add(self, record: TrialRecord, kind: Kind) -> None:
        """Take in a picture of a trial's setting, and its captions if it is a grid, if it exists and there is room."""
        digest = record.digest
        if not digest or kind in self._full or kind in self.pictures.get(digest, {}):
            return
        picture = _embedded(self._read(f"{FOLDERS[kind]}/{digest}.png"), kind)
        if picture is None:
            return
        if len(picture["uri"]) > self.left:  # what comes later matters less, so that no more of them are read
            self._full.add(kind)
            return
        self.left -= len(picture["uri"])
        entry = self.pictures.setdefault(digest, {})
        entry[kind] = picture
        if kind == "grid" and (captions := self._captions_of(record)):
            if captions not in self.captions:
                self.captions.append(captions)
            entry["captions"] = self.captions.index(captions)

    def _captions_of(self, record: TrialRecord) -> list[str]:
        """The captions of the images in the grid, from the trial's first shard of images; none if it cannot be read."""
        shards = tuple(image_shards(record)[:1])
        if shards not in self._known:
            self._known[shards] = read_captions(self.storage, shards[0]) if shards else []
        return self._known[shards]

    def _read(self, name: str) -> bytes | None:
        try:
            return self.storage.read(name)
        except OSError:  # a picture is never worth a failed report
            return None


def read_captions(storage: Storage, shard: str) -> list[str]:
    """The captions of the first images of a shard; [] if it cannot be read."""
    try:
        table = read_table(storage, shard, ["caption"])
    except ValueError:
        return []
    return [str(caption) for caption in table["caption"].to_pylist()[:GRID_IMAGES]]


def _embedded(data: bytes | None, kind: Kind) -> dict[str, Any] | None:
    """A picture as a data URI with its size in pixels; None if there is none or it is no picture."""
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
