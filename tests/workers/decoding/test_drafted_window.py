"""A window whose new positions a drafter fills: what the drafter is fed, and the probs that are
stated for its drafts. tests/workers/decoding/test_lossless.py enumerates whole images.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces.drafters import Eagle, Independent, Window
from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, toy_drafter, toy_target
from workers.decoding.drafted_window import DraftedWindow
from workers.decoding.drafter import Drafter
from workers.decoding.engine import Engine
from workers.decoding.rng import image_keys
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch, Request
from workers.decoding.tree import DraftTree
from workers.models.cache import KVCache
from workers.models.target import Target
from workers.replay.replayer import recording_key

LENGTH = 4
SAMPLING = Sampling(temperature=0.9, top_k=14, cfg=2.0)
REQUESTS = [Request(number, caption) for number, caption in enumerate(["abc", "defgh", "i"])]


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(config=replace(BASE, rows=8))


def rows_of(batch: Batch) -> Iterator[tuple[int, Request]]:
    """The rows of a batch, and their images."""
    keys = image_keys(0, [request.caption_id for request in REQUESTS], [0] * len(REQUESTS))
    for row, key in enumerate(batch.keys.tolist()):
        yield row, REQUESTS[keys.tolist().index(key)]


def plain_probs(target: Target, drafter: Drafter, caption: str, tokens: list[int]) -> Tensor:
    """The drafter's probs [V] after an image's first tokens, none of which is drafted."""
    columns = target.prompt_len + target.grid.tokens + 2
    batch = Batch(
        1,
        cfg=SAMPLING.cfg,
        prompt_len=target.prompt_len,
        image_len=target.grid.tokens,
        reach=len(tokens) + 1,
        cache=KVCache(0, 2, columns, 1, 1),  # without layers
    )
    drafter = copy(drafter)
    drafter.prepare(batch, len(tokens), 0)
    prompt = target.encode([caption], guided=True)
    row = torch.zeros(1, dtype=torch.int64)
    features = torch.zeros(2, target.prompt_len, target.transformer.config.dim)
    batch.admit(row, row, torch.tensor(tokens[:1]), prompt.valid)
    drafter.admit(row, prompt, [caption], features, torch.tensor(tokens[:1]))
    if len(tokens) > 1:
        drafter.root_logits(batch)  # a drafter is fed the last tokens before it gets the next
        later, count = torch.tensor([tokens[1:]]), torch.tensor([len(tokens) - 1])
        drafter.commit(batch, later, features[:, :1].expand(-1, len(tokens) - 1, -1), count)
        batch.commit(later, count, later[:, -1])
    batch.max_emitted = len(tokens)
    return to_probs(drafter.root_logits(batch), SAMPLING)[0]


@torch.inference_mode()
def test_new_drafts_have_the_drafters_probs_after_those_of_the_window(target: Target) -> None:
    """In every pass of every image, also where the window reaches past its end. The first pass has
    no drafts yet.
    """
    drafter = toy_drafter("independent", target)
    assert isinstance(drafter, Drafter)
    compared = [0] * (LENGTH + 1)  # by how many drafts the window had

    def observe(batch: Batch, tree: DraftTree, logits: Tensor) -> None:
        assert isinstance(engine.drafting, DraftedWindow)
        assert tree.probs is not None
        for row, request in rows_of(batch):
            known, emitted = int(engine.drafting.known[row]), int(batch.emitted[row])
            before = batch.tokens[row, :emitted].tolist()
            drafts = tree.tokens[row].tolist()
            for level in range(known, min(LENGTH, batch.image_len - emitted)):
                expected = plain_probs(target, drafter, request.caption, before + drafts[:level])
                torch.testing.assert_close(tree.probs[row, level], expected, atol=1e-5, rtol=1e-4)
                assert expected[drafts[level]] > 0
                compared[known] += 1

    config = DecodingConfig(Independent(), Window(LENGTH), sampling=SAMPLING)
    engine = Engine(target, config, drafter, batch_size=2, observer=observe)
    assert len(list(engine.run(REQUESTS))) == len(REQUESTS)
    assert compared[0] >= len(REQUESTS) * LENGTH
    assert sum(compared[1:]) > 5


@torch.inference_mode()
def test_the_drafter_is_fed_each_token_with_the_feature_before_it(target: Target) -> None:
    """Emitted tokens, then the drafts that stay in the window: as many tokens as a pass has slots,
    with the features of all of them in order.
    """
    engine = Engine(
        target,
        DecodingConfig(Eagle(), Window(LENGTH), sampling=SAMPLING),
        toy_drafter("eagle", target),
        batch_size=2,
    )
    window: Any = engine.drafting
    verify, commit = engine._verify, window._drafter.commit
    features: list[Tensor] = []
    passes = 0

    def verified(batch: Batch, tree: DraftTree) -> tuple[Tensor, Tensor]:
        found = verify(batch, tree)
        features[:] = [found[0]]
        return found

    def committed(batch: Batch, tokens: Tensor, read: Tensor, counts: Tensor) -> None:
        nonlocal passes
        passes += 1
        torch.testing.assert_close(read, features[0])
        assert counts.tolist() == [LENGTH + 1] * batch.size
        for row, known in enumerate(window.known.tolist()):
            emitted = LENGTH + 1 - known
            assert tokens[row, emitted:].tolist() == window.tokens[row, :known].tolist()
            fed.append((int(batch.keys[row]), int(batch.emitted[row]), tokens[row, :emitted]))
        commit(batch, tokens, read, counts)

    fed: list[tuple[int, int, Tensor]] = []
    engine._verify = verified  # type: ignore[method-assign]
    window._drafter.commit = committed
    results = list(engine.run(REQUESTS))
    keys = image_keys(0, [r.request.caption_id for r in results], [0] * len(results)).tolist()
    images = {key: result.tokens for key, result in zip(keys, results, strict=True)}
    assert passes > 3
    for key, start, tokens in fed:
        left = images[key][start : start + len(tokens)]
        assert tokens[: len(left)].tolist() == left.tolist()


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"drafter": {"kind": "jacobi"}}, ("tree", "policy")),
        ({"drafter": {"kind": "none"}}, ("drafter",)),
        ({"acceptance": {"verification": "block"}}, ("acceptance", "verification")),
        ({"acceptance": {"verification": "uniform_skipping"}}, ("acceptance", "verification")),
        ({"tree": {"policy": "window", "length": 0}}, ("tree", "length")),
        ({"tree": {"policy": "window", "length": 3, "redraw": "reuse"}}, ("tree", "redraw")),
    ],
)
def test_what_a_window_cannot_be_combined_with_is_refused_by_name(
    part: dict[str, Any], path: tuple[str, ...]
) -> None:
    plain = {"drafter": "eagle", "tree": {"policy": "window", "length": 3}}
    assert DecodingConfig.from_mapping(plain).is_lossless(None)
    with pytest.raises(ConfigError) as refused:
        DecodingConfig.from_mapping(plain | part)
    assert refused.value.path == path


def test_replay_says_that_it_cannot_describe_it() -> None:
    config = DecodingConfig(Eagle(), Window(3), sampling=Sampling())
    with pytest.raises(ConfigError, match="describe 'window'") as refused:
        recording_key(config)
    assert refused.value.path == ("tree", "policy")
