"""How a command ends: 0 done, 1 failed, 2 wrong usage, 130 interrupted; user mistakes get a sentence, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


class CommandError(Exception):
    """Ends a command with one message on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def ends_with(code: int) -> Iterator[None]:
    """Turn `ValueError` and `OSError` raised inside into a `CommandError` with this exit code."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise CommandError(explain(error), code) from error


def explain(error: Exception) -> str:
    """The error's own sentence; for the operating system's errors, the file and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
