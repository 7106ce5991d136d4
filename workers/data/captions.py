"""Captions to draw: from a file of the user's, from a published set, those of procedural scenes, or classes.

    .txt            one caption a line
    .csv .tsv       with a header line; column caption, text or prompt (in any case), or a named one
    .jsonl          one object a line, with such a key
    .parquet        with such a column
    .json           COCO captions: one caption for each image, chosen by the seed, the first, or the longest

A caption keeps its id, its position in the source (from 0) or COCO's annotation id, whatever is taken out of the
source: the id keys its random numbers, so the same caption gives the same image in every subset. Which captions are
taken, and in what order, follows from SHA-256 of (seed, id), so it is the same on every machine, and fewer captions
are always the first of more.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from workers.data.faults import faults
from workers.data.shards import digest

SCENES, CLASSES = "scenes", "classes"
IMAGENET = 1000  # classes, which class-conditional targets know by their numbers from 0
Choose = Literal["seeded", "first", "longest"]
COLUMNS = ("caption", "text", "prompt")  # looked for in this order


@dataclass(frozen=True, slots=True)
class Caption:
    """`id` is its own within the source and fits a signed 64-bit integer. where: its place in the source, in words."""

    id: int
    text: str
    where: str = field(default="", compare=False, repr=False)


def read_captions(
    source: str | Path,
    *,
    count: int | None = None,
    seed: int = 0,
    column: str | None = None,
    choose: Choose = "seeded",
) -> list[Caption]:
    """`count` captions of a source (all if None), chosen and ordered by the seed. The source "scenes" is procedural,
    "classes" are the numbers of ImageNet's.

    choose: which of several captions of one image, as COCO has them: by the seed, the first in the file, or the one of
    most characters (of equals that with the smallest id). Elsewhere a row is an image's only caption.
    Line ends within a caption become spaces; blank lines at the end of a file do not count.

    Raises:
        ValueError: no such file, an unknown kind, no captions, text that is not UTF-8, a missing column, a blank or
        broken row, fewer captions than `count`; it names the file, the first such row, how many more there are, and
        the mend.
    """
    if count is not None and count < 1:
        raise ValueError(f"{source}: {count} captions are asked for; ask for at least 1")
    if source == SCENES:
        if count is None:
            raise ValueError("scenes: say how many captions (count); there is no end of them")
        return scene_captions(count, seed)
    path = Path(source).expanduser()
    found = _classes() if source == CLASSES else _read(path, seed, column, choose)
    if not found:
        raise ValueError(f"{path}: no captions in it; give a file with at least one")
    if count is not None and count > len(found):
        unit = "one for each image" if path.suffix.lower() == ".json" else "one a row"
        unit = "those of ImageNet" if source == CLASSES else unit
        raise ValueError(f"{path}: {count} captions are asked for, it has {len(found)} ({unit}); lower the count")
    return sorted(found, key=lambda caption: _rank(seed, caption.id))[:count]


def scene_captions(count: int, seed: int) -> list[Caption]:
    """Captions of the procedural scenes 0..count-1 of a seed; the built-in model was trained on seed 0."""
    from workers.scenes.images import sample_captions

    return [Caption(i, text, f"{SCENES}, number {i}") for i, text in enumerate(sample_captions(seed, count))]


def _classes() -> list[Caption]:
    return [Caption(number, str(number), f"{CLASSES}, number {number}") for number in range(IMAGENET)]


def captions_hash(captions: Sequence[Caption]) -> str:
    """20 hex digits that name a list of captions: their ids, texts and order."""
    return digest([[caption.id, caption.text] for caption in captions])


def _rank(*parts: int) -> bytes:
    """Where something stands in a random order that is the same on every machine."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).digest()


def _read(path: Path, seed: int, column: str | None, choose: Choose) -> list[Caption]:
    ending = path.suffix.lower()
    if ending == ".json":
        return _from_coco(path, seed, choose)
    if ending not in _READERS:
        known = ", ".join([*_READERS, ".json"])
        raise ValueError(f"{path}: captions come as {known}, not {ending or 'a file without an ending'}; rename it")
    if not path.is_file():
        raise ValueError(f"{path}: {'a folder, not a file of captions' if path.is_dir() else 'no such file'}")
    found: list[Caption] = []
    with faults("row") as noted:
        for number, (where, text) in enumerate(_READERS[ending](path, column)):
            with noted():
                found.append(Caption(number, _clean(text, where), where))
    return found


Row = tuple[str, object]  # where it stands, for errors, and what should be the caption, or the fault of the row


def _from_lines(path: Path, column: str | None) -> list[Row]:
    if column is not None:
        raise ValueError(f"{path}: a text file has no columns, so leave out column {column!r}")
    return list(_lines(path))


def _from_table(path: Path, column: str | None) -> list[Row]:
    cells = list(_tab_cells(path) if path.suffix.lower() == ".tsv" else _comma_cells(path))
    while cells and not any(cells[-1][1]):
        cells.pop()
    header = cells[0][1] if cells else []
    place = header.index(_column(path, header, column))
    mend = _MENDS[path.suffix.lower()]

    def cell(where: str, row: list[str]) -> object:
        if len(row) > len(header):
            return ValueError(f"{where}: {len(row)} fields under {len(header)} columns; {mend}")
        return row[place] if place < len(row) else ""

    return [(where, cell(where, row)) for where, row in cells[1:]]


_MENDS = {".csv": "put the caption in double quotes", ".tsv": "take the tabs out of the caption"}


def _comma_cells(path: Path) -> Iterator[tuple[str, list[str]]]:
    reader, first = csv.reader(io.StringIO(_text(path), newline=""), strict=True), 1
    try:
        for row in reader:
            yield f"{path}, line {first}", row
            first = reader.line_num + 1  # a quoted caption may have several
    except csv.Error as error:
        raise ValueError(f'{path}, line {reader.line_num}: {error}; write " inside a quoted field as ""') from error


def _tab_cells(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Fields between tabs. Published sets leave quotation marks as they are, spreadsheets quote as in CSV: a field is
    unquoted only if it is quoted from end to end, with every mark inside doubled."""
    for where, line in _lines(path):
        fields = line.rstrip("\n").split("\t")
        yield where, [field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields]


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def _from_jsonl(path: Path, column: str | None) -> list[Row]:
    return [(where, _entry(line, where, column)) for where, line in _lines(path)]


def _entry(line: str, where: str, column: str | None) -> object:
    """The caption of a line of JSON, or the line's fault."""
    try:
        entry = _json(line, where)
        if not isinstance(entry, dict):
            return ValueError(f'{where}: not an object such as {{"caption": "a red ball"}}')
        return entry[_column(where, list(entry), column)]
    except ValueError as fault:
        return fault


def _from_parquet(path: Path, column: str | None) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            name = _column(path, file.schema_arrow.names, column)
            values = file.read([name]).column(name)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}); write it again") from error
    return [(f"{path}, row {number}", value) for number, value in enumerate(values.to_pylist(), start=1)]


def _from_coco(path: Path, seed: int, choose: Choose) -> list[Caption]:
    """One caption for each image: by the seed, that with the smallest SHA-256 of (seed, image id, annotation id)."""
    content = _json(_text(path), str(path))
    annotations = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(annotations, list):
        raise ValueError(f"{path}: not COCO captions (no list `annotations`); give lists as .txt or .jsonl")
    chosen: dict[int, tuple[Any, Caption]] = {}
    seen: set[int] = set()
    with faults("annotation") as noted:
        for place, entry in enumerate(annotations):
            with noted():
                image, caption = _annotation(entry, f"{path}, annotation {place + 1}", seen)
                keys = {"seeded": _rank(seed, image, caption.id), "first": place, "longest": -len(caption.text)}
                candidate = ((keys[choose], caption.id), caption)
                chosen[image] = min(chosen.get(image, candidate), candidate, key=lambda found: found[0])
    return [caption for _, caption in chosen.values()]


def _annotation(entry: object, where: str, seen: set[int]) -> tuple[int, Caption]:
    """The image and the caption of one annotation; its id joins those `seen`. ValueError for its fault."""
    if not isinstance(entry, dict) or not _is_id(entry.get("id")) or not _is_id(entry.get("image_id")):
        raise ValueError(f"{where}: needs the whole numbers id and image_id, and a caption; mend or remove it")
    if entry["id"] in seen:
        raise ValueError(f"{where}: the id {entry['id']} is there twice; give each annotation its own")
    seen.add(entry["id"])
    where = f"{where} (id {entry['id']})"
    return entry["image_id"], Caption(entry["id"], _clean(entry.get("caption"), where), where)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _column(where: Path | str, known: Sequence[str], column: str | None) -> str:
    """The column of captions among the known ones. ValueError if there is none, or two of its name."""
    names = [name for name in known if name == column] if column is not None else []
    if column is None:
        by_word: Mapping[str, list[str]] = {word: [n for n in known if n.strip().lower() == word] for word in COLUMNS}
        names = next((found for found in by_word.values() if found), [])
    if len(names) == 1:
        return names[0]
    wanted = repr(column) if column is not None else " or ".join(COLUMNS)
    there = ", ".join(map(repr, known)) or "none"
    raise ValueError(f"{where}: {'two columns' if names else 'no column'} {wanted}; its columns are {there}; name one")


def _clean(text: object, where: str) -> str:
    """The caption on one line. ValueError if it is blank, no text, or has broken characters, or the one that it is."""
    if isinstance(text, ValueError):
        raise text
    if text is None or (isinstance(text, str) and not text.strip()):
        raise ValueError(f"{where}: blank caption; fill it in or remove the row")
    if not isinstance(text, str):
        raise ValueError(f"{where}: the caption is {text!r}, not text; put it in quotes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: half a character (lone surrogate) in {text!r}; mend it") from error
    return " ".join(part.strip() for part in text.strip().splitlines())


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file and where they stand; blank ones at its end are left out."""
    lines = list(io.StringIO(_text(path), newline=None))
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; give a file that can be read") from error


def _json(text: str, where: str) -> Any:
    if not text.strip():
        raise ValueError(f"{where}: empty; give a JSON object")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f" (line {error.lineno}, column {error.colno})" if "line" not in where.rpartition(",")[2] else ""
        raise ValueError(f"{where}: broken JSON: {error.msg}{place}; was it copied whole?") from error


_READERS: Mapping[str, Callable[[Path, str | None], list[Row]]] = {
    ".txt": _from_lines,
    ".csv": _from_table,
    ".tsv": _from_table,
    ".jsonl": _from_jsonl,
    ".parquet": _from_parquet,
}
