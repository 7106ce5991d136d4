"""A search space: which settings a sweep may try, as a tree of choices with a domain for each knob.

    drafter: eagle
    tree: [{policy: chain, length: {low: 2, high: 6}}, {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}]
    acceptance: {neighbourhood: [none, {neighbourhood: additive, k: {low: 2, high: 200, log: true}, delta: 0.2}]}

A mapping is the sections of a setting; a list is a choice of branches: of the whole setting, of a section, or of the
kinds under one tag. What is left out is plain. A study sees a parameter per choice (the branches' names) and per
searched knob, by its path (`tree.length`); where branches want other numbers of one knob, by its branch as well
(`acceptance=additive.k`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod
from typing import Any

from search_spaces.documents import Node, as_node
from search_spaces.domains import Domain, Fixed, Scalar, Span, Suggests
from search_spaces.naming import named
from search_spaces.params import ConfigError
from search_spaces.sections import Block, Choice, Leaf, frozen, read_root
from search_spaces.trial import DecodingConfig, Sampling

__all__ = ["ConfigError", "Space", "Suggests", "resolve_config"]

ALL_CORNERS = 32  # a branch with more is built at two opposite ones and at each way to leave them by one knob
MOST_BRANCHES = 4000  # combinations of branches that are built when a space is read


@dataclass(frozen=True, slots=True)
class Branch:
    """One answer to every choice: the study's parameters for it, and the knobs it leaves."""

    params: Mapping[str, str]
    leaves: tuple[Leaf, ...]

    def setting(self, values: Iterable[Any]) -> dict[str, Any]:
        """The mapping of a setting in which the knobs have these values, in the order of the leaves."""
        mapping: dict[str, Any] = {}
        for leaf, value in zip(self.leaves, values, strict=True):
            section, key = leaf.path
            mapping.setdefault(section, {})[key] = value
        return mapping

    def searched(self, params: Iterable[Scalar]) -> dict[str, Any]:
        """The branch's parameters with those of its knobs, given one per leaf."""
        pairs = zip(self.leaves, params, strict=True)
        return {**self.params, **{leaf.name: param for leaf, param in pairs if not isinstance(leaf.domain, Fixed)}}


@dataclass(frozen=True, slots=True)
class Space:
    """A conditional space. Equal spaces suggest the same settings; `source` is what was read, as plain data."""

    root: Block
    source: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, node: object, where: str = "space") -> Space:
        """The space that a node of a document, or plain data said to stand at `where`, describes.

        Every branch is built at its corners: all of them up to 32; beyond, the lowest and the highest and whatever
        differs from one of these in one knob (of listed values, each counts as a corner). So the rules between knobs
        speak here; inside, they speak when a setting is suggested. Of more than 4000 branches the first are built.

        Raises:
            ConfigError: naming file, line, key and mend.
        """
        given = as_node(node, where)
        space = cls(named(read_root(given)), given.plain())
        for branch in islice(space.branches(), MOST_BRANCHES):
            _check_corners(branch, given)
        return space

    def suggest(self, trial: Suggests) -> dict[str, Any]:
        """The mapping of a DecodingConfig that a trial proposes: whole sections, but of the sampling only what the
        space itself says (the sweep's baseline gives the rest: `complete`).

        Raises:
            ConfigError: the parts cannot go together, which can be only inside a branch that is sound at its corners.
        """
        mapping: dict[str, Any] = {}
        _suggest(self.root, trial, mapping)
        sampling = mapping.get("sampling")
        whole = resolve_config(mapping, Sampling()).with_sampling(None).to_mapping()
        return whole if sampling is None else whole | {"sampling": sampling}

    def params_of(self, setting: Mapping[str, Any], sampling: Sampling | None = None) -> dict[str, Any] | None:
        """The parameters for which this space suggests the setting; None if it lies outside.

        sampling: the baseline, which fills in what the setting, or the space, leaves unsaid.
        """
        baseline = sampling or Sampling()
        wanted = resolve_config(setting, baseline)
        values = frozen(wanted.to_mapping())
        for branch in self.branches():
            for point in product(*(_candidates(leaf, values) for leaf in branch.leaves)):
                with suppress(ConfigError):  # of several lists that may be meant, some may not fit the rest
                    if resolve_config(branch.setting(value for _, value in point), baseline) == wanted:
                        return branch.searched(param for param, _ in point)
        return None

    def size(self) -> int | None:
        """The number of points, if that is finite. Points of different branches may be one setting."""
        total = 0
        for branch in self.branches():
            sizes = [leaf.domain.size() for leaf in branch.leaves]
            if None in sizes:
                return None
            total += prod(size or 0 for size in sizes)
        return total

    def grid(self) -> Iterator[dict[str, Any]]:
        """The parameters of every point, branch by branch, the last knob fastest.

        Raises:
            ConfigError: a knob has no end of values.
        """
        if (endless := self.endless()) is not None:
            raise endless.node.error("any number of the span will do, so there is no grid; give a step, or values")
        for branch in self.branches():
            for point in product(*(tuple(leaf.domain.points()) for leaf in branch.leaves)):
                yield branch.searched(param for param, _ in point)

    def endless(self) -> Leaf | None:
        """The first knob that has no end of values."""
        leaves = (leaf for branch in self.branches() for leaf in branch.leaves)
        return next((leaf for leaf in leaves if leaf.domain.size() is None), None)

    def parameters(self) -> dict[str, Domain | tuple[str, ...]]:
        """What a study may see: name -> domain of a knob, or names of the branches of a choice."""
        return dict(_parameters(self.root))

    def branches(self) -> Iterator[Branch]:
        """Every combination of branches."""
        yield from _branches(self.root)


def resolve_config(mapping: Mapping[str, Any], sampling: Sampling) -> DecodingConfig:
    """The setting in a mapping, what it leaves unsaid about the sampling taken from the baseline's.

    Raises:
        ConfigError: parts that cannot go together.
    """
    config = DecodingConfig.from_mapping(mapping, defaults=sampling)
    return config if config.sampling is not None else config.with_sampling(sampling)


def _suggest(block: Block, trial: Suggests, mapping: dict[str, Any]) -> None:
    for entry in block:
        if isinstance(entry, Choice):
            label = trial.suggest_categorical(entry.name, entry.labels)
            _suggest(entry.blocks[entry.labels.index(str(label))], trial, mapping)
        else:
            section, key = entry.path
            mapping.setdefault(section, {})[key] = entry.domain.suggest(entry.name, trial)


def _branches(block: Block) -> Iterator[Branch]:
    for parts in product(*(tuple(_entry_branches(entry)) for entry in block)):
        params = {name: label for part in parts for name, label in part.params.items()}
        yield Branch(params, tuple(leaf for part in parts for leaf in part.leaves))


def _entry_branches(entry: Leaf | Choice) -> Iterator[Branch]:
    if isinstance(entry, Leaf):
        yield Branch({}, (entry,))
        return
    for label, block in zip(entry.labels, entry.blocks, strict=True):
        for branch in _branches(block):
            yield Branch({entry.name: label, **branch.params}, branch.leaves)


def _candidates(leaf: Leaf, wanted: Mapping[str, Any]) -> list[tuple[Scalar, Any]]:
    """The (parameter, value) pairs of a knob by which it may be as wanted: at most one, but for lists."""
    value = wanted[leaf.path[0]].get(leaf.path[1])
    if isinstance(value, tuple) and not isinstance(leaf.domain, Span):
        return list(leaf.domain.points())  # a list may have been written in another order than settings keep it in
    try:
        return [(leaf.domain.param(value), value)]
    except ValueError:
        return []


def _parameters(block: Block) -> Iterator[tuple[str, Domain | tuple[str, ...]]]:
    for entry in block:
        if isinstance(entry, Choice):
            yield entry.name, entry.labels
            for inner in entry.blocks:
                yield from _parameters(inner)
        elif not isinstance(entry.domain, Fixed):
            yield entry.name, entry.domain


def _corners(branch: Branch) -> list[tuple[Any, ...]]:
    """Values per leaf: every combination of ends if they are few, else two opposite corners and their neighbours."""
    ends = [leaf.domain.corners() for leaf in branch.leaves]
    if prod(map(len, ends)) <= ALL_CORNERS:
        return list(product(*ends))
    found = [tuple(end[0] for end in ends), tuple(end[-1] for end in ends)]
    for corner in tuple(found):
        for place, end in enumerate(ends):
            found += [(*corner[:place], value, *corner[place + 1 :]) for value in end]
    return list(dict.fromkeys(found))


def _check_corners(branch: Branch, space: Node) -> None:
    corners = _corners(branch)
    for corner in corners:
        error = _failure(branch, corner)
        if error is not None:
            labels = [f"in the branch {', '.join(branch.params.values())}"] if branch.params else []
            causes = _causes(branch, corner)
            where = "; ".join(labels + ([f"at {', '.join(causes)}"] if causes else []))
            raise _blame(error, branch, space, f" ({where})" if where else "")


def _failure(branch: Branch, corner: tuple[Any, ...]) -> ConfigError | None:
    try:
        resolve_config(branch.setting(corner), Sampling())
    except ConfigError as error:
        return error
    return None


def _causes(branch: Branch, corner: tuple[Any, ...]) -> list[str]:
    """The searched knobs that would each cure a failing corner, with their values there."""
    found = []
    for place, leaf in enumerate(branch.leaves):
        others = ((*corner[:place], value, *corner[place + 1 :]) for value in leaf.domain.corners())
        if not isinstance(leaf.domain, Fixed) and any(_failure(branch, other) is None for other in others):
            found.append(f"{'.'.join(leaf.path)} {corner[place]}")
    return found


def _blame(error: ConfigError, branch: Branch, space: Node, places: str) -> ConfigError:
    """The error at the line of the key at fault or, where that key was not given, of its section or of the space."""
    section = error.path[:1]
    near = [leaf for leaf in branch.leaves if leaf.path[:1] == section]
    exact = next((leaf.node for leaf in near if leaf.path == error.path[:2]), None)
    if exact is not None:
        return exact.error(error.problem + places)
    where = near[0].node.where if near else space.where
    return ConfigError((*space.path, *error.path), error.problem + places, where)
