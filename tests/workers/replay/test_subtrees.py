"""A policy's tree is found inside a recorded larger one: against the trees that decoding drafts by
that policy.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from search_spaces.acceptance import EXACT
from search_spaces.drafters import Eagle
from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Sampling
from tests.oracles import tabular
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.replay.recording import RecordedSteps, StepRecorder
from workers.replay.subtrees import subtree, union_policy

CODES, LENGTH, IMAGES = 6, 6, 200
SMALL = ((0,), (1,), (0, 0), (0, 0, 0))
OTHER = ((0,), (1,), (2,), (1, 0), (1, 1))
ADAPTING = Adjacency(
    depth_range=(2, 4),
    width_range=(1, 2),
    depth_step=1,
    width_step=1,
    start_depth=3,
    start_width=2,
    nodes=6,
)


class Paths:
    """An observer that keeps the tokens of every path in every row's tree."""

    def __call__(self, batch: Batch, tree: DraftTree, logits: torch.Tensor) -> None:
        parents = tree.shape.parents.expand(batch.size, -1)
        self.of_rows = [
            paths(tree.tokens[row], parents[row], tree.exists[row]) for row in range(batch.size)
        ]


def paths(tokens: torch.Tensor, parents: torch.Tensor, kept: torch.Tensor) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for node in range(len(tokens)):
        parent = int(parents[node])
        found.append((*(found[parent] if parent >= 0 else ()), int(tokens[node])))
    return {path for path, keep in zip(found, kept.tolist(), strict=True) if keep}


@cache
def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the target and of the drafter."""
    target = tabular.random_logits(CODES, LENGTH, 3, images=IMAGES)
    return target, target + tabular.random_logits(CODES, LENGTH, 4, images=IMAGES)


def engine(policy: TreePolicy) -> tabular.TabularEngine:
    return tabular.TabularEngine(
        DecodingConfig(Eagle(), policy, EXACT, Sampling()), *tables(), LENGTH
    )


@torch.inference_mode()
def first_round(policy: TreePolicy) -> list[set[tuple[int, ...]]]:
    """The paths that decoding drafts in the first round of every image."""
    decoding = engine(policy)
    decoding.observer = observed = Paths()
    decoding.step(decoding.open(IMAGES, 0))
    return observed.of_rows


@torch.inference_mode()
def recorded_round(policy: TreePolicy) -> RecordedSteps:
    decoding = engine(policy)
    decoding.observer = recorder = StepRecorder(Sampling(), torch.zeros(CODES, 1))
    decoding.step(decoding.open(IMAGES, 0))
    return recorder.steps()


def node_parents(steps: RecordedSteps) -> torch.Tensor:
    """Parents [S, N] of the recorded nodes, -1 for the root."""
    count, nodes = steps.tokens.shape
    parents = torch.full((count, nodes + 1), -1)
    for index in range(steps.inner.shape[1]):
        for rank in range(steps.children.shape[2]):
            child = steps.children[:, index, rank]
            parents.scatter_(
                1, torch.where(child < 0, nodes, child)[:, None], steps.inner[:, index, None] - 1
            )
    return parents[:, :nodes]


@pytest.mark.parametrize(
    ("policies", "own"),
    [
        ((Chain(5), Chain(2)), Chain(2)),
        ((Chain(4), Static(paths=SMALL)), Chain(4)),
        ((Static(paths=SMALL), Static(paths=OTHER)), Static(paths=OTHER)),
        (
            (Static(paths=SMALL, children="top"), Static(paths=OTHER, children="top")),
            Static(paths=SMALL, children="top"),
        ),
        ((Dynamic(3, 3, 20), Dynamic(2, 2, 5)), Dynamic(2, 2, 5)),
        ((Dynamic(3, 3, 20), Dynamic(2, 2, 5)), Dynamic(3, 3, 4)),
        ((Dynamic(4, 3, 8), Dynamic(4, 2, 9)), Dynamic(4, 2, 9)),
        ((Dynamic(4, 3, 8), Dynamic(4, 1, 4)), Dynamic(4, 1, 4)),
        ((ADAPTING,), Dynamic(3, 2, 6)),
        ((ADAPTING,), Dynamic(2, 5, 6)),
    ],
    ids=str,
)
def test_a_policys_trees_are_in_the_recorded_ones(
    policies: tuple[TreePolicy, ...], own: TreePolicy
) -> None:
    union = union_policy(policies)
    steps = recorded_round(union)
    kept, levels = subtree(steps, union, own)
    parents = node_parents(steps)
    found = [paths(steps.tokens[row], parents[row], kept[row]) for row in range(IMAGES)]
    assert set(levels.tolist()) == {own.bounds.depth}
    assert found == first_round(own)


def test_the_least_likely_nodes_are_missing_from_a_union_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is added or put elsewhere."""
    own = Dynamic(4, 2, 9)
    expected = first_round(own)
    monkeypatch.setattr("workers.replay.subtrees._MAX_NODES", 8)
    union = union_policy((Dynamic(4, 3, 8), own))
    steps = recorded_round(union)
    kept, _ = subtree(steps, union, own)
    parents = node_parents(steps)
    found = [paths(steps.tokens[row], parents[row], kept[row]) for row in range(IMAGES)]
    assert all(f < e for f, e in zip(found, expected, strict=True))


def test_padding_with_larger_trees_changes_no_subtree() -> None:
    own = Dynamic(2, 2, 3)
    unions = union_policy([own]), union_policy([own, Dynamic(3, 3, 20)])
    small, large = (recorded_round(union) for union in unions)
    assert small.inner.shape[1] < large.inner.shape[1]
    alone, _ = subtree(small, unions[0], own)
    padded, _ = subtree(RecordedSteps.concat([small, large]), unions[1], own)
    assert torch.equal(padded[:IMAGES, : alone.shape[1]], alone)
    assert alone.any(1).all()


@pytest.mark.parametrize(
    "policies",
    [
        (Chain(3), Dynamic(2, 2, 3)),
        (Chain(3), Chain(3, children="top")),
        (Dynamic(2, 2, 3), Adjacency()),
        (Chain(2), Adjacency()),
    ],
)
def test_policies_without_a_common_recording_are_refused(policies: tuple[TreePolicy, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        union_policy(policies)
    assert refused.value.path == ("tree", "policy")


def test_a_larger_tree_than_the_recorded_one_is_refused() -> None:
    steps = recorded_round(Chain(2))
    with pytest.raises(ConfigError, match="does not contain"):
        subtree(steps, Chain(2), Chain(3))
