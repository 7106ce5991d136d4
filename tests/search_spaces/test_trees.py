"""Tree policies: the published trees as counted in their papers, and what is no tree is refused."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.params import ConfigError
from search_spaces.presets import PRESETS
from search_spaces.static_trees import NAMED_TREES, StaticTree
from search_spaces.trees import Adjacency, Branching, Chain, Dynamic, NoTree, Static

COUNTS = {
    "eagle1_26": ([4, 8, 8, 3, 2], 4, 15),
    "lanternpp_58": ([5, 13, 16, 14, 9], 5, 33),
    "medusa2_64": ([10, 23, 23, 7], 10, 42),
    "balanced_26": ([3, 8, 9, 3, 2], 3, 16),
    "reverse_balanced_26": ([3, 4, 6, 5, 7], 4, 15),
    "chain_5": ([1, 1, 1, 1, 1], 1, 1),
    "small_7": ([2, 2, 1, 1], 2, 3),
}  # nodes per level, most children of one node, leaves


def test_all_named_trees_are_there() -> None:
    assert set(NAMED_TREES) == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_named_trees_have_the_counts_of_their_papers(name: str) -> None:
    tree = NAMED_TREES[name]
    per_level, widest, leaves = COUNTS[name]
    assert [len(level) for level in tree.levels] == per_level
    assert tree.max_width == widest
    assert len(tree.parents) - len({*tree.parents} - {-1}) == leaves
    policy = Static(name=name)
    assert policy.bounds == (len(per_level), sum(per_level), widest)
    assert policy.fixed.tree is tree


@pytest.mark.parametrize("name", COUNTS)
def test_the_parts_of_a_tree_agree(name: str) -> None:
    tree = NAMED_TREES[name]
    nodes = range(len(tree.paths))
    assert [n for level in tree.levels for n in level] == list(nodes)  # level order, contiguous
    for n in nodes:
        path, parent = tree.paths[n], tree.parents[n]
        assert parent < n
        assert path[:-1] == (tree.paths[parent] if parent >= 0 else ())
        assert (tree.depth[n], tree.rank[n]) == (len(path), path[-1])
        ranks = [tree.rank[child] for child in nodes if tree.parents[child] == n]
        assert ranks == list(range(len(ranks)))
        assert n in tree.levels[tree.depth[n] - 1]


def test_a_tree_by_hand() -> None:
    tree = StaticTree.from_paths([[1], [0, 1], [0], [1, 0], [0, 0], [0, 1, 0]])
    assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
    assert tree.parents == (-1, -1, 0, 0, 1, 3)
    assert tree.depth == (1, 1, 2, 2, 2, 3)
    assert tree.rank == (0, 1, 0, 1, 0, 0)
    assert tree.levels == ((0, 1), (2, 3, 4), (5,))


def test_a_chain_is_the_tree_of_width_one() -> None:
    tree = Chain(length=3).fixed.tree
    assert tree.parents == (-1, 0, 1)
    assert tree.levels == ((0,), (1,), (2,))
    assert Chain(length=5).fixed.tree == NAMED_TREES["chain_5"]


def test_a_branching_tree_is_a_full_tree_and_a_chain_below_its_first_leaf() -> None:
    policy = Branching(length=4, width=2, depth=2)
    bushy = ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    assert policy.fixed.tree == StaticTree.from_paths((*bushy, (0, 0, 0), (0, 0, 0, 0)))
    assert policy.fixed.sampled
    assert policy.bounds == (4, 8, 2)
    assert Branching(length=5, width=1, depth=3).fixed.tree == Chain(length=5).fixed.tree
    assert PRESETS["sjd_pac"].policy.bounds.nodes == 63, "a window of 64 with the root"


def test_the_same_tree_in_another_order_is_the_same_setting() -> None:
    one, other = Static(paths=((0,), (1,), (1, 0))), Static(paths=((1, 0), (1,), (0,)))
    assert one == other
    assert hash(one) == hash(other)


def test_bounds_of_the_growing_policies() -> None:
    assert NoTree().bounds == (0, 0, 0)
    eagle2 = Dynamic(depth=5, width=10, nodes=58)
    assert eagle2.bounds == (5, 58, 10)
    assert Dynamic(depth=2, width=2, nodes=58).bounds.nodes == 6  # 2, then 2 x 2
    adt = Adjacency()
    assert (adt.bounds, adt.widest) == ((10, 58, 13), 58)


NO_TREES: list[tuple[Any, str]] = [
    (
        [[0], [1, 0]],
        r"paths: node \[1, 0\] is an orphan: its parent \[1\] is not in the tree; add it",
    ),
    ([[0], [2]], r"paths: node \[2\] skips a rank: its sibling \[1\] is not in the tree; add it"),
    (
        [[0], [0, 1]],
        r"paths: node \[0, 1\] skips a rank: its sibling \[0, 0\] is not in the tree; add it",
    ),
    ([[0], [0]], r"paths: node \[0\] is listed twice"),
    ([[0], []], "paths: a path is empty; the root itself is not listed"),
    ([], r"paths: the tree has no nodes; list at least the path \[0\]"),
    ([[0], [-1]], "paths: must be at least 0, got -1"),
    ([[0], 1], "paths: must be a list, got 1"),
    ([["0"]], "paths: must be a whole number, got '0'"),
]


@pytest.mark.parametrize(("paths", "message"), NO_TREES)
def test_what_is_no_tree_is_refused(paths: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Static(paths=paths)


def test_negative_ranks_are_refused_in_the_tree_itself() -> None:
    with pytest.raises(
        ValueError, match=r"^node \[-1\] has a negative sibling rank; ranks count from 0$"
    ):
        StaticTree.from_paths([[-1]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(length=0), r"length: must be in \[1, 256\], got 0"),
        (lambda: Dynamic(depth=0, width=4, nodes=9), r"depth: must be in \[1, 256\], got 0"),
        (lambda: Dynamic(depth=3, width=True, nodes=9), "width: must be a whole number, got True"),
        (
            lambda: Static(),
            "name: give one of name .eagle1_26, .*small_7. and paths, not both or neither",
        ),
        (
            lambda: Static(name="chain_5", paths=((0,),)),
            "name: give one of name .* not both or neither",
        ),
        (
            lambda: Static(name="eagle1"),
            "name: must be one of .*, got 'eagle1'; did you mean 'eagle1_26'[?]",
        ),
        (
            lambda: Adjacency(depth_range=(5, 2)),
            r"depth_range: must be \[least, largest\], got \[5, 2\]; swap the two",
        ),
        (
            lambda: Adjacency(width_range=(9, 4)),
            r"width_range: must be \[least, largest\], got \[9, 4\]; swap the two",
        ),
        (
            lambda: Adjacency(start_depth=11),
            r"start_depth: must be within depth_range \[2, 10\], got 11",
        ),
        (
            lambda: Adjacency(start_width=3),
            r"start_width: must be within width_range \[4, 13\], got 3",
        ),
        (
            lambda: Adjacency(fixed_depth=1),
            r"fixed_depth: must be within depth_range \[2, 10\], got 1",
        ),
        (
            lambda: Adjacency(fixed_width=25),
            r"fixed_width: must be within width_range \[4, 13\], got 25",
        ),
        (lambda: Adjacency(depth_range=(1,)), r"depth_range: must be a list of 2, got \[1\]"),  # type: ignore[arg-type]
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        make()
