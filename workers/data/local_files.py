"""Files of a folder on this machine: atomic and durable writes, and errors that name the file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.data.remote_files import HIDDEN


class StorageError(OSError):
    """A storage cannot be read or written, or is out of space. A missing file is a FileNotFoundError instead."""


def read(path: Path) -> bytes:
    with _storage_errors(path):
        return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, replacing an earlier one. Creates its folder."""
    with _storage_errors(path):
        _write(path, data)


def move(old: Path, path: Path) -> None:
    """Rename a file, replacing an earlier one of the new name. Creates its folder."""
    with _storage_errors(path):
        _make_folder(path.parent)
        os.replace(old, path)
        _sync_folder(path.parent)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Re-raises the system's errors, except about a missing file, as StorageError with the file's path."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error


def _write(path: Path, data: bytes) -> None:
    _make_folder(path.parent)
    hidden = path.with_name(f"{HIDDEN}{path.name}.{uuid.uuid4().hex}")
    try:
        with open(hidden, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
