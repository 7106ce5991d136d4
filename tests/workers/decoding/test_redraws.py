"""How drafts behind a rejection are replaced: the probs that each redraw states, and how many
drafts it keeps.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from scipy import stats
from torch import Tensor

from search_spaces.drafters import Jacobi
from workers.decoding.redraws import REDRAWS, Redraw
from workers.decoding.rng import CounterRNG
from workers.decoding.sampling import sample_by_inversion

IMAGES, PLACES, CODES = 40_000, 3, 5
ALARM = 1e-5
GENERATOR = torch.Generator().manual_seed(1)
P, Q = torch.softmax(1.5 * torch.randn(2, PLACES, CODES, generator=GENERATOR), -1)
LOSSLESS = {
    "fresh": Jacobi(),
    "coupled": Jacobi(redraw="coupled"),
    "maximal": Jacobi(redraw="maximal"),
    "reuse": Jacobi(redraw="reuse"),
    "reuse, strict": Jacobi(redraw="reuse", threshold=0.9),
    "reuse, always": Jacobi(redraw="reuse", threshold=0.0),
}


def drawn(params: Jacobi, q: Tensor = Q, drafted: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The old drafts, the new ones, and the probs that are stated for them, of many images at once.
    A coupled draft was drawn with the numbers of its place, as all drafts of such a window are.
    """
    draws = CounterRNG(torch.arange(IMAGES), 10)
    positions = torch.arange(PLACES).expand(IMAGES, -1)
    shape = IMAGES, PLACES, CODES
    old = sample_by_inversion(
        P.expand(shape), torch.rand(IMAGES, PLACES, dtype=torch.float64, generator=GENERATOR)
    )
    if params.redraw == "coupled":
        old, _ = REDRAWS["coupled"](
            Redraw(params, draws, P.expand(shape), positions, 0, old, P.expand(shape), old >= 0)
        )
    everywhere = torch.full((IMAGES, PLACES), drafted)
    new, probs = REDRAWS[params.redraw](
        Redraw(params, draws, q.expand(shape), positions, 9, old, P.expand(shape), everywhere)
    )
    return old, new, probs


def p_value(tokens: Tensor, probs: Tensor) -> float:
    """The smallest of the places' chi-square tests, by Bonferroni."""
    tests = []
    for place in range(PLACES):
        counts = torch.bincount(tokens[:, place], minlength=CODES).double()
        expected = probs[place].double() * IMAGES
        assert not counts[expected == 0].any()
        there = expected > 0
        scale = counts.sum() / expected.sum()
        tests.append(
            stats.chisquare(counts[there].numpy(), (expected[there] * scale).numpy()).pvalue
        )
    return float(PLACES * min(tests))


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("drafted", [True, False])
def test_the_stated_probs_are_those_of_the_new_drafts(name: str, drafted: bool) -> None:
    """Alarms at 1e-5 a case. Without an old draft they are the target's."""
    _, new, probs = drawn(LOSSLESS[name], drafted=drafted)
    assert probs.std(0).max() < 1e-6, "they depend on no draft"
    torch.testing.assert_close(probs[0].sum(-1), torch.ones(PLACES))
    assert drafted or probs[0].equal(Q)
    assert p_value(new, probs[0]) > ALARM


@pytest.mark.parametrize("redraw", ["maximal", "reuse"])
def test_published_probs_are_others(redraw: Literal["maximal", "reuse"]) -> None:
    """SCD's are those of the branch that was taken; the port's of SJD++ are the target's."""
    old, new, probs = drawn(Jacobi(redraw=redraw, probs="published"))
    if redraw == "reuse":
        assert probs.equal(Q.expand_as(probs))
        assert p_value(new, Q) < ALARM
        return
    stays = (new == old)[..., None]
    torch.testing.assert_close(probs, torch.where(stays, P, Q).expand_as(probs))
    chosen = probs.gather(2, new[..., None]).log().mean()
    assert abs(chosen - (Q * Q.log()).sum(-1).mean()) > 0.02


@pytest.mark.parametrize("name", LOSSLESS)
def test_share_of_drafts_that_stay(name: str) -> None:
    """By total variation d of old and new probs; five standard errors."""
    old, new, _ = drawn(LOSSLESS[name])
    same, d = (old == new).float().mean(0), (P - Q).abs().sum(-1) / 2
    error = 5 * 0.5 / math.sqrt(IMAGES)
    threshold = LOSSLESS[name].threshold
    if name == "coupled":
        assert (same > (1 - d) / (1 + d) - error).all()
        assert (same < 1 - d + error).all()
        return
    if threshold is not None:
        left = (P * (threshold * P >= Q)).sum(-1)
        back = (P * Q * (threshold * P >= Q)).sum(-1)  # drawn anew and the same
        expected = 1 - left + back
    else:
        expected = 1 - d if name == "maximal" else (P * Q).sum(-1)
    torch.testing.assert_close(same, expected, atol=error, rtol=0)


@pytest.mark.parametrize("name", [name for name in LOSSLESS if name != "fresh"])
def test_under_the_same_probs_every_draft_stays(name: str) -> None:
    old, new, probs = drawn(LOSSLESS[name], q=P)
    assert new.equal(old)
    torch.testing.assert_close(probs[0], P)


def test_a_code_that_the_target_filters_is_never_kept() -> None:
    q = Q.clone()
    q[:, 2:] = 0
    q /= q.sum(-1, keepdim=True)
    for params in LOSSLESS.values():
        _, new, probs = drawn(params, q=q)
        assert int(new.max()) < 2
        assert not probs[..., 2:].any()
