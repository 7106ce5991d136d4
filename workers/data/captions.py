"""Captions of the images to generate: from a user's file, a folder of captioned images, a published
set, procedural scenes, or class numbers.

    .txt            one caption per line
    .csv .tsv       with a header line; column caption, text or prompt (in any case), or a named one
    .jsonl          one object per line, with such a key
    .parquet        with such a column
    .json           COCO captions: one per image, chosen by the seed, the first, or the longest
    a folder        of captioned images, in the order of their names (see captioned_images.py)

A table or .jsonl may have a group for each caption, such as its length or GenEval's tag: column
group, category or tag. Statistics are given by group; nothing else depends on it.

A caption's id is its position in the whole source (from 0) or COCO's annotation id. The id seeds
the image's random numbers, so a caption gives the same image in every selection. The SHA-256 of
(seed, id) decides which captions are selected, and their order: both are the same on every machine,
and a smaller selection is the start of a larger one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from search_spaces.documents import parse_json
from search_spaces.paths import local_path
from workers.data.shards import digest
from workers.data.text_files import (
    HEAD,
    caption_in_one_line,
    collect_errors,
    file_kind,
    read_lines,
    read_table,
    read_text,
    split_lines,
)

if TYPE_CHECKING:
    import pyarrow as pa

SCENES = "scenes"
CLASSES = "classes"
_IMAGENET_CLASSES = 1000  # class-conditional targets number them from 0
Choose = Literal["seeded", "first", "longest"]
_INSTANCE_KEYS = frozenset({"bbox", "segmentation", "keypoints", "category_id", "segments_info"})
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_COLUMNS = ("caption", "text", "prompt")  # in order of preference
_GROUPS = ("group", "category", "tag")  # columns of captions' groups, in order of preference


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption of a source."""

    id: int  # unique within the source; fits a signed 64-bit integer
    text: str
    location: str = field(default="", compare=False, repr=False)  # such as "captions.txt, line 3"
    group: str = field(default="", compare=False, repr=False)  # "": none


def read_captions(
    source: str | Path,
    *,
    count: int | None = None,
    seed: int = 0,
    column: str | None = None,
    choose: Choose = "seeded",
) -> list[Caption]:
    """Captions of a source, selected and ordered by the seed.

    Line ends within a caption become spaces; blank lines at the end of a file are ignored.

    Args:
        source: a file, a folder of captioned images, "scenes" (procedural), or "classes" (the
            numbers of ImageNet's classes).
        count: number of captions; None: all of the source.
        seed: decides which captions are selected, and their order.
        column: column or key with the captions; None: caption, text or prompt.
        choose: which of an image's captions is taken from a COCO file: by the seed, the first in
            the file, or the longest (if several are the longest, the one with the smallest id). In
            other formats each row is one image's caption.

    Raises:
        ValueError: no such file, an unknown format, no captions, text that is not UTF-8, a missing
            column, a blank or invalid row, or fewer captions than `count`. The message names the
            file, the first such row, the number of others, and the fix.
    """
    if count is not None and count < 1:
        raise ValueError(f"{source}: count is {count}; use at least 1")
    if source == SCENES:
        if count is None:
            raise ValueError("scenes: set count; the source has no end")
        return scene_captions(count, seed)
    path = local_path(source)
    if source == CLASSES:
        found = [
            Caption(number, str(number), f"{CLASSES}, number {number}")
            for number in range(_IMAGENET_CLASSES)
        ]
    else:
        found = captions_in_order(path, seed=seed, column=column, choose=choose)
    if not found:
        raise ValueError(f"{path}: no captions; give a file with at least one")
    if count is not None and count > len(found):
        unit = "one per row"
        if source == CLASSES:
            unit = "the classes of ImageNet"
        elif path.is_dir() or path.suffix.lower() == ".json":
            unit = "one per image"
        raise ValueError(
            f"{path}: count is {count}, but it has {len(found)} captions ({unit}); lower the count"
        )
    return sorted(found, key=lambda caption: _rank(seed, caption.id))[:count]


def folder_notes(source: str | Path) -> str:
    """What to know of a folder of captioned images (see `CaptionedImages.notes`); "" of another
    source.

    Raises:
        ValueError: see `read_captions`.
    """
    from workers.data.captioned_images import read_folder  # imports torch and Pillow

    if source in (SCENES, CLASSES) or not (folder := local_path(source)).is_dir():
        return ""
    return read_folder(folder).notes


def scene_captions(count: int, seed: int) -> list[Caption]:
    """Captions of the procedural scenes 0..count-1 of a seed; the built-in model was trained on
    seed 0.
    """
    from workers.scenes.images import sample_captions

    texts = sample_captions(seed, count)
    return [Caption(i, text, f"{SCENES}, number {i}") for i, text in enumerate(texts)]


def captions_hash(captions: Sequence[Caption]) -> str:
    """20 hex digits that identify a list of captions: their ids, texts and order."""
    return digest([[caption.id, caption.text] for caption in captions])


def _rank(*parts: int) -> bytes:
    """Sort key of a random order that is the same on every machine."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).digest()


def captions_in_order(
    path: Path, *, seed: int = 0, column: str | None = None, choose: Choose = "seeded"
) -> list[Caption]:
    """All captions of a file in its order, or of a folder's images in the order of their names; see
    `read_captions`.

    Raises:
        ValueError: see `read_captions`, and `read_folder` for a folder.
    """
    if path.is_dir():
        return _to_captions(_from_folder(path, column))
    ending = path.suffix.lower()
    if ending == ".json":
        return _from_coco(path, seed, choose)
    if ending not in _READERS:
        found = ending or "a file without an ending"
        fix = "unpack it" if ending in _ARCHIVES else "rename it"
        raise ValueError(
            f"{path}: use a file of captions ({', '.join(ENDINGS)}), not {found}; {fix}"
        )
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return _to_captions(_READERS[ending](path, column))


def captions_of_text(text: str, name: str) -> list[Caption]:
    """The captions of a text with one per line, as in a .txt file. Locations begin with `name`.

    Raises:
        ValueError: a blank line between others, or invalid characters.
    """
    return _to_captions((location, line, None) for location, line in split_lines(text, name))


# location, the caption or the error of the row, and its group
_Row = tuple[str, object, object]


def _to_captions(rows: Iterable[_Row]) -> list[Caption]:
    found: list[Caption] = []
    with collect_errors("row") as collect:
        for number, (location, text, group) in enumerate(rows):
            with collect():
                line = caption_in_one_line(text, location)
                found.append(Caption(number, line, location, _group(group, location)))
    return found


def _from_folder(folder: Path, column: str | None) -> Iterable[_Row]:
    from workers.data.captioned_images import read_folder  # imports torch and Pillow

    if column is not None:
        raise ValueError(f"{folder}: a folder has no columns; remove column {column!r}")
    images = read_folder(folder)
    return [
        (str(path), caption, None)
        for path, caption in zip(images.paths, images.captions, strict=True)
    ]


def _group(value: object, location: str) -> str:
    """The group that a column says, in one line; "" if it has no single value there.

    Raises:
        ValueError: it has invalid characters.
    """
    is_missing = isinstance(value, float) and math.isnan(value)  # as pandas writes it
    if value is None or is_missing or isinstance(value, list | dict):
        return ""
    text = " ".join(str(value).split())
    return caption_in_one_line(text, location) if text else ""


def _group_column(columns: Iterable[str], captions: str) -> str | None:
    """The column with the captions' groups, if there is one. captions: that of the captions."""
    by_name = {name.strip().lower(): name for name in columns if name != captions}
    return next((by_name[name] for name in _GROUPS if name in by_name), None)


def _from_lines(path: Path, column: str | None) -> Iterable[_Row]:
    if column is not None:
        raise ValueError(f"{path}: a text file has no columns; remove column {column!r}")
    return ((location, line, None) for location, line in read_lines(path))


def _from_table(path: Path, column: str | None) -> Iterable[_Row]:
    header, rows = read_table(path)
    name = _column(path, header, column)
    index = header.index(name)
    group = _group_column(header, name)
    group_index = None if group is None else header.index(group)
    for location, row in rows:
        if isinstance(row, ValueError):
            yield location, row, None
        else:
            yield location, row[index], None if group_index is None else row[group_index]


def _from_jsonl(path: Path, column: str | None) -> Iterable[_Row]:
    for number, (location, line) in enumerate(read_lines(path)):
        if not number and line.rstrip() in ("{", "["):
            raise ValueError(
                f"{path}: JSON over several lines, not JSON Lines; write each object on a line of "
                "its own"
            )
        try:
            entry = _json(line, location)
            if not isinstance(entry, dict):
                raise ValueError(f'{location}: not an object such as {{"caption": "a red ball"}}')
            name = _column(location, list(entry), column)
            group = _group_column(entry, name)
            yield location, entry[name], None if group is None else entry[group]
        except ValueError as error:
            yield location, error, None


def _from_parquet(path: Path, column: str | None) -> Iterable[_Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as opened:
            head = opened.read(HEAD)
        if not head.startswith(b"PAR1") and (kind := file_kind(head)):
            raise ValueError(f"{path}: not a Parquet file but {kind}")
        with pq.ParquetFile(path) as file:
            name = _column(path, file.schema_arrow.names, column)
            if problem := _not_text(file.schema_arrow.field(name).type):
                raise ValueError(f"{path}: column {name!r} has {problem}")
            group = _group_column(file.schema_arrow.names, name)
            table = file.read([name] if group is None else [name, group])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: not a readable Parquet file ({error}); write it again"
        ) from error
    values = table.column(name).to_pylist()
    groups = [None] * len(values) if group is None else table.column(group).to_pylist()
    return [
        (f"{path}, row {number}", value, own)
        for number, (value, own) in enumerate(zip(values, groups, strict=True), start=1)
    ]


def _not_text(kind: pa.DataType) -> str:
    """Why a column of this type has no captions, and the fix; "" if it has."""
    import pyarrow as pa

    types = pa.types
    plain = kind.value_type if types.is_dictionary(kind) else kind
    if (
        types.is_string(plain)
        or types.is_large_string(plain)
        or types.is_string_view(plain)
        or types.is_null(plain)
    ):
        return ""
    if types.is_list(plain) or types.is_large_list(plain) or types.is_fixed_size_list(plain):
        return (
            f"lists ({kind}), not text; write one row for each caption, or its first caption alone"
        )
    if types.is_binary(plain) or types.is_large_binary(plain):
        fix = "decode them as UTF-8"
    else:
        fix = "name another column"
    return f"values of type {kind}, not text; {fix}"


def _from_coco(path: Path, seed: int, choose: Choose) -> list[Caption]:
    """One caption per image; "seeded" takes the one with the smallest SHA-256 of (seed, image id,
    annotation id).
    """
    content = _json(read_text(path), str(path))
    annotations = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(annotations, list):
        raise ValueError(
            f"{path}: not COCO captions (no list `annotations`); use .txt or .jsonl for a list of "
            "captions"
        )
    if (found := _keys(annotations)) & _INSTANCE_KEYS and "caption" not in found:
        named = ", ".join(sorted(found))
        raise ValueError(
            f"{path}: its annotations are not captions but objects or points ({named}), as in "
            "COCO's instances; give COCO's captions_*.json"
        )
    chosen: dict[int, tuple[Any, Caption]] = {}
    seen: set[int] = set()
    with collect_errors("annotation") as collect:
        for index, entry in enumerate(annotations):
            with collect():
                image, caption = _annotation(entry, f"{path}, annotation {index + 1}", seen)
                keys = {
                    "seeded": _rank(seed, image, caption.id),
                    "first": index,
                    "longest": -len(caption.text),
                }
                candidate = ((keys[choose], caption.id), caption)
                chosen[image] = min(
                    chosen.get(image, candidate), candidate, key=lambda found: found[0]
                )
    return [caption for _, caption in chosen.values()]


def _keys(annotations: Sequence[object]) -> set[str]:
    """The keys that any annotation has."""
    mappings = [entry for entry in annotations if isinstance(entry, dict)]
    return {key for entry in mappings for key in entry}


def _annotation(entry: object, location: str, seen: set[int]) -> tuple[int, Caption]:
    """The image id and the caption of one annotation; adds its id to `seen`. Raises ValueError if
    the annotation is invalid.
    """
    if (
        not isinstance(entry, dict)
        or not _is_id(entry.get("id"))
        or not _is_id(entry.get("image_id"))
    ):
        raise ValueError(
            f"{location}: needs integers id and image_id, and a caption; correct or remove it"
        )
    if entry["id"] in seen:
        raise ValueError(f"{location}: id {entry['id']} occurs twice; give each annotation its own")
    seen.add(entry["id"])
    location = f"{location} (id {entry['id']})"
    return entry["image_id"], Caption(
        entry["id"], caption_in_one_line(entry.get("caption"), location), location
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _column(location: Path | str, columns: Sequence[str], column: str | None) -> str:
    """The column with the captions. Raises ValueError if there is none, or if two columns have its
    name.
    """
    if column is None:
        matches = [[name for name in columns if name.strip().lower() == word] for word in _COLUMNS]
        expected = " or ".join(_COLUMNS)
    else:
        matches = [[name for name in columns if name == column]]
        expected = repr(column)
    names = next(filter(None, matches), [])
    if len(names) == 1:
        return names[0]
    problem = "two columns" if names else "no column"
    names_text = ", ".join(map(repr, columns)) or "none"
    raise ValueError(f"{location}: {problem} {expected}; its columns are {names_text}; name one")


def _json(text: str, location: str) -> Any:
    if not text.strip():
        raise ValueError(f"{location}: empty; give a JSON object")
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if "line" not in location.rpartition(",")[2]:
            where = f" (line {error.lineno}, column {error.colno})"
        else:
            where = ""
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        fix = "the file may be truncated" if at_end else "correct it"
        first = text[: error.pos]  # the valid part: of JSON Lines, the first line
        if where and error.msg == "Extra data" and "\n" in first and "\n" not in first.strip():
            raise ValueError(
                f"{location}: JSON Lines, one object per line; rename it to .jsonl"
            ) from error
        raise ValueError(f"{location}: broken JSON: {error.msg}{where}; {fix}") from error


_READERS: Mapping[str, Callable[[Path, str | None], Iterable[_Row]]] = {
    ".txt": _from_lines,
    ".csv": _from_table,
    ".tsv": _from_table,
    ".jsonl": _from_jsonl,
    ".parquet": _from_parquet,
}
ENDINGS = (*_READERS, ".json")
