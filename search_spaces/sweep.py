"""A sweep as its YAML file describes it: models, captions, reference, what is searched, what for, and how long.

    name: quickstart
    objectives: [speedup, {metric: fid, direction: minimize}]
    space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}

Everything else has a default. `SweepConfig.read` takes a file, or the name of one of the ready spaces.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.documents import Node, as_node, overridden, read_document, write_document
from search_spaces.enqueued import Enqueued, read_enqueue
from search_spaces.goals import Constraint, Objective, check_metric
from search_spaces.params import Kind, Params
from search_spaces.space import Space
from search_spaces.sweep_sections import Budget, Captions, Models, Quality, Reference, Search, SweepHeader, Timing
from search_spaces.trial import DecodingConfig, Sampling

READY = Path(__file__).parent / "spaces"
PAPERS = "papers/"
DEFAULT_OBJECTIVES = (Objective("speedup", "maximize"), Objective("fid", "minimize"))


KEYS = ("name", "about", "models", "captions", "reference", "seed", "quality", "timing", "metrics", "objectives",
        "constraints", "search", "budget", "enqueue", "sampling", "space")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """A sweep. metrics None: all that the models allow. sampling None: the target's own, for vanilla and all others."""

    name: str
    about: str
    models: Models
    captions: Captions
    reference: Reference
    seed: int
    quality: Quality
    timing: Timing
    metrics: tuple[str, ...] | None
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    search: Search
    budget: Budget
    enqueue: tuple[Enqueued, ...]
    sampling: Sampling | None
    space: Space

    @property
    def asked(self) -> frozenset[str]:
        """Names of all metrics that the sweep asks for, goals included; empty: it takes all that can be had."""
        goals = [*(entry.metric for entry in self.objectives), *(entry.metric for entry in self.constraints)]
        return frozenset((*self.metrics, *goals) if self.metrics else ())

    @classmethod
    def read(cls, path_or_name: str | Path, overrides: Mapping[str, Any] | None = None) -> SweepConfig:
        """The sweep in a file, or a ready one by its name, with single values replaced: {"budget.trials": 8}.

        Raises:
            ConfigError: in one line, the file, the line, the key, what is wrong with it and the mend.
            OSError: the file cannot be read.
        """
        path = find(path_or_name)
        return cls.parse(path.read_bytes(), str(path), overrides)

    @classmethod
    def parse(cls, text: str | bytes, file: str, overrides: Mapping[str, Any] | None = None) -> SweepConfig:
        """As `read`, from the text of a file that messages call `file`."""
        root = read_document(text, file)
        for key, value in (overrides or {}).items():
            root = overridden(root, key, value)
        given = {key: child for key, child in root.mapping(KEYS).items() if child.value is not None}
        if "space" not in given and "enqueue" not in given:
            raise root.error("missing; give a space to search, or settings to enqueue", "space")
        head = _flat(
            SweepHeader, Node({key: given[key] for key in ("name", "about", "seed") if key in given}, root.where)
        )
        sampling = _sampling(given["sampling"]) if "sampling" in given else None
        enqueue = read_enqueue(given["enqueue"], sampling) if "enqueue" in given else ()

        def section(kind: type[Kind]) -> Kind:
            name = kind.__name__.lower()
            node = given.get(name, Node({}, root.where, (name,)))
            if kind is Models and isinstance(node.value, str):
                node = Node({"file": node}, node.where, (name,))
            return _flat(kind, node)

        sweep = cls(
            name=head.name,
            about=head.about,
            models=section(Models),
            captions=section(Captions),
            reference=section(Reference),
            seed=head.seed,
            quality=section(Quality),
            timing=section(Timing),
            metrics=_metrics(given["metrics"]) if "metrics" in given else None,
            objectives=_objectives(given["objectives"]) if "objectives" in given else DEFAULT_OBJECTIVES,
            constraints=_constraints(given["constraints"]) if "constraints" in given else (),
            search=section(Search),
            budget=section(Budget),
            enqueue=enqueue,
            sampling=sampling,
            space=Space.read(given.get("space", Node({}, root.where, ("space",)))),
        )
        return _consistent(sweep, given)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data with every default written out; `parse` of its YAML gives an equal sweep."""
        mapping: dict[str, Any] = {key: getattr(self, key) for key in KEYS}
        mapping = {key: value.to_mapping() if isinstance(value, Params) else value for key, value in mapping.items()}
        mapping["search"]["options"] = dict(self.search.options)
        mapping["metrics"] = self.metrics and list(self.metrics)
        mapping["objectives"] = [objective.to_plain() for objective in self.objectives]
        mapping["constraints"] = [constraint.text for constraint in self.constraints]
        mapping["enqueue"] = [entry.to_mapping() for entry in self.enqueue]
        mapping["space"] = self.space.source
        return {key: value for key, value in mapping.items() if value is not None}

    def to_yaml(self) -> str:
        return write_document(self.to_mapping())

    def digest(self) -> str:
        """16 hex digits that name this sweep as it is written, every default included."""
        canonical = json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def ready() -> list[str]:
    """Names of the ready spaces: `quickstart`, `papers/...`."""
    return sorted(path.relative_to(READY).with_suffix("").as_posix() for path in READY.rglob("*.yaml"))


def find(path_or_name: str | Path) -> Path:
    """The file of a sweep: of a ready one by its name, or the path itself. ConfigError if there is neither."""
    name = str(path_or_name)
    if name in ready():
        return READY / f"{name}.yaml"
    path = Path(path_or_name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise as_node(None, name).error("is a folder; give the YAML file of a sweep")
    if path.suffix in (".yaml", ".yml") or path.is_absolute():
        raise as_node(None, name).error(f"no such file; ready spaces go by their names: {_shown()}")
    close = difflib.get_close_matches(name, ready(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    known = _shown(tables=any(word.startswith(PAPERS.rstrip("/")) for word in (name, *close)))
    raise as_node(None, name).error(f"no such file, and no ready space; {hint}there are {known}")


def _shown(*, tables: bool = False) -> str:
    """The ready spaces in words: the papers' tables alone, or those of methods and how the tables are called."""
    names = [name for name in ready() if name.startswith(PAPERS) == tables]
    return ", ".join(names if tables else [*names, f"{PAPERS}... (the papers' tables)"])


def _flat(kind: type[Kind], node: Node) -> Kind:
    """A section of plain knobs, and the sampler's options beside them."""
    given = dict(node.mapping())
    options = given.pop("options").mapping() if kind is Search and "options" in given else {}
    with node.with_location():
        section = kind.from_mapping({key: child.plain() for key, child in given.items()})
    if options:
        object.__setattr__(section, "options", {key: child.plain() for key, child in options.items()})
    return section


def _sampling(node: Node) -> Sampling | None:
    with Node({"sampling": node}, node.where).with_location():
        return DecodingConfig.from_mapping({"sampling": node.plain()}).sampling


def _metrics(node: Node) -> tuple[str, ...]:
    found: list[str] = []
    for entry in node.entries():
        with entry.with_location():
            check_metric(str(entry.plain()))
        if entry.value in found:
            raise entry.error(f"{entry.value} is listed twice; remove one of the two")
        found.append(entry.value)
    if not found:
        raise node.error("must not be empty; leave it out for all metrics that the models allow")
    return tuple(found)


def _objectives(node: Node) -> tuple[Objective, ...]:
    found: list[Objective] = []
    for entry in node.entries():
        given = {"metric": entry} if isinstance(entry.value, str) else entry.mapping()
        with entry.with_location():
            objective = Objective.from_mapping({key: child.plain() for key, child in given.items()})
        if objective.metric in [other.metric for other in found]:
            raise entry.error(f"{objective.metric} is an objective already; remove one of the two")
        found.append(objective)
    if not found:
        raise node.error("must not be empty; name what the sweep is for, such as speedup and fid")
    return tuple(found)


def _constraints(node: Node) -> tuple[Constraint, ...]:
    found: list[Constraint] = []
    for entry in node.entries():
        with entry.with_location():
            constraint = Constraint.parse(entry.plain())
        if constraint in found:
            raise entry.error(f"'{constraint.text}' is listed twice; remove one of the two")
        found.append(constraint)
    return tuple(found)


def _consistent(sweep: SweepConfig, given: Mapping[str, Node]) -> SweepConfig:
    """The sweep, if its sampler can search its space. Without a space, the trials are the enqueued ones."""
    endless = sweep.space.endless() if sweep.search.sampler == "grid" else None
    if endless is not None:
        raise endless.node.error("has no end of values, which the sampler 'grid' needs; give a step, or values")
    if "space" not in given and ("budget" not in given or "trials" not in given["budget"].value):
        listed = any(entry.config == DecodingConfig(sampling=sweep.sampling) for entry in sweep.enqueue)
        trials = len(sweep.enqueue) + (not listed)  # vanilla runs first, listed or not
        return replace(sweep, budget=replace(sweep.budget, trials=trials))
    return sweep
