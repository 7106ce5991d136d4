"""mlflow.jsonl in a sweep's folder: one line per run that MLflow has completely. Lines are only appended.

Trials that are not in the file are still to be logged; there is no other queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.json_lines import append_line, read_lines
from orchestrator.results.locks import exclusive
from orchestrator.results.store import MLFLOW_LOCK, MLFLOW_RUNS
from orchestrator.views.client import Event, TrackingError, public_uri
from workers.data.checked_json import dump_checked
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
    """Reads and extends the log of one sweep. Skips damaged lines: the runs that they named are looked up in MLflow."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def runs(self) -> list[LoggedRun]:
        """All runs in the order in which they were logged."""
        keys = LoggedRun.__slots__
        entries, _ = read_lines(self._storage, MLFLOW_RUNS)
        return [LoggedRun(**{key: entry[key] for key in keys}) for entry in entries if entry.keys() >= set(keys)]

    def trials(self, uri: str, experiment: str) -> dict[int, LoggedRun]:
        """The trials in this experiment, each with its latest run."""
        place = (public_uri(uri), experiment)
        return {run.trial: run for run in self.runs() if (run.uri, run.experiment) == place}

    def last_event(self) -> Event | None:
        events = [entry["event"] for entry in read_lines(self._storage, MLFLOW_RUNS)[0] if "event" in entry]
        return events[-1] if events else None

    def add(self, run: LoggedRun) -> None:
        self._append(asdict(run))

    def add_event(self, event: Event) -> None:
        self._append({"event": event, "at": datetime.now(UTC).isoformat(timespec="seconds")})

    def _append(self, entry: Mapping[str, Any]) -> None:
        path = self._storage.path(MLFLOW_RUNS)
        if path is not None:
            append_line(path, entry)
            return
        before = self._storage.read(MLFLOW_RUNS) if self._storage.exists(MLFLOW_RUNS) else b""
        self._storage.write(MLFLOW_RUNS, before + dump_checked(entry) + b"\n")


@contextmanager
def sole_writer(storage: Storage) -> Iterator[None]:
    """Only one process at a time logs a sweep to MLflow.

    Raises:
        TrackingError: another process is logging it.
    """
    with exclusive(storage, MLFLOW_LOCK) as lock:
        if not lock.acquired:
            problem = "another process is logging this sweep to MLflow; it will log the rest, or try again later"
            raise TrackingError(f"{storage.display_name}: {problem}")
        yield
