"""The image grids of trials: scaled down and embedded in the page, up to a total size."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import Any

from PIL import Image

from orchestrator.report.section import Note, OwnedTrial, ignore
from orchestrator.results.store import IMAGE_GRIDS
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

_MAX_CHARACTERS = 500_000  # of all embedded images together
GRID_SIDE = 288  # pixels of the longer side
JPEG_QUALITY = 78


def embed_thumbnails(trials: Iterable[OwnedTrial], note: Note = ignore) -> dict[str, Any]:
    """{key: "uri", "width", "height"} of the trials in the order of their importance, as far as they fit.

    Skips a missing or damaged image. note: called with a sentence about each damaged file.
    """
    left = _MAX_CHARACTERS
    images: dict[str, Any] = {}
    for trial in trials:
        if not trial.record.digest or trial.key in images:
            continue
        image = _embed(trial.sweep.storage, f"{IMAGE_GRIDS}/{trial.record.digest}.png", note)
        if image is None:
            continue
        if len(image["uri"]) > left:  # later images matter less
            break
        left -= len(image["uri"])
        images[trial.key] = image
    return images


def _embed(storage: Storage, name: str, note: Note) -> dict[str, Any] | None:
    """An image as a data URI with its size in pixels; None if it is missing, or damaged, which is noted."""
    if not storage.exists(name):
        return None
    data = storage.read(name)
    if not is_intact_png(data):
        note(f"{storage.locate(name)}: damaged; the report lacks it")
        return None
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.thumbnail((GRID_SIDE, GRID_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0, optimize=True)
    uri = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"uri": uri, "width": picture.width, "height": picture.height}
