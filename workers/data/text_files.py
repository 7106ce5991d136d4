"""Text files that users write: read as UTF-8, line by line or as tables, and errors of many rows reported together.

A line ends at \\n, \\r\\n or \\r. The other characters at which `str.splitlines` splits, such as form feed, U+0085 and
U+2028, are part of their line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


@contextmanager
def collect_errors(unit: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Continues after an error: ValueErrors inside `with collect():` are kept, and the first is raised at the end.

    Raises:
        ValueError: the text of the first one, and how many more `unit`s are wrong.
    """
    errors: list[ValueError] = []

    @contextmanager
    def collect() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            errors.append(error)

    yield collect
    if errors:
        raise ValueError(f"{errors[0]}{and_more(len(errors) - 1, unit)}") from errors[0]


def and_more(count: int, unit: str) -> str:
    """` (3 more rows are wrong)`; empty for 0."""
    return f" ({count} more {unit}{' is' if count == 1 else 's are'} wrong)" if count else ""


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; give a file that can be read") from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> str:
    """UTF-8 text, with or without a byte order mark. name: the file's, for errors.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{name}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file and their locations; blank lines at its end are left out."""
    return split_lines(read_text(path), str(path))


def split_lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    """The lines of a text and their locations in the file `name`; blank lines at its end are left out."""
    lines = list(io.StringIO(text, newline=None))
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield f"{name}, line {number}", line


def read_table(path: Path) -> tuple[list[str], list[tuple[str, list[str] | ValueError]]]:
    """The header of a .csv or .tsv file, and the location and fields of each row: as many as the header has, "" where
    the row is too short; an error if it has more. Blank rows at the end of the file are left out. A quoted field of a
    .csv file may span several lines, and keeps its line ends.

    Raises:
        ValueError: the file cannot be read, is not UTF-8, or has a stray quotation mark.
    """
    is_tabbed = path.suffix.lower() == ".tsv"
    fix = "remove the tabs from the caption" if is_tabbed else "put the caption in double quotes"
    rows = list(_tab_fields(path) if is_tabbed else _comma_fields(path))
    while rows and not any(rows[-1][1]):
        rows.pop()
    header = rows[0][1] if rows else []

    def fit(location: str, fields: list[str]) -> list[str] | ValueError:
        if len(fields) > len(header):
            return ValueError(f"{location}: {len(fields)} fields under {len(header)} columns; {fix}")
        return fields + [""] * (len(header) - len(fields))

    return header, [(location, fit(location, fields)) for location, fields in rows[1:]]


def _comma_fields(path: Path) -> Iterator[tuple[str, list[str]]]:
    reader, first = csv.reader(io.StringIO(read_text(path), newline=""), strict=True), 1
    try:
        for row in reader:
            yield f"{path}, line {first}", row
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f'{path}, line {reader.line_num}: {error}; write " inside a quoted field as ""') from error


def _tab_fields(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Published sets have plain quotation marks; spreadsheets quote fields as in CSV. So quotes are removed only from a
    field that is quoted as a whole, with every quotation mark inside doubled."""
    for location, line in read_lines(path):
        fields = line.rstrip("\n").split("\t")
        yield location, [field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields]


_QUOTED = re.compile(r'"(?:[^"]|"")*"')
