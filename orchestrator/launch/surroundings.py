"""Checks of what surrounds a sweep: the machine, the cluster, the folders, and that all that will
be written to is the sweep's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from orchestrator.cluster.cluster import requires_token
from orchestrator.cluster.cluster_guard import parent_folder
from orchestrator.launch.inspection import Inspection
from orchestrator.outputs import check_lasting, check_writable
from orchestrator.store import databases, files
from orchestrator.store.records import read_trials
from orchestrator.text import without_credentials
from orchestrator.views import notices
from orchestrator.views.mlflow_client import check_database, default_uri, is_database
from orchestrator.views.study import check_study, check_url, damaged_line, default_journal
from search_spaces.paths import check_utf8
from workers.data.shards import FORMAT
from workers.metrics.registry import uses_timings
from workers.runtime.process import cores

# or scheme+driver
_TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_MAX_WORKERS_PER_CORE = 16  # on this machine, where workers may share cores


def check_webhook(inspection: Inspection) -> None:
    """Raise ValueError if --notify has no address of a webhook."""
    url = inspection.request.options.notify
    if url is not None:
        notices.check_webhook(url)


def check_resources(inspection: Inspection) -> None:
    """Refuse resources that no machine has; without an address, those that this machine lacks.

    Workers that share a GPU would slow each other down in timing sessions.

    Raises:
        ValueError: names the option and what the machine has.
    """
    slots = inspection.request.options.slots
    gpus = slots.gpus or 0.0
    for option, amount in (("--cpus-per-worker", slots.cpus), ("--gpus-per-worker", gpus)):
        if not math.isfinite(amount):
            raise ValueError(f"{option} {amount}: give a finite number")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: Ray gives a fraction of one GPU, or whole GPUs"
        )
    if 0 < gpus < 1 and uses_timings(inspection.request.sweep.requested_metrics):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: workers that share a GPU disturb each other's timings; "
            "give whole GPUs, or leave speeds out of the sweep's metrics, objectives and "
            "constraints (docs/cluster.md)"
        )
    if inspection.request.options.address is None:
        _check_this_machine(slots.count, slots.cpus, gpus)


def _check_this_machine(workers: int | None, cpus: float, gpus: float) -> None:
    """Raise ValueError if this machine has less. cpus, gpus: of each worker."""
    advice = "lower it, or give the --address of a cluster"
    if cpus > cores():
        raise ValueError(f"--cpus-per-worker {cpus:g}: this machine has {cores()} cores; {advice}")
    most = cores() * _MAX_WORKERS_PER_CORE
    if workers is not None and workers > most:
        raise ValueError(
            f"--workers {workers}: this machine has {cores()} cores, for at most {most} workers; "
            f"{advice}"
        )
    if gpus > 0 and gpus > (count := torch.cuda.device_count()):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: this machine has {count} GPUs that torch can use; "
            f"{advice}"
        )


def check_cluster(inspection: Inspection) -> None:
    """Check that the cluster responds; without one, that Ray's files have a folder here.

    Raises:
        PoolError: the cluster does not respond.
        ValueError: the address is none, or there is no such folder.
    """
    if inspection.cluster is None:
        parent_folder()
    else:
        requires_token(inspection.cluster)


def check_folders(inspection: Inspection) -> None:
    """Raise ValueError or OSError if results cannot be written, or workers could not name this
    folder, of which they have absolute paths.
    """
    storage = inspection.request.storage
    check_utf8(os.getcwd())
    if (file := storage.path(files.SWEEP)) is not None:
        check_writable(file.parent)
    storage.check_bucket()


def check_stored_results(inspection: Inspection) -> None:
    """Raise ValueError if a resumed sweep's own files are damaged, or of another format."""
    storage = inspection.request.storage
    identity = inspection.identity
    read_trials(storage)
    if identity is not None and identity.format != FORMAT:
        raise ValueError(
            f"{storage.display_name}: written by another version of specfrontier (its shards are "
            f"of format {identity.format}, this version's of {FORMAT}); launch under another --name"
        )


def check_tracking_uri(inspection: Inspection) -> None:
    """Check the scheme of MLflow's URI. Whether the server responds does not matter yet.

    Raises:
        ValueError: unknown scheme, a character that must be quoted, or a file that a Ray job would
            lose.
    """
    uri = inspection.tracking_uri
    scheme, colon, rest = uri.partition(":")
    has_address = not colon or rest.removeprefix("//") != ""
    if uri and not (scheme.partition("+")[0] in _TRACKING_SCHEMES and has_address):
        raise ValueError(
            f"--tracking-uri {without_credentials(uri)}: not an MLflow address; give "
            "http://HOST:PORT, sqlite:///FILE or a database URL"
        )
    with _prefix_errors("--tracking-uri"):
        check_url(uri)
    # the default database can be rebuilt from the sweep
    if uri and uri != default_uri(inspection.request.storage):
        check_lasting("--tracking-uri", uri)


def check_owners(inspection: Inspection) -> None:
    """Refuse anything that another sweep or program has. Writes nothing.

    Raises:
        ValueError, OSError: names what is there and the option that avoids it.
    """
    storage = inspection.request.storage
    study = inspection.request.options.study
    identity = inspection.identity
    tracking = inspection.tracking_uri
    if identity is None:
        files.check_unused(storage)
    if study is not None and is_database(tracking) and databases.is_same_database(study, tracking):
        raise ValueError(
            f"--study {without_credentials(study)} and --tracking-uri "
            f"{without_credentials(tracking)} are one database; Optuna and MLflow need one each"
        )
    name = inspection.request.sweep.name
    sweep_id = identity.id if identity else None
    journal = default_journal(storage, name)
    if study is not None:
        with _prefix_errors("--study"):
            check_study(study, name, inspection.directions, sweep_id)
    elif journal.exists() and not (
        identity is not None and journal.is_file() and damaged_line(journal)
    ):
        # a damaged one is rebuilt from the trials' records
        check_study(str(journal), name, inspection.directions, sweep_id)
    _check_tracking_database(tracking)


def _check_tracking_database(uri: str) -> None:
    """Refuse a damaged database, and one of another program than MLflow. Whether a server responds
    does not matter yet.
    """
    from sqlalchemy.exc import SQLAlchemyError

    if not is_database(uri):
        return
    try:
        check_database(uri)
        databases.has_tables(uri, databases.MLFLOW)
    except (SQLAlchemyError, ImportError):  # logging is delayed, the sweep is not
        return
    except ValueError as error:
        raise ValueError(f"--tracking-uri {without_credentials(uri)}: {error}") from error


@contextmanager
def _prefix_errors(key: str) -> Iterator[None]:
    """Prefix the message of a ValueError raised inside with an option."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
