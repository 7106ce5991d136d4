"""mlflow.jsonl in a sweep's folder: one line per run that MLflow has completely. Lines are only appended.

Trials that are not in the file are still to be logged; there is no other queue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.store import MLFLOW_LOCK, MLFLOW_RUNS, exclusive, read_lines
from orchestrator.tracking.client import Event, TrackingError, public_uri
from workers.data.storage import Storage


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run of a trial, a child of the sweep's run `parent`. uri: the tracking server's, credentials redacted."""

    uri: str
    experiment: str
    experiment_id: str
    parent: str
    trial: int
    run_id: str


class RunLog:
    """Reads and extends the log of one sweep. Skips a line that was cut off when its writer was killed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def runs(self) -> list[LoggedRun]:
        """All runs in the order in which they were logged."""
        keys = LoggedRun.__slots__
        entries = read_lines(self._storage, MLFLOW_RUNS)
        return [LoggedRun(**{key: entry[key] for key in keys}) for entry in entries if entry.keys() >= set(keys)]

    def trials(self, uri: str, experiment: str) -> dict[int, LoggedRun]:
        """The trials in this experiment, each with its latest run."""
        place = (public_uri(uri), experiment)
        return {run.trial: run for run in self.runs() if (run.uri, run.experiment) == place}

    def last_event(self) -> Event | None:
        events = [entry["event"] for entry in read_lines(self._storage, MLFLOW_RUNS) if "event" in entry]
        return events[-1] if events else None

    def add(self, run: LoggedRun) -> None:
        self._append(asdict(run))

    def add_event(self, event: Event) -> None:
        self._append({"event": event, "at": datetime.now(UTC).isoformat(timespec="seconds")})

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        path = self._storage.path(MLFLOW_RUNS)
        if path is None:
            before = self._storage.read(MLFLOW_RUNS) if self._storage.exists(MLFLOW_RUNS) else b""
            self._storage.write(MLFLOW_RUNS, before + line)
            return
        with open(path, "ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def sole_writer(storage: Storage) -> Iterator[None]:
    """Only one process at a time logs a sweep to MLflow. Remote storage has no lock.

    Raises:
        TrackingError: another process is logging it.
    """
    with exclusive(storage, MLFLOW_LOCK) as acquired:
        if not acquired:
            problem = "another process is logging this sweep to MLflow; it will log the rest, or try again later"
            raise TrackingError(f"{storage.display_name}: {problem}")
        yield
