"""MLflow's server on a sweep's database, and the location of a sweep in MLflow."""

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
from orchestrator.views.client import (
    URI_VARIABLE,
    TrackingError,
    artifact_folder,
    as_tracking_error,
    create_database,
    local_database,
    public_uri,
    resolve_uri,
)
from orchestrator.views.damage import database_problem
from orchestrator.views.moved import current_uri, has_run, repair_artifacts
from orchestrator.views.run_log import RunLog
from orchestrator.views.runs import SweepRun, compare_link, front_numbers, run_link, view_link
from orchestrator.views.shared_views import front_view, trials_view
from workers.data.storage import Storage

LOCAL_SERVER = "http://127.0.0.1:5000"  # default address of `specfrontier ui`
_START_TIMEOUT_S = 120.0  # the first start creates the database's tables
_STOP_TIMEOUT_S = 10.0
_ALL_INTERFACES = ("0.0.0.0", "::")
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a dozen processes that a sweep does not use
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True, slots=True)
class MlflowLocation:
    """Where MLflow has a sweep. uri: with credentials, if known. parent: the sweep's run, "" if it was never logged.
    trials: how many are logged. front: runs of the front's trials."""

    sweep: SweepRun

    uri: str
    experiment_id: str
    parent: str
    trials: int
    front: Sequence[str]

    @property
    def has_server(self) -> bool:
        """Whether the URI is that of a server."""
        return self.uri.startswith(("http://", "https://"))

    def links(self, base: str) -> dict[str, str]:
        """Addresses on the server at `base`: the server, the sweep's run, its trials as a table, the front as a chart,
        and the comparison of the front's runs.
        """
        pages = {"mlflow": base.rstrip("/")}
        if self.parent:
            pages["sweep"] = run_link(self.parent, self.experiment_id, base)
            pages["trials"] = view_link(trials_view(self.sweep), self.experiment_id, base)
        if self.front:
            pages["front"] = view_link(front_view(self.sweep), self.experiment_id, base, charts=True)
            pages["compare"] = compare_link(self.front, self.experiment_id, base)
        return pages

    def is_behind(self, trials: int) -> bool:
        """Whether it is a local database that lacks some of the sweep's trials, is damaged or does not exist."""
        database = local_database(self.uri)
        return database is not None and (
            self.trials < trials or not database.exists() or database_problem(database) is not None
        )


def find_location(storage: Storage, records: Sequence[TrialRecord], uri: str | None = None) -> MlflowLocation:
    """Where the sweep was last logged (at `uri`, if given), or where it would be logged. A default database that was
    moved or copied with the sweep is found.
    """
    sweep = SweepRun.read(storage)
    logged = [run for run in RunLog(storage).runs() if uri is None or run.uri == public_uri(uri)]
    last = logged[-1] if logged else None
    place = "" if last is None else current_uri(storage, last)
    database = local_database(place) if last is not None and place != last.uri else None
    if last is None or (database is not None and not has_run(database, last.parent)):
        return MlflowLocation(sweep, place or resolve_uri(storage, uri), "", "", 0, ())
    same = [run for run in logged if (run.uri, run.experiment, run.parent) == (last.uri, last.experiment, last.parent)]
    trials = {run.trial: run.run_id for run in same}
    front = sorted(front_numbers(records, sweep))
    private = uri or os.environ.get(URI_VARIABLE, "")  # the log has no credentials
    return MlflowLocation(
        sweep,
        private if private and public_uri(private) == place else place,
        last.experiment_id,
        last.parent,
        len(trials),
        tuple(trials[number] for number in front if number in trials),
    )


@contextmanager
def serving(storage: Storage, uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an MLflow server on a database while the block runs; its address and process.

    Raises:
        TrackingError: the port is in use, or the server does not start (with its last output).
    """
    port = free_port(host, port)
    with as_tracking_error(uri):
        create_database(uri)
    repair_artifacts(uri)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    folder = artifact_folder(uri)
    command += ["--artifacts-destination", str(folder)] if folder else []
    environment = {key: value for key, value in os.environ.items() if key != URI_VARIABLE}
    environment |= _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": uri}  # an argument would show its password
    base = f"http://{'127.0.0.1' if host in _ALL_INTERFACES else f'[{host}]' if ':' in host else host}:{port}"
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C reaches only this process, which then ends the server and its children together.
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_for(process, base)
            if process.poll() is not None:
                output.seek(0)
                tail = output.read().decode(errors="replace").strip().splitlines()[-5:]
                raise TrackingError("MLflow's server failed to start: " + " / ".join(tail))
            yield base, process
        finally:
            _stop(process)


def free_port(host: str, port: int) -> int:
    """The port itself, or any free one for 0.

    Raises:
        TrackingError: the port is in use, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TrackingError(f"{host}:{port}: {reason}; choose another --port (0: any free port)") from None
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], base: str) -> None:
    """Wait until the server answers or has ended."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"no response from MLflow's server at {base} after {_START_TIMEOUT_S:.0f} s"
                ) from None
            time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its children: SIGTERM first, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
