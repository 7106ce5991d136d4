"""Tree policies: the shape of the draft tree that the target verifies in one pass.

A policy holds only parameters; `workers.decoding` does the drafting. All depths count levels of
drafted tokens: EAGLE-2's parameter "depth 4" is 5 levels, because it drafts one level before its
loop. The root is the last emitted token. It is not a drafted node and is not counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
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
from search_spaces.static_trees import NAMED_TREES, Paths, StaticTree, custom_tree

# Larger trees have no use, because an image has a few thousand tokens, and take hours to build.
_MOST_NODES = 4096
_LEVELS = Range(1, 256)
_WIDTHS = Range(1, 256)
_NODES = Range(1, _MOST_NODES)

Children = Literal["sampled", "top"]


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
    # Whether the drafter's probs at a level must not depend on the tokens of the levels before it.
    needs_independent_levels: ClassVar[bool] = False
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
    def is_sampled(self) -> bool:
        """Whether children are sampled at a temperature above 0, so that their probs are known;
        otherwise they are the drafter's top tokens.
        """
        return self.fixed is not None and self.fixed.sampled

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
        return FixedShape(custom_tree(paths), self.children == "sampled")


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
            tree = custom_tree(self.paths)
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
        return FixedShape(custom_tree(bushy + chain), sampled=True)


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
class BestFirst(TreePolicy):
    """DDTree: the `nodes` most confident nodes of all, for drafters whose levels do not depend on
    each other. Children are the drafter's top tokens, never sampled.

    It is the tree of `Dynamic` with a width of `nodes`, and no node is expanded.
    """

    kind: ClassVar[str] = "best_first"
    short: ClassVar[str] = "best"
    summary: ClassVar[str] = "a tree of the {nodes} likeliest drafts"
    paper: ClassVar[str] = "DDTree (arXiv:2604.12989)"
    implementation: ClassVar[str] = "workers.decoding.best_first:BestFirstTree"
    needs_independent_levels: ClassVar[bool] = True
    depth: Annotated[int, "drafted levels, at most", _LEVELS, Symbol("d")]
    nodes: Annotated[int, "drafted nodes; the root is not counted", _WIDTHS, Symbol("n")]

    def check(self) -> None:
        # no path is longer, and equal trees are equal parameters
        object.__setattr__(self, "depth", min(self.depth, self.nodes))

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(self.depth, self.nodes, self.nodes)

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        return (TreeSize(self.depth, self.nodes, self.nodes),)


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
