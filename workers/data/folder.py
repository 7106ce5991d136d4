"""A user's own images: a folder with captions beside them, or with one subfolder per class.

Any of these layouts, the first that fits:
    captions.jsonl      one object per line: {"file": "a.png", "caption": "a red ball"}
    captions.csv        columns file, caption (with a header line)
    captions.txt        one line per image: file name, a tab, the caption
    a.png + a.txt       the caption in a text file of the same name
    cats/1.png, ...     the subfolder's name is the class
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from workers.data.faults import faults
from workers.data.pictures import centre_square

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
LAYOUTS = "captions.jsonl, captions.csv or captions.txt; a .txt beside each image; or one subfolder per class"


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Image files and, for each, its caption; under "classes" the caption is the class's name."""

    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    labels: Literal["captions", "classes"]

    def __len__(self) -> int:
        return len(self.paths)


def read_folder(folder: Path) -> ImageFolder:
    """Lists a folder's images, in the order of their names, with captions or classes. Opens no image.

    Raises:
        ValueError: no such folder, no images, an image without a caption, or a caption without an image.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of images")
    for name, read in (("captions.jsonl", _from_jsonl), ("captions.csv", _from_csv), ("captions.txt", _from_lines)):
        if (folder / name).is_file():
            return _listed(folder, folder / name, read(folder / name))
    here = _images(folder)
    if here:
        return _with_texts(here)
    classes = [child for child in sorted(folder.iterdir()) if child.is_dir() and _images(child)]
    if not classes:
        raise ValueError(f"{folder}: no images ({', '.join(ENDINGS)}) in it or in its subfolders; give {LAYOUTS}")
    found = [(path, child.name) for child in classes for path in _images(child)]
    return ImageFolder(tuple(path for path, _ in found), tuple(name for _, name in found), "classes")


def load_images(paths: Sequence[Path], size: int) -> Tensor:
    """The centre squares of images, resized: uint8 [n, 3, size, size].

    Grey and palette images become RGB; transparency is dropped, the colours beneath it stay (as clean-fid reads them).

    Raises:
        ValueError: a file that is no readable image, or one of more than 8 bits a channel.
    """
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for i, path in enumerate(paths):
        try:
            with Image.open(path) as opened:
                _of_8_bits(path, opened)
                picture = opened.convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"{path}: not a readable image ({error}); mend or remove it") from error
        images[i] = torch.from_numpy(np.array(centre_square(picture, size))).permute(2, 0, 1)
    return images


def check_images(paths: Iterable[Path]) -> None:
    """Read the heads of images, not their pixels.

    Raises:
        ValueError: a file that is no image, or one of more than 8 bits a channel, and how many more are wrong.
    """
    with faults("image") as noted:
        for path in paths:
            with noted():
                try:
                    with Image.open(path) as opened:
                        _of_8_bits(path, opened)
                except (UnidentifiedImageError, OSError) as error:
                    raise ValueError(f"{path}: not a readable image ({error}); mend or remove it") from error


def _of_8_bits(path: Path, picture: Image.Image) -> None:
    """Pillow cuts wider pixels off at 255 instead of scaling them: they would turn white unseen."""
    if picture.mode.startswith(("I", "F")):
        raise ValueError(
            f"{path}: its pixels have more than 8 bits (mode {picture.mode}); save it with 8 bits a channel"
        )


def _images(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in ENDINGS and path.is_file()]


Row = tuple[str, str, str]  # where it stands, the image's file, its caption


def _from_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    with faults("line") as noted:
        for where, line in _lines(path):
            with noted():
                try:
                    entry = json.loads(line)
                    rows.append((where, str(entry["file"]), str(entry["caption"])))
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f'{where}: not of the form {{"file": ..., "caption": ...}}') from error
    return rows


def _from_csv(path: Path) -> list[Row]:
    reader = csv.DictReader(_text(path).splitlines())
    if not {"file", "caption"} <= set(reader.fieldnames or ()):
        raise ValueError(f"{path}: its first line must name the columns file and caption, it is {reader.fieldnames}")
    return [(f"{path}, line {reader.line_num}", row["file"] or "", row["caption"] or "") for row in reader]


def _from_lines(path: Path) -> list[Row]:
    rows: list[Row] = []
    with faults("line") as noted:
        for where, line in _lines(path):
            with noted():
                name, tab, caption = line.partition("\t")
                if not tab:
                    raise ValueError(f"{where}: no tab between the file's name and its caption")
                rows.append((where, name.strip(), caption))
    return rows


def _lines(path: Path) -> list[tuple[str, str]]:
    """The lines that are not blank, and where they stand."""
    lines = enumerate(_text(path).splitlines(), start=1)
    return [(f"{path}, line {number}", line) for number, line in lines if line.strip()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text; save it as UTF-8") from error


def _listed(folder: Path, file: Path, rows: Sequence[Row]) -> ImageFolder:
    if not rows:
        raise ValueError(f"{file}: no captions in it")
    with faults("line") as noted:
        for where, name, caption in rows:
            with noted():
                if not (folder / name).is_file():
                    raise ValueError(f"{where}: {name!r} is not a file in {folder}")
                if not caption.strip():
                    raise ValueError(f"{where}: {name!r} has an empty caption")
    pairs = sorted((name, caption.strip()) for _, name, caption in rows)
    return ImageFolder(tuple(folder / name for name, _ in pairs), tuple(text for _, text in pairs), "captions")


def _with_texts(images: Sequence[Path]) -> ImageFolder:
    captions = []
    with faults("image") as noted:
        for path in images:
            with noted():
                beside = path.with_suffix(".txt")
                caption = _text(beside).strip() if beside.is_file() else ""
                if not caption:
                    raise ValueError(f"{path}: no caption; write it into {beside.name}, or give {LAYOUTS}")
                captions.append(caption)
    return ImageFolder(tuple(images), tuple(captions), "captions")
