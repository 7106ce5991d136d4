"""Text files that users write: read as UTF-8, line by line or as tables, and errors of many rows
reported together.

A line ends at \\n, \\r\\n or \\r. The other characters at which `str.splitlines` splits, such as
form feed, U+0085 and U+2028, are part of their line.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Control characters that a caption may not have; a tab is text, and line ends become spaces before.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_EXCERPT = 20  # characters of an excerpt before and after the control character
HEAD = 4096  # bytes that tell what a file is
_ARCHIVE = "unpack it, and give a file of it"
# How files of other kinds begin, what they are, and what to do.
_KINDS = (
    (
        rb"PK\x03\x04",
        "a zip archive or an office program's document",
        f"{_ARCHIVE}, or save it as .csv",
    ),
    (rb"\x1f\x8b", "a gzip archive", _ARCHIVE),
    (rb"BZh[1-9]1AY&SY", "a bzip2 archive", _ARCHIVE),
    (rb"\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!\x1a", "an archive", _ARCHIVE),
    (rb"(?s).{257}ustar", "a tar archive", _ARCHIVE),
    (rb"PAR1[\x00-\x1f]", "a Parquet file", "give it a name that ends in .parquet"),
    (
        rb"ARROW1\0|\x89HDF|SQLite format 3\0",
        "a database or table of another program",
        "export it as .csv",
    ),
    (rb"%PDF-", "a PDF", "save its text as .txt"),
    (rb"(?s)\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", "an image", "give a file of captions"),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS",
        "fetch the file itself with `git lfs pull`",
    ),
    (rb"(?i)\s*(<!doctype html|<html)", "a web page", "download the file itself"),
)


@contextmanager
def collect_errors(unit: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Continues after an error: ValueErrors inside `with collect():` are kept, and the first is
    raised at the end.

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
    if count:
        return f" ({count} more {unit}{' is' if count == 1 else 's are'} wrong)"
    return ""


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        ValueError: the file cannot be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror or error}; give a file that can be read"
        ) from error
    return decode(data, str(path))


def decode(data: bytes, name: str) -> str:
    """UTF-8 text, with or without a byte order mark. Errors begin with the file's `name`.

    Raises:
        ValueError: it is not UTF-8, or has NUL characters, or is a file of another kind.
    """
    if kind := file_kind(data):
        raise ValueError(f"{name}: not text but {kind}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        encoding = " but UTF-16" if _is_utf16(data) else ""
        raise ValueError(
            f"{name}, line {line}: not UTF-8 text{encoding}; save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        problem = "a NUL character; remove it"
        if _is_utf16(data):
            problem = "not UTF-8 text but UTF-16; save the file as UTF-8"
        raise ValueError(f"{name}, line {line}: {problem}")
    return text


def _is_utf16(data: bytes) -> bool:
    """Whether text starts with UTF-16's byte order mark, or has NULs as UTF-16 has them: at odd or
    even places only.
    """
    places = [data[start:HEAD:2].count(0) for start in (0, 1)]
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (
        min(places) == 0 and max(places) > 1
    )


def file_kind(data: bytes) -> str:
    """The kind of a file that is not text, by its first bytes, and the fix; "" if it is not
    known.
    """
    known = (f"{kind}; {fix}" for magic, kind, fix in _KINDS if re.match(magic, data[:HEAD]))
    return next(known, "")


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file and their locations; blank lines at its end are left out."""
    return split_lines(read_text(path), str(path))


def split_lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    """The lines of a text and their locations in the file `name`; blank lines at its end are left
    out.
    """
    lines = list(io.StringIO(text, newline=None))
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield f"{name}, line {number}", line


def read_table(path: Path) -> tuple[list[str], list[tuple[str, list[str] | ValueError]]]:
    """The header of a .csv or .tsv file, and the location and fields of each row.

    A row has as many fields as the header, "" where the row is too short; in the place of a row
    with more fields is an error. Blank rows at the end of the file are left out. A quoted field of
    a .csv file may span several lines, and keeps its line ends.

    Raises:
        ValueError: the file cannot be read, is not UTF-8, or has a stray quotation mark.
    """
    if path.suffix.lower() == ".tsv":
        rows = list(_tab_fields(path))
        fix = "remove the tabs from the caption"
    else:
        rows = _comma_fields(path)
        fix = "put the caption in double quotes"
    while rows and not any(rows[-1][1]):
        rows.pop()
    header = rows[0][1] if rows else []

    def fit(location: str, fields: list[str]) -> list[str] | ValueError:
        if len(fields) > len(header):
            return ValueError(
                f"{location}: {len(fields)} fields under {len(header)} columns; {fix}"
            )
        return fields + [""] * (len(header) - len(fields))

    return header, [(location, fit(location, fields)) for location, fields in rows[1:]]


def _comma_fields(path: Path) -> list[tuple[str, list[str]]]:
    text = read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    rows = list[tuple[str, list[str]]]()
    first = 1
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        for row in reader:
            rows.append((f"{path}, line {first}", row))
            first = reader.line_num + 1
    except csv.Error as error:
        problem = f"{error} in line {reader.line_num}" if reader.line_num > first else str(error)
        fix = 'close it, and write " inside a quoted field as ""'
        raise ValueError(
            f"{path}, line {first}: a stray quotation mark ({problem}); {fix}"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _tab_fields(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Published sets have plain quotation marks; spreadsheets quote fields as in CSV. So quotes are
    removed only from a field that is quoted as a whole, with every quotation mark inside doubled.
    """
    for location, line in read_lines(path):
        fields = line.rstrip("\n").split("\t")
        yield (
            location,
            [
                field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field
                for field in fields
            ],
        )


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def caption_in_one_line(text: object, location: str) -> str:
    """The caption as one line: line ends of any kind within it become spaces.

    Raises:
        ValueError: it is blank, not text, or has invalid characters, or `text` itself is an error.
    """
    if isinstance(text, ValueError):
        raise text
    if text is None or (isinstance(text, str) and not text.strip()):
        raise ValueError(f"{location}: blank caption; fill it in or remove the row")
    if not isinstance(text, str):
        raise ValueError(f"{location}: the caption is {text!r}, not text; put it in quotes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{location}: invalid character (lone surrogate) in {text!r}; correct it"
        ) from error
    line = " ".join(part.strip() for part in text.strip().splitlines())
    if found := _CONTROL.search(line):
        raise ValueError(
            f"{location}: control character {found[0]!r} in {_excerpt(line, found.start())}; "
            "remove it"
        )
    return line


def _excerpt(text: str, at: int) -> str:
    """The text around a place in it."""
    return repr(text[max(0, at - _EXCERPT) : at + _EXCERPT])
