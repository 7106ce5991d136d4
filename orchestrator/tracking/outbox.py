"""What MLflow has of a sweep, kept beside the sweep: mlflow.jsonl, one line for each run that was logged whole.

Lines are only ever added. The store's trials less the ledger's are the outbox: there is no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from orchestrator.results.store import MLFLOW_LOCK, MLFLOW_RUNS, exclusive, read_lines
from workers.data.storage import Storage

DATABASE, ARTIFACTS = "mlflow.db", "mlartifacts"
ENVIRONMENT = "MLFLOW_TRACKING_URI"
Event = Literal["started", "finished", "interrupted", "failed"]


class TrackingError(ValueError):
    """MLflow cannot take the sweep for a reason that waiting does not cure; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The run of a trial, below the sweep's own run `parent`. uri: of the tracking server, without credentials."""

    uri: str
    experiment: str
    experiment_id: str
    parent: str
    trial: int
    run_id: str


class Ledger:
    """Reads and extends the ledger of one storage. Half a line, left by a process that was killed, is passed over."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def runs(self) -> list[Logged]:
        """All runs in the order in which they were logged."""
        keys = Logged.__slots__
        return [Logged(**{key: e[key] for key in keys}) for e in self._entries() if all(key in e for key in keys)]

    def trials(self, uri: str, experiment: str) -> dict[int, Logged]:
        """The trials that this place has, the latest line for each."""
        return {run.trial: run for run in self.runs() if (run.uri, run.experiment) == (shown(uri), experiment)}

    def last_event(self) -> Event | None:
        """What last happened to the sweep while it was tracked."""
        events = [entry["event"] for entry in self._entries() if "event" in entry]
        return events[-1] if events else None

    def add(self, run: Logged) -> None:
        self._append({key: getattr(run, key) for key in Logged.__slots__})

    def note(self, event: Event) -> None:
        self._append({"event": event, "at": datetime.now(UTC).isoformat(timespec="seconds")})

    def _entries(self) -> list[Mapping[str, Any]]:
        return read_lines(self._storage, MLFLOW_RUNS)

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
    """Only one process at a time brings a sweep to MLflow; the system lets go of the lock when it dies.

    A storage that is not on this machine has no lock.

    Raises:
        TrackingError: another process is at it.
    """
    with exclusive(storage, MLFLOW_LOCK) as alone:
        if not alone:
            problem = "another process is logging this sweep to MLflow; it will see to everything, or try again later"
            raise TrackingError(f"{storage.shown}: {problem}")
        yield


def resolve(storage: Storage, uri: str | None) -> str:
    """Where a sweep is logged: what is given, else MLFLOW_TRACKING_URI, else a database beside the sweep's folder.

    The database is shared by the sweeps in one folder, so that one MLflow UI compares them. A sweep whose files are not
    on this machine has it in the working directory.
    """
    return uri or os.environ.get(ENVIRONMENT) or f"sqlite:///{_home(storage) / DATABASE}"


def artifact_folder(storage: Storage, uri: str) -> Path | None:
    """Where the artifacts of a local database go; None if the server sees to them."""
    return Path(uri.removeprefix("sqlite:///")).absolute().parent / ARTIFACTS if is_local(uri) else None


def is_local(uri: str) -> bool:
    return uri.startswith("sqlite:///")


def _home(storage: Storage) -> Path:
    path = storage.path(MLFLOW_RUNS)
    return Path.cwd() if path is None else path.parent.parent


def shown(uri: str) -> str:
    """A tracking URI without user, password, query and fragment: for the ledger, messages and links."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return uri.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def safe(text: str, uri: str) -> str:
    """A message of MLflow's without the credentials of a tracking URI, in whole or in parts."""
    from orchestrator.results.redaction import without_credentials

    parts = urlsplit(uri)
    text = text.replace(uri, shown(uri))
    secrets = [parts.netloc.rpartition("@")[0], parts.password or "", parts.query]
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return without_credentials(text)
