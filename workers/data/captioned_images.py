"""A user's captioned images: a folder of images with captions, or with one subfolder per class.

The first of these layouts that fits is read. Images are those of the folder and its subfolders at
any depth.

    captions.jsonl      one object per line: {"file": "a.png", "caption": "a red ball"}
    captions.csv        columns file, caption (with a header line)
    captions.txt        one line per image: file name, a tab, the caption
    a.png + a.txt       the caption in a text file of the same name, as img2dataset writes it
    cats/1.png, ...     the subfolder's name is the caption, also of images in folders below it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from search_spaces.documents import parse_json
from workers.data.image_folder import ImageFiles, find_images
from workers.data.text_files import (
    caption_in_one_line,
    collect_errors,
    read_lines,
    read_table,
    read_text,
)

_LAYOUTS = (
    "captions.jsonl, captions.csv or captions.txt; a .txt beside each image; or one subfolder per "
    "class"
)
_MAX_NAMES = 4  # classes that are named


@dataclass(frozen=True, slots=True)
class CaptionedImages:
    """Image files and their captions."""

    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    left_out: str = ""  # the files that are neither, in words
    are_classes: bool = False  # the captions are names of subfolders

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def notes(self) -> str:
        """`classes: cats, dogs; left out: 5 .json`: the captions if they are names of folders, and
        the files that are left out; "" without either.
        """
        notes = []
        if self.are_classes:
            names = sorted(set(self.captions))
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            notes.append(f"classes: {', '.join(names[:_MAX_NAMES])}{more}")
        if self.left_out:
            notes.append(f"left out: {self.left_out}")
        return "; ".join(notes)


def read_folder(folder: Path) -> CaptionedImages:
    """Lists a folder's images in the order of their names, with captions or classes. Opens no
    image.

    Raises:
        ValueError: no such folder, no images, an image without a caption, or a caption without an
            image.
    """
    for name, read in _CAPTION_FILES.items():
        if (folder / name).is_file():
            return _listed(find_images(folder), folder / name, read(folder / name))
    files = find_images(folder)
    files.check()
    texts = {_stem(name): name for name, ending in files.others.items() if ending == ".txt"}
    captioned = {image: texts[_stem(image)] for image in files.images if _stem(image) in texts}
    captions = _from_texts(files, captioned) if captioned else _from_classes(files)
    return CaptionedImages(
        tuple(files.images.values()),
        captions,
        files.left_out(captioned.values()),
        are_classes=not captioned,
    )


def _stem(name: str) -> str:
    """A file's name, with its folders, without its ending."""
    return os.path.splitext(name)[0]


def _from_texts(files: ImageFiles, texts: Mapping[str, str]) -> tuple[str, ...]:
    """The captions in text files, by their images' names."""
    captions = []
    with collect_errors("image") as collect:
        for name, path in files.images.items():
            with collect():
                if name not in texts:
                    problem = (
                        f"no caption; write it into {path.with_suffix('.txt').name}, as for "
                        f"{min(texts)}"
                    )
                    raise ValueError(f"{path}: {problem}, or give {_LAYOUTS}")
                file = files.folder / texts[name]
                captions.append(caption_in_one_line(read_text(file), str(file)))
    return tuple(captions)


def _from_classes(files: ImageFiles) -> tuple[str, ...]:
    """The name of the subfolder that each image is in, at any depth.

    Raises:
        ValueError: an image in no subfolder; or a file that looks as if it had the captions, which
            the names of subfolders would replace.
    """
    for name in files.others:
        if name.rpartition("/")[2].lower() in (*_CAPTION_FILES, *_FOREIGN_FILES):
            raise ValueError(
                f"{files.folder / name}: captions that are not read here, so names of subfolders "
                f"would replace them; give {_LAYOUTS}, in the very folder that you name; or rename "
                "the file"
            )
    captions = []
    with collect_errors("image") as collect:
        for name, path in files.images.items():
            with collect():
                category, slash, _ = name.partition("/")
                if not slash:
                    file = path.with_suffix(".txt").name
                    raise ValueError(
                        f"{path}: no caption; write it into {file}, or give {_LAYOUTS}"
                    )
                captions.append(category)
    return tuple(captions)


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
        raise ValueError(
            f"{path}: its first line must name the columns file and caption, it is {header}"
        )
    file, caption = header.index("file"), header.index("caption")
    rows: list[_Row] = [
        (
            (location, str(row), row)
            if isinstance(row, ValueError)
            else (location, row[file], row[caption])
        )
        for location, row in table
    ]
    return [row for row in rows if row[1] or row[2]]


def _listed(files: ImageFiles, file: Path, rows: Sequence[_Row]) -> CaptionedImages:
    """The images and captions of a caption file's rows."""
    folder = files.folder
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
    listed = {_place(folder / name) for name, _ in pairs}
    with collect_errors("image") as collect:
        for path in files.images.values():
            with collect():
                if _place(path) not in listed:
                    raise ValueError(
                        f"{path}: no caption in {file.name}; add its line, or remove the image"
                    )
    pairs.sort()
    paths = tuple(folder / name for name, _ in pairs)
    captions = tuple(text for _, text in pairs)
    return CaptionedImages(
        paths,
        captions,
        files.left_out([file.name, *(os.path.normpath(name) for name, _ in pairs)]),
    )


def _place(file: Path) -> str:
    """What is equal for all paths of a name in a folder: absolute ones, and those through links to
    the folder.
    """
    return os.path.join(os.path.realpath(file.parent), file.name)


_CAPTION_FILES: Mapping[str, Callable[[Path], list[_Row]]] = {
    "captions.jsonl": partial(
        _parsed_lines, parse=_from_jsonl, form='{"file": ..., "caption": ...}'
    ),
    "captions.csv": _from_csv,
    "captions.txt": partial(_parsed_lines, parse=_from_tabs, form="file name, tab, caption"),
}
_FOREIGN_FILES = ("metadata.jsonl", "metadata.csv")  # as the library `datasets` has captions
