"""A worker's log: a file of its own in the sweep's folder, where its tasks stand with their times and its errors with
their tracebacks.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.data.storage import Storage

FOLDER = "logs"
LOGGER = "workers"  # above the loggers of all modules here
FORMAT = "%(asctime)s %(levelname)s %(message)s"
CALLED_OFF = "Cancelled"


class _OwnFile(logging.FileHandler):
    """The handler that `open_log` added; a process has one."""


def open_log(storage: Storage, worker: str) -> logging.Logger:
    """The worker's logger. Where the storage is a folder, all that this process logs goes to logs/<worker>.log as well,
    after what an earlier worker of that name left; elsewhere it goes to standard error, which Ray keeps.

    Raises:
        OSError: the file cannot be written.
    """
    logger, root = logging.getLogger(LOGGER), logging.getLogger()
    for handler in [entry for entry in root.handlers if isinstance(entry, _OwnFile)]:
        root.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.INFO)
    path = storage.path(f"{FOLDER}/{worker}.log")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _OwnFile(path, encoding="utf-8")
        handler.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(handler)
    logger.info("%s begins on %s as process %d, for %s", worker, platform.node(), os.getpid(), storage.shown)
    return logger


def folder_of_logs(storage: Storage) -> Path | None:
    """Where the workers' logs lie; None if there are none, or Ray has them."""
    path = storage.path(FOLDER)
    return path if path is not None and path.is_dir() else None


@contextmanager
def logged(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log how long something took, or how it failed; the exception goes on."""
    begin = time.perf_counter()
    try:
        yield
    except Exception as error:
        seconds = time.perf_counter() - begin
        if type(error).__name__ == CALLED_OFF:
            logger.info("%s: called off after %.2f s", what, seconds)
        else:
            logger.exception("%s: failed after %.2f s", what, seconds)
        raise
    logger.info("%s: %.2f s", what, time.perf_counter() - begin)


def task_in_words(task: Mapping[str, Any]) -> str:
    """e.g. `quality of captions 48 to 95, eagle chain`."""
    kind, config = task.get("kind"), task.get("config") or {}
    where = f" of captions {task['start']} to {task['stop'] - 1}" if "start" in task and "stop" in task else ""
    parts = [_kind(config.get("drafter"), "drafter"), _kind(config.get("tree"), "policy")]
    setting = " ".join(part for part in parts if part)
    return f"{kind}{where}{f', {setting}' if setting else ''}"


def _kind(section: Any, tag: str) -> str:
    return str(section.get(tag) or section.get("kind") or "") if isinstance(section, Mapping) else str(section or "")
