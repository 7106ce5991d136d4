"""Traversal verification against enumeration: every tree that may be drawn, tokens of a pass
completed by the target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.rules.traversal import TraversalVerification
from search_spaces.static_trees import StaticTree
from search_spaces.verification import BlockVerification, ChainTests, Stops, TreeTests
from tests.oracles import traversal
from tests.oracles.rounds import (
    Context,
    Shape,
    Table,
    completed,
    expected_accepted,
    round_distribution,
    target_distribution,
    total_variation,
)
from tests.oracles.rules import Rule
from tests.oracles.traversal import Drafted
from workers.decoding.tree import TreeShape, fixed_shape

CODES = 3
LEVELS = ((1,), (3,), (1, 1), (2, 1), (2, 2), (3, 2), (1, 1, 1), (2, 1, 1))
UNEVEN: Shape = (((),), ((), ((),)), ())  # the second child has more below it than the first


def shape_of(widths: Sequence[int]) -> Shape:
    """A tree with so many children below each node of a level."""
    if not widths:
        return ()
    return (shape_of(widths[1:]),) * widths[0]


SHAPES = {**{str(widths): shape_of(widths) for widths in LEVELS}, "uneven": UNEVEN}


def depth_of(shape: Shape) -> int:
    return 1 + max(map(depth_of, shape)) if shape else 0


def paths_of(shape: Shape, prefix: Context = ()) -> list[Context]:
    """The sibling ranks of all nodes."""
    below = [paths_of(child, (*prefix, rank)) for rank, child in enumerate(shape)]
    return [(*prefix, rank) for rank in range(len(shape))] + list(itertools.chain(*below))


def tables(seed: int, depth: int, *, lacks: float = 0.0) -> tuple[Table, Table]:
    """Random probs of the target and of a drafter after every context. A share `lacks` of the
    drafter's entries are 0.
    """
    generator = np.random.default_rng(seed)
    contexts = [c for n in range(depth + 1) for c in itertools.product(range(CODES), repeat=n)]
    target = {c: generator.dirichlet(np.full(CODES, 0.7)).tolist() for c in contexts}
    drafter = {}
    for context in contexts:
        if len(context) < depth:
            masses = generator.dirichlet(np.full(CODES, 0.7)) + 1e-3
            masses[1:] *= generator.random(CODES - 1) >= lacks
            drafter[context] = (masses / masses.sum()).tolist()
    return target, drafter


class Rows(NamedTuple):
    """Trees of one shape, drawn with enumerated tokens, a row each."""

    shape: TreeShape
    paths: list[Context]  # the sibling ranks of each slot
    trees: list[Drafted]
    weights: list[float]
    contexts: list[list[Context | None]]  # the tokens up to each slot; None: it was not drawn
    tests: TreeTests


def rows_of(q: Table, p: Table, shape: Shape, limit: int | None = None) -> Rows:
    """The tests of every tree that may be drawn; only levels up to `limit` may be accepted."""
    static = StaticTree.from_paths(paths_of(shape))
    tree = fixed_shape(static.parents, static.depth, torch.device("cpu"))
    paths = [(), *static.paths]
    trees, weights = zip(*traversal.drawn(p, shape), strict=True)
    contexts: list[list[Context | None]] = []
    for drafted in trees:
        named: dict[Context, Context] = {(): ()}

        def name(children: Drafted, path: Context, named: dict[Context, Context] = named) -> None:
            for rank, (token, below) in enumerate(children):
                named[*path, rank] = (*named[path], token)
                name(below, (*path, rank))

        name(drafted, ())
        contexts.append([named.get(path) for path in paths])

    def table(source: Table) -> Tensor:
        blank = [1 / CODES] * CODES
        return torch.tensor(
            [[source.get(c, blank) if c is not None else blank for c in row] for row in contexts],
            dtype=torch.float64,
        )

    eligible = [
        [
            c is not None and len(c) > 0 and (limit is None or len(path) <= limit)
            for path, c in zip(paths, row, strict=True)
        ]
        for row in contexts
    ]
    tests = TreeTests(
        tree.levels,
        torch.tensor(eligible),
        torch.tensor([[c[-1] if c else 0 for c in row] for row in contexts]),
        table(q),
        table(p),
        torch.arange(len(paths)),
    )
    return Rows(tree, paths, list(trees), list(weights), contexts, tests)


def shares(rows: Rows, stops: Stops) -> Tensor:
    """The probability that each slot is accepted last, [B, S]."""
    order = rows.shape.post_order
    assert order is not None
    passes = stops.passes[:, order]
    failed = (1 - passes).cumprod(1)
    before = torch.cat([torch.ones(len(passes), 1, dtype=failed.dtype), failed[:, :-1]], 1)
    return (before * passes)[:, order.argsort()]


def emitted_of(rows: Rows, stops: Stops) -> dict[Context, float]:
    """The distribution of the tokens that a pass emits."""
    residual = (stops.residual / stops.residual.sum(2, keepdim=True)).tolist()
    emitted: dict[Context, float] = {}
    last = shares(rows, stops).tolist()
    for row, weight in enumerate(rows.weights):
        for slot, context in enumerate(rows.contexts[row]):
            if context is None:
                assert last[row][slot] == 0
                continue
            for token, mass in enumerate(residual[row][slot]):
                key = (*context, token)
                emitted[key] = emitted.get(key, 0.0) + weight * last[row][slot] * mass
    return emitted


@pytest.mark.parametrize("lacks", [0.0, 0.5])
@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_follows_the_target_and_is_never_shorter(name: str, lacks: float) -> None:
    """Also where the drafter has fewer codes than siblings."""
    shape, depth = SHAPES[name], depth_of(SHAPES[name])
    gains = []
    for seed in range(4):
        q, p = tables(seed, depth, lacks=lacks)
        rows = rows_of(q, p, shape)
        emitted = emitted_of(rows, TraversalVerification().stops(rows.tests))
        found = completed(emitted, q, depth + 1)
        assert total_variation(found, target_distribution(q, depth + 1)) < 1e-12
        alone = round_distribution(Rule("none"), q, p, shape, [1.0] * depth)
        gains.append(expected_accepted(emitted) - expected_accepted(alone))
    assert min(gains) > -1e-12
    if depth == 1:
        assert max(gains) < 1e-12
    else:
        assert np.mean(gains) > 0.005


@pytest.mark.parametrize("limit", [0, 1, 2])
@pytest.mark.parametrize("name", ["(2, 1, 1)", "uneven"])
def test_a_pass_follows_the_target_where_the_image_ends_inside_the_tree(
    name: str, limit: int
) -> None:
    q, p = tables(7, 3)
    rows = rows_of(q, p, SHAPES[name], limit)
    emitted = emitted_of(rows, TraversalVerification().stops(rows.tests))
    assert max(len(context) for context, mass in emitted.items() if mass > 0) == limit + 1
    found = completed(emitted, q, 4)
    assert total_variation(found, target_distribution(q, 4)) < 1e-12


@pytest.mark.parametrize("name", SHAPES)
def test_every_tree_is_tested_as_the_paper_states(name: str) -> None:
    q, p = tables(3, depth_of(SHAPES[name]), lacks=0.2)
    rows = rows_of(q, p, SHAPES[name])
    stops = TraversalVerification().stops(rows.tests)
    last = shares(rows, stops)
    for row, tree in enumerate(rows.trees):
        for expected in traversal.stops(q, p, tree):
            slot = rows.contexts[row].index(expected.context)
            assert last[row, slot] == pytest.approx(expected.weight, abs=1e-12)
            if expected.weight > 1e-9:
                found = stops.residual[row, slot] / stops.residual[row, slot].sum()
                assert found.tolist() == pytest.approx(expected.residual, abs=1e-9)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_chain_is_tested_as_a_block(limit: int) -> None:
    generator = torch.Generator().manual_seed(limit)
    target, proposal = (
        torch.randn(100, 5, 7, generator=generator, dtype=torch.float64).mul(1.5).softmax(2)
        for _ in range(2)
    )
    tokens = torch.randint(7, (100, 4), generator=generator)
    shape = fixed_shape(range(-1, 3), range(1, 5), torch.device("cpu"))
    eligible = (torch.arange(1, 5) <= limit).expand(100, -1)
    q, p = (part[:, :-1].gather(2, tokens[..., None])[..., 0] for part in (target, proposal))
    chain = ChainTests(eligible, tokens, q / p * eligible, target[:, :-1], proposal[:, :-1])
    at_least, weight = BlockVerification().lengths(chain)
    assert weight is not None
    root = torch.zeros(100, 1, dtype=torch.int64)
    stops = TraversalVerification().stops(
        TreeTests(
            shape.levels,
            torch.cat([root.bool(), eligible], 1),
            torch.cat([root, tokens], 1),
            target.clone(),
            proposal,
            torch.arange(5),
        )
    )
    reached = 1 - (1 - stops.passes[:, 1:]).flip(1).cumprod(1).flip(1)
    torch.testing.assert_close(reached, at_least)
    left = (weight[:, :limit, None] * target[:, :limit] - proposal[:, :limit]).clamp_min(0)
    mass = left.sum(2, keepdim=True)
    expected = torch.where(mass > 0, left / mass, target[:, :limit])
    torch.testing.assert_close(stops.residual[:, :limit], expected)
    torch.testing.assert_close(stops.residual[:, limit:], target[:, limit:])


def test_drafts_from_the_targets_own_probs_are_all_accepted() -> None:
    """The first path of a tree, whatever its branches hold."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50, 5, 40, generator=generator).softmax(2)
    shape = fixed_shape([-1, -1, 0, 2], [1, 1, 2, 3], torch.device("cpu"))
    scores = probs / torch.empty(50, 5, 40).exponential_(generator=generator)
    pairs = scores.topk(2, dim=2).indices
    tokens = torch.stack(
        [pairs[:, 0, 0], *pairs[:, 0].unbind(1), pairs[:, 1, 0], pairs[:, 3, 0]], 1
    )
    eligible = (torch.arange(5) > 0).expand(50, -1)
    stops = TraversalVerification().stops(
        TreeTests(shape.levels, eligible, tokens, probs.clone(), probs, torch.arange(5))
    )
    assert shape.post_order is not None
    assert shape.post_order.tolist() == [4, 3, 1, 2, 0]
    assert (stops.passes[:, 4] == 1).all()


def test_a_pass_of_probs_that_are_not_finite_is_marked() -> None:
    """Unless they are behind a leaf."""
    shape = fixed_shape([-1, -1, 0], [1, 1, 2], torch.device("cpu"))
    for slot in range(4):
        probs = torch.full((1, 4, 5), 0.2)
        probs[:, slot] = math.nan
        stops = TraversalVerification().stops(
            TreeTests(
                shape.levels,
                torch.tensor([[False, True, True, True]]),
                torch.tensor([[0, 1, 2, 3]]),
                probs,
                torch.full((1, 4, 5), 0.2),
                torch.arange(4),
            )
        )
        assert bool(stops.passes.isnan().any()) == (slot in (0, 1))
