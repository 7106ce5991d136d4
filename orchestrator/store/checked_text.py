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
from typing import Any, TypeAlias

from workers.data.checked_json import OtherVersionError, dump_checked, load_checked
from workers.data.files import open_regular
from workers.data.storage import Storage

# an object, an error if another version of specfrontier wrote it, or None if it is damaged
Line: TypeAlias = dict[str, Any] | OtherVersionError | None
_LINE = re.compile(r"# checksum: ([0-9a-f]{16})")


def dump_yaml(text: str) -> bytes:
    """The text of a YAML file in UTF-8 below its checksum."""
    return f"# checksum: {_digest(text)}\n{text}".encode()


def load_yaml(data: bytes) -> str:
    """The text of a YAML file without its checksum.

    Raises:
        OtherVersionError: it has no checksum.
        ValueError: damaged: changed since it was written, or not UTF-8.
    """
    try:
        first, _, rest = data.decode().partition("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"damaged ({error})") from error
    found = _LINE.fullmatch(first)
    is_cut = first.startswith("#") or not first
    if found is None and "checksum" not in first and not is_cut:
        raise OtherVersionError("it has no checksum")
    if found is None or _digest(rest) != found[1]:
        raise ValueError("damaged (its checksum differs)")
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


def scan_lines(storage: Storage, name: str) -> Iterator[Line]:
    """The lines of a JSON lines file one by one; nothing if there is no such file."""
    return (entry for _, entry in _scan(storage, name))


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


def _scan(storage: Storage, name: str) -> Iterator[tuple[bytes, Line]]:
    """The lines of a JSON lines file, each as bytes and parsed; nothing if there is no such file.

    The last line is damaged if it is incomplete: its writer was killed, or is still writing. Empty
    lines are skipped.
    """
    if not storage.exists(name):
        return
    with storage.open(name, "rb") or io.BytesIO(storage.read(name)) as lines:
        for line in lines:
            try:
                yield line, load_checked(line)
            except OtherVersionError as error:
                yield line, error
            except ValueError:
                if line.strip():
                    yield line, None
