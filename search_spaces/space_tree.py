"""A search space as a tree of choices and leaves, read from plain data, with the study's name of every parameter.

Kinds and fields are not listed here; both come from `trial.SECTIONS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from search_spaces.domains import VALUES_KEY, Domain, distinct_labels, fixed, read_domain
from search_spaces.params import ConfigError, ParamField, Path, at, expect_list, expect_mapping, unknown_choice
from search_spaces.trial import SECTIONS

_ROOT = "space"
_TAGS = {tag for section in SECTIONS.values() for tag in section.tags}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field, or a tag with its kind. path: (section, key). name: of the study's parameter. source: the path in the
    document.
    """

    path: tuple[str, str]
    domain: Domain
    source: Path = field(compare=False, repr=False)
    name: str = ""

    @property
    def distribution(self) -> Domain | None:
        """The domain that a study samples from; None for a fixed value."""
        return None if self.domain.is_fixed else self.domain


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice between several blocks; a study sees their labels. path: ("space",), (section,) or (section, tag)."""

    path: tuple[str, ...]
    labels: tuple[str, ...]
    blocks: tuple[Block, ...]
    name: str = ""

    @property
    def distribution(self) -> tuple[str, ...]:
        return self.labels


Block = tuple[Leaf | Choice, ...]
_Labelled = tuple[list[str], Block]  # a block, and its labels from the shortest to the most detailed
_Item = tuple[Any, Path]  # a value, and its path below the space
_Scope = tuple[tuple[str, str], ...]  # (choice, label) from the root inwards
_Kinds = Mapping[str, list[tuple[str, _Item | None]]]  # candidates by tag, each with the mapping of its own fields


def read_tree(value: object) -> Block:
    """The tree of a space: sections, or a list of branches of all sections. ConfigError names the invalid path."""
    if not isinstance(value, list):
        return _assign_names(_sections((value, ())))
    items = _entries((value, ()))
    return _assign_names(_choice((_ROOT,), items, [(_branch_labels(b), b) for b in map(_sections, items)], ()))


def _sections(item: _Item) -> Block:
    value, path = item
    with at(*path):
        given = expect_mapping(value, SECTIONS)
    return tuple(entry for name in SECTIONS if name in given for entry in _section(name, (given[name], (*path, name))))


def _section(name: str, item: _Item) -> Block:
    if item[0] is None:
        return ()
    entries = _entries(item)
    return _choice((name,), entries, [_variant(name, entry) for entry in entries], item[1])


def _is_branches(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and set(value) == {VALUES_KEY})


def _entries(item: _Item) -> list[_Item]:
    """The entries of a list, or of {values: [...]}; any other value is the only entry."""
    value, path = item
    if not _is_branches(value):
        return [item]
    if isinstance(value, dict):
        value, path = value[VALUES_KEY], (*path, VALUES_KEY)
    with at(*path):
        return [(entry, (*path, f"[{index}]")) for index, entry in enumerate(expect_list(value))]


def _choice(path: tuple[str, ...], entries: list[_Item], options: list[_Labelled], source: Path) -> Block:
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
    return (Choice(path, distinct_labels([labels for labels, _ in options]), tuple(blocks)),)


def _variant(name: str, item: _Item) -> _Labelled:
    """One way to fill a section: the name of a rule or kind, or a mapping of tags and fields."""
    (value, path), section = item, SECTIONS[name]
    with at(*path):
        given = expect_mapping(value) if value is None else section.expand(value)
    if isinstance(value, str):
        return [value], tuple(Leaf((name, key), fixed(entry), path) for key, entry in given.items())
    if VALUES_KEY in given:
        raise ConfigError((*path, VALUES_KEY), "must be the only key; list branches with other keys as [{...}, {...}]")
    kinds = {tag: _candidates(name, tag, given, path) for tag in section.tags}
    _check_keys(name, item, kinds)
    entries: list[Leaf | Choice] = []
    for tag, candidates in kinds.items():
        options = [_kind(name, tag, kind, item, branch) for kind, branch in candidates]
        if tag in given:
            entries += _choice((name, tag), _entries((given[tag], (*path, tag))), options, (*path, tag))
        else:
            entries += options[0][1]
    block = (*entries, *_leaves(name, section.common, item))
    names = ["|".join(kind for kind, _ in candidates) for tag, candidates in kinds.items() if tag in given]
    label = "+".join(names) or next((candidates[0][0] for candidates in kinds.values()), name)
    return [label, _detailed(label, block)], block


def _candidates(name: str, tag: str, given: Mapping[str, Any], path: Path) -> list[tuple[str, _Item | None]]:
    """The kinds that a tag may have, each with the mapping of its own fields, if it was given as one."""
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
            kind, source = kind[tag], (*source, tag)
        if not isinstance(kind, str) or kind not in options:
            raise ConfigError(source, unknown_choice(kind, options))
        found.append((kind, branch))
    return found


def _check_keys(name: str, item: _Item, kinds: _Kinds) -> None:
    """ConfigError for keys that no candidate has, and for keys both next to a tag and in a branch of it."""
    (value, path), section = item, SECTIONS[name]
    with at(*path):
        section.check_keys(value, {tag: [kind for kind, _ in found] for tag, found in kinds.items()})
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
    leaves = (Leaf((name, tag), fixed(kind), source), *_leaves(name, fields, *filter(None, (branch, item))))
    return [kind, _detailed(kind, leaves)], leaves


def _leaves(name: str, fields: Mapping[str, ParamField], *items: _Item) -> list[Leaf]:
    """A leaf for each field that one of the mappings gives."""
    found = []
    for key, spec in fields.items():
        for value, path in items:
            if key in value:
                with at(*path, key):
                    found.append(Leaf((name, key), read_domain(value[key], spec), (*path, key)))
                break
    return found


def _detailed(label: str, block: Block) -> str:
    """The label with the fixed numbers and strings of a block: `additive(k=100)`."""
    values = {entry.path[1]: entry.domain.corners[0] for entry in block
              if isinstance(entry, Leaf) and entry.domain.is_fixed and entry.path[1] not in _TAGS}  # fmt: skip
    texts = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
             if isinstance(value, int | float | str)]  # fmt: skip
    return f"{label}({','.join(texts)})" if texts else label


def _branch_labels(block: Block) -> list[str]:
    """Labels of a branch of all sections, in growing detail: drafter; drafter and tree; drafter, tree and rule."""
    kinds: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for entry in block:
        if isinstance(entry, Choice):
            kinds[entry.path[0]].append("|".join(entry.labels))
        elif entry.path[1] in SECTIONS[entry.path[0]].tags and entry.domain.is_fixed:
            kinds[entry.path[0]].append(str(entry.domain.corners[0]))
    parts = ["+".join(found) for found in kinds.values() if found] or ["none"]
    return [" ".join(parts[:detail]) for detail in range(1, len(parts) + 1)]


# --- names ------------------------------------------------------------------------------------------------------------
# In an Optuna study a name has one distribution. A parameter is named by its path (`tree.length`) if its domain is the
# same in all branches; otherwise its branch is part of the name: `acceptance=additive.k`, `space=jacobi.tree.length`.


def _assign_names(block: Block) -> Block:
    """The tree with the names of all choices and fields."""
    found: dict[str, list[tuple[_Scope, Any]]] = defaultdict(list)
    for entry, scope in walk(block):
        if entry.distribution is not None:
            found[".".join(entry.path)].append((scope, entry.distribution))
    return _named(block, (), {path: _detail(path, entries) for path, entries in found.items()})


def _named(block: Block, scope: _Scope, details: Mapping[str, int]) -> Block:
    """The block with names of as many branches as `details` says by path; a fixed field is named by its path alone."""
    entries: list[Leaf | Choice] = []
    for entry in block:
        path = ".".join(entry.path)
        if isinstance(entry, Choice):
            options = zip(entry.labels, entry.blocks, strict=True)
            blocks = tuple(_named(inner, (*scope, (path, label)), details) for label, inner in options)
            entry = replace(entry, blocks=blocks)
        name = path if entry.distribution is None else _name(path, scope, details[path])
        entries.append(replace(entry, name=name))
    return tuple(entries)


def walk(block: Block, scope: _Scope = ()) -> Iterator[tuple[Leaf | Choice, _Scope]]:
    """Every choice and leaf, outer ones first, with the branches that contain it."""
    for entry in block:
        yield entry, scope
        if isinstance(entry, Choice):
            for label, inner in zip(entry.labels, entry.blocks, strict=True):
                yield from walk(inner, (*scope, (".".join(entry.path), label)))


def _detail(path: str, entries: list[tuple[_Scope, Any]]) -> int:
    """How many branches names must include so that no name stands for two distributions."""
    deepest = max(len(scope) for scope, _ in entries)
    for detail in range(deepest):
        seen: dict[str, Any] = {}
        if all(seen.setdefault(_name(path, scope, detail), dist) == dist for scope, dist in entries):
            return detail
    return deepest


def _name(path: str, scope: _Scope, detail: int) -> str:
    """The path, prefixed with the `detail` innermost branches. If the last of these is a branch of the path's own
    section, it replaces the section in the path.
    """
    inner = scope[len(scope) - min(detail, len(scope)) :]
    if not inner:
        return path
    section, _, key = path.partition(".")
    same = key and inner[-1][0].partition(".")[0] == section
    return ".".join([*(f"{choice}={label}" for choice, label in inner), key if same else path])
