"""Real images: procedural scenes or a folder, rendered or read batch by batch at the model's image size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from workers.data.captions import SCENES
from workers.data.folder import ENDINGS, load_images
from workers.data.shards import digest
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes

_BATCH = 256  # images in memory


@dataclass(frozen=True, slots=True)
class RealImages:
    """Real images, rendered or read batch by batch. source, resize: as in `Reference`."""

    source: str
    resize: str
    count: int
    batch: Callable[[range], Tensor]  # positions -> [n, 3, size, size] in [0, 1]

    def batches(self) -> Iterator[Tensor]:
        for start in range(0, self.count, _BATCH):
            yield self.batch(range(start, min(start + _BATCH, self.count)))


def real_images(source: str | Path, *, size: int, count: int | None = None, seed: int = 0) -> RealImages:
    """The images of "scenes" (numbers 0..count-1 of a seed; training used seed 0) or of a folder and its subfolders.

    At most `count` images of a folder are used, selected by the hash of (seed, name). Each is cut to its centre square
    and resized with Pillow's Lanczos filter (antialiased, 8 bits), as for training. An image of the right size stays
    unchanged.

    Raises:
        ValueError: the folder does not exist or has no images; `count` is below 1, or missing for scenes.
    """
    if count is not None and count < 1:
        raise ValueError(f"reference: count is {count}; it must be at least 1")
    if source != SCENES:
        return _folder_images(Path(source).expanduser(), size, count, seed)
    if count is None:
        raise ValueError("reference: scenes are unlimited; set count")
    if size != IMAGE_SIZE:
        raise ValueError(f"reference: scenes are {IMAGE_SIZE} pixels wide, the model's images {size}; give a folder")
    return RealImages(
        source=f"scenes (seed {seed})",
        resize="none",
        count=count,
        batch=lambda indices: render(sample_attributes(seed, indices), seed, indices),
    )


def _folder_images(folder: Path, size: int, count: int | None, seed: int) -> RealImages:
    paths = select_files(folder, count, seed)
    return RealImages(
        source=f"{folder.resolve().name}@{_content_hash(paths)}",
        resize=f"centre square, Pillow Lanczos to {size} x {size}",
        count=len(paths),
        batch=lambda indices: load_images([paths[i] for i in indices], size).float() / 255,
    )


def select_files(folder: Path, count: int | None, seed: int) -> list[Path]:
    """At most `count` images of a folder and its subfolders, sorted by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.suffix.lower() in ENDINGS and path.is_file()
    }
    if not files:
        raise ValueError(f"{folder}: no images ({', '.join(ENDINGS)}) in this folder or its subfolders")
    names = sorted(files, key=lambda name: digest([seed, name], 64))[:count]
    return [files[name] for name in sorted(names)]


def _content_hash(paths: Sequence[Path]) -> str:
    """16 hex digits over the files' bytes, in order; names and folders do not count."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]
