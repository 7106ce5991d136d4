"""Files and folders that commands write: checked before the work, and not lost with a Ray job; a
folder is not left behind empty if it is refused.

The ending of a file's name decides its format.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import WRONG_USAGE, CommandError, ends_with
from orchestrator.store import databases
from orchestrator.text import csv_cell, without_credentials
from search_spaces.paths import is_remote, local_path
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow

# endings
PLOTS = (".png", ".pdf", ".svg")
TABLES = (".csv", ".parquet", ".json")
PAGES = (".html",)
CONFIGS = (".yaml", ".yml")
PAPER_TABLES = (".tex", ".md")  # see `orchestrator.shown.paper_tables`

_WEIGHTS = (".safetensors", ".bin", ".ckpt", ".pt", ".pth")
_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the entrypoint of a job
_JOB_COPY = "/runtime_resources/working_dir_files/"  # in the path of a job's copy of --working-dir


def check_lasting(option: str, output: str) -> None:
    """Refuse an output of a Ray job that would be lost with the job's working folder, a temporary
    copy.

    output: a path, or the URI of storage, of a study or of MLflow.

    Raises:
        ValueError: names the option.
    """
    if not _is_lasting(output):
        raise ValueError(
            f"{option} {without_credentials(output)}: the working folder of a Ray job is a "
            "temporary copy, and results in it are lost; give an absolute path outside of it, a "
            "bucket or a server"
        )


def _is_lasting(place: str) -> bool:
    if _JOB_VARIABLE not in os.environ:
        return True
    path = databases.local_file(place.removeprefix("file://"))
    return path is None or (path.is_absolute() and _JOB_COPY not in f"{os.path.realpath(path)}/")


def from_anywhere(models: str) -> str:
    """FILE[#ENTRY] for commands in other folders (see `absolute_source`); as given in a Ray job's
    working folder, which is a temporary copy.
    """
    from workers.loading.models_yaml import absolute_source  # imports torch, which takes seconds

    place = absolute_source(models)
    return place if _is_lasting(place) else models


def ending_of(file: str | Path, endings: Sequence[str]) -> str:
    """The ending of a path or URI, in lower case.

    Raises:
        ValueError: it is not one of `endings`, which the message names.
    """
    name = str(file)
    if isinstance(file, str) and "://" in file:
        name = file.partition("?")[0]
    ending = os.path.splitext(name)[1].lower()
    if ending not in endings:
        *others, last = endings
        known = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{without_credentials(str(file))}: give a file name that ends in {known}")
    return ending


def check_output(file: str, endings: Sequence[str], option: str) -> None:
    """Check that a file can be written: a path or URI, given by an option.

    Raises:
        ValueError: another ending, a folder in its place, or one that cannot be written.
    """
    ending_of(file, endings)
    storage, name = Storage.holding(file)
    path = storage.path(name)
    if path is not None and path.is_dir():
        raise ValueError(f"{file}: is a folder; choose another {option}")
    if path is not None:
        check_writable(path.parent, option)


def read_input(file: str) -> bytes:
    """The bytes of a file, given by its path or URI. Raises OSError or ValueError if it cannot be
    read.
    """
    if not is_remote(file):
        return local_path(file).read_bytes()
    storage, name = Storage.holding(file)
    return storage.read(name)


def write_output(file: str, data: bytes) -> str:
    """Write a file atomically, and the folders that it needs; returns where it is, without
    credentials.
    """
    storage, name = Storage.holding(file)
    storage.write(name, data)
    is_local = storage.path(name) is not None
    return file if is_local else storage.locate(name)


def table_bytes(table: pyarrow.Table, ending: str) -> bytes:
    """A table as a file with one of the endings of `TABLES`. In CSV, list entries are separated by
    semicolons, and no text is a spreadsheet's formula (see `csv_cell`).
    """
    if ending == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return bytes(sink.getvalue())
    rows = table.to_pylist()
    if ending == ".json":
        return (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(csv_cell, table.column_names))
    for row in rows:
        texts = (";".join(value) if isinstance(value, list) else value for value in row.values())
        writer.writerow([csv_cell(text) if isinstance(text, str) else text for text in texts])
    return text.getvalue().encode()


def check_writable(folder: Path, option: str = "--out") -> None:
    """Check that files can be written below a folder, which need not exist. Nothing is left in it.
    option: names it.

    Raises:
        ValueError: a file is in its place, or the system refuses; or a Ray job would lose it.
    """
    check_lasting(option, str(folder.absolute()))
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not parent.is_dir():
        fix = f"choose another {option}"
        if option == "--out":
            fix += " or --name"
        raise ValueError(f"{parent}: is a file in the place of a folder; {fix}")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".specfrontier-", dir=parent))
    except OSError as error:
        raise ValueError(
            f"{parent}: cannot be written ({error.strerror}); choose another {option}"
        ) from error


def write_folder(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write files by name, which may have folders, into a folder, which is created if it is
    missing: all of them, or none if one fails. A path is a file to copy; weights are linked if they
    are on the same disk.

    Raises:
        CommandError: nothing can be written there, or one of them exists (2).
    """
    tops = dict.fromkeys(name.partition("/")[0] for name in files)
    if existing := [name for name in tops if (folder / name).exists()]:
        raise CommandError(f"{folder}: {existing[0]} exists; give another --out", WRONG_USAGE)
    with (
        output_folder(folder),
        tempfile.TemporaryDirectory(prefix=".specfrontier-", dir=folder) as place,
    ):
        for name, source in files.items():
            file = Path(place, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, bytes):
                file.write_bytes(source)
            else:
                _link_or_copy(source.resolve(), file)
        new = {Path(place, name): folder / name for name in tops}
        try:
            for file, target in new.items():
                file.rename(target)
        except BaseException:
            for file, target in new.items():
                if not file.exists():
                    _remove(target)
            raise


def _link_or_copy(source: Path, file: Path) -> None:
    """Link weights, which nobody edits, and copy everything else."""
    if file.suffix.lower() in _WEIGHTS:
        with suppress(OSError):  # another disk, or one without links
            file.hardlink_to(source)
            return
    shutil.copyfile(source, file)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Create a folder for the block. If the block fails, the folders that are new and empty are
    removed again.

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
