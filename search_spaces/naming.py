"""The names by which a study knows the parameters of a space.

A name belongs to one distribution in a study. So a knob has its path as a name (`tree.length`) wherever all branches
search it alike, and otherwise the branch before it: `acceptance=additive.k`, `space=jacobi.tree.length`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from search_spaces.domains import Fixed
from search_spaces.sections import Block, Choice, Leaf

Scope = tuple[tuple[str, str], ...]  # (choice, label) from the root inwards
Place = tuple[str, Scope]  # path of an entry, and the branches it stands in


def named(block: Block) -> Block:
    """The tree with the name of every choice and searched knob filled in."""
    places: dict[str, list[tuple[Scope, Any]]] = defaultdict(list)
    for path, scope, distribution in _places(block, ()):
        places[path].append((scope, distribution))
    names: dict[Place, str] = {}
    for path, found in places.items():
        deepest = max(len(scope) for scope, _ in found)
        detail = next(d for d in range(deepest + 1) if d == deepest or _tells_apart(path, found, d))
        names |= {(path, scope): _name(path, scope, detail) for scope, _ in found}
    return _renamed(block, (), names)


def _places(block: Block, scope: Scope) -> Iterator[tuple[str, Scope, Any]]:
    for entry in block:
        path = ".".join(entry.path)
        if isinstance(entry, Choice):
            yield path, scope, entry.labels
            for label, inner in zip(entry.labels, entry.blocks, strict=True):
                yield from _places(inner, (*scope, (path, label)))
        elif not isinstance(entry.domain, Fixed):
            yield path, scope, entry.domain


def _tells_apart(path: str, found: list[tuple[Scope, Any]], detail: int) -> bool:
    """Whether names of this detail never stand for two distributions."""
    seen: dict[str, Any] = {}
    return all(seen.setdefault(_name(path, scope, detail), dist) == dist for scope, dist in found)


def _name(path: str, scope: Scope, detail: int) -> str:
    """The path, after the `detail` innermost branches; a branch of the path's own section takes the section's place."""
    inner = scope[len(scope) - min(detail, len(scope)) :]
    if not inner:
        return path
    section, _, key = path.partition(".")
    same = key and inner[-1][0].partition(".")[0] == section
    return ".".join([*(f"{choice}={label}" for choice, label in inner), key if same else path])


def _renamed(block: Block, scope: Scope, names: Mapping[Place, str]) -> Block:
    entries: list[Leaf | Choice] = []
    for entry in block:
        path = ".".join(entry.path)
        if isinstance(entry, Choice):
            inner = tuple(
                _renamed(option, (*scope, (path, label)), names)
                for label, option in zip(entry.labels, entry.blocks, strict=True)
            )
            entries.append(replace(entry, blocks=inner, name=names[path, scope]))
        else:
            entries.append(replace(entry, name=names.get((path, scope), path)))
    return tuple(entries)
