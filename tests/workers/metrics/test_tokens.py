"""Tokens against vanilla's: shares and frequencies against plain loops over images and pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.fakes import metric_inputs
from workers.metrics.definition import TOKENS
from workers.metrics.estimate import BLOCKS, Estimate, jackknife_error
from workers.metrics.metric import METRICS, MetricInputs, Rows
from workers.metrics.registry import compute_metrics

CODES, LENGTH = 5, 7


def inputs(trial: Tensor, vanilla: Tensor, samples: int = 1) -> MetricInputs:
    """Tokens [n, N] of a trial's and vanilla's images, of n / samples captions."""
    keys = metric_inputs.keys(len(trial) // samples, samples)
    return MetricInputs(
        images=Rows(keys | {TOKENS: trial}), baseline=Rows(keys | {TOKENS: vanilla})
    )


def random_tokens(count: int, seed: int) -> Tensor:
    return torch.randint(CODES, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def measure(given: MetricInputs, name: str) -> Estimate:
    found, skipped = compute_metrics(given, [name])
    assert not skipped
    return found[name]


def drift_by_pairs(trial: Tensor, vanilla: Tensor, blocks: list[int], without: int) -> float:
    """Over all pairs of images of different blocks."""
    block = torch.tensor(blocks)
    shares = [
        torch.stack([(tokens == code).double().mean(1) for code in range(CODES)], dim=1)
        for tokens in (trial, vanilla)
    ]
    own, difference = shares[1], shares[0] - shares[1]
    counts = (block != block[:, None]) & (block != without) & (block[:, None] != without)
    return float((difference @ difference.T)[counts].sum() / (own @ own.T)[counts].sum())


def test_agreement_is_the_share_of_equal_tokens() -> None:
    trial, vanilla = random_tokens(60, 0), random_tokens(60, 1)
    found = measure(inputs(trial, vanilla, samples=2), "token_agreement")
    share = (trial == vanilla).double().mean()
    assert found.value == pytest.approx(float(share))
    assert 0 < found.error < 0.1
    same = measure(inputs(trial, trial), "token_agreement")
    assert (same.value, same.error) == (1.0, 0.0)


def test_drift_is_the_mean_over_pairs_of_images_from_different_blocks() -> None:
    trial, vanilla = random_tokens(54, 2).clamp(min=1), random_tokens(54, 3)
    given = inputs(trial, vanilla, samples=2)
    blocks = given.blocks.tolist()
    found = measure(given, "token_drift")
    assert found.value == pytest.approx(drift_by_pairs(trial, vanilla, blocks, -1))
    left_out = [drift_by_pairs(trial, vanilla, blocks, block) for block in range(BLOCKS)]
    assert found.replicates == pytest.approx(left_out)
    assert found.error == pytest.approx(float(jackknife_error(torch.tensor(left_out))), rel=1e-4)
    assert found.value > 0.01
    itself = measure(inputs(vanilla, vanilla), "token_drift")
    assert (itself.value, itself.error) == (0.0, 0.0)


def test_equal_distributions_have_no_drift_in_the_mean() -> None:
    """Codes depend on the caption, and half of the tokens are vanilla's own. The mean of 300 trials
    is within 4 of its standard errors of 0: a false alarm for one seed in 16,000.
    """
    generator = torch.Generator().manual_seed(5)
    values = []
    for _ in range(300):
        probs = torch.rand(30, CODES, generator=generator) ** 3
        first, second = (
            probs.multinomial(LENGTH, replacement=True, generator=generator) for _ in range(2)
        )
        shared = torch.rand(first.shape, generator=generator) < 0.5
        values.append(
            measure(inputs(torch.where(shared, first, second), first), "token_drift").value
        )
    found = torch.tensor(values, dtype=torch.float64)
    assert float(found.std()) > 0
    assert abs(float(found.mean())) < 4 * float(found.std()) / len(values) ** 0.5


def test_what_is_missing_is_said() -> None:
    few = inputs(random_tokens(2, 0), random_tokens(2, 1))
    assert "3 blocks" in compute_metrics(few, ["token_drift"])[1]["token_drift"]
    apart = torch.arange(4)[:, None].expand(-1, LENGTH)
    assert (
        "share no code" in compute_metrics(inputs(apart, apart), ["token_drift"])[1]["token_drift"]
    )
    without = MetricInputs(images=Rows(metric_inputs.columns(30)), baseline=None)
    _, skipped = compute_metrics(without, ["token_drift", "token_agreement"])
    assert skipped.keys() == {"token_drift", "token_agreement"}


def test_they_compare_with_vanillas_images_and_need_no_network() -> None:
    for name in ("token_drift", "token_agreement"):
        metric = METRICS[name]
        assert metric.is_of_vanilla
        assert not metric.is_of_counts
        assert not metric.is_of_distribution
        assert not metric.is_statistic
