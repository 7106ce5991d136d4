"""Trees that are fixed: their nodes as paths, and the published ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

Paths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A fixed draft tree of N nodes in level order: parents before children, siblings together and
    by rank.
    """

    parents: tuple[int, ...]  # [N] node of the parent, -1 for the root
    depth: tuple[int, ...]  # [N] 1-based level
    rank: tuple[int, ...]  # [N] order among siblings, from 0
    levels: tuple[tuple[int, ...], ...]  # [L] nodes of each level
    paths: Paths  # [N] sibling ranks from root to node

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> StaticTree:
        """The tree whose nodes are `paths`, in any order. Raises ValueError, with the path, if they
        do not make a tree.
        """
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        _check_paths(ordered)
        index_of = {path: index for index, path in enumerate(ordered)}
        parents = tuple(index_of.get(path[:-1], -1) for path in ordered)
        depth = tuple(len(path) for path in ordered)
        return cls(
            parents=parents,
            depth=depth,
            rank=tuple(path[-1] for path in ordered),
            levels=tuple(
                tuple(node for node, own in enumerate(depth) if own == level)
                for level in range(1, depth[-1] + 1)
            ),
            paths=tuple(ordered),
        )

    @property
    def max_width(self) -> int:
        """The most children that the root or a node has."""
        return max(self.rank) + 1


def _check_paths(ordered: list[tuple[int, ...]]) -> None:
    """Raises ValueError if the paths, which are in level order, are not a tree."""
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
            raise ValueError(
                f"node {list(path)} is an orphan: its parent {list(path[:-1])} is not in the tree; "
                "add it"
            )
        before = (*path[:-1], path[-1] - 1)
        if path[-1] > 0 and before not in seen:
            raise ValueError(
                f"node {list(path)} skips a rank: its sibling {list(before)} is not in the tree; "
                "add it"
            )
        seen.add(path)


@lru_cache(maxsize=256)
def custom_tree(paths: Paths) -> StaticTree:
    """`StaticTree.from_paths`."""
    return StaticTree.from_paths(paths)


def _named_trees() -> Mapping[str, StaticTree]:
    """The published trees. In the file a node is a word of digits, one sibling rank per level."""
    data = json.loads(files("search_spaces").joinpath("static_trees.json").read_text("utf-8"))
    return MappingProxyType(
        {
            name: StaticTree.from_paths(
                tuple(int(rank) for rank in word)
                for level in tree["levels"]
                for word in level.split()
            )
            for name, tree in data.items()
        }
    )


NAMED_TREES = _named_trees()
