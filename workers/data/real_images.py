"""Real images: procedural scenes or the image files of a folder, rendered or read batch by batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from workers.data.captions import SCENES
from workers.data.pictures import centre_square
from workers.data.shards import digest
from workers.data.text_files import collect_errors
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
_BATCH = 256  # images in memory


@dataclass(frozen=True, slots=True)
class RealImages:
    """Real images at the model's size. resize: the rule by which they were resized. paths: their files, if any.

    describe: their name and content hash, for which all files are read. batch: positions to images [n, 3, size, size]
    in [0, 1].
    """

    resize: str
    count: int
    describe: Callable[[], str]
    batch: Callable[[range], Tensor]
    paths: Sequence[Path] = ()

    def batches(self) -> Iterator[Tensor]:
        for start in range(0, self.count, _BATCH):
            yield self.batch(range(start, min(start + _BATCH, self.count)))

    def check(self) -> None:
        """Check the headers of the files without reading their pixels.

        Raises:
            ValueError: a file that is not an image or has more than 8 bits per channel, and how many more are wrong.
        """
        with collect_errors("image") as collect:
            for path in self.paths:
                with collect(), _open_image(path):
                    pass


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
        resize="none",
        count=count,
        describe=lambda: f"scenes (seed {seed})",
        batch=lambda indices: render(sample_attributes(seed, indices), seed, indices),
    )


def _folder_images(folder: Path, size: int, count: int | None, seed: int) -> RealImages:
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
    paths = [files[name] for name in sorted(names)]
    return RealImages(
        resize=f"centre square, Pillow Lanczos to {size} x {size}",
        count=len(paths),
        describe=lambda: f"{folder.resolve().name}@{_content_hash(paths)}",
        batch=lambda indices: load_images([paths[i] for i in indices], size).float() / 255,
        paths=paths,
    )


def _content_hash(paths: Sequence[Path]) -> str:
    """16 hex digits over the files' bytes, in order; names and folders do not count."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def load_images(paths: Sequence[Path], size: int) -> Tensor:
    """The centre squares of images, resized: uint8 [n, 3, size, size].

    Grey and palette images become RGB. The alpha channel is removed without blending, as in clean-fid.

    Raises:
        ValueError: a file that is not a readable image, or has more than 8 bits per channel.
    """
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for i, path in enumerate(paths):
        with _open_image(path) as opened:
            picture = centre_square(opened.convert("RGB"), size)
        images[i] = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return images


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """An image whose header is read. ValueError for more than 8 bits per channel, which Pillow would clip at 255."""
    try:
        with Image.open(path) as opened:
            if opened.mode.startswith(("I", "F")):
                raise ValueError(
                    f"{path}: its pixels have more than 8 bits (mode {opened.mode}); save it with 8 bits per channel"
                )
            yield opened
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable image ({error}); correct or remove it") from error
