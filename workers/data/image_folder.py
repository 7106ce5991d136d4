"""Folders of images: the files in them that are images, and their pixels."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from search_spaces.paths import check_utf8
from workers.data.folders import find_files
from workers.data.pictures import centre_square, is_intact_png, without_png_text
from workers.data.text_files import collect_errors

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
_OPAQUE = (".jpg", ".jpeg")
_READ_BEFORE = "linked twice"
_SPECIAL = "not a regular file"
_NO_ENDING = "without an ending"
_MAX_KINDS = 6  # endings of left-out files that are named
_THREADS = 8  # threads that read images; each holds one image


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of a folder and its subfolders, by their names relative to it, with `/`, in sorted
    order.
    """

    folder: Path
    images: Mapping[str, Path]  # the image files
    others: Mapping[str, str]  # ending in lower case, or another description, of each other file

    def check(self) -> None:
        """Raise ValueError if there are no images."""
        if not self.images:
            left_out = ""
            if self.others:
                left_out = f"; it has {self.left_out()}"
            known = ", ".join(ENDINGS)
            raise ValueError(
                f"{self.folder}: no images ({known}) in this folder or its subfolders{left_out}"
            )

    def left_out(self, used: Iterable[str] = ()) -> str:
        """`70 .tif, 2 .json`: how many files are left out, by ending. Files whose names are in
        `used` do not count.
        """
        names = self.others.keys() - set(used)
        counts = Counter(kind for name, kind in self.others.items() if name in names).most_common()
        shown = [f"{count} {kind}" for kind, count in counts[:_MAX_KINDS]]
        rest = sum(count for _, count in counts[_MAX_KINDS:])
        if rest:
            shown.append(f"{rest} others")
        return ", ".join(shown)


def find_images(folder: Path) -> ImageFiles:
    """The images of a folder and its subfolders. Opens none of them.

    Raises:
        ValueError: no such folder; see `find_files`; the path of an image that is not UTF-8.
    """
    if not folder.exists():
        raise ValueError(f"{folder}: no such folder of images")
    if not folder.is_dir():
        raise ValueError(f"{folder}: a file, not a folder of images")
    check_utf8(str(folder.resolve()))
    files = find_files(folder)
    images = dict[str, Path]()
    others = dict.fromkeys(files.repeated, _READ_BEFORE)
    with collect_errors("path") as collect:
        for name, entry in files.entries.items():
            with collect():
                kind = _kind(entry)
                if kind in ENDINGS:
                    check_utf8(entry.path)
                    images[name] = folder / name
                else:
                    others[name] = kind
    return ImageFiles(folder, images, dict(sorted(others.items())))


def _kind(entry: os.DirEntry[str]) -> str:
    """A file's ending in lower case, or another word for what is not a file of an ending."""
    if not entry.is_file():
        return _SPECIAL
    ending = os.path.splitext(entry.name)[1].lower() or _NO_ENDING
    return ending if ending.isprintable() else ascii(ending)


def check_images(paths: Sequence[Path]) -> None:
    """Check that images can be read, with less work than for their pixels.

    Raises:
        ValueError: names the first that `load_images` cannot read, and how many more there are.
    """
    with ThreadPoolExecutor(_THREADS) as pool, collect_errors("image") as collect:
        for problem in pool.map(_problem, paths):
            with collect():
                if problem is not None:
                    raise problem


def _problem(path: Path) -> ValueError | None:
    """Why an image cannot be read. A PNG with the right checksums is not decompressed."""
    try:
        with _opened(path) as (image, data):
            if not is_intact_png(data):
                image.draft("RGB", (1, 1))  # JPEG: an eighth of the size
                image.load()
    except ValueError as error:
        return error
    return None


def load_images(paths: Sequence[Path], size: int) -> Tensor:
    """The centre squares of images, resized: uint8 [n, 3, size, size].

    Grey and palette images become RGB. Transparent pixels are blended with white; clean-fid drops
    the alpha channel, which shows the colours that are stored below it.

    Raises:
        ValueError: a file that is not a readable image, or has more than 8 bits per channel.
    """
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for i, path in enumerate(paths):
        with _opened(path) as (image, _):
            picture = centre_square(_on_white(image), size)
        images[i] = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return images


def any_transparent(paths: Sequence[Path]) -> bool:
    """Whether the format of any image has transparency, even if all of its pixels are opaque.

    Images that cannot be read have none; `check_images` names them.
    """
    candidates = [path for path in paths if path.suffix.lower() not in _OPAQUE]
    with ThreadPoolExecutor(_THREADS) as pool:
        return any(pool.map(_has_transparency, candidates))


def _has_transparency(path: Path) -> bool:
    try:
        with _opened(path) as (image, _):
            return image.has_transparency_data
    except ValueError:
        return False


def _on_white(image: Image.Image) -> Image.Image:
    """The image in RGB, over white where it is transparent."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Image.Image, bytes]]:
    """An image whose header is read, and its file's bytes.

    Raises:
        ValueError: names the file, whatever Pillow raises for it, inside the block too; more than 8
            bits per channel, which Pillow would clip at 255.
    """
    mode = ""
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(without_png_text(data))) as image:
            if image.mode.startswith(("I", "F")):
                mode = image.mode
            else:
                yield image, data
    except UnidentifiedImageError as error:  # its message names the buffer, not the file
        raise ValueError(
            f"{path}: not a readable image (of no known format); correct or remove it"
        ) from error
    except Exception as error:  # Pillow's readers raise errors of many kinds for damaged files
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"{path}: not a readable image ({reason}); correct or remove it"
        ) from error
    if mode:
        raise ValueError(
            f"{path}: its pixels have more than 8 bits (mode {mode}); save it with 8 bits per "
            "channel"
        )
