"""Text files that users write: read as UTF-8, line by line, and errors of many rows reported together."""

from __future__ import annotations

import io
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
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; give a file that can be read") from error


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text file and their locations; blank lines at its end are left out."""
    lines = list(io.StringIO(read_text(path), newline=None))
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line
