"""Captions to draw: from a file of the user's, from a published set, or those of procedural scenes.

    .txt            one caption a line
    .csv .tsv       with a header line; column caption, text or prompt (in any case), or a named one
    .jsonl          one object a line, with such a key
    .parquet        with such a column
    .json           COCO captions: one caption for each image

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.data.shards import digest

SCENES = "scenes"
COLUMNS = ("caption", "text", "prompt")  # looked for in this order


@dataclass(frozen=True, slots=True)
class Caption:
    """`id` is its own within the source and fits a signed 64-bit integer."""

    id: int
    text: str


def read_captions(
    source: str | Path, *, count: int | None = None, seed: int = 0, column: str | None = None
) -> list[Caption]:
    """`count` captions of a source (all if None), chosen and ordered by the seed. The source "scenes" is procedural.

    Line ends within a caption become spaces; blank lines at the end of a file do not count.

    Raises:
        ValueError: no such file, an unknown kind, no captions, text that is not UTF-8, a missing column, a blank or
        broken row, fewer captions than `count`; it names the file, the row and the mend.
    """
    if count is not None and count < 1:
        raise ValueError(f"{source}: {count} captions are asked for; ask for at least 1")
    if source == SCENES:
        if count is None:
            raise ValueError("scenes: say how many captions (count); there is no end of them")
        return scene_captions(count, seed)
    path = Path(source).expanduser()
    found = _read(path, seed, column)
    if not found:
        raise ValueError(f"{path}: no captions in it; give a file with at least one")
    if count is not None and count > len(found):
        unit = "one for each image" if path.suffix.lower() == ".json" else "one a row"
        raise ValueError(f"{path}: {count} captions are asked for, it has {len(found)} ({unit}); lower the count")
    return sorted(found, key=lambda caption: _rank(seed, caption.id))[:count]


def scene_captions(count: int, seed: int) -> list[Caption]:
    """Captions of the procedural scenes 0..count-1 of a seed; the built-in model was trained on seed 0."""
    from workers.data.scenes import caption, sample_attributes

    return [Caption(i, caption(row)) for i, row in enumerate(sample_attributes(seed, range(count)).tolist())]


def captions_hash(captions: Sequence[Caption]) -> str:
    """20 hex digits that name a list of captions: their ids, texts and order."""
    return digest([[caption.id, caption.text] for caption in captions])


def _rank(*parts: int) -> bytes:
    """Where something stands in a random order that is the same on every machine."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).digest()


def _read(path: Path, seed: int, column: str | None) -> list[Caption]:
    ending = path.suffix.lower()
    if ending == ".json":
        return _from_coco(path, seed)
    if ending not in _READERS:
        known = ", ".join([*_READERS, ".json"])
        raise ValueError(f"{path}: captions come as {known}, not {ending or 'a file without an ending'}; rename it")
    if not path.is_file():
        raise ValueError(f"{path}: {'a folder, not a file of captions' if path.is_dir() else 'no such file'}")
    texts = _READERS[ending](path, column)
    return [Caption(number, _clean(text, where)) for number, (where, text) in enumerate(texts)]


Row = tuple[str, object]  # where it stands, for errors, and what should be the caption


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
    for where, row in cells[1:]:
        if len(row) > len(header):
            raise ValueError(f"{where}: {len(row)} fields under {len(header)} columns; {_MENDS[path.suffix.lower()]}")
    return [(where, row[place] if place < len(row) else "") for where, row in cells[1:]]


_MENDS = {".csv": "put the caption in double quotes", ".tsv": "take the tabs out of the caption"}


def _comma_cells(path: Path) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
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
    rows: list[Row] = []
    for where, line in _lines(path):
        entry = _json(line, where)
        if not isinstance(entry, dict):
            raise ValueError(f'{where}: not an object such as {{"caption": "a red ball"}}')
        rows.append((where, entry[_column(where, list(entry), column)]))
    return rows


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


def _from_coco(path: Path, seed: int) -> list[Caption]:
    """One caption for each image: that with the smallest SHA-256 of (seed, image id, annotation id)."""
    content = _json(_text(path), str(path))
    annotations = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(annotations, list):
        raise ValueError(f"{path}: not COCO captions (no list `annotations`); give lists as .txt or .jsonl")
    chosen: dict[int, tuple[bytes, Caption]] = {}
    seen: set[int] = set()
    for number, entry in enumerate(annotations):
        where = f"{path}, annotation {number}"
        if not isinstance(entry, dict) or not _is_id(entry.get("id")) or not _is_id(entry.get("image_id")):
            raise ValueError(f"{where}: needs the whole numbers id and image_id, and a caption; mend or remove it")
        if entry["id"] in seen:
            raise ValueError(f"{where}: the id {entry['id']} is there twice; give each annotation its own")
        seen.add(entry["id"])
        caption = Caption(entry["id"], _clean(entry.get("caption"), where))
        candidate = (_rank(seed, entry["image_id"], entry["id"]), caption)
        best = chosen.get(entry["image_id"])
        if best is None or candidate[0] < best[0]:
            chosen[entry["image_id"]] = candidate
    return [caption for _, caption in chosen.values()]


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
    """The caption on one line. ValueError if it is blank, no text, or has broken characters."""
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
