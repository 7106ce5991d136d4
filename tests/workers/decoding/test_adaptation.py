"""Trees that grow by confidence and adapt to the image, against slow references
(tests/oracles/growing.py).

A bad tree is never wrong, only slow, so no lossless test sees one: here the very nodes and sizes
are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from search_spaces.drafters import Eagle
from search_spaces.trees import Adjacency, Dynamic
from search_spaces.trial import DecodingConfig, Sampling
from tests.oracles import growing, tabular
from tests.oracles.growing import Path
from workers.data.grid import Grid
from workers.decoding import rng
from workers.decoding.accept import AcceptResult
from workers.decoding.adjacency import AdjacencyTree
from workers.decoding.drafter import Drafter
from workers.decoding.dynamic_tree import DynamicTree
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.cache import KVCache
from workers.models.target import Prompt, Target

CODES, LENGTH = 5, 6
STARTS = ("horizontal", "vertical", "random", "tokenflock")
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.7, top_k=3),
    Sampling(cfg=2.0, top_p=0.8),
    Sampling(temperature=0.0),
)


def paths(tree: DraftTree, row: int) -> list[Path]:
    """The nodes that exist in a row's tree, by following the parents; a node without its parent is
    a fault.
    """
    found: list[Path] = []
    parents, depth = tree.shape.parents[row].tolist(), tree.shape.depth[row].tolist()
    for node, (parent, token) in enumerate(zip(parents, tree.tokens[row].tolist(), strict=True)):
        above = () if parent < 0 else found[parent]
        assert parent < node
        found.append((*above, token))
        if tree.exists[row, node]:
            assert len(found[node]) == depth[node]
            assert parent < 0 or tree.exists[row, parent]
    return [path for path, exists in zip(found, tree.exists[row].tolist(), strict=True) if exists]


def assert_tree(
    tree: DraftTree, row: int, all_probs: growing.ProbsFunction, depth: int, width: int, nodes: int
) -> None:
    """The same nodes as the plain tree's (of equally confident ones, any), the more confident
    sibling first.
    """
    drawn, plain = paths(tree, row), growing.eagle2(all_probs, depth, width, nodes)
    assert len(set(drawn)) == len(drawn)
    assert sorted(growing.score(all_probs, p) for p in drawn) == pytest.approx(
        sorted(growing.score(all_probs, p) for p in plain), abs=1e-4
    )
    assert max(map(len, drawn)) <= depth == int(tree.levels[row])
    for above in {path[:-1] for path in drawn}:
        siblings = [all_probs(above)[path[-1]] for path in drawn if path[:-1] == above]
        assert siblings == sorted(siblings, reverse=True)
        assert len(siblings) <= width
    assert tree.probs is None  # chosen, not drawn


def probs_of(draft: Tensor, batch: Batch, row: int, sampling: Sampling) -> growing.ProbsFunction:
    """The drafter's processed distributions below a row's tokens so far, from its table."""
    tables = draft[:, 0].double()
    guided = tables[0] if sampling.cfg == 1 else tables[1] + sampling.cfg * (tables[0] - tables[1])
    # temperature 0 looks at the plain softmax
    plain = Sampling() if sampling.temperature == 0 else sampling
    start = int(tabular.committed(batch, draft)[row])

    @cache
    def probs(path: Path) -> list[float]:
        context = start
        for token in path:
            context = context * CODES + 1 + token
        return cast(
            "list[float]",
            tabular.processed(guided[context : context + 1].numpy(), plain)[0].tolist(),
        )

    return probs


def draws(batch: Batch, row: int) -> Callable[[int], list[float]]:
    """The uniform numbers of a row's cells."""

    def draw(token: int) -> list[float]:
        numbers = rng.uniform(
            batch.keys[row], torch.tensor(token), rng.Purpose.SHAPE, torch.arange(2)
        )
        return cast("list[float]", numbers.tolist())

    return draw


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=25, deadline=None)
@given(
    depth=st.integers(1, 4),
    width=st.integers(1, CODES),
    nodes=st.integers(1, 40),
    seed=st.integers(0, 9999),
)
def test_dynamic_trees_keep_the_most_confident_nodes(
    sampling: Sampling, depth: int, width: int, nodes: int, seed: int
) -> None:
    streams = 1 if sampling.cfg == 1 else 2
    draft = 2 * tabular.random_logits(CODES, LENGTH, seed, streams)
    config = DecodingConfig(Eagle(), Dynamic(depth, width, nodes), sampling=sampling)
    engine = tabular.TabularEngine(config, draft, draft, LENGTH)
    batch = engine.open(3, seed)
    engine.drafting.plan(batch)
    tree = engine.drafting.draft(batch)
    for row in range(3):
        assert_tree(tree, row, probs_of(draft, batch, row, sampling), depth, width, nodes)


class Fixed(Drafter):
    """The same logits [V] after everything."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None: ...
    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None: ...
    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None: ...

    def root_logits(self, batch: Batch) -> Tensor:
        return self.logits.expand(batch.size, -1)

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        return self.logits.expand(*tokens.shape, -1).clone()


def model(grid: Grid, codes: int) -> Target:
    """What a policy reads of its target."""
    return cast(Target, SimpleNamespace(device=torch.device("cpu"), vocab_size=codes, grid=grid))


def open_batch(size: int, grid: Grid) -> Batch:
    cache = KVCache(0, size, 1, 1, 1)  # without layers
    batch = Batch(size, cfg=1.0, prompt_len=1, image_len=grid.tokens, reach=4, cache=cache)
    all_rows = torch.arange(size)
    batch.admit(
        all_rows,
        rng.image_keys(3, range(size), [0] * size),
        all_rows,
        torch.ones(size, 1, dtype=torch.bool),
    )
    return batch


@pytest.mark.parametrize(("probs", "sure"), [([1.0, 0.0, 0.0], 1.0), ([0.5, 0.25, 0.25], 0.5)])
def test_ties_in_confidence_never_orphan_a_node(probs: list[float], sure: float) -> None:
    """A child that is certain is as confident as its parent: the shallower one is kept."""
    for nodes in range(1, 12):
        config = DecodingConfig(Eagle(), Dynamic(5, 3, nodes), sampling=Sampling())
        tree = DynamicTree(config, model(Grid(2, 3), 3), Fixed(torch.tensor(probs).log())).draft(
            open_batch(2, Grid(2, 3))
        )
        for row in range(2):
            kept = paths(tree, row)
            assert kept[0] == (0,)
            scores = sorted(
                (math.prod(probs[token] for token in path) for path in kept), reverse=True
            )
            assert len(kept) == (min(nodes, 5) if sure == 1 else nodes)
            plain = growing.eagle2(lambda _: probs, 5, 3, nodes)
            assert scores == [math.prod(probs[token] for token in path) for path in plain]


def test_the_first_of_equally_confident_nodes_are_expanded() -> None:
    """As replay assumes: in 16 bits many scores are equal, and `topk` may take any of them."""
    width, config = 4, DecodingConfig(Eagle(), Dynamic(4, 4, 99), sampling=Sampling())
    tree = DynamicTree(config, model(Grid(2, 3), 9), Fixed(torch.zeros(9))).draft(
        open_batch(2, Grid(2, 3))
    )
    for level in (2, 3):
        first = width + (level - 2) * width**2  # the node that the level begins with
        below = tree.shape.parents[:, first + width**2 : first + 2 * width**2]
        assert below.tolist() == [[first + rank for rank in range(width) for _ in range(width)]] * 2


@st.composite
def policies(draw: st.DrawFn, initialisation: str) -> Adjacency:
    """Many nodes and few codes: every width shows in the tree as it is."""
    depth = sorted(draw(st.lists(st.integers(1, 4), min_size=2, max_size=2)))
    width = sorted(draw(st.lists(st.integers(1, 6), min_size=2, max_size=2)))
    mean = initialisation == "tokenflock"  # whose mean alpha must not stand on beta's very edge
    return Adjacency(
        initialisation=cast(Any, initialisation),
        beta=draw(st.sampled_from([0.618, 0.31] if mean else [0.25, 0.5, 0.618, 1.0])),
        depth_step=draw(st.integers(0, 2)),
        width_step=draw(st.integers(0, 3)),
        depth_range=(depth[0], depth[1]),
        width_range=(width[0], width[1]),
        start_depth=draw(st.integers(depth[0], depth[1])),
        start_width=draw(st.integers(width[0], width[1])),
        nodes=200 if depth[1] > 1 else draw(st.integers(width[1], 8)),
        numerator=draw(st.sampled_from(["accepted", "tokens"])),
        alpha=draw(st.sampled_from(["previous", "neighbour"])),
        radius=draw(st.sampled_from([1.0, 1.5, 2.0, 2.5, 3.0])),
        fixed_depth=draw(st.none() | st.integers(depth[0], depth[1])),
        fixed_width=draw(st.none() | st.integers(width[0], width[1])),
    )


@pytest.mark.parametrize("initialisation", STARTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 9999))
def test_sizes_adapt_to_the_neighbours(initialisation: str, data: st.DataObject, seed: int) -> None:
    """Whole images, three at a time, each at its own pace: every round's depth and width is the
    plain map's.
    """
    policy = data.draw(policies(initialisation))
    side = st.integers(1, 6)
    preview = data.draw(st.just(()) | st.tuples(side, side))
    grid = Grid(data.draw(side), data.draw(side), preview)
    grids = [size for size in (preview, (grid.rows, grid.cols)) if size]
    generator = torch.Generator().manual_seed(seed)
    config = DecodingConfig(Eagle(), policy, sampling=Sampling())
    drafting = AdjacencyTree(config, model(grid, 6), Fixed(torch.randn(6, generator=generator)))
    batch = open_batch(3, grid)
    drafting.prepare(batch)
    nothing = torch.zeros(3, 1, 1)
    drafting.admit(
        torch.arange(3), Prompt(nothing, nothing[..., 0].bool()), [], nothing, batch.root
    )

    maps = [growing.Map(policy, grids, min(6, policy.nodes), draws(batch, row)) for row in range(3)]
    while (batch.emitted < grid.tokens).all():
        sizes = [plain.next_tree() for plain in maps]
        drafting.plan(batch)
        tree = drafting.draft(batch)
        widths = (tree.exists & (tree.shape.depth == 1)).sum(1).tolist()
        assert list(zip(tree.levels.tolist(), widths, strict=True)) == sizes
        room = torch.minimum(tree.levels, batch.remaining - 1)
        used = (torch.rand(3, generator=generator) * 1.7).clamp(max=1)  # often all of it
        accepted = (used * room).round().long()
        tokens = torch.zeros(3, int(accepted.max()) + 1, dtype=torch.int64)
        result = AcceptResult(
            None, tokens, accepted, tokens[:, 0], torch.zeros(3, dtype=torch.bool)
        )
        drafting.commit(batch, tree, result, nothing, nothing)
        batch.commit(tokens, result.num_emitted, result.next_root)
        for plain, (depth, width), count in zip(maps, sizes, accepted.tolist(), strict=True):
            plain.emit(depth, width, count)


@pytest.mark.parametrize("initialisation", STARTS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 9999))
def test_adjacency_trees_are_eagle2_trees_of_each_rows_own_size(
    initialisation: str, seed: int
) -> None:
    """After two rounds the rows' sizes differ, and none sees the others'."""
    policy = Adjacency(
        initialisation=cast(Any, initialisation),
        beta=0.5,
        width_step=1,
        depth_range=(1, 4),
        width_range=(1, 4),
        start_depth=2,
        start_width=3,
        nodes=9,
    )
    draft = 2 * tabular.random_logits(CODES, 7, seed)
    engine = tabular.TabularEngine(
        DecodingConfig(Eagle(), policy, sampling=Sampling()), draft, draft, 6
    )
    batch = engine.open(3, seed)
    maps = [growing.Map(policy, [(2, 3)], CODES, draws(batch, row)) for row in range(3)]
    for _ in range(2):
        if bool((batch.emitted >= 4).any()):  # the table ends with the image
            return
        sizes = [plain.next_tree() for plain in maps]
        engine.drafting.plan(batch)
        tree = engine.drafting.draft(batch)
        for row, (depth, width) in enumerate(sizes):
            assert_tree(tree, row, probs_of(draft, batch, row, Sampling()), depth, width, 9)
        result = engine.step(batch)
        for plain, size, accepted in zip(maps, sizes, result.num_accepted.tolist(), strict=True):
            plain.emit(*size, accepted)
