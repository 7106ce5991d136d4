"""A search space as a list of conditional fields and choices, read from plain data, with the
study's names for them.

Kinds and fields are not listed here; both come from `trial.SECTIONS`. Each has a domain, which
holds the values that its field may take: one, several, or an interval of numbers.

    length: 4                                   fixed
    width: {values: [2, 4, 8]}                  several values
    delta: {low: 0.01, high: 0.5, log: true}    an interval; with `step` a finite one

A study sees a parameter as a scalar: numbers and strings as they are, lists by a short text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol

from search_spaces.params import (
    ConfigError,
    ParamField,
    Path,
    as_tuples,
    at,
    expect_list,
    expect_mapping,
    unknown_choice,
)
from search_spaces.trial import SECTIONS

Scalar = str | int | float | bool | None
_VALUES_KEY = "values"
_INTERVAL_KEYS = ("low", "high", "log", "step")
_MAX_NAME_LENGTH = 32


class TrialLike(Protocol):
    """What a space needs of a trial; `optuna.Trial` has it."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar: ...


@dataclass(frozen=True, slots=True)
class Values:
    """One of `values`; a study sees the scalars `names` instead. A single value is fixed: it is not
    a parameter, and its name is None.
    """

    values: tuple[Any, ...]
    names: tuple[Scalar, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values if self.is_fixed else self.names))

    @property
    def is_fixed(self) -> bool:
        return len(self.values) == 1

    @property
    def corners(self) -> tuple[Any, ...]:
        return self.values

    def suggest(self, name: str, trial: TrialLike) -> Any:
        if self.is_fixed:
            return self.values[0]
        return self.values[self.names.index(trial.suggest_categorical(name, self.names))]

    def param(self, value: object) -> Scalar:
        """The parameter for `value`. ValueError if the domain does not have it."""
        return self.names[self.values.index(value)]

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        """All (parameter, value) pairs."""
        yield from zip(self.names, self.values, strict=True)

    def size(self) -> int | None:
        """The number of values; None for a continuous domain."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`, both included: integers, real numbers, or multiples of
    `step` from `low`.
    """

    low: float
    high: float
    integer: bool
    log: bool = False
    step: float | None = None
    is_fixed = False

    def __str__(self) -> str:
        steps = f", every {self.step:g}" if self.step not in (None, 1) else ""
        return (
            f"{self.low:g} to {self.high:g}{steps}{', on a logarithmic scale' if self.log else ''}"
        )

    @property
    def corners(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def suggest(self, name: str, trial: TrialLike) -> Any:
        if self.integer:
            return trial.suggest_int(
                name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log
            )
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def param(self, value: object) -> Scalar:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            raise ValueError(f"{value!r} is not within {self.low:g} and {self.high:g}")
        if self.step is not None:
            steps = (value - self.low) / self.step
            if abs(steps - round(steps)) > 1e-8:
                raise ValueError(f"{value!r} is not a whole number of steps from {self.low:g}")
        return value

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        """All (parameter, value) pairs. ValueError for a continuous domain."""
        size = self.size()
        if size is None:
            raise ValueError("the interval is continuous; give a step, or values")
        for index in range(size):
            # 0.1 + 0.2 is 0.3
            exact = Decimal(str(self.low)) + index * Decimal(str(self.step or 1))
            value = int(exact) if self.integer else float(exact)
            yield value, value

    def size(self) -> int | None:
        if self.step is None:
            if self.integer:
                return int(self.high) - int(self.low) + 1
            return None
        return int(_count_steps(self.low, self.high, self.step)) + 1


Domain = Values | Interval


def fixed(value: Any) -> Values:
    return Values((as_tuples(value),), (None,))


def _read_domain(value: object, field: ParamField) -> Domain:
    """The domain of a field. ConfigError if a value or bound does not fit the field."""
    if isinstance(value, Mapping):
        if _VALUES_KEY in value:
            return _read_values(value, field)
        return _read_interval(value, field)
    if isinstance(value, list) and not field.is_list:
        if any(isinstance(entry, Mapping) for entry in value):
            problem = (
                "branches belong one level up; write {values: [...]} or {low: ..., high: ...} here"
            )
            raise ConfigError((), problem)
        is_range = (
            field.number is not None
            and len(value) > 1
            and all(isinstance(e, int | float) for e in value)
        )
        interval = f", or for a range {{low: {min(value)}, high: {max(value)}}}" if is_range else ""
        raise ConfigError((), f"to search several values write {{values: {value}}}{interval}")
    return fixed(field.fit(value))


def _distinct_labels(candidates: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One label per item, from its candidate labels in growing detail: the shortest that make all
    items distinct.

    If even the most detailed ones are not distinct, the shortest are numbered.
    """
    for detail in range(max(map(len, candidates))):
        found = [labels[min(detail, len(labels) - 1)] for labels in candidates]
        if len(set(found)) == len(found):
            return tuple(found)
    found = [labels[0] for labels in candidates]
    return tuple(f"{label}#{found[: i + 1].count(label)}" if found.count(label) > 1 else label
                 for i, label in enumerate(found))  # fmt: skip


def _read_values(mapping: Mapping[str, object], field: ParamField) -> Domain:
    for key in mapping:
        if key != _VALUES_KEY:
            raise ConfigError(
                (key,), "cannot be combined with `values`; give either values, or low and high"
            )
    values: list[Any] = []
    with at(_VALUES_KEY):
        for index, entry in enumerate(expect_list(mapping[_VALUES_KEY])):
            with at(f"[{index}]"):
                value = field.fit(entry)
                if value in values:
                    raise ConfigError((), f"{entry!r} is listed twice; remove one of the two")
            values.append(value)
        if not values:
            raise ConfigError((), "must not be empty; list what the search may choose from")
    if len(values) == 1:
        return fixed(values[0])
    names = _distinct_labels([[_list_name(value)] for value in values]) if field.is_list else values
    return Values(tuple(values), tuple(names))


def _read_interval(mapping: Mapping[str, object], field: ParamField) -> Domain:
    if field.number is None:
        choices = f" of {', '.join(field.choices)}" if field.choices else ""
        raise ConfigError(
            (), f"is not numeric, so it has no range; write {{values: [...]}}{choices}"
        )
    given = expect_mapping(mapping, (*_INTERVAL_KEYS, _VALUES_KEY))
    for key in ("low", "high"):
        if key not in given:
            raise ConfigError(
                (key,), f"missing; a range has a low and a high ({field.range or 'any number'})"
            )
        with at(key):
            given[key] = field.fit(given[key])
    low = given["low"]
    high = given["high"]
    log = given.get("log", False)
    if low > high:
        raise ConfigError(("low",), f"must be at most high, got {low!r} and {high!r}; swap the two")
    if not isinstance(log, bool):
        raise ConfigError(("log",), f"must be true or false, got {log!r}")
    if log and low <= 0:
        least = f"at least {1 if field.number is int else 'a small number such as 0.001'}"
        raise ConfigError(
            ("low",), f"must be greater than 0 for log, got {low!r}; raise it to {least}"
        )
    step = None
    if "step" in given:
        if log:
            raise ConfigError(
                ("step",),
                "cannot be combined with `log`; remove one of the two, or list the values",
            )
        with at("step"):
            step = _read_step(given["step"], field.number, low, high)
    if low == high:
        return fixed(low)
    return Interval(low, high, field.number is int, log, step)


def _read_step(step: Any, number: type, low: float, high: float) -> float:
    if (
        isinstance(step, bool)
        or not isinstance(step, int if number is int else int | float)
        or not step > 0
    ):
        raise ConfigError(
            (), f"must be a {'whole ' if number is int else ''}number greater than 0, got {step!r}"
        )
    steps = _count_steps(low, high, step)
    if steps != steps.to_integral_value():
        start = Decimal(str(low))
        width = Decimal(str(step))
        count = int(steps)
        before, after = start + count * width, start + (count + 1) * width
        raise ConfigError(
            (),
            (
                f"steps of {step:g} from {low:g} reach {before} and {after} but not {high:g}; make "
                "one of them high"
                if count
                else (
                    f"{low:g} + {step:g} is more than {high:g}; make the step at "
                    f"most {Decimal(str(high)) - start}"
                )
            ),
        )
    return float(step) if number is float else int(step)


def _count_steps(low: float, high: float, step: float) -> Decimal:
    """(high - low) / step in decimal arithmetic, where 0.1 is exactly a tenth."""
    return (Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step))


def _list_name(value: Any) -> str:
    """A short name of a list: its JSON text, or its length if the text is long."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= _MAX_NAME_LENGTH else f"{len(value)} entries"


_ROOT = "space"
_TAGS = {tag for section in SECTIONS.values() for tag in section.tags}


# (choice, label) of the branches around an entry, the outermost first
Scope = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A field, a tag with its kind, or a choice between branches, whose values are their labels.

    path: (section, key); of a choice ("space",), (section,) or (section, tag). source: the path in
    the document. scope: the branches that it is in. name: of the study's parameter.
    """

    path: tuple[str, ...]
    domain: Domain
    source: Path = field(compare=False, repr=False)
    is_choice: bool = False
    scope: Scope = ()
    name: str = ""

    @property
    def key(self) -> str:
        """The path with dots."""
        return ".".join(self.path)

    def branch(self, label: str) -> Scope:
        """The scope of the entries in a choice's branch."""
        return (*self.scope, (self.key, label))


Block = tuple[Entry, ...]  # a choice comes before the entries of its branches
# a block, and its labels from the shortest to the most detailed
_Labelled = tuple[list[str], Block]
_Item = tuple[Any, Path]  # a value, and its path below the space
# candidates by tag, each with the mapping of its own fields
_Kinds = Mapping[str, list[tuple[str, _Item | None]]]


def read_entries(value: object) -> Block:
    """The entries of a space: sections, or a list of branches of all sections. ConfigError names
    the invalid path.
    """
    if not isinstance(value, list):
        return _assign_names(_sections((value, ())))
    items = _entries((value, ()))
    return _assign_names(
        _choice((_ROOT,), items, [(_branch_labels(b), b) for b in map(_sections, items)], ())
    )


def _sections(item: _Item) -> Block:
    value, path = item
    with at(*path):
        given = expect_mapping(value, SECTIONS)
    return tuple(
        entry
        for name in SECTIONS
        if name in given
        for entry in _section(name, (given[name], (*path, name)))
    )


def _section(name: str, item: _Item) -> Block:
    if item[0] is None:
        return ()
    entries = _entries(item)
    return _choice((name,), entries, [_variant(name, entry) for entry in entries], item[1])


def _is_branches(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and set(value) == {_VALUES_KEY})


def _entries(item: _Item) -> list[_Item]:
    """The entries of a list, or of {values: [...]}; any other value is the only entry."""
    value, path = item
    if not _is_branches(value):
        return [item]
    if isinstance(value, dict):
        value = value[_VALUES_KEY]
        path = (*path, _VALUES_KEY)
    with at(*path):
        return [(entry, (*path, f"[{index}]")) for index, entry in enumerate(expect_list(value))]


def _choice(
    path: tuple[str, ...], entries: list[_Item], options: list[_Labelled], source: Path
) -> Block:
    """A choice between blocks; a single block is returned as it is."""
    if not options:
        raise ConfigError(source, "must not be empty; list the branches, or leave the key out")
    blocks = [block for _, block in options]
    for index, block in enumerate(blocks):
        if block in blocks[:index]:
            problem = f"is the same branch as [{blocks.index(block)}]; remove one of the two"
            raise ConfigError(entries[index][1], problem)
    if len(blocks) == 1:
        return blocks[0]
    labels = _distinct_labels([labels for labels, _ in options])
    choice = Entry(path, Values(labels, labels), source, is_choice=True)
    inner = [replace(entry, scope=(*choice.branch(label), *entry.scope))
             for label, block in zip(labels, blocks, strict=True) for entry in block]  # fmt: skip
    return (choice, *inner)


def _variant(name: str, item: _Item) -> _Labelled:
    """One way to fill a section: the name of a rule or kind, or a mapping of tags and fields."""
    (value, path), section = item, SECTIONS[name]
    with at(*path):
        given = expect_mapping(value) if value is None else section.expand(value)
    if isinstance(value, str):
        return [value], tuple(
            Entry((name, key), fixed(entry), path) for key, entry in given.items()
        )
    if _VALUES_KEY in given:
        raise ConfigError(
            (*path, _VALUES_KEY),
            "must be the only key; list branches with other keys as [{...}, {...}]",
        )
    kinds = {tag: _candidates(name, tag, given, path) for tag in section.tags}
    _check_keys(name, item, kinds)
    entries: list[Entry] = []
    for tag, candidates in kinds.items():
        options = [_kind(name, tag, kind, item, branch) for kind, branch in candidates]
        if tag in given:
            entries += _choice(
                (name, tag), _entries((given[tag], (*path, tag))), options, (*path, tag)
            )
        elif tag not in section.omitted:
            entries += options[0][1]
    block = (*entries, *_leaves(name, section.common, item))
    names = [
        "|".join(kind for kind, _ in candidates)
        for tag, candidates in kinds.items()
        if tag in given
    ]
    firsts = (candidates[0][0] for tag, candidates in kinds.items() if tag not in section.omitted)
    label = "+".join(names) or next(firsts, name)
    return [label, _detailed(label, block)], block


def _candidates(
    name: str, tag: str, given: Mapping[str, Any], path: Path
) -> list[tuple[str, _Item | None]]:
    """The kinds that a tag may have, each with the mapping of its own fields, if it was given as
    one.
    """
    options = SECTIONS[name].tags[tag]
    if tag not in given:
        return [(next(iter(options)), None)]
    found: list[tuple[str, _Item | None]] = []
    for kind, source in _entries((given[tag], (*path, tag))):
        branch = (kind, source) if isinstance(kind, dict) else None
        if branch is not None:
            if tag not in kind:
                problem = f"missing; name the {tag} of this branch, one of {', '.join(options)}"
                raise ConfigError((*source, tag), problem)
            kind = kind[tag]
            source = (*source, tag)
        if not isinstance(kind, str) or kind not in options:
            raise ConfigError(source, unknown_choice(kind, options))
        found.append((kind, branch))
    return found


def _check_keys(name: str, item: _Item, kinds: _Kinds) -> None:
    """ConfigError for keys that no candidate has, and for keys both next to a tag and in a branch
    of it.
    """
    (value, path), section = item, SECTIONS[name]
    with at(*path):
        section.check_keys(
            value, {tag: [kind for kind, _ in found] for tag, found in kinds.items()}
        )
    for tag, found in kinds.items():
        for kind, branch in found:
            if branch is None:
                continue
            with at(*branch[1]):
                keys = expect_mapping(branch[0], (tag, *section.keys_of(tag, [kind])))
            if twice := next((key for key in keys if key != tag and key in value), None):
                problem = f"given here and in the branch {kind!r}; remove one of the two"
                raise ConfigError((*path, twice), problem)


def _kind(name: str, tag: str, kind: str, item: _Item, branch: _Item | None) -> _Labelled:
    """A kind, with the fields that its own mapping gives or that stand next to the tag."""
    owner, path = branch or item
    source = (*path, tag) if tag in owner else path
    fields = SECTIONS[name].tags[tag][kind].fields()
    leaves = (
        Entry((name, tag), fixed(kind), source),
        *_leaves(name, fields, *filter(None, (branch, item))),
    )
    return [kind, _detailed(kind, leaves)], leaves


def _leaves(name: str, fields: Mapping[str, ParamField], *items: _Item) -> list[Entry]:
    """A leaf for each field that one of the mappings gives."""
    found = []
    for key, spec in fields.items():
        for value, path in items:
            if key in value:
                with at(*path, key):
                    found.append(Entry((name, key), _read_domain(value[key], spec), (*path, key)))
                break
    return found


def _detailed(label: str, block: Block) -> str:
    """The label with the fixed numbers and strings of a block: `additive(k=100)`."""
    values = {
        entry.path[1]: entry.domain.corners[0]
        for entry in block
        if entry.domain.is_fixed and not entry.scope and entry.path[1] not in _TAGS
    }
    texts = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in values.items()
        if isinstance(value, int | float | str)
    ]
    return f"{label}({','.join(texts)})" if texts else label


def _branch_labels(block: Block) -> list[str]:
    """Labels of a branch of all sections, in growing detail: drafter; drafter and tree; drafter,
    tree and rule.
    """
    kinds: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for entry in (entry for entry in block if not entry.scope):
        if entry.is_choice:
            kinds[entry.path[0]].append("|".join(entry.domain.corners))
        elif entry.path[1] in SECTIONS[entry.path[0]].tags and entry.domain.is_fixed:
            kinds[entry.path[0]].append(str(entry.domain.corners[0]))
    parts = ["+".join(found) for found in kinds.values() if found] or ["none"]
    return [" ".join(parts[:detail]) for detail in range(1, len(parts) + 1)]


# --- names ----------------------------------------------------------------------------------------
# In an Optuna study a name has one distribution. A parameter is named by its path (`tree.length`)
# if its domain is the same in all branches; otherwise its branch is part of the name:
# `acceptance=additive.k`, `space=jacobi.tree.length`.


def _assign_names(block: Block) -> Block:
    """The entries with their names; a fixed field is named by its path alone."""
    searched: dict[str, list[Entry]] = defaultdict(list)
    for entry in block:
        if not entry.domain.is_fixed:
            searched[entry.key].append(entry)
    details = {key: _detail(entries) for key, entries in searched.items()}
    return tuple(
        replace(e, name=e.key if e.domain.is_fixed else _name(e, details[e.key])) for e in block
    )


def _detail(entries: list[Entry]) -> int:
    """How many branches names must include so that no name stands for two domains."""
    deepest = max(len(entry.scope) for entry in entries)
    for detail in range(deepest):
        seen: dict[str, Domain] = {}
        if all(
            seen.setdefault(_name(entry, detail), entry.domain) == entry.domain for entry in entries
        ):
            return detail
    return deepest


def _name(entry: Entry, detail: int) -> str:
    """The path, prefixed with the `detail` innermost branches. If the last of these is a branch of
    the path's own section, it replaces the section in the path.
    """
    inner = entry.scope[len(entry.scope) - min(detail, len(entry.scope)) :]
    if not inner:
        return entry.key
    section, _, key = entry.key.partition(".")
    same = key and inner[-1][0].partition(".")[0] == section
    return ".".join([*(f"{choice}={label}" for choice, label in inner), key if same else entry.key])
