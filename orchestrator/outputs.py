"""Outputs of commands: checked before the work, not left behind empty if it is refused, and not lost with a Ray job."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import WRONG_USAGE, ends_with

_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the entrypoint of a job
_JOB_COPY = "/runtime_resources/working_dir_files/"  # in the path of a job's copy of --working-dir
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///([^?]+)")  # three slashes and a relative path, or four


def check_lasting(option: str, output: str, example: str) -> None:
    """Refuse an output of a Ray job that would be lost with the job's working folder, a temporary copy.

    output: a path, or the URI of storage, of a study or of MLflow.

    Raises:
        ValueError: names the option, and gives the example.
    """
    if _JOB_VARIABLE not in os.environ:
        return
    database = _SQLITE.match(output)
    if database is None and _SCHEME.match(output) and not output.lower().startswith("file://"):
        return
    path = Path(database[1] if database else output.removeprefix("file://")).expanduser()
    if not path.is_absolute() or _JOB_COPY in f"{os.path.realpath(path)}/":
        raise ValueError(
            f"{option} {output}: the working folder of a Ray job is a temporary copy, and results in it are lost; give "
            f"a place outside of it, such as {option} {example}"
        )


def check_writable(folder: Path) -> None:
    """Check that files can be written below a folder, which need not exist. Nothing is left in it.

    Raises:
        ValueError: a file is in its place, or the system refuses; or a Ray job would lose it.
    """
    check_lasting("--out", str(folder.absolute()), "/shared/results")
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
