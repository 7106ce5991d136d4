"""A search space as a list of conditional fields and choices, read from plain data, with the
study's names for them.

Kinds and fields are not listed here; both come from `trial.SECTIONS`. Each has a domain (see
`domains`), which holds the values that its field may take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from search_spaces.domains import VALUES_KEY, Domain, Values, distinct_labels, fixed, read_domain
from search_spaces.params import (
    ConfigError,
    ParamField,
    Path,
    at,
    expect_list,
    expect_mapping,
    unknown_choice,
)
from search_spaces.trial import SECTIONS

_ROOT = "space"
_TAGS = {tag for section in SECTIONS.values() for tag in section.tags}


# (choice, label) of the branches around an entry, the outermost first.
Scope = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A field, a tag with its kind, or a choice between branches, whose values are their labels."""

    path: tuple[str, ...]  # (section, key); a choice has ("space",), (section,) or (section, tag)
    domain: Domain
    source: Path = field(compare=False, repr=False)  # the path in the document
    is_choice: bool = False
    scope: Scope = ()  # the branches that it is in
    name: str = ""  # name of the study's parameter

    @property
    def key(self) -> str:
        """The path with dots."""
        return ".".join(self.path)

    def branch(self, label: str) -> Scope:
        """The scope of the entries in a choice's branch."""
        return (*self.scope, (self.key, label))


Block = tuple[Entry, ...]  # a choice comes before the entries of its branches
# A block, and its labels from the shortest to the most detailed.
_Labelled = tuple[list[str], Block]
_Item = tuple[Any, Path]  # a value, and its path below the space
# Candidates by tag, each with the mapping of its own fields.
_Kinds = Mapping[str, list[tuple[str, _Item | None]]]


def read_entries(value: object) -> Block:
    """The entries of a space: sections, or a list of branches of all sections. Raises ConfigError
    with the path of an invalid value.
    """
    if not isinstance(value, list):
        return _assign_names(_sections((value, ())))
    items = _entries((value, ()))
    options = [(_branch_labels(block), block) for block in map(_sections, items)]
    return _assign_names(_choice((_ROOT,), items, options, ()))


def _sections(item: _Item) -> Block:
    value, path = item
    with at(*path):
        given = expect_mapping(value, SECTIONS)
    entries: list[Entry] = []
    for name in SECTIONS:
        if name in given:
            entries += _section(name, (given[name], (*path, name)))
    return tuple(entries)


def _section(name: str, item: _Item) -> Block:
    if item[0] is None:
        return ()
    entries = _entries(item)
    return _choice((name,), entries, [_variant(name, entry) for entry in entries], item[1])


def _is_branches(value: Any) -> bool:
    """Whether a value is a list of branches, or {values: [...]}."""
    return isinstance(value, list) or (isinstance(value, dict) and set(value) == {VALUES_KEY})


def _entries(item: _Item) -> list[_Item]:
    """The entries of a list, or of {values: [...]}; any other value is the only entry."""
    value, path = item
    if not _is_branches(value):
        return [item]
    if isinstance(value, dict):
        value = value[VALUES_KEY]
        path = (*path, VALUES_KEY)
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
    labels = distinct_labels([labels for labels, _ in options])
    choice = Entry(path, Values(labels, labels), source, is_choice=True)
    inner: list[Entry] = []
    for label, block in zip(labels, blocks, strict=True):
        scope = choice.branch(label)
        inner += [replace(entry, scope=(*scope, *entry.scope)) for entry in block]
    return (choice, *inner)


def _variant(name: str, item: _Item) -> _Labelled:
    """A branch of a section: the name of a rule or kind, or a mapping of tags and fields."""
    value, path = item
    section = SECTIONS[name]
    with at(*path):
        given = expect_mapping(value) if value is None else section.expand(value)
    if isinstance(value, str):
        return [value], tuple(
            Entry((name, key), fixed(entry), path) for key, entry in given.items()
        )
    if VALUES_KEY in given:
        raise ConfigError(
            (*path, VALUES_KEY),
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
    """Raises ConfigError for keys that no candidate has, and for keys both next to a tag and in a
    branch of it.
    """
    value, path = item
    section = SECTIONS[name]
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
                    found.append(Entry((name, key), read_domain(value[key], spec), (*path, key)))
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
    if not texts:
        return label
    return f"{label}({','.join(texts)})"


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
    named: list[Entry] = []
    for entry in block:
        name = entry.key
        if not entry.domain.is_fixed:
            name = _name(entry, details[entry.key])
        named.append(replace(entry, name=name))
    return tuple(named)


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
    parts = [f"{choice}={label}" for choice, label in inner]
    is_same = key and inner[-1][0].partition(".")[0] == section
    parts.append(key if is_same else entry.key)
    return ".".join(parts)
