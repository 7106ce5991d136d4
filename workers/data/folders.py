"""The files of a folder that a user has named, and of its subfolders."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.data.text_files import collect_errors


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a folder. Names are relative to it, with `/`, in sorted order."""

    entries: Mapping[str, os.DirEntry[str]]  # the files by name; some may be pipes or devices
    repeated: tuple[str, ...]  # folders that are left out, because links lead to them in two ways


def find_files(folder: Path) -> FolderFiles:
    """The files of a folder and its subfolders. Opens none of them.

    Links are followed, and no folder is read twice. Hidden files and folders, and `__MACOSX`, are
    skipped.

    Raises:
        ValueError: a link to something that does not exist, or a folder that cannot be read.
    """
    found = dict[str, os.DirEntry[str]]()
    repeated = list[str]()
    read = set[tuple[int, int]]()
    folders = deque([("", folder)])
    # Read after all other folders, so that a file with two paths has the name without links.
    links = deque[tuple[str, Path]]()
    with collect_errors("path") as collect:
        while folders or links:
            prefix, path = (folders or links).popleft()
            entries = list[os.DirEntry[str]]()
            with collect():
                if (key := _identity(path)) in read:
                    repeated.append(prefix)
                else:
                    entries = _entries(path)
                read.add(key)
            for entry in entries:
                with collect():
                    name = f"{prefix}{entry.name}"
                    if _is_folder(entry):
                        queue = links if entry.is_symlink() else folders
                        queue.append((f"{name}/", path / entry.name))
                    else:
                        found[name] = entry
    return FolderFiles(dict(sorted(found.items())), tuple(sorted(repeated)))


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of the files of a folder. Raises ValueError (see `find_files`),
    OSError.
    """
    if not path.is_dir():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in find_files(path).entries.values())


def _identity(folder: Path) -> tuple[int, int]:
    """Device and inode of a folder, which are the same for all of its paths."""
    try:
        status = folder.stat()
    except OSError as error:
        raise _unreadable(folder, error) from error
    return status.st_dev, status.st_ino


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            shown = [
                entry
                for entry in entries
                if not entry.name.startswith(".") and entry.name != "__MACOSX"
            ]
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted(shown, key=lambda entry: entry.name)


def _unreadable(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"{folder}: cannot be read ({error.strerror}); correct its permissions, or move it"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one. Raises ValueError: see `find_files`."""
    if entry.is_symlink() and not os.path.exists(entry.path):
        raise ValueError(
            f"{entry.path}: a link to {os.readlink(entry.path)}, which does not exist; restore it, "
            "or remove the link"
        )
    return entry.is_dir()
