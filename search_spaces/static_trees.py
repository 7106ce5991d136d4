"""Static draft trees: nodes, parents and levels from sibling-rank paths, and the published trees by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

Paths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A fixed draft tree of N nodes in level order: parents before children, siblings side by side by rank.

    parents [N]: node of the parent, -1 for the root. depth [N]: 1-based level. rank [N]: order among siblings, from 0.
    levels [L]: nodes of each level. paths [N]: sibling ranks from root to node.
    """

    parents: tuple[int, ...]
    depth: tuple[int, ...]
    rank: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...]
    paths: Paths

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> StaticTree:
        """The tree whose nodes are `paths`, in any order. ValueError, naming the path, if they do not make a tree."""
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        _check_paths(ordered)
        node = {path: index for index, path in enumerate(ordered)}
        parents = tuple(node.get(path[:-1], -1) for path in ordered)
        depth = tuple(len(path) for path in ordered)
        return cls(
            parents=parents,
            depth=depth,
            rank=tuple(path[-1] for path in ordered),
            levels=tuple(tuple(n for n, d in enumerate(depth) if d == level) for level in range(1, depth[-1] + 1)),
            paths=tuple(ordered),
        )

    @property
    def max_width(self) -> int:
        """The most children that the root or a node has."""
        return max(self.rank) + 1


def _check_paths(ordered: list[tuple[int, ...]]) -> None:
    """Raise ValueError if the paths are not a tree. `ordered`: in level order, so parents come before children."""
    if not ordered:
        raise ValueError("the tree has no nodes; list at least the path [0]")
    seen: set[tuple[int, ...]] = set()
    for path in ordered:
        if not path:
            raise ValueError("a path is empty; the root itself is not listed")
        if min(path) < 0:
            raise ValueError(f"node {list(path)} has a negative sibling rank; ranks count from 0")
        if path in seen:
            raise ValueError(f"node {list(path)} is listed twice")
        if len(path) > 1 and path[:-1] not in seen:
            raise ValueError(f"node {list(path)} is an orphan: its parent {list(path[:-1])} is not in the tree; add it")
        before = (*path[:-1], path[-1] - 1)
        if path[-1] > 0 and before not in seen:
            raise ValueError(f"node {list(path)} skips a rank: its sibling {list(before)} is not in the tree; add it")
        seen.add(path)


def _named_trees() -> Mapping[str, StaticTree]:
    """The published trees. In the file a node is a word of digits, one sibling rank per level."""
    data = json.loads(files("search_spaces").joinpath("static_trees.json").read_text("utf-8"))
    return MappingProxyType(
        {
            name: StaticTree.from_paths(
                tuple(int(rank) for rank in word) for level in tree["levels"] for word in level.split()
            )
            for name, tree in data.items()
        }
    )


NAMED_TREES = _named_trees()
