"""Exit codes (0 done, 1 failed, 2 wrong usage, 130 interrupted), and errors that users see without
a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


# the modules of `pip install 'specfrontier[sweep]'`, with those that come with them
_SWEEP_MODULES = frozenset(
    {
        "botorch",
        "gpytorch",
        "matplotlib",
        "mlflow",
        "optuna",
        "ray",
        "sqlalchemy",
        "starlette",
        "torchmetrics",
    }
)


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class QueryError(ValueError):
    """A question about sweeps that cannot be read, or that names something unknown."""


class StudyError(ValueError):
    """The study cannot be opened, belongs to another sweep, or the sampler cannot search the space.
    The message names the fix.
    """


class NoChoiceError(QueryError):
    """No trial is what was asked for."""


def last_words(message: str, code: int) -> str:
    """What a command says when it ends with this exit code. An interrupt is not an error."""
    return message[:1].upper() + message[1:] if code == INTERRUPTED else f"Error: {message}"


@contextmanager
def ends_with(code: int, *kinds: type[BaseException], message: str = "") -> Iterator[None]:
    """Turn errors raised inside (by default `ValueError` and `OSError`) into a `CommandError` with
    this exit code.

    message: of an error that says nothing of its own, such as an interrupt. Also decorates a
    function.
    """
    caught = kinds or (ValueError, OSError)
    try:
        yield
    except BrokenPipeError:  # the reader of the output has enough
        raise
    except caught as error:
        raise CommandError(message or explain(error), code) from error


@contextmanager
def with_sweep_libraries() -> Iterator[None]:
    """Turn an import inside of a library that only sweeps need, and that is not installed, into a
    `CommandError` that says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _SWEEP_MODULES:
            raise
        problem = f"{name} is not installed; pip install 'specfrontier[sweep]'"
        raise CommandError(problem, FAILED) from error


@contextmanager
def in_memory(advice: str) -> Iterator[None]:
    """Turn memory that runs out inside, on a GPU or on the CPU, into a `CommandError`: "out of
    memory" and `advice`.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # imports torch, which `--help` must not
        from workers.runtime.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        raise CommandError(f"out of memory {advice}", FAILED) from error


def explain(error: BaseException) -> str:
    """The error's own sentence; for the operating system's errors, the file and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
