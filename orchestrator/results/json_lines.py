"""JSON lines files: one object with a checksum per line, only appended to."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workers.data.checked_json import dump_checked, is_intact, load_checked
from workers.data.storage import Storage


def append_line(path: Path, entry: Mapping[str, Any], *, sync: bool = True) -> None:
    """Add an object to a JSON lines file, on a line of its own after one that was cut off. sync: flush it to disk.

    Raises:
        OSError: it cannot be written; it is named.
    """
    line = dump_checked(entry) + b"\n"
    try:
        with open(path, "ab+") as file:
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
    """The objects of a JSON lines file one by one, None for a damaged line; nothing if there is no such file.

    An incomplete last line is skipped: its writer was killed, or is still writing.
    """
    for line in _lines(storage, name):
        try:
            yield load_checked(line)
        except ValueError:
            if _is_damage(line):
                yield None


def read_lines(storage: Storage, name: str) -> tuple[list[dict[str, Any]], int]:
    """All objects of a JSON lines file, and the number of its damaged lines."""
    lines = list(scan_lines(storage, name))
    entries = [entry for entry in lines if entry is not None]
    return entries, len(lines) - len(entries)


def drop_damaged_lines(storage: Storage, name: str) -> int:
    """Rewrite a JSON lines file without its damaged lines; returns their number. FILE.damaged keeps the old one."""
    damaged = sum(_is_damage(line) for line in _lines(storage, name) if not is_intact(line))
    if damaged:
        whole = b"".join(line for line in _lines(storage, name) if is_intact(line))
        storage.write(f"{name}.damaged", storage.read(name))
        storage.write(name, whole)
    return damaged


def _lines(storage: Storage, name: str) -> Iterator[bytes]:
    if not storage.exists(name):
        return
    path = storage.path(name)
    with io.BytesIO(storage.read(name)) if path is None else path.open("rb") as lines:
        yield from lines


def _is_damage(line: bytes) -> bool:
    """Whether a line that cannot be read is damaged, rather than empty or incomplete."""
    return bool(line.strip()) and line.endswith(b"\n")
