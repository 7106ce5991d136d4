"""Where a sweep is logged in MLflow: the tracking URI and the experiment, which a sweep's folder
remembers.

A launch writes its place before the first contact with MLflow, so a server that does not respond
has a name too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from orchestrator.store import databases, files
from orchestrator.text import without_credentials
from orchestrator.views.mlflow_client import (
    URI_VARIABLE,
    TrackingError,
    absolute_uri,
    credential_source,
    default_uri,
    is_server,
    public_uri,
)
from search_spaces.plain_data import fit_entries
from workers.data.checked_json import dump_checked, parse_checked
from workers.data.storage import Storage

_EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"


@dataclass(frozen=True, slots=True)
class TrackingPlace:
    """Where a sweep is logged."""

    uri: str  # with credentials
    experiment: str  # its name, "" for `specfrontier/<sweep's name>`
    # sentences for the user about environment variables that are not used
    notes: tuple[str, ...] = ()

    @classmethod
    def resolve(
        cls, storage: Storage, uri: str | None = None, experiment: str | None = None
    ) -> Self:
        """The given URI and experiment; else those to which the sweep was logged last; else those
        of the environment; else the defaults.

        A URI without credentials gets those of MLFLOW_TRACKING_URI if it is the same otherwise. The
        default database is the one next to the sweep's folder, wherever that is now.

        Raises:
            TrackingError: credentials would be sent to a server that only the sweep's folder names:
                somebody else may have made it.
        """
        variable = databases.expand_home(os.environ.get(URI_VARIABLE, ""))
        name = os.environ.get(_EXPERIMENT_VARIABLE, "")
        stored_uri, stored_name, problem = _read(storage)
        used = variable or default_uri(storage)
        if uri:
            used = databases.expand_home(uri)
        elif stored_uri is not None:
            used = stored_uri
        if variable and used in (_address(variable), f"{_address(variable)}/"):
            used = variable
        is_named_by_folder = stored_uri is not None and not uri and used != variable
        if is_named_by_folder and is_server(used) and (source := credential_source()):
            raise TrackingError(
                f"{storage.locate(files.MLFLOW_PLACE)}: the credentials of {source} would be sent "
                f"to {used}, which only this file names; if it is your server, set "
                f"{URI_VARIABLE}={used}"
            )
        used_name = experiment or stored_name or name
        notes = []
        if problem and not uri:
            notes.append(problem)
        if variable and not uri and _address(variable) != _address(used):
            notes.append(_describe_unused(URI_VARIABLE, _address(used), "--uri"))
        if name and not experiment and name != used_name:
            notes.append(
                _describe_unused(
                    _EXPERIMENT_VARIABLE, f"the experiment {used_name}", "--experiment"
                )
            )
        return cls(used, used_name, tuple(notes))

    def experiment_of(self, sweep: str) -> str:
        """The experiment's name for a sweep of this name."""
        return self.experiment or f"specfrontier/{sweep}"

    def write(self, storage: Storage, sweep: str) -> None:
        """Remember the place, without credentials. sweep: its name."""
        uri = "" if self._is_beside(storage) else _address(self.uri)
        place = dump_checked({"uri": uri, "experiment": self.experiment_of(sweep)})
        if not storage.exists(files.MLFLOW_PLACE) or storage.read(files.MLFLOW_PLACE) != place:
            storage.write(files.MLFLOW_PLACE, place)

    def sync_command(self, storage: Storage) -> str:
        """The command that logs a sweep here, from any folder and with any environment. A
        credential that MLFLOW_TRACKING_URI does not hold is shown as `***`.
        """
        address = _address(self.uri)
        has_credentials = without_credentials(self.uri) != self.uri
        if has_credentials and os.environ.get(URI_VARIABLE) != self.uri:
            address = without_credentials(self.uri)
        options = []
        if not self._is_beside(storage):
            options += ["--uri", address]
        if self.experiment:
            options += ["--experiment", self.experiment]
        return files.command(storage, "sync", *options)

    def _is_beside(self, storage: Storage) -> bool:
        """Whether this is the database next to the sweep's folder, which moves with it. The one of
        remote storage is in the working directory, so it has a path.
        """
        return self.uri == default_uri(storage) and storage.path(files.SWEEP) is not None


def _read(storage: Storage) -> tuple[str | None, str, str]:
    """The URI and the experiment to which a sweep was logged last, and "". None and "" if it never
    was, or if the file cannot be read, with a sentence about it.
    """
    if not storage.exists(files.MLFLOW_PLACE):
        return None, "", ""
    try:
        types = {"uri": str, "experiment": str}
        data = storage.read(files.MLFLOW_PLACE)
        place = parse_checked(data, lambda entries: fit_entries(types, entries))
    except ValueError as error:
        fix = (
            "so the place of its last log is unknown; --uri and --experiment of `specfrontier "
            "sync` name it"
        )
        return None, "", f"{storage.locate(files.MLFLOW_PLACE)}: {error}, {fix}"
    return place.get("uri") or default_uri(storage), place.get("experiment", ""), ""


def _address(uri: str) -> str:
    """A tracking URI for another process: absolute, and without credentials. The rest of its query
    stays: it may name a schema or a socket.
    """
    uri = absolute_uri(uri)
    parts = uri.partition("?")[2].partition("#")[0].split("&")
    kept = "&".join(
        part for part in parts if part and without_credentials(f"?{part}") == f"?{part}"
    )
    return f"{public_uri(uri)}?{kept}" if kept else public_uri(uri)


def _describe_unused(variable: str, place: str, option: str) -> str:
    again = f"`specfrontier sync {option}`"
    return (
        f"{variable} is not used: this sweep is logged to {place}, as the last time; {again} "
        "changes that"
    )
