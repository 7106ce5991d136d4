"""MLflow's server on a local database."""

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
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.views.mlflow_client import (
    URI_VARIABLE,
    TrackingError,
    artifact_folder,
    as_tracking_error,
    create_database,
)

LOCAL_SERVER = "http://127.0.0.1:5000"  # default address of `specfrontier ui`
_START_TIMEOUT_S = 120.0  # the first start creates the database's tables
_STOP_TIMEOUT_S = 10.0
_ALL_INTERFACES = ("0.0.0.0", "::")
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a dozen processes that a sweep does not use
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@contextmanager
def serving(uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an MLflow server on a database while the block runs; its address and process.

    Raises:
        TrackingError: the port is in use, or the server does not start (with its last output).
    """
    port = free_port(host, port)
    with as_tracking_error(uri):
        create_database(uri)
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
