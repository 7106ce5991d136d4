"""A search space: which configs a sweep may try, as choices between branches and a domain for each
field.

    drafter: eagle
    tree:
      - {policy: chain, length: {low: 2, high: 6}}
      - {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}
    acceptance:
      neighbourhood: [none, {neighbourhood: additive, k: {low: 2, high: 200, log: true}}]

A mapping holds the sections of a config; a list is a choice of branches: of the whole config, of a
section, or of the kinds under one tag. Keys that are missing have their defaults. A study sees one
parameter per choice (its values are the labels of the branches) and one per searched field, named
by its path (`tree.length`). Where branches search a field in different ranges, the branch is part
of the name (`acceptance=additive.k`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, product
from math import prod
from typing import Any

from search_spaces.domains import Domain, Interval, Scalar, TrialLike
from search_spaces.params import ConfigError, as_tuples
from search_spaces.space_entries import Block, Entry, Scope, read_entries
from search_spaces.trial import SECTIONS, DecodingConfig, Sampling

MAX_CHECKED_BRANCHES = 4000  # branches of a space that are checked before a sweep starts
_MAX_CORNERS = 32  # corners of a branch, if all are checked


@dataclass(frozen=True, slots=True)
class Branch:
    """One label for every choice."""

    params: Mapping[str, str]  # the study's parameters for these labels
    leaves: tuple[Entry, ...]  # the leaves that remain
    # Sections that its configs have had, by name and text: its space's branches share them.
    sections: dict[tuple[str, str], dict[str, Any]] = field(compare=False, repr=False)

    def config(self, values: Iterable[Any], sampling: Sampling) -> DecodingConfig:
        """The config in which the leaves have these values. Raises ConfigError if its parts cannot
        be combined.
        """
        mapping: dict[str, Any] = {}
        for leaf, value in zip(self.leaves, values, strict=True):
            section, key = leaf.path
            mapping.setdefault(section, {})[key] = value
        return DecodingConfig.from_mapping(mapping, sampling, self.sections)

    def corners(self) -> list[tuple[Any, ...]]:
        """Values per leaf: all combinations of ends if they are few, else two opposite corners, and
        those that differ from one of the two in one leaf.
        """
        ends = [leaf.domain.corners for leaf in self.leaves]
        if prod(map(len, ends)) <= _MAX_CORNERS:
            return list(product(*ends))
        found = [tuple(end[0] for end in ends), tuple(end[-1] for end in ends)]
        for corner in tuple(found):
            for index, end in enumerate(ends):
                found += [(*corner[:index], value, *corner[index + 1 :]) for value in end]
        return list(dict.fromkeys(found))

    def all_params(self, params: Iterable[Scalar]) -> dict[str, Any]:
        """The parameters of the branch and of its searched leaves, from a parameter per leaf."""
        pairs = zip(self.leaves, params, strict=True)
        return {
            **self.params,
            **{leaf.name: param for leaf, param in pairs if not leaf.domain.is_fixed},
        }


@dataclass(frozen=True, slots=True)
class Space:
    """A conditional space. Equal spaces suggest the same configs."""

    entries: Block
    source: Any = field(default=None, compare=False, repr=False)  # plain data that it was read from

    @classmethod
    def read(cls, data: Any) -> Space:
        """The space that plain data describes.

        Configs are built at the corners of every branch: at all corners if there are at most 32,
        otherwise at the lowest, the highest and those that differ from one of the two in one field
        (each listed value is a corner). This checks the rules that involve several fields;
        combinations inside a branch are checked when they are suggested. If there are more than
        4000 branches, only the first 4000 are checked.

        Raises:
            ConfigError: an unknown key, a value out of range, or parts that cannot be combined.
        """
        space = cls(read_entries(data), data)
        for branch in islice(space.branches(), MAX_CHECKED_BRANCHES):
            _check_corners(branch)
        return space

    def suggest(self, trial: TrialLike, sampling: Sampling | None = None) -> DecodingConfig:
        """The config that a trial proposes. `sampling` is the baseline's, used where the space has
        none.

        Raises:
            ConfigError: the parts cannot be combined, which can happen only inside a branch.
        """
        mapping: dict[str, Any] = {}
        chosen: set[Scope] = {()}
        for entry in self.entries:
            if entry.scope in chosen:
                value = entry.domain.suggest(entry.name, trial)
                if entry.is_choice:
                    chosen.add(entry.branch(value))
                else:
                    section, key = entry.path
                    mapping.setdefault(section, {})[key] = value
        return DecodingConfig.from_mapping(mapping, sampling or Sampling())

    def params_of(
        self, config: DecodingConfig, sampling: Sampling | None = None
    ) -> dict[str, Any] | None:
        """The parameters for which this space suggests the config; None if the space does not
        contain it. `sampling` is the baseline's, used where the config or the space has none.
        """
        baseline = sampling or Sampling()
        config = config.with_sampling(config.sampling or baseline)
        values = config.to_mapping()
        for name, section in SECTIONS.items():
            omitted = {tag: next(iter(section.tags[tag])) for tag in section.omitted}
            values[name] = omitted | values[name]
        for branch in self.branches():
            for point in product(*(_candidates(leaf, values) for leaf in branch.leaves)):
                # A list that matches may not fit the other values.
                with suppress(ConfigError):
                    if branch.config((value for _, value in point), baseline) == config:
                        return branch.all_params(param for param, _ in point)
        return None

    def size(self) -> int | None:
        """The number of points; None if a domain is continuous. Points of different branches may
        give equal configs.
        """
        total = 0
        for branch in self.branches():
            sizes = [leaf.domain.size() for leaf in branch.leaves]
            if None in sizes:
                return None
            total += prod(size or 0 for size in sizes)
        return total

    def grid(self) -> Iterator[dict[str, Any]]:
        """The parameters of every point, branch by branch, the last leaf fastest.

        Raises:
            ConfigError: a domain is continuous.
        """
        self.check_finite()
        for branch in self.branches():
            for point in product(*(tuple(leaf.domain.points()) for leaf in branch.leaves)):
                yield branch.all_params(param for param, _ in point)

    def check_finite(self) -> None:
        """Raises ConfigError, with the path of the field, if a domain is continuous."""
        leaves = (leaf for branch in self.branches() for leaf in branch.leaves)
        if continuous := next((leaf for leaf in leaves if leaf.domain.size() is None), None):
            problem = "is continuous, and a grid needs a finite space; give a step, or values"
            raise ConfigError(continuous.source, problem)

    def parameters(self) -> dict[str, Domain | tuple[str, ...]]:
        """The parameters that a study may see, by name: the domain of a field, or the labels of the
        branches of a choice.
        """
        searched = [entry for entry in self.entries if not entry.domain.is_fixed]
        return {
            entry.name: entry.domain.corners if entry.is_choice else entry.domain
            for entry in searched
        }

    def branches(self) -> Iterator[Branch]:
        """Every combination of branches."""
        yield from _branches(self.entries, frozenset({()}), Branch({}, (), {}))


def _branches(entries: Block, chosen: frozenset[Scope], start: Branch) -> Iterator[Branch]:
    """The branches that begin with `start`, of the entries whose scopes are `chosen`."""
    params = start.params
    leaves = start.leaves
    sections = start.sections
    for index, entry in enumerate(entries):
        if entry.scope not in chosen:
            continue
        if entry.is_choice:
            for label in entry.domain.corners:
                branch = Branch({**params, entry.name: label}, leaves, sections)
                yield from _branches(entries[index + 1 :], chosen | {entry.branch(label)}, branch)
            return
        leaves = (*leaves, entry)
    yield Branch(params, leaves, sections)


def _candidates(leaf: Entry, values: Mapping[str, Any]) -> list[tuple[Scalar, Any]]:
    """The (parameter, value) pairs of a leaf that may give the config's value: at most one, except
    for lists.
    """
    section, key = leaf.path
    value = as_tuples(values[section].get(key))
    if leaf.domain.is_fixed and key not in SECTIONS[section].tags:
        # A config may have another value where the leaf's has no effect.
        return list(leaf.domain.points())
    if isinstance(value, tuple) and not isinstance(leaf.domain, Interval):
        # Parameters may keep a list in another order than the document.
        return list(leaf.domain.points())
    try:
        return [(leaf.domain.param(value), value)]
    except ValueError:
        return []


def _check_corners(branch: Branch) -> None:
    for corner in branch.corners():
        error = _failure(branch, corner)
        if error is not None:
            causes = _causes(branch, corner)
            notes: list[str] = []
            if branch.params:
                notes.append(f"in the branch {', '.join(branch.params.values())}")
            if causes:
                notes.append(f"at {', '.join(causes)}")
            problem = error.problem
            if notes:
                problem += f" ({'; '.join(notes)})"
            raise ConfigError(_source(error.path, branch), problem)


def _failure(branch: Branch, corner: tuple[Any, ...]) -> ConfigError | None:
    try:
        branch.config(corner, Sampling())
    except ConfigError as error:
        return error
    return None


def _causes(branch: Branch, corner: tuple[Any, ...]) -> list[str]:
    """The searched fields, with their values, that would each resolve a failing corner alone."""
    found = []
    for index, leaf in enumerate(branch.leaves):
        others = ((*corner[:index], value, *corner[index + 1 :]) for value in leaf.domain.corners)
        if not leaf.domain.is_fixed and any(_failure(branch, other) is None for other in others):
            found.append(f"{'.'.join(leaf.path)} {corner[index]}")
    return found


def _source(path: tuple[str, ...], branch: Branch) -> tuple[str, ...]:
    """The document's path of a key, or of the place where a missing key belongs."""
    near = [leaf for leaf in branch.leaves if leaf.path[0] == path[0]]
    if not near:
        return path
    leaf = next((leaf for leaf in near if leaf.path == path[:2]), None)
    if leaf is not None:
        return leaf.source
    section = near[0].source
    if section[-1] == near[0].path[1]:
        section = section[:-1]
    return (*section, *path[1:])
