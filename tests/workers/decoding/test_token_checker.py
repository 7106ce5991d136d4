"""The check of emitted tokens finds settings that are not lossless, and leaves alone those that
are.

A check fails at 1e-4 by chance. Here 115 checks of exact settings run with fixed seeds: one of them
would fail for one choice of seeds in 87.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule
from search_spaces.presets import PRESETS
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, ROW_ENDS, toy_drafter, toy_target
from workers.decoding import token_checker
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.decoding.sampling import guided_logits
from workers.decoding.state import Request
from workers.decoding.token_check import BINS, TokenCheck
from workers.decoding.token_checker import (
    READ_TOGETHER,
    TokenChecker,
    _is_before,
    _is_likelier,
    _read_u,
    check_images,
)
from workers.models.masks import AttentionMask
from workers.models.target import Target

GRID = replace(BASE, rows=6, cols=8)
PLAIN = Sampling(cfg=2.0)
FILTERED = Sampling(temperature=1.2, top_k=9, top_p=0.9, cfg=1.5)
ENTROPY = Sampling(temperature=0.9, cfg=1.5, dynamic_temperature=EntropyTemperature(scale=1.0))
EXACT = {
    "vanilla": DecodingConfig(),
    "eagle1": PRESETS["eagle1"],
    "eagle2": PRESETS["eagle2"],
    "medusa": DecodingConfig.from_mapping(
        {"drafter": "medusa", "tree": {"policy": "chain", "length": 4}}
    ),
    "sjd": PRESETS["sjd"],
    "scd_maximal": PRESETS["scd_maximal"],
}

EAGLE_CHAIN = {"drafter": "eagle", "tree": {"policy": "chain", "length": 4}}
LANTERN = DecodingConfig.from_mapping(
    {**EAGLE_CHAIN, "acceptance": {"neighbourhood": "additive", "k": 8, "delta": 0.3}}
)
LOSSY = {
    "lantern": LANTERN,
    "lantern++": DecodingConfig.from_mapping(
        {**EAGLE_CHAIN, "acceptance": {"neighbourhood": "multiplicative", "k": 6, "lambda": 2.0}}
    ),
    "cool": PRESETS["cool"],
}


@pytest.fixture(scope="module")
def target() -> Target:
    return toy_target(config=GRID)


def draw(
    target: Target,
    config: DecodingConfig,
    sampling: Sampling,
    images: int,
    seed: int = 0,
    captions: int = 5,
) -> tuple[list[str], Tensor]:
    """Captions, so many different ones, and tokens of as many images. Up to 96 images are
    generated in batches of 64, in which some begin when others end.
    """
    config = config.with_sampling(sampling)
    drafter = toy_drafter(config.drafter.kind, target)
    batch = 64 if images <= 96 else 256
    engine = Engine(target, config, drafter, seed=seed, batch_size=batch)
    requests = [Request(number, f"caption {number % captions}") for number in range(images)]
    found = {result.request: result.tokens for result in engine.run(requests)}
    return [r.caption for r in requests], torch.stack([found[request] for request in requests])


def parts(drawn: tuple[list[str], Tensor], images: int) -> Iterator[tuple[list[str], Tensor]]:
    """Captions and tokens of so many images after each other, all of which are independent."""
    captions, tokens = drawn
    for start in range(0, len(tokens), images):
        yield captions[start : start + images], tokens[start : start + images]


def check(
    target: Target, sampling: Sampling, captions: Sequence[str], tokens: Tensor, seed: int = 0
) -> TokenCheck:
    checker = TokenChecker(target, sampling, seed)
    for start in range(0, len(tokens), 32):
        checker.add(captions[start : start + 32], tokens[start : start + 32])
    return checker.result()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("sampling", [PLAIN, FILTERED, ENTROPY], ids=["plain", "filtered", "T(E)"])
def test_exact_settings_pass(target: Target, name: str, sampling: Sampling) -> None:
    drawn = draw(target, EXACT[name], sampling, 96)
    for seed, (captions, tokens) in enumerate(parts(drawn, 48)):
        found = check(target, sampling, captions, tokens, seed)
        assert found.passed, (seed, found)
        assert (found.images, found.tokens, found.impossible) == (48, 48 * 48, 0)


def test_other_families_and_dtypes_pass() -> None:
    ends = toy_target(config=replace(ROW_ENDS, rows=6, cols=8))
    assert check(ends, PLAIN, *draw(ends, EXACT["eagle2"], PLAIN, 64)).passed
    low = toy_target(config=GRID).to(torch.bfloat16)
    for sampling in (PLAIN, FILTERED):
        found = check(low, sampling, *draw(low, EXACT["sjd"], sampling, 96))
        assert found.passed, found


def test_p_values_of_exact_tokens_are_uniform(target: Target) -> None:
    """Half of them are below a half, and so on: the multiplied minimum of four is conservative."""
    drawn = draw(target, EXACT["vanilla"], PLAIN, 40 * 16)
    values = [
        check(target, PLAIN, captions, tokens, seed).p_value
        for seed, (captions, tokens) in enumerate(parts(drawn, 16))
    ]
    assert len(values) == 40
    assert min(values) > 1e-3
    assert np.mean(np.array(values) < 0.2) < 0.45


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_settings_are_found(target: Target, name: str) -> None:
    captions, tokens = draw(target, LOSSY[name], PLAIN, 192)
    assert not check(target, PLAIN, captions, tokens).passed


@pytest.mark.parametrize("name", ["scd_maximal_published", "sjd_plus_published"])
def test_published_forms_that_are_biased_are_found(name: str) -> None:
    """Flatter probs, in which more drafts are replaced."""
    flat = toy_target(config=GRID, temper=1.5)
    captions, tokens = draw(flat, PRESETS[name], PLAIN, 1024)
    assert not check(flat, PLAIN, captions, tokens).passed


@pytest.mark.parametrize(("share", "images"), [(0.05, 48), (0.02, 192)])
def test_a_small_share_of_foreign_tokens_is_found(
    target: Target, share: float, images: int
) -> None:
    """At a total variation of about `share` a token, in at least eight of ten checks."""
    found = 0
    drawn = draw(target, EXACT["vanilla"], PLAIN, 10 * images)
    for seed, (captions, tokens) in enumerate(parts(drawn, images)):
        rng = torch.Generator().manual_seed(seed)
        foreign = torch.rand(tokens.shape, generator=rng) < share
        other = torch.randint(0, target.vocab_size, tokens.shape, generator=rng)
        mixed = torch.where(foreign, other, tokens)
        found += not check(target, PLAIN, captions, mixed, seed).passed
    assert found >= 8


def test_random_numbers_used_twice_are_found(target: Target) -> None:
    """Every image is right, but each two have the same numbers."""
    config = EXACT["vanilla"].with_sampling(PLAIN)
    tokens = []
    captions = [f"caption {number}" for number in range(48)]
    engine = Engine(target, config, batch_size=1)
    for number, caption in enumerate(captions):
        (result,) = engine.run([Request(number // 2, caption)])
        tokens.append(result.tokens)
    assert not check(target, PLAIN, captions, torch.stack(tokens)).passed


@pytest.mark.parametrize("sampler", ["race", "inversion"])
@pytest.mark.parametrize("shared", [True, False])
def test_numbers_that_images_share_are_found_where_their_probs_differ(
    target: Target, sampler: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each two images have the same numbers, or none do; the probs of all are independent."""
    images, codes = 48, 512
    generator = torch.Generator().manual_seed(3)
    shape = (images, target.grid.tokens, codes)
    logits = 2.0 * torch.randn(shape, generator=generator)
    owner = torch.arange(images) // 2 if shared else torch.arange(images)
    probs = logits.softmax(-1)
    if sampler == "race":
        noise = torch.rand(shape, generator=generator).log().neg()[owner]
        tokens = (probs / noise).argmax(-1)
    else:
        numbers = torch.rand(shape[:2], generator=generator)[owner]
        tokens = (probs.cumsum(-1) < numbers[..., None]).sum(-1).clamp(max=codes - 1)
    rows = iter(torch.split(logits, READ_TOGETHER))
    monkeypatch.setattr(token_checker, "guided_logits", lambda *_: next(rows))
    features = torch.zeros(1, target.prompt_len - 1 + shape[1], 1)
    monkeypatch.setattr(token_checker, "teacher_forced", lambda *_: features)
    captions = [f"caption {number}" for number in range(images)]
    found = check_images(target, Sampling(), captions, tokens)
    assert found.passed != shared
    assert abs(found.z) < 4, "each image alone is right"


def test_a_leak_of_the_tree_mask_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that see their siblings: each token is a sample of probs that are not the target's."""
    own = AttentionMask.tree

    def leaking(self: AttentionMask, columns: Tensor, tree_mask: Tensor) -> Tensor:
        return own(self, columns, torch.zeros_like(tree_mask))

    monkeypatch.setattr(AttentionMask, "tree", leaking)
    drawn = draw(target, EXACT["eagle2"], PLAIN, 192)
    monkeypatch.undo()
    assert not check(target, PLAIN, *drawn).passed


def test_a_wrong_residual_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected draft is replaced by a sample of the target's probs instead of their residual."""
    monkeypatch.setattr(AcceptanceRule, "residual", lambda self, residual, *_: residual)
    drawn = draw(target, DecodingConfig.from_mapping(EAGLE_CHAIN), PLAIN, 192)
    monkeypatch.undo()
    assert not check(target, PLAIN, *drawn).passed


def test_greedy_tokens_are_the_argmax(target: Target) -> None:
    greedy = Sampling(temperature=0.0, cfg=2.0)
    captions, tokens = draw(target, EXACT["eagle2"], greedy, 16)
    found = check(target, greedy, captions, tokens)
    assert (found.passed, found.impossible, found.z) == (True, 0, 0)
    captions, tokens = draw(target, LANTERN, greedy, 16)
    assert not check(target, greedy, captions, tokens).passed


GREEDY = Sampling(temperature=0.0, cfg=2.0)


def test_greedy_tokens_of_low_precision_pass() -> None:
    """Passes of other shapes round in other orders, also of logits that are often nearly equal."""
    for temper in (3.0, 0.3):
        low = toy_target(config=GRID, temper=temper).to(torch.bfloat16)
        for name in ("vanilla", "sjd"):
            found = check(low, GREEDY, *draw(low, EXACT[name], GREEDY, 96, captions=96))
            assert found.passed, (name, found)


def last_gaps(target: Target, captions: Sequence[str], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """By how much the second token of the last position [B] is below the first, relative to the
    largest magnitude; and which it is [B].
    """
    prompt = target.encode(list(captions), guided=True)
    with torch.inference_mode():
        features = teacher_forced(target, prompt, tokens[:, :-1].repeat(2, 1))[:, -1]
        logits = guided_logits(target.head, features, 2.0)
    best = logits.topk(2, dim=-1)
    gap = (best.values[:, 0] - best.values[:, 1]) / logits.abs().amax(-1)
    return gap, best.indices[:, 1]


def test_a_greedy_token_that_rounding_cannot_explain_is_found() -> None:
    """One in 192 images, 7 to 12 % below the largest logit in bfloat16; near-ties are well."""
    low = toy_target(config=GRID).to(torch.bfloat16)
    captions, tokens = draw(low, EXACT["vanilla"], GREEDY, 192, captions=192)
    gap, second = last_gaps(low, captions, tokens)
    far = ((gap > 0.07) & (gap < 0.12)).nonzero()[:1, 0]
    near = (gap < 0.005).nonzero()[:, 0]
    assert len(near) >= 3
    for rows, wrong in ((far, 1), (near, 0)):
        changed = tokens.clone()
        changed[rows, -1] = second[rows].to(tokens)
        found = check(low, GREEDY, captions, changed)
        assert (found.impossible, found.passed) == (wrong, not wrong)


@pytest.mark.parametrize("order", [_is_likelier, _is_before])
def test_u_is_uniform_whatever_the_probs(order: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Exactly: over all tokens of any distribution, ties included, u fills [0, 1) once."""
    for probs in ([0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6], [1 / 3] * 3):
        row = torch.tensor([[probs]], dtype=torch.float64)
        ends: list[tuple[float, float]] = []
        for token in range(3):
            if probs[token]:
                x = torch.tensor([[token]])
                u = _read_u(row, order(row, x), x, torch.zeros(1, 1))
                ends.append((float(u), probs[token]))
        ends.sort()
        filled = 0.0
        for start, width in ends:
            assert start == pytest.approx(filled)
            filled += width
        assert filled == pytest.approx(1)


def test_what_a_check_of_so_many_tokens_notices() -> None:
    """In about nine of ten simulated checks: a shift of that share between two bins of u."""
    tokens = 9216
    share = TokenCheck(1, tokens, 0.0, 1.0, 0).detectable
    rng = np.random.default_rng(0)
    p = np.full(BINS, 1 / BINS)
    p[0] += share
    p[1] -= share
    counts = rng.multinomial(tokens, p, size=2000)
    statistic = ((counts - tokens / BINS) ** 2).sum(1) / (tokens / BINS)
    tail = torch.special.gammaincc(
        torch.tensor((BINS - 1) / 2, dtype=torch.float64), torch.from_numpy(statistic / 2)
    )
    found = float((4 * tail < 1e-4).double().mean())
    assert 0.85 < found < 0.97
    assert math.isclose(share, 0.0133, rel_tol=0.02)


def test_a_check_needs_an_image(target: Target) -> None:
    with pytest.raises(ValueError, match="no image"):
        TokenChecker(target, PLAIN).result()
