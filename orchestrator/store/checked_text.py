"""YAML files and JSON lines files with checksums, so that a changed or cut file is noticed.

A YAML file's first line is a comment with a checksum of the rest: `# checksum: 9d2c61a0b7e35f48`.
A file without such a line was written by somebody else and is read as it is. A JSON lines file has
one object with a checksum per line, and is only appended to.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.data.checked_json import dump_checked, load_checked
from workers.data.files import open_regular
from workers.data.storage import Storage

_LINE = re.compile(r"# checksum: ([0-9a-f]{16})")


def dump_yaml(text: str) -> bytes:
    """The text of a YAML file in UTF-8 below its checksum."""
    return f"# checksum: {_digest(text)}\n{text}".encode()


def load_yaml(data: bytes) -> str:
    """The text of a YAML file without its checksum.

    Raises:
        ValueError: changed since it was written, or not UTF-8.
    """
    text = data.decode()
    first, _, rest = text.partition("\n")
    is_comment = first.startswith("# ") or "# ".startswith(first)  # it may be cut
    if not is_comment and "checksum" not in first:
        return text
    found = _LINE.fullmatch(first)
    if found is None or _digest(rest) != found[1]:
        raise ValueError("changed since it was written: its checksum differs")
    return rest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def append_line(path: Path, entry: Mapping[str, Any], *, sync: bool = True) -> None:
    """Add an object to a JSON lines file, on a line of its own after one that was cut off. sync:
    flush it to disk.

    Raises:
        OSError: it cannot be written, or is a link; it is named.
    """
    line = dump_checked(entry) + b"\n"
    try:
        with open_regular(path, "ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError as error:  # of a write, it names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def scan_lines(storage: Storage, name: str) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSON lines file one by one, None for a damaged line; nothing if there is no
    such file.
    """
    return (entry for _, entry in _scan(storage, name))


def read_lines(storage: Storage, name: str) -> tuple[list[dict[str, Any]], int]:
    """All objects of a JSON lines file, and the number of its damaged lines."""
    lines = list(scan_lines(storage, name))
    entries = [entry for entry in lines if entry is not None]
    return entries, len(lines) - len(entries)


def drop_damaged_lines(storage: Storage, name: str) -> int:
    """Rewrite a JSON lines file without its damaged lines; returns their number. FILE.damaged keeps
    the old one.
    """
    lines = [(line, entry is not None) for line, entry in _scan(storage, name)]
    whole = [line for line, is_intact in lines if is_intact]
    if damaged := len(lines) - len(whole):
        storage.write(f"{name}.damaged", storage.read(name))
        storage.write(name, b"".join(whole))
    return damaged


def _scan(storage: Storage, name: str) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """The lines of a JSON lines file and their objects, None for a damaged one; nothing if there is
    no such file.

    The last line is damaged if it is incomplete: its writer was killed, or is still writing. Empty
    lines are skipped.
    """
    if not storage.exists(name):
        return
    with storage.open(name, "rb") or io.BytesIO(storage.read(name)) as lines:
        for line in lines:
            try:
                yield line, load_checked(line)
            except ValueError:
                if line.strip():
                    yield line, None
