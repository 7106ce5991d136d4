"""The sections of a search space, read from a document into a tree of choices and knobs.

Nothing here knows a kind or a knob by name: both come from the vocabulary of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.acceptance import NEIGHBOURHOODS, RULES, AcceptanceRule
from search_spaces.documents import Node
from search_spaces.domains import VALUES_KEY, Domain, Fixed, distinct, read_domain
from search_spaces.params import ParamField, Params, not_one_of, read
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES
from search_spaces.trial import DRAFTERS, Sampling

Kinds = Mapping[str, type[Params]]


@dataclass(frozen=True, slots=True)
class Section:
    """The kinds that a section names under its tags, the knobs it has whatever the kinds, and words for all of it."""

    tags: Mapping[str, Kinds]
    own: Mapping[str, ParamField] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _words(rule: AcceptanceRule, tags: Mapping[str, Kinds]) -> dict[str, Any]:
    """A rule with every key written out."""
    parts = {tag: getattr(rule, tag) for tag in tags}
    return {tag: part.kind for tag, part in parts.items()} | {
        key: value for part in (*parts.values(), rule) for key, value in part.to_mapping().items()
    }


_ACCEPTANCE: Mapping[str, Kinds] = {"neighbourhood": NEIGHBOURHOODS, "schedule": SCHEDULES}
SECTIONS: Mapping[str, Section] = {
    "drafter": Section({"kind": DRAFTERS}),
    "tree": Section({"policy": POLICIES}),
    "acceptance": Section(
        _ACCEPTANCE, AcceptanceRule.fields(), {name: _words(rule, _ACCEPTANCE) for name, rule in RULES.items()}
    ),
    "sampling": Section({}, Sampling.fields()),
}
ROOT = "space"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A knob, or a tag with its kind: `path` is (section, key), `name` the study's (given by `naming`)."""

    path: tuple[str, str]
    domain: Domain
    node: Node = field(compare=False, repr=False)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several blocks, known to the study by their labels. `path` is ("space",), (section,) or (section, tag)."""

    path: tuple[str, ...]
    labels: tuple[str, ...]
    blocks: tuple[Block, ...]
    name: str = ""


Block = tuple[Leaf | Choice, ...]
Labelled = tuple[list[str], Block]  # labels in growing detail


def read_root(node: Node) -> Block:
    """The whole space: sections, or a list of such branches. ConfigError names file, line, key and mend."""
    if not isinstance(node.value, tuple):
        return _sections(node)
    return _choice((ROOT,), node, [(_branch_labels(block), block) for block in map(_sections, node.value)])


def _sections(node: Node) -> Block:
    given = node.mapping(SECTIONS)
    return tuple(entry for name in SECTIONS if name in given for entry in _section(name, given[name]))


def _section(name: str, node: Node) -> Block:
    options = _options(node)
    if options is None:
        return () if node.value is None else _variant(name, node)[1]
    return _choice((name,), node, [_variant(name, option) for option in options])


def _options(node: Node) -> tuple[Node, ...] | None:
    """The entries of a list, or of {values: [...]}; None if the node is neither."""
    if isinstance(node.value, dict) and set(node.value) == {VALUES_KEY}:
        node = node.value[VALUES_KEY]
        return node.entries()
    return node.entries() if isinstance(node.value, tuple) else None


def _choice(path: tuple[str, ...], node: Node, options: list[Labelled]) -> Block:
    """A choice between blocks; with a single one there is nothing to choose."""
    entries = _options(node) or ()
    if not options:
        raise node.error("must not be empty; list the branches, or leave the key out")
    blocks = [block for _, block in options]
    for place, block in enumerate(blocks):
        if block in blocks[:place]:
            raise entries[place].error(f"is the same branch as [{blocks.index(block)}]; remove one of the two")
    if len(blocks) == 1:
        return blocks[0]
    return (Choice(path, distinct([labels for labels, _ in options]), tuple(blocks)),)


def _variant(name: str, node: Node) -> Labelled:
    """One way to fill a section: a word, or a mapping of tags and knobs."""
    section = SECTIONS[name]
    if isinstance(node.value, str) and section.tags:
        return [node.value], _word(name, node)
    given = node.mapping()
    if VALUES_KEY in given:
        raise given[VALUES_KEY].error("stands alone; list branches with keys of their own as [{...}, {...}]")
    kinds = {tag: _candidates(tag, options, given.get(tag)) for tag, options in section.tags.items()}
    _refuse_strangers(node, section, kinds)
    entries: list[Leaf | Choice] = []
    for tag, candidates in kinds.items():
        blocks = [_kind(name, tag, kind, node, branch) for kind, branch in candidates]
        if tag in given:
            entries += _choice((name, tag), given[tag], blocks)
        else:
            entries += blocks[0][1]
    entries += [Leaf((name, key), read_domain(given[key], section.own[key]), given[key])
                for key in section.own if key in given]  # fmt: skip
    block = tuple(entries)
    words = ["|".join(kind for kind, _ in candidates) for tag, candidates in kinds.items() if tag in given]
    word = "+".join(words) or next((candidates[0][0] for candidates in kinds.values()), name)
    return [word, _detailed(word, block)], block


def _word(name: str, node: Node) -> Block:
    """A section that is one word: a kind without knobs of its own, or a published rule."""
    section = SECTIONS[name]
    if section.words:
        if node.value not in section.words:
            raise node.error(not_one_of(node.value, section.words))
        return tuple(Leaf((name, key), Fixed(frozen(value)), node) for key, value in section.words[node.value].items())
    ((tag, options),) = section.tags.items()
    if node.value not in options:
        raise node.error(not_one_of(node.value, options))
    return (Leaf((name, tag), Fixed(node.value), node),)


def _candidates(tag: str, options: Kinds, node: Node | None) -> list[tuple[str, Node | None]]:
    """The kinds that a tag may have, each with the mapping of its own knobs, if it came as one."""
    if node is None:
        return [(next(iter(options)), None)]
    found: list[tuple[str, Node | None]] = []
    for entry in _options(node) or (node,):
        branch = entry if isinstance(entry.value, dict) else None
        if branch is not None and tag not in branch.value:
            raise entry.error(f"missing; name the {tag} of this branch, one of {', '.join(options)}", tag)
        word = entry if branch is None else branch.value[tag]
        if not isinstance(word.value, str) or word.value not in options:
            raise word.error(not_one_of(word.plain(), options))
        found.append((word.value, branch))
    return found


def _refuse_strangers(node: Node, section: Section, kinds: Mapping[str, list[tuple[str, Node | None]]]) -> None:
    """ConfigError for keys that no kind of this section has, or of a kind that is not chosen."""
    there = {key for tag, found in kinds.items() for kind, _ in found for key in section.tags[tag][kind].fields()}
    first = {tag: found[0][0] for tag, found in kinds.items()}
    for key in node.mapping():
        if key not in there and key not in section.own and key not in section.tags:
            with node.with_location():
                read(first | {key: None}, section.tags, section.own.values())
    for tag, found in kinds.items():
        for kind, branch in found:
            for key in [] if branch is None else branch.mapping((tag, *section.tags[tag][kind].fields())):
                if key != tag and key in node.value:
                    raise node.value[key].error(f"given here and in the branch {kind!r}; remove one of the two")


def _kind(name: str, tag: str, kind: str, node: Node, branch: Node | None) -> Labelled:
    """A kind with those of its knobs that are given in its own mapping or beside the tag."""
    given = {**node.value, **({} if branch is None else branch.value)}
    at = branch.value[tag] if branch is not None else node.value.get(tag, node)
    options = SECTIONS[name].tags[tag]
    leaves = [Leaf((name, tag), Fixed(kind), at)]
    leaves += [Leaf((name, key), read_domain(given[key], knob), given[key])
               for key, knob in options[kind].fields().items() if key in given]  # fmt: skip
    return [kind, _detailed(kind, tuple(leaves))], tuple(leaves)


def _detailed(word: str, block: Block) -> str:
    """The word with the fixed numbers and words of a block."""
    tags = {tag for section in SECTIONS.values() for tag in section.tags}
    fixed = [(entry.path[1], entry.domain.value) for entry in block
             if isinstance(entry, Leaf) and isinstance(entry.domain, Fixed) and entry.path[1] not in tags]  # fmt: skip
    shown = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in fixed
             if isinstance(value, int | float | str)]  # fmt: skip
    return f"{word}({','.join(shown)})" if shown else word


def _branch_labels(block: Block) -> list[str]:
    """Names of a branch of the whole setting: its drafter, then its tree as well, then its rule."""
    words: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for entry in block:
        if isinstance(entry, Choice):
            words[entry.path[0]].append("|".join(entry.labels))
        elif entry.path[1] in SECTIONS[entry.path[0]].tags and isinstance(entry.domain, Fixed):
            words[entry.path[0]].append(str(entry.domain.value))
    parts = ["+".join(found) for found in words.values() if found] or ["none"]
    return [" ".join(parts[:detail]) for detail in range(1, len(parts) + 1)]


def frozen(value: Any) -> Any:
    """Lists as tuples, as settings hold them, in mappings too."""
    if isinstance(value, dict):
        return {key: frozen(entry) for key, entry in value.items()}
    return tuple(frozen(entry) for entry in value) if isinstance(value, list) else value
