"""A trial's first images for MLflow's image grid, which compares runs by keys: a key is a caption,
a step is a sample.

The names of the files are those that MLflow's `log_image` gives, because its interface reads them:
`images/KEY+step+STEP+timestamp+MS+ID.png`, and the copy that the grid shows. Written to a folder,
all are uploaded at once.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from orchestrator.store import files
from orchestrator.store.identity import Identity
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.documents import shorten
from workers.data.storage import Storage

LOGGED_IMAGES = "mlflow.loggedImages"  # the tag of runs whose images MLflow's grid reads
FOLDER = "images"
_MAX_IMAGES = 8
_SECTION = "captions/"  # begins a key; MLflow groups by it
_SLASH = "~"  # in the place of a slash, in the name of a file
_MAX_CAPTION = 160  # characters in a key, which is part of a file's name
_SIDE = 256  # pixels along the longer side of the copy that the grid shows
_ILLEGAL = re.compile(r"[^A-Za-z0-9_\-. ]")  # in a key


class ImageKey(NamedTuple):
    """A place in MLflow's grid."""

    key: str
    step: int  # the sample of the caption


def image_keys(storage: Storage, record: TrialRecord) -> tuple[ImageKey, ...]:
    """The keys of a trial's first images, in their order. Raises ValueError if a shard is missing
    or damaged.
    """
    return _read_keys(storage, tuple(record.image_shards))


@lru_cache(maxsize=64)
def _read_keys(storage: Storage, shards: Sequence[str]) -> tuple[ImageKey, ...]:
    captions: dict[int, str] = {}
    found: list[ImageKey] = []
    for shard in shards:
        table = files.read_table(storage, shard, ["caption_id", "sample", "caption"])
        for row in table.slice(0, _MAX_IMAGES - len(found)).to_pylist():
            place = captions.setdefault(row["caption_id"], f"{len(captions):02d}")
            caption = shorten(_ILLEGAL.sub("_", str(row["caption"])), _MAX_CAPTION, "-")
            found.append(ImageKey(f"{_SECTION}{place} {caption}", int(row["sample"])))
        if len(found) == _MAX_IMAGES:
            break
    return tuple(found)


def write_images(
    folder: Path, grid: bytes, identity: Identity, record: TrialRecord, keys: Sequence[ImageKey]
) -> None:
    """Write the images of a grid under their keys below a folder; none if the grid is of another
    size.

    Args:
        folder: of the run's artifacts.
        grid: the PNG of the first images.
        identity: of the sweep.
        record: of the trial.
        keys: of the images, in their order.
    """
    from PIL import Image

    from workers.data.pictures import enlarge, grid_tiles

    picture = Image.open(io.BytesIO(grid)).convert("RGB")
    tiles = grid_tiles(picture, identity.image_size, identity.grid[:2])
    if tiles and keys:
        (folder / FOLDER).mkdir(exist_ok=True)
    for place, (tile, key) in enumerate(zip(tiles, keys, strict=False)):
        parts = (key.key.replace("/", _SLASH), "step", key.step, "timestamp", place, record.digest)
        name = "+".join(map(str, parts))
        tile.save(folder / FOLDER / f"{name}.png")
        shown = enlarge(tile, _SIDE)  # the grid shows it in its own size
        shown.thumbnail((_SIDE, _SIDE))
        shown.save(folder / FOLDER / f"{name}+compressed.webp")


def grid_keys(sweep: Sweep) -> list[str]:
    """The keys of the images of a sweep's trials; none if no trial has any."""
    with suppress(ValueError):  # the trial's own run says why it has none
        for record in sweep.records:
            if record.is_complete and record.image_shards:
                return list(dict.fromkeys(place.key for place in image_keys(sweep.storage, record)))
    return []
