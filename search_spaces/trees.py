"""Tree policies: the shape of the draft tree that the target verifies in one pass.

A policy holds only parameters; `workers.decoding` does the drafting. All depths count levels of
drafted tokens: EAGLE-2's parameter "depth 4" is 5 levels, because it drafts one level before its
loop. The root is the last emitted token. It is not a drafted node and is not counted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from search_spaces.params import (
    Abbreviations,
    Choices,
    ConfigError,
    Params,
    Range,
    Symbol,
    class_error,
    class_errors,
)
from search_spaces.plugins import Registry

# Larger trees have no use, because an image has a few thousand tokens, and take hours to build.
_MOST_NODES = 4096
_LEVELS = Range(1, 256)
_WIDTHS = Range(1, 256)
_NODES = Range(1, _MOST_NODES)

Children = Literal["sampled", "top"]
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


class TreeBounds(NamedTuple):
    """The largest sizes of a policy's trees."""

    depth: int  # levels
    nodes: int  # nodes in total
    width: int  # children of one node


class TreeSize(NamedTuple):
    """The size of a tree that grows as `Dynamic` does."""

    depth: int  # levels
    width: int  # children per expanded node
    nodes: int  # nodes kept, at most


class FixedShape(NamedTuple):
    """A tree that is the same in every pass."""

    tree: StaticTree
    sampled: bool  # children are sampled; otherwise they are the drafter's top tokens


class TreePolicy(Params, ABC):
    """What is drafted in a pass."""

    __slots__ = ()
    # "module:Class" of a `workers.decoding.drafting.Drafting`; imported when it is needed.
    implementation: ClassVar[str]
    # Whether the tree's size, and with it the cost of a step, depends on what was accepted before.
    adapts_to_rule: ClassVar[bool] = False
    # "module:Class" of the `workers.decoding.adjacency.SizeMap` that decides on the size of such a
    # tree; replay needs it to predict the policy.
    size_map: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        with class_errors(type(self), "bounds"):
            bounds: Any = self.bounds  # a plugin's class may return another type
        if not isinstance(bounds, TreeBounds) or not all(
            type(size) is int and size >= 0 for size in bounds
        ):
            raise class_error(
                type(self), f"bounds must be TreeBounds of three whole numbers, got {bounds!r}"
            )

    @property
    @abstractmethod
    def bounds(self) -> TreeBounds:
        """The largest trees that the policy drafts."""

    @property
    def fixed(self) -> FixedShape | None:
        """Its tree, if that never changes; else None. Replay finds a fixed tree within larger
        ones.
        """
        return None

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        """The sizes of its trees, if they grow as `Dynamic` does: replay then finds each within
        larger ones.
        """
        return ()

    def stand_ins(self, codebook_size: int) -> tuple[TreePolicy, TreePolicy]:
        """Policies for a dry run, which knows no values: one that costs as much as a usual pass,
        and one that costs as much as the most expensive pass.
        """
        return self, self


POLICIES: Registry[type[TreePolicy]] = Registry("tree policy", "workers.decoding")


@POLICIES.register
@dataclass(frozen=True, slots=True)
class NoTree(TreePolicy):
    """Nothing is drafted: plain autoregressive decoding."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "no drafts"
    implementation: ClassVar[str] = "workers.decoding.drafting:VanillaDrafting"

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(0, 0, 0)


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Chain(TreePolicy):
    """One path of drafts (Leviathan et al.). At temperature 0 `sampled` means `top`."""

    kind: ClassVar[str] = "chain"
    summary: ClassVar[str] = "a chain of {length} drafts"
    implementation: ClassVar[str] = "workers.decoding.fixed_tree:FixedTree"
    length: Annotated[int, "number of drafted tokens", _LEVELS, Symbol("")]
    children: Annotated[
        Children, "drafts are sampled from the drafter's probs, or are its top token"
    ] = "sampled"

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(self.length, self.length, 1)

    @property
    def fixed(self) -> FixedShape:
        paths = tuple((0,) * level for level in range(1, self.length + 1))
        return FixedShape(_custom_tree(paths), self.children == "sampled")


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Static(TreePolicy):
    """A fixed tree, given by name or by paths (EAGLE-1, LANTERN++). At temperature 0 `sampled`
    means `top`.

    A path is a list of sibling ranks from the root; [0, 1] is the second child of the root's first
    child.
    """

    kind: ClassVar[str] = "static"
    short: ClassVar[str] = "stat"
    summary: ClassVar[str] = "a fixed tree of {nodes} drafts"
    implementation: ClassVar[str] = "workers.decoding.fixed_tree:FixedTree"
    name: Annotated[str | None, "name of a published tree", Choices(NAMED_TREES)] = None
    paths: Annotated[
        Paths | None, "the nodes of a custom tree, each a list of sibling ranks", Range(0)
    ] = None
    children: Annotated[
        Children, "siblings are sampled without replacement, or are the top tokens"
    ] = "sampled"

    def check(self) -> None:
        if (self.name is None) == (self.paths is None):
            raise ConfigError(
                ("name",),
                f"give one of name ({', '.join(NAMED_TREES)}) and paths, not both or neither",
            )
        if self.paths is not None:
            try:
                tree = StaticTree.from_paths(self.paths)
            except ValueError as problem:
                raise ConfigError(("paths",), str(problem)) from None
            # In a fixed order, so that equal trees are equal parameters.
            object.__setattr__(self, "paths", tree.paths)

    @property
    def bounds(self) -> TreeBounds:
        tree = self.fixed.tree
        return TreeBounds(len(tree.levels), len(tree.parents), tree.max_width)

    @property
    def fixed(self) -> FixedShape:
        if self.paths is not None:
            tree = _custom_tree(self.paths)
        else:
            tree = NAMED_TREES[self.name or ""]
        return FixedShape(tree, self.children == "sampled")


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Branching(TreePolicy):
    """A chain whose first levels branch: down to `depth`, every node has `width` children, sampled
    without replacement; below, the chain goes on from the first leaf. SJD-PAC's window; its depth D
    counts the root, so it is one more.
    """

    kind: ClassVar[str] = "branching"
    short: ClassVar[str] = "branch"
    summary: ClassVar[str] = (
        "a chain of {length} drafts whose first levels ({depth}) branch into {width} at each node"
    )
    paper: ClassVar[str] = "SJD-PAC (arXiv:2603.18599)"
    implementation: ClassVar[str] = "workers.decoding.fixed_tree:FixedTree"
    length: Annotated[int, "levels of the longest path", _LEVELS, Symbol("")]
    width: Annotated[int, "children of a node in the levels that branch", _WIDTHS, Symbol("w")]
    depth: Annotated[int, "levels that branch", _LEVELS, Symbol("d")]

    def check(self) -> None:
        if self.depth > self.length:
            raise ConfigError(
                ("depth",), f"must be at most the length {self.length}, got {self.depth}"
            )
        if self.bounds.nodes > _MOST_NODES:
            raise ConfigError(
                ("width",),
                f"{self.bounds.nodes} nodes are more than {_MOST_NODES}; lower it or the depth",
            )

    @property
    def bounds(self) -> TreeBounds:
        nodes = (
            sum(self.width**level for level in range(1, self.depth + 1)) + self.length - self.depth
        )
        return TreeBounds(self.length, nodes, self.width)

    @property
    def fixed(self) -> FixedShape:
        levels = range(1, self.depth + 1)
        bushy = tuple(path for level in levels for path in product(range(self.width), repeat=level))
        chain = tuple((0,) * level for level in range(self.depth + 1, self.length + 1))
        return FixedShape(_custom_tree(bushy + chain), sampled=True)


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Dynamic(TreePolicy):
    """EAGLE-2: at each level, expand the `width` most confident nodes to `width` children each;
    then keep the `nodes` most confident nodes of all levels.

    A node's confidence is the product of the drafter's probs on its path. Children are the
    drafter's top tokens, never sampled. EAGLE-2's defaults (depth parameter 4, top-k 10, 59 nodes
    with the root) are depth 5, width 10, nodes 58.
    """

    kind: ClassVar[str] = "dynamic"
    short: ClassVar[str] = "dyn"
    summary: ClassVar[str] = "a tree of at most {nodes} drafts that grows where the drafter is sure"
    paper: ClassVar[str] = "EAGLE-2 (arXiv:2406.16858)"
    implementation: ClassVar[str] = "workers.decoding.dynamic_tree:DynamicTree"
    depth: Annotated[
        int, "drafted levels, one more than EAGLE-2's parameter of that name", _LEVELS, Symbol("d")
    ]
    width: Annotated[
        int, "children per expanded node, and nodes expanded per level", _WIDTHS, Symbol("w")
    ]
    nodes: Annotated[
        int, "drafted nodes kept, at most; the root is not counted", _NODES, Symbol("n")
    ]

    @property
    def bounds(self) -> TreeBounds:
        # The first level has `width` nodes, each further level the square of it.
        grown = self.width + (self.depth - 1) * self.width**2
        return TreeBounds(self.depth, min(self.nodes, grown), self.width)

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        return (TreeSize(self.depth, self.width, self.nodes),)


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Adjacency(TreePolicy):
    """ADT-Tree, first submitted as PEANUT: an EAGLE-2 tree whose depth and width adapt to the trees
    of nearby tokens.

    (depth, width) start from a neighbour's tree: the left token's (horizontal), the upper one's
    (vertical), a random pair, or the weighted mean over the tokens within `radius` (tokenflock);
    with no neighbour, from `start_depth` and `start_width`. Where `fixed_depth` or `fixed_width` is
    given, every tree starts from it (ADT-Tree, table V). Then, with alpha = numerator / depth of an
    earlier tree: if alpha >= beta the tree gets `depth_step` deeper and `width_step` narrower,
    otherwise shallower and wider, each within its range, ends included. Only a tree of the least
    depth may leave the range of widths: it has 1 to `widest` children per node.

    The paper leaves four choices open, which are parameters here: the start, the radius, whether
    alpha counts the bonus token (`numerator`), and whose alpha it is (`alpha`). The paper's depth
    parameters are one less than the levels here: its open range (0, 10) is 2..10 levels.
    """

    kind: ClassVar[str] = "adjacency"
    short: ClassVar[str] = "adj"
    summary: ClassVar[str] = "a tree whose depth and width follow those of nearby tokens"
    paper: ClassVar[str] = "ADT-Tree (arXiv:2512.21857)"
    leading: ClassVar[tuple[str, ...]] = ("nodes", "beta", "width_step")
    implementation: ClassVar[str] = "workers.decoding.adjacency:AdjacencyTree"
    adapts_to_rule: ClassVar[bool] = True
    size_map: ClassVar[str] = "workers.decoding.adjacency:SizeMap"
    initialisation: Annotated[
        Literal["horizontal", "vertical", "random", "tokenflock"],
        "where a tree's depth and width start from",
        Abbreviations(vertical="vert", tokenflock="flock"),
    ] = "horizontal"
    beta: Annotated[float, "least alpha at which a tree gets deeper", Range(0), Symbol("b")] = 1.0
    depth_step: Annotated[int, "change of depth per pass", Range(0), Symbol("ds")] = 1
    width_step: Annotated[int, "change of width per pass", Range(0), Symbol("ws")] = 3
    depth_range: Annotated[
        tuple[int, int], "least and largest depth in levels", _LEVELS, Symbol("d")
    ] = (2, 10)
    width_range: Annotated[tuple[int, int], "least and largest width", _WIDTHS, Symbol("w")] = (
        4,
        13,
    )
    start_depth: Annotated[
        int, "depth in levels where there is no neighbour", _LEVELS, Symbol("sd")
    ] = 5
    start_width: Annotated[int, "width where there is no neighbour", _WIDTHS, Symbol("sw")] = 10
    nodes: Annotated[
        int, "drafted nodes kept, at most; the root is not counted", _NODES, Symbol("n")
    ] = 58
    numerator: Annotated[
        Literal["accepted", "tokens"],
        "alpha counts the accepted drafts, or all emitted tokens (one more)",
        Abbreviations(tokens="tok"),
    ] = "accepted"
    alpha: Annotated[
        Literal["previous", "neighbour"],
        "alpha is the previous pass's or the neighbour's",
        Abbreviations(neighbour="nb"),
    ] = "previous"
    radius: Annotated[
        float, "grid distance within which tokens count for tokenflock", Range(1), Symbol("r")
    ] = 3.0
    fixed_depth: Annotated[
        int | None, "levels that every tree starts from, not a neighbour's", Symbol("fd")
    ] = None
    fixed_width: Annotated[
        int | None, "width that every tree starts from, not a neighbour's", Symbol("fw")
    ] = None

    def check(self) -> None:
        for key in ("depth", "width"):
            low, high = getattr(self, f"{key}_range")
            if low > high:
                raise ConfigError(
                    (f"{key}_range",),
                    f"must be [least, largest], got [{low}, {high}]; swap the two",
                )
            for name in (f"start_{key}", f"fixed_{key}"):
                start = getattr(self, name)
                if start is not None and not low <= start <= high:
                    raise ConfigError(
                        (name,), f"must be within {key}_range [{low}, {high}], got {start}"
                    )

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(self.depth_range[1], self.nodes, self.width_range[1])

    @property
    def widest(self) -> int:
        """The largest number of children of one node in the shallowest tree, which may leave the
        range of widths.
        """
        return max(self.width_range[1], self.nodes)

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        (least, deepest), (narrow, wide) = self.depth_range, self.width_range
        shallow = [(least, width) for width in range(1, self.widest + 1)]
        deeper = product(range(least + 1, deepest + 1), range(narrow, wide + 1))
        return tuple(TreeSize(depth, width, self.nodes) for depth, width in (*shallow, *deeper))

    def stand_ins(self, codebook_size: int) -> tuple[TreePolicy, TreePolicy]:
        # A usual tree is at most the largest of the ranges. In the most expensive batch, one row's
        # tree has the maximum depth, and another's is shallow and `widest`.
        depth = self.depth_range[1]
        usual = Dynamic(depth, self.width_range[1], self.nodes)
        return usual, Dynamic(depth, min(self.widest, codebook_size), self.nodes)


@lru_cache(maxsize=256)
def _custom_tree(paths: Paths) -> StaticTree:
    return StaticTree.from_paths(paths)
