"""A worker's log: its own file in the sweep's folder, with its tasks, their times, and tracebacks
of errors.
"""

from __future__ import annotations

import io
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from workers.data.storage import Storage

_FOLDER = "logs"
_LOGGER = "workers"  # parent of the loggers of all modules in this package
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
# An exception class of `workers.runtime.engines`, by its name: importing that module imports torch.
_CANCELLED = "Cancelled"


class _WorkerHandler(logging.StreamHandler[TextIO]):
    """The handler that `open_log` added; a process has one."""

    def close(self) -> None:
        super().close()
        self.stream.close()


def open_log(storage: Storage, worker: str) -> logging.Logger:
    """The worker's logger. If the storage is a folder, everything that this process logs is also
    appended to logs/<worker>.log; otherwise it goes to standard error, which Ray keeps.

    Raises:
        OSError: the file cannot be written, or is a link out of the folder.
    """
    logger = logging.getLogger(_LOGGER)
    root = logging.getLogger()
    for handler in [entry for entry in root.handlers if isinstance(entry, _WorkerHandler)]:
        root.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.INFO)
    if (file := storage.open(f"{_FOLDER}/{worker}.log", "ab+")) is not None:
        handler = _WorkerHandler(io.TextIOWrapper(file, encoding="utf-8"))
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    logger.info(
        "%s starts on %s as process %d, for %s",
        worker,
        platform.node(),
        os.getpid(),
        storage.display_name,
    )
    return logger


def log_folder(storage: Storage) -> Path | None:
    """The folder of the workers' logs; None if it does not exist or the storage is remote."""
    path = storage.path(_FOLDER)
    if path is not None and path.is_dir():
        return path
    return None


@contextmanager
def log_duration(logger: logging.Logger, task: str) -> Iterator[None]:
    """Logs how long the block took, or how it failed; exceptions pass through."""
    start = time.perf_counter()
    try:
        yield
    except Exception as error:
        seconds = time.perf_counter() - start
        if type(error).__name__ == _CANCELLED:
            logger.info("%s: cancelled after %.2f s", task, seconds)
        else:
            logger.exception("%s: failed after %.2f s", task, seconds)
        raise
    logger.info("%s: %.2f s", task, time.perf_counter() - start)


def describe_task(task: Mapping[str, Any], captions: Mapping[str, Any] | None = None) -> str:
    """One-line description of a task, such as `quality of captions 48 to 95, eagle chain`. With the
    worker's specification of `captions`, it names their source.
    """
    text = str(task.get("kind"))
    if "start" in task and "stop" in task:
        text += f" of captions {task['start']} to {task['stop'] - 1}"
        if captions:
            text += f" of {captions['source']}"
    config = task.get("config") or {}
    parts = [_kind(config.get("drafter"), "drafter"), _kind(config.get("tree"), "policy")]
    if method := " ".join(part for part in parts if part):
        text += f", {method}"
    return text


def _kind(section: Any, key: str) -> str:
    """The kind of a section of a config, which is a mapping or the kind alone."""
    if isinstance(section, Mapping):
        return str(section.get(key) or section.get("kind") or "")
    return str(section or "")
