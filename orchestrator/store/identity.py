"""What a sweep's results depend on: written when it starts, checked when it is resumed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.store.files import IDENTITY
from search_spaces.constraints import Constraint, check_metric
from search_spaces.documents import describe_differences, differences
from search_spaces.params import ConfigError, at, expect_list, expect_mapping
from search_spaces.plain_data import field_types, fit_entries, fit_type
from search_spaces.plugins import stored_plugins
from search_spaces.sweep_sections import SweepHeader
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.checked_json import OtherVersionError, check_time, dump_checked, parse_checked
from workers.data.grid import Grid
from workers.data.shards import Experiment
from workers.data.storage import Storage
from workers.metrics.definition import Metric

_MAX_SIZE = 1 << 16  # of a grid and an image in each direction, and of the images of a caption
_PRECISIONS = ("float32", "bfloat16", "float16", "float64")
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
    """Everything that a sweep's results depend on."""

    name: str
    experiment: str  # digest of what its shards depend on
    started: str  # ISO 8601, UTC
    format: int  # of its shards (`workers.data.shards.FORMAT`)
    metrics: Mapping[str, Metric]
    objectives: tuple[Metric, ...]  # with the direction that the sweep optimises
    constraints: tuple[str, ...]
    target: str
    models: Mapping[str, str]  # the content hash of each by name
    extractors: Mapping[str, str]  # the content hash of each by name
    versions: Mapping[str, str]  # of the libraries by name
    files: Mapping[str, str]  # paths of the models by the same names, when the sweep started
    captions: Mapping[str, Any]  # count, hash, source
    reference: Mapping[str, Any] | None  # identity, count, source
    baseline: DecodingConfig  # vanilla with the sweep's sampling
    seed: int
    samples: int  # images per caption
    grid: tuple[int, ...]  # sizes of the token grid (see `Grid.sizes`)
    image_size: int
    # these are facts of the first worker (see `orchestrator.cluster.placement`)
    device: str
    threads: int | None
    numerics: Mapping[str, Any]
    timing: Mapping[str, Any]  # images, batch, repetitions, nodes
    plugins: tuple[str, ...]  # modules that registered more than this project has when launched

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, as identity.json holds it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)} | {
            "metrics": {name: metric.to_mapping() for name, metric in self.metrics.items()},
            "objectives": [
                {"metric": metric.name, "direction": metric.direction} for metric in self.objectives
            ],
            "baseline": self.baseline.to_mapping(),
        }

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Identity:
        """Read what `to_mapping` wrote.

        Raises:
            ValueError: a key is missing, has the wrong type, or a text that its writer would not
                write.
        """
        types = field_types(Identity)
        given = expect_mapping(given)
        if missing := [key for key in types if key not in given]:
            raise ValueError(f"not a sweep's identity: it lacks {', '.join(missing)}")
        with at("metrics"):
            entries = expect_mapping(given["metrics"])
            metrics = {name: Metric.from_mapping(name, facts) for name, facts in entries.items()}
        with at("objectives"):
            objectives = tuple(
                _objective(entry, metrics) for entry in expect_list(given["objectives"])
            )
        with at("plugins"):
            plugins = _module_names(given["plugins"])
        with at("baseline"):
            baseline = DecodingConfig.from_mapping(given["baseline"], Sampling())
        parsed: dict[str, Any] = {
            "metrics": metrics,
            "objectives": objectives,
            "baseline": baseline,
            "plugins": plugins,
        }
        plain = {name: kind for name, kind in types.items() if name not in parsed}
        identity = cls(**fit_entries(plain, given), **parsed)
        identity._check()
        return identity

    def _check(self) -> None:
        """Check the texts that leave the sweep in other files and in commands."""
        SweepHeader(self.name)
        check_time(self.started)
        for name, texts in {
            "experiment": [self.experiment],
            "target": [self.target],
            "device": [self.device],
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
        if missing := {"count", "hash", "source"} - self.captions.keys():
            raise ConfigError(("captions",), f"lacks {', '.join(sorted(missing))}")
        if "batch" not in self.timing:
            raise ConfigError(("timing",), "lacks batch")
        with at("timing", "batch"):
            if min(self._timing_batches, default=0) < 1:
                raise ConfigError((), "must be at least 1")
        for name, sizes in {
            "grid": self.grid,
            "image_size": (self.image_size,),
            "samples": (self.samples,),
        }.items():
            if any(not 1 <= size <= _MAX_SIZE for size in sizes):
                raise ConfigError((name,), f"must be in [1, {_MAX_SIZE}], got {sizes}")
        if len(self.grid) not in (2, 4):
            raise ConfigError(("grid",), f"must have 2 or 4 sizes, got {self.grid}")

    @property
    def token_grid(self) -> Grid:
        """Where an image's tokens are."""
        rows, cols, *preview = self.grid
        return Grid(rows, cols, tuple(preview))

    @property
    def id(self) -> str:
        """A name that no other sweep has, by which its Optuna study is known."""
        return f"{self.experiment} {self.started}"

    @property
    def caption_set(self) -> tuple[str, int]:
        """An identity of the captions, which sweeps with the same captions share."""
        return self.captions["hash"], self.captions["count"]

    @property
    def precision(self) -> str | None:
        """The dtype of the models, which the digest of the experiment tells; None for another
        one.
        """
        for precision in _PRECISIONS:
            known = Experiment(
                self.models, self.captions["hash"], self.seed, self.extractors, precision
            )
            if known.digest() == self.experiment:
                return precision
        return None

    @property
    def images(self) -> int:
        """Number of images of a trial: captions times samples per caption."""
        return int(self.captions["count"]) * self.samples

    @property
    def timing_batch(self) -> int:
        """The batch size of `speedup` and `latency`."""
        return self._timing_batches[0]

    @property
    def _timing_batches(self) -> tuple[int, ...]:
        batch = self.timing["batch"]
        sizes: tuple[int, ...] = fit_type(
            tuple[int, ...], batch if isinstance(batch, list | tuple) else [batch]
        )
        return sizes

    @property
    def timing_device(self) -> str:
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
    def sampling(self) -> Sampling:
        """The sampling settings of the baseline."""
        assert self.baseline.sampling is not None, "the baseline of a sweep has them"
        return self.baseline.sampling


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


def read_identity(storage: Storage) -> Identity | None:
    """The identity of a sweep; None if no sweep has started here.

    Raises:
        ValueError: the file is damaged, or another version of specfrontier wrote it.
    """
    if not storage.exists(IDENTITY):
        return None
    try:
        return parse_checked(storage.read(IDENTITY), Identity.from_mapping)
    except ValueError as error:
        is_other = isinstance(error, OtherVersionError)
        fix = "use that version" if is_other else "restore the file"
        raise ValueError(
            f"{storage.locate(IDENTITY)}: {error}; {fix}, or launch under another --name"
        ) from error


def write_identity(storage: Storage, identity: Identity) -> None:
    storage.write(IDENTITY, dump_checked(identity.to_mapping()))


def plugins_of(storage: Storage) -> AbstractContextManager[None]:
    """Inside, names of rules, drafters, samplers, metrics and models may be those of the plugins
    that the sweep was launched with: such a name loads them (see `stored_plugins`).
    """

    def find() -> tuple[str, ...]:
        identity = read_identity(storage)
        return () if identity is None else identity.plugins

    file = storage.path(IDENTITY)
    return stored_plugins(find, file and file.parent)


class IdentityError(ValueError):
    """The store's results depend on other weights, captions or settings; the message names them,
    and the fix.
    """


def check_unchanged(
    storage: Storage, stored: Identity, now: Mapping[str, Any], keys: Collection[str]
) -> None:
    """Check that these keys of the stored identity have the values of now.

    Raises:
        IdentityError: some have changed.
    """
    from workers.loading.hub import SCHEME

    before = stored.to_mapping()
    changes = differences({key: before[key] for key in keys}, {key: now[key] for key in keys})
    changes |= _changed_metrics(stored, now.get("metrics") or {})
    if not changes:
        return
    changes.pop("experiment", None)  # a digest of others, and of the models' dtype
    changed = describe_differences(changes) or "the experiment, by the models' dtype"
    moved = [
        stored.files.get(key.removeprefix("models."), "")
        for key in changes
        if key.startswith("models.")
    ]
    pinned = ", ".join(reference for reference in moved if reference.startswith(SCHEME))
    changed += f" (the sweep has {pinned})" if pinned else ""
    raise IdentityError(
        f"{storage.display_name}: changed since this sweep started: {changed}; launch under "
        "another --name, or restore the originals"
    )


def _changed_metrics(stored: Identity, now: Mapping[str, Any]) -> Mapping[str, tuple[Any, Any]]:
    """The metrics of the stored identity that mean something else now, by key. now: those of now in
    plain data; others that either has alone do not matter.
    """
    shared = [name for name in stored.metrics if name in now]
    before = {name: stored.metrics[name].meaning for name in shared}
    found = {name: Metric.from_mapping(name, now[name]).meaning for name in shared}
    return differences({"metrics": before}, {"metrics": found})
