"""A user's own images: a folder of images with captions, or with one subfolder per class.

The first of these layouts that fits is read:
    captions.jsonl      one object per line: {"file": "a.png", "caption": "a red ball"}
    captions.csv        columns file, caption (with a header line)
    captions.txt        one line per image: file name, a tab, the caption
    a.png + a.txt       the caption in a text file of the same name
    cats/1.png, ...     the subfolder's name is the caption
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from search_spaces.documents import parse_json
from workers.data.captions import caption_in_one_line
from workers.data.reference import ENDINGS
from workers.data.text_files import collect_errors, read_lines, read_table, read_text

_LAYOUTS = "captions.jsonl, captions.csv or captions.txt; a .txt beside each image; or one subfolder per class"


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """Image files and their captions; a class's name is a caption."""

    paths: tuple[Path, ...]
    captions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)


def read_folder(folder: Path) -> ImageFolder:
    """Lists a folder's images in the order of their names, with captions or classes. Opens no image.

    Raises:
        ValueError: no such folder, no images, an image without a caption, or a caption without an image.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of images")
    for name, read in _CAPTION_FILES.items():
        if (folder / name).is_file():
            return _listed(folder, folder / name, read(folder / name))
    images = _images(folder)
    if images:
        return _with_texts(images)
    classes = [child for child in sorted(folder.iterdir()) if child.is_dir() and _images(child)]
    if not classes:
        raise ValueError(f"{folder}: no images ({', '.join(ENDINGS)}) in it or in its subfolders; give {_LAYOUTS}")
    pairs = [(path, child.name) for child in classes for path in _images(child)]
    return ImageFolder(tuple(path for path, _ in pairs), tuple(name for _, name in pairs))


def _images(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in ENDINGS and path.is_file()]


_Row = tuple[str, str, object]  # location, image file, and the caption or the error of the row


def _from_jsonl(line: str) -> tuple[str, object]:
    entry = parse_json(line)
    return str(entry["file"]), entry["caption"]


def _from_tabs(line: str) -> tuple[str, object]:
    name, tab, caption = line.partition("\t")
    if not tab:
        raise ValueError("no tab")
    return name.strip(), caption


def _parsed_lines(path: Path, parse: Callable[[str], tuple[str, object]], form: str) -> list[_Row]:
    rows: list[_Row] = []
    with collect_errors("line") as collect:
        for location, line in read_lines(path):
            if line.strip():
                with collect():
                    try:
                        rows.append((location, *parse(line)))
                    except (ValueError, KeyError, TypeError) as error:
                        raise ValueError(f"{location}: not of the form {form}") from error
    return rows


def _from_csv(path: Path) -> list[_Row]:
    header, table = read_table(path)
    if not {"file", "caption"} <= set(header):
        raise ValueError(f"{path}: its first line must name the columns file and caption, it is {header}")
    file, caption = header.index("file"), header.index("caption")
    rows: list[_Row] = [
        (location, str(row), row) if isinstance(row, ValueError) else (location, row[file], row[caption])
        for location, row in table
    ]
    return [row for row in rows if row[1] or row[2]]


def _listed(folder: Path, file: Path, rows: Sequence[_Row]) -> ImageFolder:
    if not rows:
        raise ValueError(f"{file}: no captions")
    pairs: list[tuple[str, str]] = []
    with collect_errors("line") as collect:
        for location, name, text in rows:
            with collect():
                caption = caption_in_one_line(text, location)
                if not (folder / name).is_file():
                    raise ValueError(f"{location}: {name!r} is not a file in {folder}")
                pairs.append((name, caption))
    pairs.sort()
    return ImageFolder(tuple(folder / name for name, _ in pairs), tuple(text for _, text in pairs))


def _with_texts(images: Sequence[Path]) -> ImageFolder:
    captions = []
    with collect_errors("image") as collect:
        for path in images:
            with collect():
                caption_file = path.with_suffix(".txt")
                if not caption_file.is_file():
                    raise ValueError(f"{path}: no caption; write it into {caption_file.name}, or give {_LAYOUTS}")
                captions.append(caption_in_one_line(read_text(caption_file), str(caption_file)))
    return ImageFolder(tuple(images), tuple(captions))


_CAPTION_FILES: Mapping[str, Callable[[Path], list[_Row]]] = {
    "captions.jsonl": partial(_parsed_lines, parse=_from_jsonl, form='{"file": ..., "caption": ...}'),
    "captions.csv": _from_csv,
    "captions.txt": partial(_parsed_lines, parse=_from_tabs, form="file name, tab, caption"),
}
