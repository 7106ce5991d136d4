"""Best-first trees against a heap, and against the dynamic trees that they are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import EXACT
from search_spaces.drafters import Medusa
from search_spaces.trees import BestFirst, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Sampling
from tests.oracles.best_first import Ranks, best_first
from tests.oracles.tabular import TabularDrafter
from workers.decoding.best_first import BestFirstTree, _children
from workers.decoding.build import build_drafting
from workers.decoding.drafter import Drafter
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.models.target import Target
from workers.replay.subtrees import union_policy

ROWS = 20


class Levels(TabularDrafter):
    """Logits [levels, B, V] of levels that do not depend on each other."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits, blind=True)

    def root_logits(self, batch: Batch) -> Tensor:
        self.level = 0
        return self.logits[0]

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        self.level += 1
        return self.logits[self.level][:, None].expand(-1, tokens.shape[1], -1)


def drafted(policy: TreePolicy, logits: Tensor, sampling: Sampling) -> DraftTree:
    config = DecodingConfig(Medusa(), policy, EXACT, sampling)
    target = SimpleNamespace(device=torch.device("cpu"), vocab_size=logits.shape[-1])
    drafting = build_drafting(config, cast(Target, target), cast(Drafter, Levels(logits)))
    size = logits.shape[1]
    batch = SimpleNamespace(size=size, emitted=torch.zeros(size, dtype=torch.int64))
    return drafting.draft(cast(Batch, batch))


def paths_of(tree: DraftTree, row: int) -> dict[Ranks, tuple[int, ...]]:
    """The existing nodes' sibling ranks, from the table of children, with their tokens."""
    found: dict[Ranks, tuple[int, ...]] = {}
    children = tree.shape.children.expand(ROWS, -1, -1)[row].tolist()
    depth = tree.shape.depth.expand(ROWS, -1)[row].tolist()

    def visit(slot: int, ranks: Ranks, tokens: tuple[int, ...]) -> None:
        for rank, child in enumerate(children[slot]):
            if child:
                path = (*tokens, int(tree.tokens[row, child - 1]))
                assert depth[child - 1] == len(path)
                found[*ranks, rank] = path
                visit(child, (*ranks, rank), path)

    visit(0, (), ())
    assert len(found) == int(tree.exists[row].sum())
    return found


def random_logits(codes: int, levels: int, seed: int = 0) -> Tensor:
    """Of all kinds: from sharp to flat."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.2, 4, ROWS)[:, None]
    return scale * torch.randn(levels, ROWS, codes, generator=generator)


@pytest.mark.parametrize(
    ("depth", "nodes", "codes", "sampling"),
    [
        (4, 63, 100, Sampling()),
        (5, 16, 100, Sampling(temperature=0.7, top_k=5)),
        (3, 40, 6, Sampling()),
        (4, 30, 50, Sampling(top_p=0.6)),
        (1, 7, 20, Sampling()),
        (6, 1, 20, Sampling()),
        (9, 4, 20, Sampling(temperature=0.0)),
        (3, 60, 3, Sampling()),  # more than there are
    ],
)
def test_the_nodes_are_those_of_a_heap(
    depth: int, nodes: int, codes: int, sampling: Sampling
) -> None:
    """Trees as wide as they are deep, and of few codes."""
    logits = random_logits(codes, depth)
    tree = drafted(BestFirst(depth, nodes), logits, sampling)
    drafting_probs = logits.double()
    for row in range(ROWS):
        levels, order = [], []
        for own in drafting_probs[:, row]:
            log_probs = torch.full((codes,), -torch.inf, dtype=torch.float64)
            scaled = own / (sampling.temperature or 1)
            ranked = scaled.argsort(descending=True)
            if 0 < sampling.top_k < codes:
                ranked = ranked[: sampling.top_k]
            probs = scaled[ranked].softmax(0)
            if sampling.top_p < 1:
                ranked = ranked[: int((probs.cumsum(0) - probs < sampling.top_p).sum())]
            log_probs[ranked] = scaled[ranked].log_softmax(0)
            levels.append(log_probs[ranked].tolist())
            order.append(ranked.tolist())
        expected = best_first(levels, nodes)
        found = paths_of(tree, row)
        assert found == {
            ranks: tuple(order[level][rank] for level, rank in enumerate(ranks))
            for ranks in expected
        }


def test_equal_nodes_are_a_tree_as_good_as_the_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log probs in quarters, so that many paths are equally likely, exactly."""
    generator = torch.Generator().manual_seed(3)
    steps = torch.randint(3, (4, ROWS, 30), generator=generator).cumsum(-1) * -0.25
    tokens = torch.arange(30).expand(ROWS, 1, -1)

    def top_children(self: BestFirstTree, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        return logits.view(ROWS, 1, -1)[..., :width], tokens[..., :width]

    monkeypatch.setattr(BestFirstTree, "top_children", top_children)
    tree = drafted(BestFirst(4, 25), steps, Sampling())
    assert tree.scores is not None
    for row in range(ROWS):
        expected = best_first(steps[:, row].tolist(), 25)
        found = paths_of(tree, row)
        assert len(found) == 25
        for ranks in found:  # its ancestors and earlier siblings are nodes as well
            assert len(ranks) == 1 or ranks[:-1] in found
            assert ranks[-1] == 0 or (*ranks[:-1], ranks[-1] - 1) in found
        scores = [sum(float(steps[level, row, r]) for level, r in enumerate(x)) for x in found]
        assert sorted(scores) == sorted(expected.values())
        assert sorted(scores) == sorted(tree.scores[row].tolist())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_k=9)])
def test_it_is_the_dynamic_tree_as_wide_as_it_has_nodes(sampling: Sampling) -> None:
    logits = random_logits(80, 4, seed=1)
    best = drafted(BestFirst(4, 40), logits, sampling)
    dynamic = drafted(Dynamic(4, 40, 40), logits, sampling)
    for row in range(ROWS):
        assert paths_of(best, row) == paths_of(dynamic, row)


def test_no_path_is_longer_than_the_tree_has_nodes() -> None:
    assert BestFirst(9, 4) == BestFirst(4, 4)
    assert BestFirst(9, 4).bounds.depth == 4


def test_replay_records_it_as_that_tree() -> None:
    assert union_policy([BestFirst(4, 40)]) == union_policy([Dynamic(4, 40, 40)])


def test_few_children_are_candidates() -> None:
    """And no fewer: each one left is a node of some tree of so many nodes."""
    pairs = _children(64, 64, 64)
    assert len(pairs) == 216
    for parent, rank in pairs:
        assert (parent + 1) * (rank + 2) <= 64


def test_nodes_of_a_tree_are_at_least_as_likely_as_a_static_trees() -> None:
    logits = random_logits(100, 4, seed=2)
    static = Static(name="medusa2_64", children="top")
    fixed = drafted(static, logits, Sampling())
    nodes = static.bounds.nodes
    best = drafted(BestFirst(4, nodes), logits, Sampling())
    log_probs = logits.log_softmax(-1)
    for row in range(ROWS):
        masses = [
            sum(
                math.exp(sum(float(log_probs[level, row, x]) for level, x in enumerate(path)))
                for path in paths_of(tree, row).values()
            )
            for tree in (best, fixed)
        ]
        assert masses[0] >= masses[1] - 1e-6
