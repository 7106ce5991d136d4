"""MLflow's client and server: which server or database, its experiments, its errors as one message
without credentials; and a server on a local database.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from orchestrator.proxies import without_proxy
from orchestrator.store import databases, files
from orchestrator.text import without_credentials
from orchestrator.views.follower import Ending
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_STATUS: Mapping[Ending, str] = {
    "finished": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
URI_VARIABLE = "MLFLOW_TRACKING_URI"
# in the folder of the sweeps
_DATABASE = "mlflow.db"
_ARTIFACTS = "mlartifacts"
_SQLITE = "sqlite:///"
# without this tag, MLflow asks whether an experiment is for GenAI
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_MAX_PROBLEM = 400  # characters
# of a proxy, or another server at the address
_WEB_PAGE = re.compile(r"""(?is)['"]?(<!doctype html|<html).*""")
# A tracker retries by itself, after it has checked whether the last attempt arrived: MLflow's own
# retries could create two runs for one trial, so the user's environment does not override this
# setting.
_NO_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_CREDENTIAL_VARIABLES = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
LOCAL_SERVER = "http://127.0.0.1:5000"  # default address of `specfrontier ui`
_START_TIMEOUT_S = 120.0  # the first start creates the database's tables
_STOP_TIMEOUT_S = 10.0
_ALL_INTERFACES = ("0.0.0.0", "::")
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a dozen processes that a sweep does not use
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
# what to do about a database that cannot be used
_REBUILD = "move it away, and `specfrontier sync SWEEP` logs each of its sweeps to a new one"
_APP = "specfrontier"  # the entry point of orchestrator/views/mlflow_app.py


class TrackingError(ValueError):
    """MLflow cannot log a sweep; the message says why and what to do."""


def resolve_uri(storage: Storage, uri: str | None) -> str:
    """The tracking URI: the given one, else MLFLOW_TRACKING_URI, else the default database."""
    given = uri or os.environ.get(URI_VARIABLE)
    return databases.expand_home(given) if given else default_uri(storage)


def default_uri(storage: Storage) -> str:
    """The URI of a database next to the sweep's folder.

    All sweeps in one folder share that database, so one MLflow UI compares them. Sweeps on remote
    storage use one in the working directory.
    """
    path = storage.path(files.SWEEP)
    folder = Path.cwd() if path is None else path.parent.parent
    return _sqlite_url(folder / _DATABASE)


def _sqlite_url(path: Path) -> str:
    """The URL of a SQLite file. SQLAlchemy decodes its path."""
    return _SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def is_database(uri: str) -> bool:
    """Whether MLflow opens a database itself, instead of asking a server."""
    scheme, sign, _ = uri.partition("://")
    return bool(sign) and not scheme.startswith(("http", "databricks"))


def local_database(uri: str) -> Path | None:
    """The file of a local database; None for a server."""
    file = databases.local_file(uri) if "://" in uri else None
    return None if file is None else file.absolute()


def artifact_folder(uri: str) -> Path | None:
    """Where the artifacts of a local database are stored; None if a server stores them."""
    database = local_database(uri)
    return None if database is None else database.parent / _ARTIFACTS


def check_artifact_folder(uri: str, artifacts: str) -> None:
    """Refuse a local database that was moved or copied after one of its experiments had got this
    folder for its artifacts.

    Raises:
        TrackingError: it was.
    """
    folder = artifact_folder(uri)
    other = Path(artifacts).parent
    if folder is not None and other.name == folder.name and other.resolve() != folder.resolve():
        raise TrackingError(
            f"{local_database(uri)}: was moved, and its pictures belong to {artifacts}; {_REBUILD}"
        )


def credential_source() -> str:
    """Where MLflow finds credentials that it sends to any tracking server; empty if nowhere."""
    from mlflow.utils.credentials import read_mlflow_creds

    if given := [name for name in _CREDENTIAL_VARIABLES if os.environ.get(name)]:
        return given[0]
    return "~/.mlflow/credentials" if read_mlflow_creds().username else ""


def absolute_uri(uri: str) -> str:
    """A tracking URI with the absolute path of a local database."""
    database = databases.local_file(uri) if "://" in uri else None
    if database is None or database.is_absolute():
        return uri
    _, sign, query = uri.partition("?")
    return f"{_sqlite_url(database.absolute())}{sign}{query}"


def public_uri(uri: str) -> str:
    """A tracking URI without user, password, query and fragment, for files, messages and links."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return uri.partition("?")[0]
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")
    )


def connect(uri: str) -> MlflowClient:
    """A client that fails at once when the server is away, and prints nothing. A new database gets
    its tables.
    """
    _create_database(uri)
    return _client(uri)


def _create_database(uri: str) -> None:
    """Set MLflow up, and create its tables in a database that has none. Of several processes, one
    does so.

    MLflow cannot continue tables of SQLite whose creation was killed, so a new file gets its name
    when it is complete.

    Raises:
        ValueError: the database is damaged, or has the tables of another program.
    """
    os.environ.update(_NO_RETRIES | without_proxy())  # before MLflow is imported
    for key, value in _DEFAULTS.items():
        os.environ.setdefault(key, value)
    if not is_database(uri):
        return
    if (database := local_database(uri)) is not None:
        database.parent.mkdir(parents=True, exist_ok=True)
        check_database(uri)
    # a server's may be half made by another process
    if database is not None and databases.has_tables(uri, databases.MLFLOW):
        return
    with databases.sole_creator(uri):
        if databases.has_tables(uri, databases.MLFLOW):
            return
        if database is None or (database.exists() and database.stat().st_size > 0):
            _create_tables(uri)
            return
        for killed in database.parent.glob(f".{database.name}.*.new*"):
            killed.unlink()
        new = database.with_name(f".{database.name}.{uuid.uuid4().hex}.new")
        _create_tables(_sqlite_url(new))
        new.rename(database)


def _create_tables(uri: str) -> None:
    _client(uri).search_experiments(max_results=1)


def _client(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    # they also log the tracebacks of errors that they raise
    for name in ("mlflow", "alembic", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri)


def ensure_experiment(client: MlflowClient, uri: str, name: str) -> str:
    """The id of the experiment, which is created if needed.

    Raises:
        TrackingError: it is deleted.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        folder = artifact_folder(uri)
        location = None if folder is None else str(folder / name.replace("/", "-"))
        try:
            return str(client.create_experiment(name, location, tags=_EXPERIMENT_TAGS))
        except MlflowException:  # another process may have created it in the meantime
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
        raise TrackingError(
            f"the MLflow experiment {name!r} is deleted; run `{restore}`, or choose another one"
        )
    return str(found.experiment_id)


def check_database(uri: str) -> None:
    """Refuse a local database that SQLite cannot read. One that another process locks passes.

    Raises:
        TrackingError: it is damaged.
    """
    database = local_database(uri)
    if database is None or not database.exists():
        return
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return
    except sqlite3.DatabaseError as error:
        problem = str(error)
    if problem != "ok":
        raise TrackingError(f"{database}: damaged ({problem}); {_REBUILD}")


@contextmanager
def as_tracking_error(uri: str) -> Iterator[None]:
    """Turn every error inside into a TrackingError with place and reason, with credentials
    redacted.
    """
    try:
        yield
    except Exception as error:
        # the original error may hold a credential
        raise TrackingError(explain_error(error, uri)) from None


def explain_error(error: Exception, uri: str) -> str:
    """Where and why MLflow failed, in one line and with credentials redacted. MLflow, its database,
    its transport and the storage share no class of errors.
    """
    if isinstance(error, TrackingError):
        return str(error)
    if isinstance(error, ImportError):
        return f"{error}; pip install 'specfrontier[sweep]' and the driver of the database"
    text = _redact(str(error) or type(error).__name__, uri).partition("\n[SQL: ")[0]
    text = " ".join(_WEB_PAGE.sub("a web page", text).split())
    if len(text) > _MAX_PROBLEM:
        text = text[:_MAX_PROBLEM] + "…"
    return f"MLflow at {public_uri(uri)}: {text}"


def _redact(text: str, uri: str) -> str:
    """The text without the credentials of a tracking URI, as a whole or in parts."""
    parts = urlsplit(uri)
    text = text.replace(uri, public_uri(uri))
    for secret in (parts.netloc.rpartition("@")[0], parts.password or "", parts.query):
        if secret:
            text = text.replace(secret, "***")
    return without_credentials(text)


@contextmanager
def serving(uri: str, host: str, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an MLflow server on a database while the block runs; yields its address and process.

    Raises:
        TrackingError: the port is in use, or the server does not start (with its last output).
    """
    port = free_port(host, port)
    with as_tracking_error(uri):
        _create_database(uri)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", host, "--port", str(port)]
    folder = artifact_folder(uri)
    if folder:
        command += ["--artifacts-destination", str(folder)]
    # an editable install may be older than this entry point
    if entry_points(group="mlflow.app", name=_APP):
        command += ["--app-name", _APP]
    environment = {key: value for key, value in os.environ.items() if key != URI_VARIABLE}
    # an argument would show its password
    environment |= _ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": uri}
    if host in _ALL_INTERFACES:
        reachable = "127.0.0.1"
    else:
        reachable = f"[{host}]" if ":" in host else host
    base = f"http://{reachable}:{port}"
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C reaches only this process, which then ends the server and its
        # children together.
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
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
            raise TrackingError(
                f"{host}:{port}: {reason}; choose another --port (0: any free port)"
            ) from None
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
