"""Rounds without verification (VVS): which path is emitted unverified, when, and what follows
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.drafters import Jacobi, Medusa
from search_spaces.params import ConfigError
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import Skipping, TokenVerification
from tests.fakes.toys import BASE, ROW_ENDS, toy_drafter, toy_target
from tests.oracles import tabular
from tests.workers.decoding.test_lossless import OneCaption, model_distribution
from workers.decoding import graphs, skipping
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.engine import DecodingError, Engine
from workers.decoding.fixed_tree import FixedTree
from workers.decoding.skipping import MIN_EMITTED, SkippedTree, SkippingDrafting
from workers.decoding.state import Batch, Request
from workers.decoding.tree import DraftTree, fixed_shape
from workers.drafters.independent import IndependentDrafter
from workers.replay.replayer import recording_key

TREES: dict[str, dict[str, Any]] = {
    "chain": {"policy": "chain", "length": 3},
    "static": {"policy": "static", "paths": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]},
    "dynamic": {"policy": "dynamic", "depth": 3, "width": 3, "nodes": 8},
}
LONG = {"policy": "chain", "length": 9}
RULES: dict[str, dict[str, Any]] = {
    "uniform": {"verification": "uniform_skipping", "interval": 2},
    "dynamic": {"verification": "dynamic_skipping", "threshold": -1.0},
}
CAPTIONS = ["abc", "defgh", "i", "kk", "lmnop"]


def config(
    tree: str, drafter: str = "eagle", sampling: Sampling | None = None, **acceptance: Any
) -> DecodingConfig:
    parts = {"drafter": drafter, "tree": TREES.get(tree, LONG), "acceptance": acceptance}
    return DecodingConfig.from_mapping(parts).with_sampling(sampling or Sampling(cfg=2.0))


def requests(count: int) -> list[Request]:
    return [Request(number, CAPTIONS[number % len(CAPTIONS)]) for number in range(count)]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", ["eagle", "independent"])
def test_without_a_skipped_round_nothing_changes(tree: str, drafter: str) -> None:
    target = toy_target()
    never = config(tree, drafter, verification="uniform_skipping", interval=1000)
    plain = config(tree, drafter)
    found, expected = (
        [
            r.tokens
            for r in Engine(target, c, toy_drafter(drafter, target), batch_size=3).run(requests(5))
        ]
        for c in (never, plain)
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("tree", ["chain", "static"])
def test_a_drafter_that_is_the_target_loses_nothing(
    tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unverified drafts then have the target's distribution. Chi-square over whole images of 6
    tokens, 20,000 of them; fails at p < 1e-5. The twin reads its own cache behind unverified
    tokens, so a fault there shows as well.
    """
    monkeypatch.setattr(skipping, "MIN_EMITTED", 1)
    small = replace(
        BASE, dim=8, n_layers=1, n_heads=1, ffn_dim=8, vocab_size=2, prompt_len=2, rows=2, cols=3
    )
    sampling = Sampling(cfg=1.5)
    target = toy_target(4, temper=4.0, config=small)
    target.conditioner = OneCaption(target.conditioner)
    twin = IndependentDrafter(target, target.transformer, target.conditioner)
    made = config(tree, "independent", sampling, verification="uniform_skipping", interval=2)
    draws, weights = 20_000, 2 ** torch.arange(5, -1, -1)
    results = list(
        Engine(target, made, twin, batch_size=draws).run(Request(i, "ab") for i in range(draws))
    )
    counts = (
        torch.bincount(torch.stack([r.tokens for r in results]) @ weights, minlength=64)
        .numpy()
        .astype(float)
    )
    assert tabular.p_value(counts, model_distribution(target, sampling)) > 1e-5


@pytest.mark.parametrize("interval", [2, 3, 5])
def test_one_of_so_many_rounds_is_skipped(interval: int) -> None:
    """The target as its own drafter: every round of a chain of 3 emits 4 tokens, and 3 more behind
    a skipped one.
    """
    target = toy_target(config=replace(BASE, rows=8, cols=8))
    twin = IndependentDrafter(target, target.transformer, target.conditioner)
    made = config("chain", "independent", verification="uniform_skipping", interval=interval)
    expected, emitted, rounds = list[int](), 1, 0
    while emitted < 64:
        skips = rounds % interval == 1 and emitted > MIN_EMITTED
        count = min(7 if skips else 4, 64 - emitted)
        expected.append(count)
        emitted, rounds = emitted + count, rounds + 1 + skips
    for result in Engine(target, made, twin, batch_size=2).run(requests(3)):
        assert result.statistics.emitted.tolist() == expected
    assert 7 in expected


@pytest.mark.parametrize(("drafts", "second"), [(4, 5), (5, 11)])
def test_no_round_is_skipped_before_six_tokens_behind_the_first(drafts: int, second: int) -> None:
    """The published code does not count the token that the prompt's pass gives. A round here emits
    all of its drafts and one token, and all of its drafts once more behind a skipped one.
    """
    target = toy_target(config=replace(BASE, rows=8, cols=8))
    twin = IndependentDrafter(target, target.transformer, target.conditioner)
    parts = {
        "drafter": "independent",
        "tree": {"policy": "chain", "length": drafts},
        "acceptance": {"verification": "uniform_skipping"},
    }
    made = DecodingConfig.from_mapping(parts).with_sampling(Sampling(cfg=2.0))
    (result,) = Engine(target, made, twin, batch_size=1).run(requests(1))
    assert result.statistics.emitted.tolist()[:2] == [drafts + 1, second]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("family", [BASE, ROW_ENDS], ids=["grid", "row ends"])
def test_what_is_cached_is_what_a_plain_pass_computes(family: Any, tree: str, rule: str) -> None:
    """The target's logits at every root, and at the first node of what is verified, over all tokens
    emitted so far.
    """
    target = toy_target(config=replace(family, rows=6, cols=6))
    seen = list[int]()

    def check(batch: Batch, drafted: DraftTree, logits: Tensor) -> None:
        skipped = int(drafted.skipped[0]) if isinstance(drafted, SkippedTree) else 0
        seen.append(skipped)
        so_far = batch.tokens[:1, : int(batch.emitted[0])]
        if isinstance(drafted, SkippedTree):
            so_far = torch.cat([so_far, drafted.path[:1, :skipped]], 1)
        fresh = Engine(target, DecodingConfig(sampling=Sampling(cfg=2.0)), batch_size=1)
        plain = recomputed(fresh, so_far)
        torch.testing.assert_close(logits[0, skipped], plain, atol=2e-4, rtol=1e-4)

    engine = Engine(
        target,
        config(tree, **RULES[rule]),
        toy_drafter("eagle", target),
        batch_size=1,
        observer=check,
    )
    list(engine.run(requests(1)))
    assert sum(map(bool, seen)) > 2
    assert (
        not any(one and two for one, two in pairwise(seen))
        or rule == "dynamic"
        or RULES[rule]["interval"] == 2
    )


@pytest.mark.parametrize("tree", ["static", "long"])
def test_the_drafter_reads_the_last_features_that_a_pass_has_computed(
    tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are unverified tokens, in order. The static tree's paths are cut below its
    depth; the long chain reads features of the prompt too.
    """
    engine = toy_engine(tree=tree)
    drafting = engine.drafting
    assert isinstance(drafting, SkippingDrafting)
    admit, commit, look_ahead = drafting.admit, drafting.commit, drafting.drafter.look_ahead
    computed, counts = list[Tensor](), list[int]()

    def watch_admit(
        indices: Tensor, prompt: Any, captions: list[str], features: Tensor, first: Tensor
    ) -> None:
        computed[:] = [features]
        admit(indices, prompt, captions, features, first)

    def watch_commit(
        batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> None:
        computed.append(features[:, : int(result.num_emitted[0])])
        commit(batch, tree, result, logits, features)

    def watch_look_ahead(batch: Batch, tokens: Tensor, features: Tensor, skipped: Tensor) -> None:
        counts.append(int(skipped[0]))
        torch.testing.assert_close(
            features[:, : counts[-1]], torch.cat(computed, 1)[:, -counts[-1] :]
        )
        look_ahead(batch, tokens, features, skipped)

    monkeypatch.setattr(drafting, "admit", watch_admit)
    monkeypatch.setattr(drafting, "commit", watch_commit)
    drafting.drafter.look_ahead = watch_look_ahead  # type: ignore[method-assign, assignment]
    list(engine.run(requests(2)))
    assert len(counts) > 2
    assert max(counts) == (2 if tree == "static" else 9)


def test_the_second_tree_is_accepted_with_the_numbers_of_its_own_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, found, plain = list[int](), list[int](), Acceptor.__call__

    def check(batch: Batch, drafted: DraftTree, logits: Tensor) -> None:
        skipped = int(drafted.skipped[0]) if isinstance(drafted, SkippedTree) else 0
        expected.append(int(batch.emitted[0]) + skipped)

    def watch(acceptor: Acceptor, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        found.append(int(batch.token_positions[0, 0]))
        return plain(acceptor, tree, logits, batch)

    monkeypatch.setattr(Acceptor, "__call__", watch)
    list(toy_engine(check).run(requests(1)))
    assert found == expected


def test_a_path_of_a_tree_that_is_not_finite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    drafting = engine.drafting
    assert isinstance(drafting, SkippingDrafting)
    draft, look_ahead, trees = drafting.inner.draft, drafting.drafter.look_ahead, list[DraftTree]()

    def watch_draft(batch: Batch) -> DraftTree:
        trees.append(draft(batch))
        return trees[-1]

    def spoil(batch: Batch, tokens: Tensor, features: Tensor, skipped: Tensor) -> None:
        trees[-1].nonfinite = skipped > 0
        look_ahead(batch, tokens, features, skipped)

    monkeypatch.setattr(drafting.inner, "draft", watch_draft)
    drafting.drafter.look_ahead = spoil  # type: ignore[method-assign, assignment]
    with pytest.raises(DecodingError):
        list(engine.run(requests(1)))


def toy_engine(observer: Any = None, tree: str = "static") -> Engine:
    target = toy_target(config=replace(BASE, rows=6, cols=6))
    made = config(tree, **RULES["uniform"])
    return Engine(target, made, toy_drafter("eagle", target), batch_size=1, observer=observer)


def recomputed(vanilla: Engine, tokens: Tensor) -> Tensor:
    """Guided logits [V] behind these tokens, with each of them fed alone from an empty cache."""
    found = list[Tensor]()
    vanilla.observer = lambda batch, tree, logits: found.append(logits[0, 0])
    batch, _ = vanilla.open(deque(requests(1)))
    for place in range(tokens.shape[1]):
        batch.root = tokens[:, place]
        batch._tokens[:, place] = tokens[0, place]
        vanilla.step(batch)
        batch.sync_host_counts([int(batch.emitted[0])])
    return found[-1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tree", TREES)
def test_an_image_does_not_depend_on_its_batch(tree: str, rule: str) -> None:
    target = toy_target(config=ROW_ENDS)
    found = []
    for size in (1, 2, 5):
        engine = Engine(
            target, config(tree, **RULES[rule]), toy_drafter("eagle", target), batch_size=size
        )
        found.append({r.request.caption_id: r.tokens for r in engine.run(requests(5))})
    assert all(torch.equal(found[0][n], other[n]) for other in found[1:] for n in range(5))


def drafted(
    paths: Sequence[tuple[int, ...]], tokens: Sequence[int], missing: Sequence[int] = ()
) -> DraftTree:
    nodes = sorted(paths, key=lambda path: (len(path), path))
    parents = [nodes.index(path[:-1]) if len(path) > 1 else -1 for path in nodes]
    exists = torch.tensor([[n not in missing for n in range(len(nodes))]])
    shape = fixed_shape(parents, [len(path) for path in nodes], torch.device("cpu"))
    return DraftTree(torch.tensor([list(tokens)]), exists, shape, torch.tensor([3]))


PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
TOKENS = (3, 5, 7, 9, 11, 13, 15)  # of the nodes by level: leaves are 7, 11, 13 and 15


def made(rule: str = "dynamic") -> SkippingDrafting:
    target = toy_target()
    engine = Engine(target, config("static", **RULES[rule]), toy_drafter("eagle", target))
    assert isinstance(engine.drafting, SkippingDrafting)
    return engine.drafting


@pytest.mark.parametrize("missing", [(), (6,), (0, 3, 4, 6), (0,), (3,)])
def test_the_path_is_any_of_the_trees(missing: tuple[int, ...]) -> None:
    """Each with the same probability (40 images at 50 positions, chi-square at p > 1e-5), cut to
    the mean length, rounded down. Nodes below a missing one are on none.
    """
    tree, drafting = drafted(PATHS, TOKENS, missing), made()
    ancestors = tree.shape.mask[0, 1:, 1:]
    nodes = [n for n in range(7) if not any(ancestors[n, m] for m in missing)]
    leaves = [n for n in nodes if not any(int(tree.shape.parents[0, m]) == n for m in nodes)]
    branches = {
        n: [TOKENS[m] for m in range(7) if tree.shape.mask[0, n + 1, m + 1]] for n in leaves
    }
    length = sum(map(len, branches.values())) // len(branches)
    counts = dict.fromkeys((tuple(branch[:length]) for branch in branches.values()), 0)
    shares = {
        key: sum(tuple(b[:length]) == key for b in branches.values()) / len(branches)
        for key in counts
    }
    size = 2000
    batch = type("Rows", (), {})()
    row = torch.arange(size)
    batch.keys, batch.token_positions = row % 40 * 7919 + 1, row[:, None] // 40
    many = replace(tree, tokens=tree.tokens.expand(size, -1), exists=tree.exists.expand(size, -1))
    tokens, lengths = drafting._random_path(many, batch)
    for row, count in zip(tokens.tolist(), lengths.tolist(), strict=True):
        counts[tuple(row[:count])] += 1
    assert (
        tabular.p_value(np.array(list(counts.values()), float), np.array(list(shares.values())))
        > 1e-5
    )


def test_similarity_is_the_mean_over_pairs_of_every_second_path() -> None:
    tree, drafting = drafted(PATHS, TOKENS), made()
    codes = drafting._codes
    branches = [[3, 9, 15], [3, 11], [5, 13], [7]][::2]  # depth first
    total = weight = 0.0
    for level in range(max(map(len, branches))):
        there = [codes[branch[level]] for branch in branches if len(branch) > level]
        pairs = len(branches) * (len(branches) - 1) / 2  # a pair with a shorter path counts as 0
        total += 0.9**level * sum(float(one @ two) for one, two in combinations(there, 2)) / pairs
        weight += 0.9**level
    assert float(drafting.similarity(tree)[0]) == pytest.approx(total / weight, abs=1e-6)
    assert float(drafting.similarity(drafted(((0,), (0, 0)), (3, 5)))[0]) == pytest.approx(
        0.0, abs=1e-6
    )


@pytest.mark.parametrize("is_capturable", [False, True])
def test_a_tree_policy_that_cannot_be_captured_still_cannot(
    is_capturable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "are_supported", lambda device: True)
    monkeypatch.setattr(graphs, "CudaCapture", lambda device: None)
    monkeypatch.setattr(FixedTree, "capturable", is_capturable)
    target = toy_target()
    engine = Engine(target, config("static", **RULES["uniform"]), toy_drafter("eagle", target))
    assert (engine.new_capture is not None) == is_capturable


@pytest.mark.parametrize(
    ("drafter", "tree", "acceptance"),
    [
        ("medusa", "static", {"verification": "uniform_skipping"}),
        ("jacobi", "chain", {"verification": "uniform_skipping"}),
        ("eagle3", "chain", {"verification": "dynamic_skipping"}),
        ("eagle", "chain", {"verification": "uniform_skipping", "interval": 1}),
        ("eagle", "chain", {"verification": "dynamic_skipping", "threshold": 1.5}),
    ],
)
def test_refused_by_key(drafter: str, tree: str, acceptance: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tree, drafter, **acceptance)
    assert caught.value.path[0] == "acceptance"


@pytest.mark.parametrize(
    ("drafter", "part", "attribute", "value", "key"),
    [
        ("medusa", Medusa, "goes_on_unverified", True, ("drafter",)),
        ("jacobi", Jacobi, "goes_on_unverified", True, ("drafter",)),
        (
            "eagle",
            Chain,
            "implementation",
            "workers.decoding.drafting:VanillaDrafting",
            ("tree", "policy"),
        ),
        (
            "eagle",
            TokenVerification,
            "implementation",
            Skipping.implementation,
            ("acceptance", "verification"),
        ),
    ],
)
def test_a_class_that_cannot_do_what_its_config_says_is_refused_by_key(
    drafter: str,
    part: type,
    attribute: str,
    value: Any,
    key: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, attribute, value)
    rule = "token" if part is TokenVerification else "uniform_skipping"
    target = toy_target()
    with pytest.raises(ConfigError) as caught:
        Engine(target, config("chain", drafter, verification=rule), toy_drafter(drafter, target))
    assert caught.value.path == key


def test_trees_that_adapt_are_refused() -> None:
    parts = {
        "drafter": "eagle",
        "tree": {"policy": "adjacency"},
        "acceptance": {"verification": "uniform_skipping"},
    }
    with pytest.raises(ConfigError) as caught:
        DecodingConfig.from_mapping(parts)
    assert caught.value.path == ("acceptance", "verification")


def test_lossy_and_not_replayed() -> None:
    skipped = config("static", verification="uniform_skipping")
    assert not skipped.is_lossless(skipped.sampling)
    greedy = skipped.with_sampling(Sampling(temperature=0.0))
    assert not greedy.is_lossless(greedy.sampling)
    assert skipped.shape != config("static", verification="uniform_skipping", interval=4).shape
    with pytest.raises(ConfigError):
        recording_key(skipped)
