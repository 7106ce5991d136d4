"""What can be seen to be wrong before any worker starts: the store, the models' files, captions, reference, metrics,
the search, and the addresses of Ray, Optuna and MLflow.

Workers look again, at what takes weights to see.
"""

from __future__ import annotations

import os
import socket

from orchestrator.results.redaction import without_credentials
from orchestrator.results.store import Identity, read_identity, read_trials
from orchestrator.run import preflight_models as models
from orchestrator.run.preflight_models import told
from orchestrator.run.resolve import filled
from orchestrator.run.tasks import PoolError
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage

CLIENT = "ray://"  # the driver is outside of the cluster, and so need not see its files
PATIENCE = 3.0  # seconds for a machine to answer
TRACKING = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")  # or +driver


def preflight(
    sweep: SweepConfig, storage: Storage, *, address: str | None = None, study: str | None = None, mlflow: str = ""
) -> None:
    """Refuse what would fail in the workers or after them; takes a few seconds, starts and writes nothing.

    mlflow: its tracking URI; "" for none.

    Raises:
        ValueError, OSError: in one line, the key or option, the file, what is wrong, and the mend.
        PoolError: the Ray cluster does not answer.
    """
    models.metrics_there_are(sweep)
    writable(storage)
    identity = whole_store(storage)
    tracked(mlflow)
    if study is not None:
        from orchestrator.run.study import check_storage

        with told("--study"):
            check_storage(study)
    if not (address or "").startswith(CLIENT):
        model = models.headers_of(sweep)
        captions = models.readable_captions(sweep, model)
        models.same_captions(storage, identity, captions, sweep.captions.source)
        models.usable_reference(sweep, model)
        models.metrics_that_can_be_had(sweep, model, captions)
        models.enough_images(sweep, model, len(captions))
        whole = filled(sweep, model.sampling)
        models.servable(whole, model)
        models.timeable(whole, len(captions))
        models.searchable(whole)
    reachable(address)


def reachable(address: str | None) -> None:
    """Knock at HOST:PORT; Ray itself would knock for minutes.

    Raises:
        PoolError: nobody answers.
    """
    host, colon, port = (address or "").removeprefix(CLIENT).rpartition(":")
    if not colon or not port.isdecimal():
        return  # auto, local, or what Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PoolError(
            f"--address {address}: nobody answers there ({reason}); `ray status` on the head node shows its address"
        ) from error


def writable(storage: Storage) -> None:
    """Refuse a folder that cannot be made or written.

    Raises:
        ValueError: a file is in its place, or this user may not write there.
    """
    folder = storage.path("x")
    if folder is None:
        return
    place = next(parent for parent in folder.parents if parent.exists())
    if not place.is_dir():
        raise ValueError(f"{place}: is a file, where the sweep's folder would be; choose another --out or --name")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{place}: no permission to write there; choose another --out")


def whole_store(storage: Storage) -> Identity | None:
    """The identity, if the sweep has begun; its trials are read as well.

    Raises:
        ValueError: a file is damaged; it is named.
    """
    read_trials(storage)
    return read_identity(storage)


def tracked(uri: str) -> None:
    """Refuse an address that is none of MLflow's. Whether a server answers there does not matter yet.

    Raises:
        ValueError: its kind is unknown.
    """
    kind, sign, rest = uri.partition(":")
    if uri and (kind.partition("+")[0] not in TRACKING or (sign and not rest.removeprefix("//"))):
        raise ValueError(
            f"--tracking-uri {without_credentials(uri)}: no address of MLflow; give http://HOST:PORT, sqlite:///FILE "
            "or a database's URL"
        )
