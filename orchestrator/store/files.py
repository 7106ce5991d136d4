"""The files of a sweep's folder: their names, and where a sweep is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.store.checked_text import dump_yaml, load_yaml
from search_spaces.documents import read_document
from search_spaces.params import ConfigError
from workers.data.shards import TIMINGS
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow

SWEEP: Final = "sweep.yaml"  # the sweep as launched, with all defaults written out
IDENTITY: Final = "identity.json"  # everything that the results depend on (`Identity`)
TRIALS: Final = "trials"  # one immutable file per finished trial (`TrialRecord`)
SHARDS: Final = "shards"  # of images; results of tasks are named by `workers.data.shards`
IMAGE_GRIDS: Final = "pictures"  # an image grid per config, by its digest
HEAT_MAPS: Final = "heatmaps"  # an accepted-length heat map per config, by its digest
ACCEPTANCE: Final = "acceptance"  # counts of accepted drafts per config, by its digest
SCORES: Final = "scores"  # of images, by the tool of a benchmark (`orchestrator.store.scores`)
EVENTS: Final = "events.jsonl"  # what happened when (`events`)
EARLIER: Final = "earlier.json"  # what was taken over from earlier sweeps (`launch --from`)
# rebuilt from the trials
STUDY: Final = "study.log"  # Optuna's journal
TRIAL_TABLE: Final = "trials.parquet"
FRONT_TABLE: Final = "front.parquet"
FRONT_PLOT: Final = "front.png"
REPORT: Final = "report.html"
MLFLOW_PLACE: Final = "mlflow.json"  # where the sweep was logged to MLflow last
# one process at a time writes (`locks`)
MLFLOW_LOCK: Final = "mlflow.lock"
DRIVER_LOCK: Final = "driver.lock"
STORE_ID: Final = "store.id"  # by which workers see that their store is this one
# folders by what a user sees as a file's name
TRIAL_PICTURES: Final = {"images.png": IMAGE_GRIDS, "heatmap.png": HEAT_MAPS}

SWEEPS: Final = "sweeps"  # default folder of sweeps
# `damaged` has files of the others that were set aside
_RESULT_FOLDERS = (
    *(TRIALS, SHARDS, TIMINGS, SCORES, "measures", "damaged"),
    *(IMAGE_GRIDS, HEAT_MAPS, ACCEPTANCE),
)
_OF_COMMANDS = ("", TIMINGS, SCORES)  # folders that commands beside a launch write to
_RESULT_FILES = (STUDY, TRIAL_TABLE, FRONT_TABLE, FRONT_PLOT, REPORT)
_UNFINISHED_S = 3600.0  # no write takes that long
_MAX_NAMED = 4  # files in a message


class NoSweepError(ValueError):
    """There is no sweep at this location."""


def find_sweep(location: str | Path) -> Storage:
    """The storage of a folder or URI. A name without slashes that is not a folder is looked up in
    ./sweeps.

    Raises:
        NoSweepError: the URI is invalid.
    """
    name = str(location)
    is_bare = "/" not in name and "\\" not in name
    if is_bare and not Path(name).is_dir() and Path(SWEEPS, name).is_dir():
        location = Path(SWEEPS, name)
    try:
        return Storage(str(location))
    except ValueError as error:
        raise NoSweepError(str(error)) from error


def location(storage: Storage) -> str:
    """How a command names the sweep: by its bare name below ./sweeps if `find_sweep` finds it so,
    else by its place.
    """
    file = storage.path(SWEEP)
    if file is not None:
        name = file.parent.name
        if name and find_sweep(name).uri == storage.uri:
            return name
    return storage.display_name


def command(storage: Storage, name: str, *options: str) -> str:
    """A command on this sweep, for a shell."""
    return shlex.join(["specfrontier", name, location(storage), *options])


def with_plugins(name: str, modules: Iterable[str]) -> list[str]:
    """The first words of a command that needs these plugins and is not given the sweep, which names
    them.
    """
    words = ["specfrontier"]
    for module in sorted(set(modules)):
        words += ["--plugin", module]
    return [*words, name]


def near_path(storage: Storage, name: str = "") -> str:
    """The place of a file, or of the sweep without `name`, relative to the working directory if it
    is inside.
    """
    place = storage.locate(name) if name else storage.display_name
    if Path(place).is_relative_to(Path.cwd()):
        return str(Path(place).relative_to(Path.cwd()))
    return place


def check_unused(storage: Storage) -> None:
    """Check that nothing is where a sweep that starts here will write its results.

    Raises:
        ValueError: names the files and the fix.
    """
    found = [name for name in storage.names() if name in _RESULT_FILES]
    found += [f"{folder}/{name}" for folder in _RESULT_FOLDERS for name in storage.names(folder)]
    if not found:
        return
    listed = ", ".join(found[:_MAX_NAMED])
    if len(found) > _MAX_NAMED:
        listed += f" and {len(found) - _MAX_NAMED} more"
    raise ValueError(
        f"{storage.display_name}: holds results but no {IDENTITY}, so they are not this sweep's: "
        f"{listed}; launch under another --name or --out, or restore {IDENTITY}"
    )


def remove_unfinished(storage: Storage) -> int:
    """Remove what killed processes left of files that they were writing; returns their number. The
    caller holds the `driver_lock`: only the driver and its workers write to most folders. Commands
    such as `time`, `measure` and `report` may be writing to the others, so young files there stay.
    """
    own = [folder for folder in _RESULT_FOLDERS if folder not in _OF_COMMANDS]
    removed = sum(storage.remove_unfinished(folder) for folder in own)
    others = (storage.remove_unfinished(folder, _UNFINISHED_S) for folder in _OF_COMMANDS)
    return removed + sum(others)


def write_sweep_text(storage: Storage, text: str) -> None:
    storage.write(SWEEP, dump_yaml(text))


def read_sweep_text(storage: Storage) -> str:
    """The text of sweep.yaml; "" if there is none.

    Raises:
        ValueError: the file is damaged, or another version of specfrontier wrote it.
    """
    if not storage.exists(SWEEP):
        return ""
    try:
        return load_yaml(storage.read(SWEEP))
    except ValueError as error:
        problem = (
            f"{storage.locate(SWEEP)}: {error}; remove it: `launch SPACE --resume` writes it again"
        )
        raise ValueError(problem) from error


def read_sweep_yaml(storage: Storage) -> Mapping[str, Any]:
    """sweep.yaml as plain data, for display; empty if there is none. Raises ValueError as
    `read_sweep_text`.
    """
    text = read_sweep_text(storage)
    if not text.strip():
        return {}
    try:
        given = read_document(text, storage.locate(SWEEP)).data
    except ConfigError as error:
        raise ValueError(f"{error}; restore the file") from error
    return given if isinstance(given, Mapping) else {}


def planned_trials(storage: Storage) -> int | None:
    """The number of trials in the budget of the sweep as launched; None if sweep.yaml does not give
    it.
    """
    budget = read_sweep_yaml(storage).get("budget")
    if not isinstance(budget, Mapping):
        return None
    trials = budget.get("trials")
    return trials if isinstance(trials, int) else None


def read_table(
    storage: Storage,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    fix: str = "restore the file",
) -> pyarrow.Table:
    """A Parquet file of the store, or some of its columns. `fix`: what the user can do if it is
    missing or damaged.

    Raises:
        ValueError: it is missing or damaged, or has no such column.
    """
    from workers.data.records import read_shard

    try:
        return read_shard(storage, name, columns, fix=fix)[0].replace_schema_metadata(None)
    except OSError as error:
        raise ValueError(f"{error}; {fix}") from error  # it names the file
