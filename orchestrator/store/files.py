"""The files of a sweep's folder: their names, and functions that read and write them.

sweep.yaml                  the sweep as launched, with all defaults written out
identity.json               everything that the results depend on (`Identity`)
trials/00012.json           one immutable file per finished trial (`TrialRecord`)
shards/, timings/, measures/    results of the workers' tasks, named by `workers.data.shards`
damaged/                    files of these folders that were set aside
pictures/, heatmaps/        an image grid and an accepted-length heat map per config, by its digest
trials.parquet, front.parquet, front.png, report.html    result files, rebuilt from the trials
events.jsonl, logs/         what the driver and the workers did; study.log: Optuna's journal
mlflow.json                 where the sweep was logged to MLflow last
predictions.parquet         settings that the replay sampler chooses from
earlier.json                what was taken over from earlier sweeps (`launch --from`)
store.id, *.lock            checks that all workers see this store, and that one process at a time
                            writes (`locks`)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store.checked_text import YAML, dump_text, load_text
from orchestrator.store.records import TrialRecord
from search_spaces.constraints import Constraint, check_metric
from search_spaces.documents import read_document
from search_spaces.params import ConfigError, at, expect_list, expect_mapping
from search_spaces.plain_data import field_types, fit_entries, fit_type
from search_spaces.plugins import stored_plugins
from search_spaces.sweep_sections import SweepHeader
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.checked_json import check_time, dump_checked, has_intact_checksum, load_checked
from workers.data.shards import TIMINGS
from workers.data.storage import Storage, in_parallel
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    import pyarrow

SWEEP, IDENTITY, EVENTS, STUDY = "sweep.yaml", "identity.json", "events.jsonl", "study.log"
EARLIER = "earlier.json"
TRIALS, SHARDS, IMAGE_GRIDS, HEAT_MAPS = "trials", "shards", "pictures", "heatmaps"
# folders by what a user sees as a file's name
TRIAL_PICTURES = {"images.png": IMAGE_GRIDS, "heatmap.png": HEAT_MAPS}
TRIAL_TABLE, FRONT_TABLE, FRONT_PLOT, REPORT = (
    "trials.parquet",
    "front.parquet",
    "front.png",
    "report.html",
)
MLFLOW_PLACE, MLFLOW_LOCK, DRIVER_LOCK, STORE_ID = (
    "mlflow.json",
    "mlflow.lock",
    "driver.lock",
    "store.id",
)
SWEEPS = "sweeps"  # default folder of sweeps
_RESULT_FOLDERS = (TRIALS, SHARDS, TIMINGS, "measures", "damaged", IMAGE_GRIDS, HEAT_MAPS)
_UNFINISHED_S = 3600.0  # no write takes that long
_MAX_NAMED = 4  # files in a message
_MAX_SIZE = 1 << 16  # of a grid and an image in each direction, and of the images of a caption
_RESULT_FILES = (STUDY, TRIAL_TABLE, FRONT_TABLE, FRONT_PLOT, REPORT)
_RUN_AGAIN = "remove it: --resume runs a trial without a record again"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}")
_PARTS: Mapping[str, Mapping[str, Any]] = {  # of an identity, and what is read of them
    "captions": {"count": int, "hash": str, "source": str},
    "reference": {"identity": str, "count": int, "source": str},
    "timing": {
        "images": int,
        "repetitions": int,
        "nodes": Mapping[str, str] | None,
        "device": str,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Everything that a sweep's results depend on. Written when the sweep starts, checked when it
    is resumed.

    experiment: digest of what its shards depend on. models, extractors, versions: name -> content
    hash or identity. files: paths of the models by the same names, when the sweep started. format:
    of its shards (`workers.data.shards.FORMAT`). captions: count, hash, source. reference:
    identity, count, source. baseline: vanilla with the sweep's sampling. objectives: with the
    direction that the sweep optimises. samples: images per caption. timing: images, batch,
    repetitions. device, threads, numerics: of the first worker (see
    `orchestrator.cluster.placement`). plugins: modules that registered more than this project has
    when it was launched. started: ISO 8601, UTC.
    """

    name: str
    experiment: str
    started: str
    metrics: Mapping[str, Metric]
    format: int = 2  # of stores of earlier versions
    objectives: tuple[Metric, ...] = ()
    constraints: tuple[str, ...] = ()
    target: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    extractors: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None
    baseline: DecodingConfig | None = None
    seed: int | None = None
    grid: tuple[int, int] | None = None
    image_size: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    threads: int | None = None
    numerics: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    timing: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, as identity.json holds it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {
            "metrics": {name: metric.to_mapping() for name, metric in self.metrics.items()},
            "objectives": [
                {"metric": metric.name, "direction": metric.direction} for metric in self.objectives
            ],
            "baseline": None if self.baseline is None else self.baseline.to_mapping(),
        }

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Identity:
        """Read what `to_mapping` wrote.

        Raises:
            ValueError: a key is missing, has the wrong type, or a text that its writer would not
                write.
        """
        given = {key: value for key, value in expect_mapping(given).items() if value is not None}
        if missing := [
            key for key in ("name", "experiment", "started", "metrics") if key not in given
        ]:
            raise ValueError(f"not a sweep's identity: it lacks {', '.join(missing)}")
        with at("metrics"):
            entries = expect_mapping(given["metrics"])
            metrics = {name: Metric.from_mapping(name, facts) for name, facts in entries.items()}
        with at("objectives"):
            objectives = tuple(
                _objective(entry, metrics) for entry in expect_list(given.get("objectives", []))
            )
        with at("plugins"):
            plugins = _module_names(given.get("plugins", []))
        baseline = given.get("baseline")
        parsed: dict[str, Any] = {
            "metrics": metrics,
            "objectives": objectives,
            "baseline": DecodingConfig.from_mapping(baseline, Sampling()) if baseline else None,
            "plugins": plugins,
        }
        types = {name: kind for name, kind in field_types(Identity).items() if name not in parsed}
        identity = cls(**fit_entries(types, given), **parsed)
        identity._check()
        return identity

    def _check(self) -> None:
        """Check the texts that leave the sweep in other files and in commands."""
        SweepHeader(self.name)
        check_time(self.started)
        for name, texts in {
            "experiment": [self.experiment],
            "target": [self.target],
            "device": [self.device or ""],
            "versions": [*self.versions],
        }.items():
            if not all(text.isprintable() for text in texts):
                raise ConfigError((name,), f"must have no control characters, got {texts!r}")
        for name, version in self.versions.items():
            if not (_VERSION.fullmatch(name) and _VERSION.fullmatch(version)):
                raise ConfigError(
                    ("versions", name), f"must be a version such as 2.13.0+cpu, got {version!r}"
                )
        for text in self.constraints:
            Constraint.parse(text)
        for part, types in _PARTS.items():
            with at(part):
                fit_entries(types, getattr(self, part) or {})
        batch = self.timing.get("batch", 1)
        with at("timing", "batch"):
            sizes = fit_type(tuple[int, ...], batch if isinstance(batch, list) else [batch])
            if not sizes or min(sizes) < 1:
                raise ConfigError((), "must be at least 1")
        for name, sizes in {
            "grid": self.grid or (),
            "image_size": () if self.image_size is None else (self.image_size,),
            "samples": () if self.samples is None else (self.samples,),
        }.items():
            if any(not 1 <= size <= _MAX_SIZE for size in sizes):
                raise ConfigError((name,), f"must be in [1, {_MAX_SIZE}], got {sizes}")

    @property
    def id(self) -> str:
        """A name that no other sweep has, by which its Optuna study is known."""
        return f"{self.experiment} {self.started}"

    @property
    def caption_set(self) -> tuple[Any, Any]:
        """An identity of the captions, which sweeps with the same captions share."""
        return self.captions.get("hash"), self.captions.get("count")

    @property
    def images(self) -> int | None:
        """Number of images of a trial: captions times samples per caption; None if it is not
        recorded.
        """
        captions = self.captions.get("count")
        return (
            captions * self.samples
            if isinstance(captions, int) and self.samples is not None
            else None
        )

    @property
    def timing_batch(self) -> int:
        """The batch size of `speedup` and `latency`."""
        batch = self.timing.get("batch", 1)
        return int(batch[0] if isinstance(batch, list) else batch)

    @property
    def timing_device(self) -> str | None:
        """The device that timed (see `orchestrator.store.prices.identity_on`), or else the labels
        of the nodes that time, or the device of the first worker.
        """
        labels = self.timing.get("nodes") or {}
        named = ", ".join(f"{name}={value}" for name, value in labels.items())
        return self.timing.get("device") or named or self.device

    @property
    def timing_threads(self) -> int | None:
        """The threads of the first worker, where `timing_device` does not say what timed."""
        return None if "device" in self.timing else self.threads

    @property
    def sampling(self) -> Sampling | None:
        """The sampling settings of the baseline."""
        return None if self.baseline is None else self.baseline.sampling


def _objective(given: object, metrics: Mapping[str, Metric]) -> Metric:
    """An objective of an identity: a metric of the sweep, with the direction that the sweep
    optimises.
    """
    entry = fit_entries(
        {"metric": str, "direction": str}, expect_mapping(given, ("metric", "direction"))
    )
    if len(entry) < 2:
        raise ConfigError((), "must have a metric and a direction")
    name, direction = check_metric(entry["metric"]), entry["direction"]
    return replace(metrics.get(name, Metric(name, direction)), direction=direction)


def _module_names(names: object) -> tuple[str, ...]:
    """Names of modules, as they are imported: never paths. ConfigError for others."""
    found: tuple[str, ...] = fit_type(tuple[str, ...], names)
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError((), f"must be names of modules, got {name!r}")
    return found


class NoSweepError(ValueError):
    """There is no sweep at this location."""


def find_sweep(location: str | Path) -> Storage:
    """The storage of a folder or URI. A name without slashes that is not a folder is looked up in
    ./sweeps.

    Raises:
        NoSweepError: the URI is invalid.
    """
    name = str(location)
    if (
        "/" not in name
        and "\\" not in name
        and not Path(name).is_dir()
        and Path(SWEEPS, name).is_dir()
    ):
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
    name = "" if file is None else file.parent.name
    return name if name and find_sweep(name).uri == storage.uri else storage.display_name


def command(storage: Storage, name: str, *options: str) -> str:
    """A command on this sweep, for a shell."""
    return shlex.join(["specfrontier", name, location(storage), *options])


def with_plugins(name: str, modules: Iterable[str]) -> list[str]:
    """The first words of a command that needs these plugins and is not given the sweep, which names
    them.
    """
    return [
        "specfrontier",
        *(word for module in sorted(set(modules)) for word in ("--plugin", module)),
        name,
    ]


def near_path(storage: Storage, name: str = "") -> str:
    """The place of a file, or of the sweep without `name`, relative to the working directory if it
    is inside.
    """
    place = storage.locate(name) if name else storage.display_name
    return (
        str(Path(place).relative_to(Path.cwd()))
        if Path(place).is_relative_to(Path.cwd())
        else place
    )


def read_identity(storage: Storage) -> Identity | None:
    """The identity of a sweep; None if no sweep has started here.

    Raises:
        ValueError: the file is damaged.
    """
    if not storage.exists(IDENTITY):
        return None
    try:
        return Identity.from_mapping(load_checked(storage.read(IDENTITY)))
    except ValueError as error:
        raise ValueError(
            f"{storage.locate(IDENTITY)}: damaged ({error}); restore the file, or launch under "
            "another --name"
        ) from error


def check_unused(storage: Storage) -> None:
    """Check that nothing is where a sweep that starts here will write its results.

    Raises:
        ValueError: names the files and the fix.
    """
    found = [name for name in storage.names() if name in _RESULT_FILES]
    found += [f"{folder}/{name}" for folder in _RESULT_FOLDERS for name in storage.names(folder)]
    if found:
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        raise ValueError(
            f"{storage.display_name}: holds results but no {IDENTITY}, so they are not this "
            f"sweep's: {', '.join(found[:_MAX_NAMED])}{more}; launch under another --name or "
            f"--out, or restore {IDENTITY}"
        )


def plugins_of(storage: Storage) -> AbstractContextManager[None]:
    """Inside, names of rules, drafters, samplers, metrics and models may be those of the plugins
    that the sweep was launched with: such a name loads them (see `stored_plugins`).
    """

    def find() -> tuple[str, ...]:
        identity = read_identity(storage)
        return () if identity is None else identity.plugins

    file = storage.path(IDENTITY)
    return stored_plugins(find, file and file.parent)


def write_identity(storage: Storage, identity: Identity) -> None:
    storage.write(IDENTITY, dump_checked(identity.to_mapping(), indent=1))


def remove_unfinished(storage: Storage) -> int:
    """Remove what killed processes left of files that they were writing; returns their number. The
    caller holds the `driver_lock`: only the driver and its workers write to most folders. Commands
    such as `time`, `sync` and `report` may be writing to the others, so young files there stay.
    """
    own = sum(storage.remove_unfinished(folder) for folder in _RESULT_FOLDERS if folder != TIMINGS)
    return own + sum(storage.remove_unfinished(folder, _UNFINISHED_S) for folder in ("", TIMINGS))


def write_sweep_text(storage: Storage, text: str) -> None:
    storage.write(SWEEP, dump_text(text, YAML))


def read_sweep_text(storage: Storage) -> str:
    """The text of sweep.yaml; "" if there is none.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return load_text(storage.read(SWEEP), YAML) if storage.exists(SWEEP) else ""
    except ValueError as error:
        problem = (
            f"{storage.locate(SWEEP)}: damaged ({error}); remove it: `launch SPACE --resume` "
            "writes it again"
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
    trials = budget.get("trials") if isinstance(budget, Mapping) else None
    return trials if isinstance(trials, int) else None


def trial_file(number: int) -> str:
    return f"{TRIALS}/{number:05d}.json"


def write_trial(storage: Storage, record: TrialRecord) -> None:
    storage.write(trial_file(record.number), record.to_json())


def read_trials(storage: Storage, skip: Container[int] = ()) -> list[TrialRecord]:
    """The finished trials in the order of their numbers, without those in `skip`.

    Raises:
        ValueError: a file is damaged, not a trial's record, that of a trial with another number
            than its name, or that of a setting which needs a plugin that is missing.
    """
    with plugins_of(storage):
        names = [name for name in storage.names(TRIALS) if not _is_in(name, skip)]
        records = in_parallel(partial(_read_trial, storage), [f"{TRIALS}/{name}" for name in names])
        return sorted(records, key=lambda record: record.number)


def _is_in(name: str, numbers: Container[int]) -> bool:
    stem = name.removesuffix(".json")
    return stem.isdigit() and int(stem) in numbers


def _read_trial(storage: Storage, name: str) -> TrialRecord:
    """A trial's record. Raises ValueError as `read_trials`; only a file that is damaged is to be
    removed.
    """
    data, where = storage.read(name), storage.locate(name)
    try:
        record = TrialRecord.from_json(data)
    except ConfigError as error:
        raise ConfigError(error.path, error.problem, where) from error
    except ValueError as error:
        is_intact = has_intact_checksum(data)
        fix = "read it with the version that wrote it" if is_intact else _RUN_AGAIN
        raise ValueError(f"{where}: {error}; {fix}") from error
    if (own := trial_file(record.number)) != name:
        fix = _RUN_AGAIN if storage.exists(own) else "rename it"
        raise ValueError(
            f"{where}: holds the record of trial {record.number}, whose file is {own}; {fix}"
        )
    return record


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
