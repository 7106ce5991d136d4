"""MLflow's own server on a sweep's database, and where in its pages the sweep is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.results.trials import TrialRecord
from orchestrator.tracking.outbox import (
    ENVIRONMENT,
    Ledger,
    Logged,
    TrackingError,
    artifact_folder,
    is_local,
    resolve,
    shown,
)
from orchestrator.tracking.runs import Facts, front
from orchestrator.tracking.tracker import compare_link, parent_link
from workers.data.storage import Storage

PATIENCE = 120.0  # seconds until the server answers; the first start makes the database's tables
LEAVE = 10.0  # seconds that it has to end by itself
ANYWHERE = ("0.0.0.0", "::")
SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a dozen processes for things that a sweep does not use
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where MLflow has a sweep: uri (with credentials if they are known), its runs, and those of its front."""

    uri: str
    experiment_id: str
    parent: str
    trials: int
    front: Sequence[str]

    @property
    def has_server(self) -> bool:
        """Whether a server answers at the URI already."""
        return self.uri.startswith(("http://", "https://"))

    def links(self, base: str) -> dict[str, str]:
        """Addresses on the server at `base`: the server, the sweep's run, and its front's runs side by side."""
        pages = {"mlflow": base.rstrip("/")}
        if self.parent:
            pages["sweep"] = parent_link(base, self.experiment_id, self.parent)
        if self.front:
            pages["front"] = compare_link(base, self.front, self.experiment_id)
        return pages


def whereabouts(storage: Storage, records: Sequence[TrialRecord], uri: str | None = None) -> Whereabouts:
    """Where the sweep was logged last, by its ledger (at `uri`, if given); where it would be logged if it never was."""
    runs = [run for run in Ledger(storage).runs() if uri is None or run.uri == shown(uri)]
    if not runs:
        return Whereabouts(resolve(storage, uri), "", "", 0, ())
    last = runs[-1]
    here = {run.trial: run for run in runs if _place(run) == _place(last) and run.parent == last.parent}
    best = front(records, Facts.read(storage))
    ids = tuple(here[number].run_id for number in sorted(best) if number in here)
    given = uri or os.environ.get(ENVIRONMENT, "")
    place = given if given and shown(given) == last.uri else last.uri
    return Whereabouts(place, last.experiment_id, last.parent, len(here), ids)


def _place(run: Logged) -> tuple[str, str]:
    return run.uri, run.experiment


@contextmanager
def serving(storage: Storage, uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An MLflow server on a database, and its address; it has ended when the block is left.

    Raises:
        TrackingError: the port is taken, or the server does not come up; with what it said.
    """
    port = free_port(host, port)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    folder = artifact_folder(storage, uri)
    command += ["--artifacts-destination", str(folder)] if folder else []
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    environment |= SETTINGS | {"MLFLOW_BACKEND_STORE_URI": uri}  # not as an argument: it may hold a password
    base = f"http://{'127.0.0.1' if host in ANYWHERE else f'[{host}]' if ':' in host else host}:{port}"
    with tempfile.TemporaryFile() as said:
        # Its own session: Ctrl-C reaches us alone, and we end the server and what it has started together.
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            _wait_for(process, base)
            if process.poll() is not None:
                said.seek(0)
                tail = said.read().decode(errors="replace").strip().splitlines()[-5:]
                raise TrackingError("MLflow's server ended at once: " + " / ".join(tail))
            yield base, process
        finally:
            _end(process)


def free_port(host: str, port: int) -> int:
    """The port itself, or any free one for 0.

    Raises:
        TrackingError: it is taken, or the host is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TrackingError(f"{host}:{port}: {reason}; choose another --port (0: any that is free)") from None
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], base: str) -> None:
    """Until the server answers or has ended."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end:
                raise TrackingError(f"MLflow's server does not answer at {base} after {PATIENCE:.0f} s") from None
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server with all that it has started, gently first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def is_behind(storage: Storage, found: Whereabouts, trials: int) -> bool:
    """Whether a local database lacks trials of the sweep, or is gone."""
    database = found.uri.removeprefix("sqlite:///")
    return is_local(found.uri) and (found.trials < trials or not os.path.exists(database))
