"""A sweep as its YAML file describes it: models, captions, reference, search space, objectives and
budget.

    name: quickstart
    objectives: [speedup, {metric: fid, direction: minimize}]
    space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}

All other keys have defaults. `SweepConfig.read` takes a file, or the name of one of the ready
spaces.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from search_spaces.constraints import AT_BATCH, Constraint, at_batch
from search_spaces.documents import Document, differences, read_document, write_document
from search_spaces.params import ConfigError, Params, at, expect_list, expect_mapping
from search_spaces.params import Path as ConfigPath
from search_spaces.paths import local_path
from search_spaces.samplers import GRID
from search_spaces.space import Space
from search_spaces.sweep_sections import (
    Budget,
    Captions,
    Enqueued,
    Models,
    Objective,
    Quality,
    Racing,
    Reference,
    Search,
    SweepHeader,
    Timing,
    read_metric,
)
from search_spaces.trial import DecodingConfig, Sampling, flat_types

_READY = Path(__file__).parent / "spaces"
_PAPERS = "papers/"
VANILLA = "vanilla"
# Keys that may change when a sweep is resumed; so may models.file.
_CHANGEABLE = ("budget", "about", "name")
# Sections that may be a plain text, and the key that it is of.
_PLAIN_SECTIONS = {"models": "file", "reference": "source"}
_OBJECTIVES = (2, 3)  # numbers of objectives that a front can have
DEFAULT_OBJECTIVES = (Objective("speedup", "maximize"), Objective("fid", "minimize"))

KEYS = (
    "name",
    "about",
    "models",
    "captions",
    "reference",
    "seed",
    "quality",
    "timing",
    "metrics",
    "objectives",
    "constraints",
    "search",
    "racing",
    "budget",
    "enqueue",
    "sampling",
    "space",
)
SWEEP_SECTIONS: Mapping[str, type[Params]] = {
    "models": Models,
    "captions": Captions,
    "reference": Reference,
    "quality": Quality,
    "timing": Timing,
    "search": Search,
    "budget": Budget,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """A sweep."""

    name: str
    about: str
    models: Models
    captions: Captions
    reference: Reference
    seed: int
    quality: Quality
    timing: Timing
    metrics: tuple[str, ...] | None  # None: all that the models allow
    # The entries of metrics that are classes of torchmetrics, by name.
    torchmetrics: Mapping[str, Mapping[str, Any]]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    search: Search
    racing: Racing | None  # None: all trials take all captions
    budget: Budget
    enqueue: tuple[Enqueued, ...]
    sampling: Sampling | None  # for the baseline and every other config; None: the target's default
    space: Space
    # The document that it was read from; None for plain data.
    document: Document | None = field(default=None, compare=False, repr=False)

    @property
    def requested_metrics(self) -> frozenset[str]:
        """The metrics of `metrics`, objectives and constraints, and the `batch_metrics`; empty if
        the sweep takes all that the models allow.
        """
        if self.metrics:
            return self._named.union(self.batch_metrics)
        return frozenset()

    @property
    def batch_metrics(self) -> tuple[str, ...]:
        """The metrics of speed at the batch sizes of `timing.batch` after the first one."""
        wanted = self._named if self.metrics else AT_BATCH
        found = {
            at_batch(name, size): name for size in self.timing.batches[1:] for name in AT_BATCH
        }
        return tuple(name for name, base in found.items() if base in wanted or name in self._named)

    @property
    def _named(self) -> frozenset[str]:
        return frozenset(name for _, name in self.named_metrics)

    @property
    def named_metrics(self) -> list[tuple[ConfigPath, str]]:
        """Path in the document (section and index) and name of every metric that the sweep
        names.
        """
        sections = {
            "objectives": [objective.metric for objective in self.objectives],
            "constraints": [constraint.metric for constraint in self.constraints],
            "metrics": self.metrics or (),
        }
        return [
            ((section, f"[{index}]"), name)
            for section, names in sections.items()
            for index, name in enumerate(names)
        ]

    @classmethod
    def read(
        cls, path_or_name: str | Path, overrides: Mapping[str, Any] | None = None
    ) -> SweepConfig:
        """The sweep in a file, or a ready one by its name, with single values replaced:
        {"budget.trials": 8}.

        Raises:
            ConfigError: an invalid value; the message has file, line, key, problem and fix.
            OSError: the file cannot be read.
        """
        path = find_space(path_or_name)
        return cls.parse(path.read_bytes(), str(path), overrides)

    @classmethod
    def parse(
        cls, text: str | bytes, file: str, overrides: Mapping[str, Any] | None = None
    ) -> SweepConfig:
        """Like `read`, from YAML text; `file` names it in error messages."""
        document = _read_document(text, file, overrides)
        with document.locate_errors():
            return replace(cls.from_mapping(document.data), document=document)

    @staticmethod
    def read_name(path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> str:
        """The name alone of the sweep that `read` reads; raises the same errors."""
        return _read_header(find_space(path_or_name), ("name",), overrides).name

    @classmethod
    def from_mapping(cls, mapping: object) -> SweepConfig:
        """The sweep in plain data. Raises ConfigError with the path of an invalid value."""
        _check_keys(expect_mapping(mapping))
        given = {
            key: value for key, value in expect_mapping(mapping, KEYS).items() if value is not None
        }
        if "space" not in given and "enqueue" not in given:
            raise ConfigError(("space",), "missing; give a space to search, or configs to enqueue")
        header = SweepHeader.from_mapping(
            {key: given[key] for key in SweepHeader.fields() if key in given}
        )
        parts: dict[str, Any] = {**header.to_mapping(), "sampling": None, "racing": None}
        for name, section in SWEEP_SECTIONS.items():
            with at(name):
                parts[name] = section.from_mapping(given.get(name, {}))
        if "racing" in given:
            with at("racing"):
                parts["racing"] = Racing.from_mapping(given["racing"])
            parts["racing"].check_captions(parts["captions"].count)
        if "sampling" in given:
            parts["sampling"] = DecodingConfig.from_mapping(
                {"sampling": given["sampling"]}
            ).sampling
        parts |= _read_lists(given, parts["sampling"])
        entries = dict(parts["metrics"] or ())
        parts["torchmetrics"] = {name: entry for name, entry in entries.items() if entry}
        if parts["metrics"] is not None:
            parts["metrics"] = tuple(entries)
        for name in ("metrics", "objectives"):
            if parts[name] == ():
                raise ConfigError((name,), "must not be empty; leave it out for the default")
        if (count := len(parts["objectives"])) not in _OBJECTIVES:
            if count < 2:
                fix = "add another one"
            else:
                fix = "move the others to `metrics` or `constraints`"
            raise ConfigError(("objectives",), f"must be two or three metrics, got {count}; {fix}")
        with at("space"):
            parts["space"] = Space.read(given.get("space", {}))
            if parts["search"].sampler == GRID:
                parts["space"].check_finite()
        _check_distinct(parts["enqueue"])
        flat_types()  # all plugins of the space are loaded now
        if "space" not in given and "trials" not in given.get("budget", {}):
            # Vanilla runs first, even if `enqueue` does not list it.
            vanilla = DecodingConfig(sampling=parts["sampling"])
            trials = len({*(entry.config for entry in parts["enqueue"]), vanilla})
            parts["budget"] = replace(parts["budget"], trials=trials)
        return cls(**parts)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data with every default written out; `from_mapping` gives an equal sweep."""
        mapping: dict[str, Any] = {key: getattr(self, key) for key in KEYS}
        mapping = {
            key: value.to_mapping() if isinstance(value, Params) else value
            for key, value in mapping.items()
        }
        mapping["metrics"] = self.metrics and [
            self.torchmetrics.get(name, name) for name in self.metrics
        ]
        mapping["objectives"] = [objective.to_mapping() for objective in self.objectives]
        mapping["constraints"] = [constraint.text for constraint in self.constraints]
        mapping["enqueue"] = [entry.to_mapping() for entry in self.enqueue]
        mapping["space"] = self.space.source
        return {key: value for key, value in mapping.items() if value is not None}

    def to_yaml(self) -> str:
        return write_document(self.to_mapping())

    def locate_errors(self) -> AbstractContextManager[None]:
        """Add file and line to a ConfigError that is raised inside, if the sweep was read from a
        document.
        """
        if self.document is None:
            return nullcontext()
        return self.document.locate_errors()

    def resolve(self, sampling: Sampling) -> SweepConfig:
        """The sweep with sampling settings for all configs (its own, else `sampling`), and vanilla
        enqueued first.

        Raises:
            ConfigError: another config has the label `vanilla`.
        """
        sampling = self.sampling or sampling
        baseline = DecodingConfig(sampling=sampling)
        labels = {baseline: VANILLA}
        for entry in self.enqueue:
            config = entry.config.with_sampling(entry.config.sampling or sampling)
            if entry.label == VANILLA and config != baseline:
                raise ConfigError(
                    ("enqueue", VANILLA), "the label of the baseline; choose another label"
                )
            labels.setdefault(config, entry.label)
        enqueue = tuple(Enqueued(label, config) for config, label in labels.items())
        return replace(self, sampling=sampling, enqueue=enqueue)

    def changes(self, stored: SweepConfig) -> dict[str, tuple[Any, Any]]:
        """The values in which the sweep differs from the stored, resolved one that it resumes (see
        `differences`).

        The budget, the name and the description may change. So may the path of models.yaml: the
        workers compare the weight files' hashes.

        Raises:
            ConfigError: see `resolve`.
        """
        # It is missing only if the stored file was edited; with the default, `sampling` then counts
        # as changed.
        sampling = stored.sampling or Sampling()
        before, after = stored.to_mapping(), self.resolve(sampling).to_mapping()
        for mapping in (before, after):
            mapping["models"].pop("file", None)
            for key in _CHANGEABLE:
                mapping.pop(key, None)
        return differences(before, after)


def _read_document(text: str | bytes, file: str, overrides: Mapping[str, Any] | None) -> Document:
    document = read_document(text, file)
    if isinstance(document.data, dict):
        # As mappings, so that --models and --set can replace single keys.
        plain = {
            section: {key: document.data[section]}
            for section, key in _PLAIN_SECTIONS.items()
            if isinstance(document.data.get(section), str)
        }
        document = replace(document, data={**document.data, **plain})
    for key, value in (overrides or {}).items():
        document = document.with_override(key, value)
    return document


def _read_header(
    path: Path, keys: Iterable[str], overrides: Mapping[str, Any] | None = None
) -> SweepHeader:
    """These keys alone of the sweep in a file."""
    document = _read_document(path.read_bytes(), str(path), overrides)
    with document.locate_errors():
        given = expect_mapping(document.data)
        return SweepHeader.from_mapping({key: given[key] for key in keys if key in given})


def ready_spaces() -> list[str]:
    """Names of the ready spaces, the papers' tables last: `quickstart`, `papers/...`."""
    names = (path.relative_to(_READY).with_suffix("").as_posix() for path in _READY.rglob("*.yaml"))
    return sorted(names, key=lambda name: (name.startswith(_PAPERS), name))


def describe_spaces() -> dict[str, str]:
    """The purpose of each ready space, by its name."""
    return {
        name: _read_header(_READY / f"{name}.yaml", ("name", "about")).about
        for name in ready_spaces()
    }


def find_space(path_or_name: str | Path) -> Path:
    """The file of a sweep: a ready one by its name, or the path itself. Raises ConfigError if there
    is neither.
    """
    name = str(path_or_name)
    if name in ready_spaces():
        return _READY / f"{name}.yaml"
    try:
        path = local_path(path_or_name)
    except ValueError as error:
        raise ConfigError((), str(error)) from error
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError((), "is a folder; give the YAML file of a sweep", name)
    if path.suffix in (".yaml", ".yml") or path.is_absolute():
        raise ConfigError((), f"no such file; ready spaces are {_list_ready()}", name)
    close = difflib.get_close_matches(name, ready_spaces(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = _list_ready(papers=any(word.startswith(_PAPERS.rstrip("/")) for word in (name, *close)))
    raise ConfigError((), f"no such file, and no ready space; {hint}available: {names}", name)


def _list_ready(*, papers: bool = False) -> str:
    """The ready spaces: the papers' tables alone, or the others and a note on the tables."""
    names = [name for name in ready_spaces() if name.startswith(_PAPERS) == papers]
    if not papers:
        names.append(f"{_PAPERS}... (the papers' tables)")
    return ", ".join(names)


def _objective(value: object) -> Objective:
    if isinstance(value, str):
        return Objective.from_mapping({"metric": value})
    return Objective.from_mapping(expect_mapping(value))


def _check_keys(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a section's key that is given outside of the section."""
    for key in given.keys() - set(KEYS):
        owners = [name for name, section in SWEEP_SECTIONS.items() if key in section.fields()]
        if owners:
            places = " or ".join(f"{owner}.{key}" for owner in owners)
            raise ConfigError((key,), f"is a key of a section; write {places}")


def _read_lists(given: Mapping[str, Any], sampling: Sampling | None) -> dict[str, Any]:
    """The sections that are lists, with their defaults. `sampling` is the baseline's."""
    # For each list, how an entry is read, what identifies it in messages, and the default.
    lists: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], str], Any]] = {
        "metrics": (read_metric, itemgetter(0), None),
        "objectives": (_objective, lambda objective: str(objective.metric), DEFAULT_OBJECTIVES),
        "constraints": (Constraint.parse, lambda constraint: f"'{constraint.text}'", ()),
        "enqueue": (
            partial(Enqueued.read, sampling=sampling),
            lambda entry: f"the label {entry.label!r}",
            (),
        ),
    }
    found: dict[str, Any] = {}
    for name, (read, identify, default) in lists.items():
        found[name] = default
        if name in given:
            with at(name):
                found[name] = _read_list(given[name], read, identify)
    return found


def _read_list(
    value: object, read: Callable[[Any], T], identify: Callable[[T], str]
) -> tuple[T, ...]:
    """The entries of a list. Raises ConfigError if two have the same identity."""
    found: dict[str, T] = {}
    for index, entry in enumerate(expect_list(value)):
        with at(f"[{index}]"):
            item = read(entry)
            if identify(item) in found:
                raise ConfigError(
                    (), f"{identify(item)} is listed twice; remove or rename one of the two"
                )
        found[identify(item)] = item
    return tuple(found.values())


def _check_distinct(enqueued: tuple[Enqueued, ...]) -> None:
    for index, entry in enumerate(enqueued):
        twin = next((other for other in enqueued[:index] if other.config == entry.config), None)
        if twin is not None:
            problem = f"is the same config as {twin.label!r}; remove one of the two"
            raise ConfigError(("enqueue", f"[{index}]"), problem)
