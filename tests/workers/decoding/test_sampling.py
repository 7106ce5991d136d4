"""Guidance before and after a head, the filters' thresholds, and the largest probs of a
distribution.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from search_spaces.temperatures import EntropyTemperature
from search_spaces.trial import Sampling
from tests.oracles import tabular
from workers.decoding.accept import remove_and_renormalise
from workers.decoding.sampling import (
    apply_cfg,
    guided_logits,
    kth_largest,
    largest_index,
    sample_by_inversion,
    sample_with_exponentials,
    to_probs,
    top_log_probs,
)
from workers.models.linear import PackedLinear


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 12, 50])
def test_the_largest_probs_are_those_of_the_whole_distribution(
    top_k: int, temperature: float, top_p: float
) -> None:
    """Also where many logits tie with the k-th largest, and where fewer tokens are kept than are
    asked for.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = 2 * torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(top_k))
    logits[1] = logits[1].round()
    probs = to_probs(logits, sampling)
    for count in (1, 8, 20):
        log_probs, tokens = top_log_probs(logits, sampling, count)
        assert tokens.sort(-1).values.diff(dim=-1).ne(0).all(), "distinct"
        torch.testing.assert_close(log_probs.exp(), probs.topk(count, dim=-1).values)
        torch.testing.assert_close(log_probs.exp(), probs.gather(-1, tokens))


@pytest.mark.parametrize("top_p", [0.5, 0.9])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("top_k", [1, 50, 1000])
def test_filters_keep_what_transformers_keeps(top_k: int, temperature: float, top_p: float) -> None:
    """The order of the filters is the one of its `generate`, with which Emu3 and Lumina-mGPT are
    sampled.
    """
    logits = 3 * torch.randn(8, 4096, generator=torch.Generator().manual_seed(top_k))
    warpers: Any = LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)]
    )
    expected = warpers(torch.empty(8, 0, dtype=torch.int64), logits).softmax(-1)
    probs = to_probs(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    assert torch.equal(probs > 0, expected > 0)
    torch.testing.assert_close(probs, expected, atol=1e-6, rtol=1e-5)


ENTROPY = EntropyTemperature()


@pytest.mark.parametrize(
    ("logits", "temperature"), [((0.0, 0.0, 0.0), 2.333), ((10.0, 0.0, 0.0), 3.099)]
)
def test_the_temperature_follows_from_the_entropy(
    logits: tuple[float, ...], temperature: float
) -> None:
    """By hand: E = ln 3 gives 2.5 exp(-0.366) + 0.6, and E near 0 gives nearly 3.1."""
    x = torch.tensor(logits, dtype=torch.float64)
    assert float(ENTROPY.factor(x.softmax(-1))) == pytest.approx(temperature, abs=1e-3)
    found = to_probs(x, Sampling(temperature=0.5, dynamic_temperature=ENTROPY))
    torch.testing.assert_close(found, (x / (0.5 * ENTROPY.factor(x.softmax(-1)))).softmax(-1))


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_filters_come_before_a_dynamic_temperature(top_k: int, top_p: float) -> None:
    """So the tokens that stay are those of temperature 1, though higher temperatures would keep
    more of them.
    """
    logits = 3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    sampling = Sampling(1.7, top_k=top_k, top_p=top_p, dynamic_temperature=ENTROPY)
    plain, probs = to_probs(logits, Sampling(1.0, top_k, top_p)), to_probs(logits, sampling)
    assert torch.equal(probs > 0, plain > 0)
    if top_p < 1:
        assert (
            (to_probs(logits, Sampling(3.0, top_k, top_p)) > 0).sum(-1) > (plain > 0).sum(-1)
        ).any()
    torch.testing.assert_close(probs, torch.from_numpy(tabular.processed(logits.numpy(), sampling)))
    log_probs, tokens = top_log_probs(logits, sampling, 4)
    torch.testing.assert_close(log_probs.exp(), probs.topk(4, dim=-1).values)
    torch.testing.assert_close(log_probs.exp(), probs.gather(-1, tokens))


def test_a_dynamic_temperature_leaves_greedy_decoding_alone() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    greedy = Sampling(temperature=0.0, top_k=2, top_p=0.5)
    assert torch.equal(
        to_probs(logits, replace(greedy, dynamic_temperature=ENTROPY)), to_probs(logits, greedy)
    )
    constant = Sampling(0.9, dynamic_temperature=EntropyTemperature(amplitude=0.0, theta=1.0))
    torch.testing.assert_close(to_probs(logits, constant), to_probs(logits, Sampling(0.9)))


def test_not_a_number_stays_one() -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    for sampling in (Sampling(top_k=4), Sampling(top_k=4, dynamic_temperature=ENTROPY)):
        log_probs, _ = top_log_probs(logits, sampling, 3)
        assert log_probs.isnan().all(-1).tolist() == [False, True]


class _CappedHead(nn.Linear):
    """A linear layer by its class, but not by what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


@pytest.mark.parametrize("kind", ["linear", "packed", "capped", "mlp"])
def test_guidance_is_that_of_logits_whatever_the_head(kind: str) -> None:
    """A linear last layer computes one row per caption; one that is not linear computes both
    streams.
    """
    torch.manual_seed(0)
    rows: list[int] = []
    layers = {"capped": _CappedHead, "packed": PackedLinear}
    last = layers.get(kind, nn.Linear)(8, 20)  # guidance leaves its bias as it is
    head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), last) if kind == "mlp" else last
    last.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    features = torch.randn(6, 5, 8)
    expected = apply_cfg(head(features), 3.0)
    torch.testing.assert_close(guided_logits(head, features, 3.0), expected)
    assert torch.equal(guided_logits(head, features, 1.0), head(features))
    assert rows == [6, 6 if kind == "capped" else 3, 6, 6]


@pytest.mark.parametrize("cfg", [1.0, 7.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_head_of_16_bits_gives_logits_of_float32(dtype: torch.dtype, cfg: float) -> None:
    """Its products are exact in fp32 but for their sum, and no logit is rounded to 16 bits; so on
    an accelerator.
    """
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 500)).to(dtype)
    features = torch.randn(6, 3, 8).to(dtype)
    hidden = head[0](features)
    guided = hidden if cfg == 1 else apply_cfg(hidden, cfg).to(dtype)
    weight, bias = (parameter.double() for parameter in head[1].parameters())
    logits = guided_logits(head, features, cfg)
    torch.testing.assert_close(
        logits.double(), guided.double() @ weight.T + bias, atol=1e-6, rtol=1e-6
    )
    assert (logits != logits.to(dtype)).float().mean() > 0.9
    elsewhere = guided_logits(head.to("meta"), features.to("meta"), cfg)
    assert (elsewhere.shape, elsewhere.dtype) == (logits.shape, torch.float32)


def test_guided_features_of_half_precision_err_little_more_than_guided_logits() -> None:
    """Features are rounded to bfloat16 once more, logits in the other order."""
    torch.manual_seed(0)
    exact, features = nn.Linear(256, 500, bias=False).double(), torch.randn(8, 256).bfloat16()
    head = nn.Linear(256, 500, bias=False).bfloat16()
    exact.weight.data.copy_(head.weight)
    true = apply_cfg(exact(features.double()), 7.5)
    errors = [guided_logits(head, features, 7.5) - true, apply_cfg(head(features), 7.5) - true]
    of_features, of_logits = (float(error.square().mean().sqrt()) for error in errors)
    assert of_features < 2 * of_logits


@pytest.mark.parametrize("k", [1, 2, 7, 49, 50])
def test_the_kth_largest_is_that_of_a_sort(k: int) -> None:
    logits = torch.randn(3, 5, 50, generator=torch.Generator().manual_seed(k))
    logits[1] = logits[1].round()
    logits[0, 0, 3], logits[2, 1] = torch.nan, -torch.inf  # a NaN counts as the largest
    torch.testing.assert_close(
        kth_largest(logits, k), logits.topk(k).values[..., -1:], atol=0, rtol=0, equal_nan=True
    )


@pytest.mark.parametrize("codes", [64, 1 << 16])
def test_the_largest_index_is_the_first_of_equal_ones(codes: int) -> None:
    x = torch.zeros(3, 2, codes)
    x[0, 0, 9:], x[1, 1, -1], x[2, 0, 5], x[2, 0, 8] = 2, 1, torch.inf, torch.nan
    assert largest_index(x).tolist() == [[9, 0], [0, codes - 1], [8, 0]]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 1, 5, 50])
def test_no_rows_give_none(top_k: int, top_p: float, temperature: float) -> None:
    """With the shape and the dtype that some rows give."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    some = torch.randn(2, 3, 40)

    def results(logits: Tensor) -> list[Tensor]:
        probs = to_probs(logits, sampling)
        tokens, none = probs[:, 0].argmax(-1), torch.zeros(len(logits), dtype=torch.bool)
        noise = torch.ones_like(probs)
        return [
            probs,
            *top_log_probs(logits, sampling, 4),
            kth_largest(logits, 5),
            sample_with_exponentials(probs, noise),
            remove_and_renormalise(probs[:, 0], tokens, none),
            apply_cfg(logits, 1.0),
        ]

    for expected, found in zip(results(some), results(some[:0]), strict=True):
        assert (found.shape, found.dtype) == ((0, *expected.shape[1:]), expected.dtype)


@pytest.mark.parametrize("codes", [1, 7, 24, 384, 16384])
def test_inversion_finds_the_token_under_a_share_of_the_mass(codes: int) -> None:
    """Against double sums of all tokens; a share within their rounding of an end may fall on either
    side of it.
    """
    generator = torch.Generator().manual_seed(codes)
    probs = torch.rand(300, codes, generator=generator) * (
        torch.rand(300, codes, generator=generator) < 0.3
    )
    probs[:, -1] += 1e-3
    probs[::2, codes // 2 + 1 :] = 0  # ends before the last block does
    probs[::2, codes // 2] += 0.1
    shares = torch.rand(300, dtype=torch.float64, generator=generator)
    shares[:40], shares[40:80] = 0, 1 - 2.0**-53
    tokens = sample_by_inversion(probs, shares)
    assert bool((probs.gather(1, tokens[:, None]) > 0).all())
    ends = probs.double().cumsum(1)
    ends /= ends[:, -1:].clone()
    expected = (ends <= shares[:, None]).sum(1)
    near = (ends - shares[:, None]).abs().amin(1) < 1e-6
    assert bool((near | (tokens == expected)).all())
    assert float(near[80:].float().mean()) < 0.1
