"""Output folders of commands: checked before the work, and not left behind empty if it is refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import WRONG_USAGE, ends_with


def check_writable(folder: Path) -> None:
    """Check that files can be written below a folder, which need not exist. Nothing is left in it.

    Raises:
        ValueError: a file is in its place, or the system refuses.
    """
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir():
        raise ValueError(f"{parent}: is a file in the place of a folder; choose another --out or --name")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".specfrontier-", dir=parent))
    except OSError as error:
        raise ValueError(f"{parent}: cannot be written ({error.strerror}); choose another --out") from error


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Create a folder for the block. If the block fails, the folders that are new and empty are removed again.

    Raises:
        CommandError: nothing can be written there (2).
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with ends_with(WRONG_USAGE):
            check_writable(folder)
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise
