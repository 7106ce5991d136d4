"""The errors of timed metrics: what repetitions tell and what they do not, and the rate at which errors cover."""

from __future__ import annotations

import pytest
import torch

from workers.metrics.estimate import Estimate
from workers.metrics.metric import TIMING_KEYS, MetricInputs, Rows
from workers.metrics.registry import measure

TIMED = ("speedup", "latency")


def timings(vanilla: torch.Tensor, setting: torch.Tensor, images: int = 1) -> MetricInputs:
    """Seconds [batches of captions, repetitions] of both."""
    batches, repetitions = setting.shape
    columns = {
        "caption_id": (torch.arange(batches) * images).repeat_interleave(repetitions),
        "repetition": torch.arange(repetitions).repeat(batches),
        "images": torch.full((batches * repetitions,), images),
        "seconds_vanilla": vanilla.flatten(),
        "seconds": setting.flatten(),
    }
    return MetricInputs(timings=Rows(columns, TIMING_KEYS))


def timed(vanilla: torch.Tensor, setting: torch.Tensor, images: int = 1) -> dict[str, Estimate]:
    found, skipped = measure(timings(vanilla, setting, images), TIMED)
    assert not skipped
    return found


def test_repetitions_that_tell_nothing_new_change_nothing() -> None:
    seconds = torch.tensor([[1.0], [2.0], [1.5], [3.0]], dtype=torch.float64)
    once = timed(torch.full_like(seconds, 4.0), seconds, images=2)
    thrice = timed(torch.full((4, 3), 4.0, dtype=torch.float64), seconds.repeat(1, 3), images=2)
    for name in TIMED:
        assert thrice[name].value == pytest.approx(once[name].value)
        assert thrice[name].error == pytest.approx(once[name].error)
        assert thrice[name].n == once[name].n == 8


@pytest.mark.parametrize("repetitions", [1, 3])
def test_captions_of_a_single_batch_give_no_error(repetitions: int) -> None:
    seconds = torch.ones(1, repetitions)
    found, skipped = measure(timings(2 * seconds, seconds, images=4), TIMED)
    assert not found
    assert set(skipped) == set(TIMED)
    assert "at least 2, so raise timing.images above timing.batch" in skipped["speedup"]
    assert measure(MetricInputs(), TIMED)[1] == dict.fromkeys(TIMED, "nothing was timed")


def test_errors_cover_at_their_rate() -> None:
    """12 captions of their own lengths, each timed 3 times by a noisy clock; nominal 95% (t, 11 degrees of freedom).

    1000 repetitions: 3 deviations of the share are 2.1 points, and a ratio over 12 groups may lack another point. As if
    all 36 rows were independent, the same intervals would cover 76%.
    """
    generator = torch.Generator().manual_seed(0)
    captions, repetitions, runs = 12, 3, 1000
    inside = dict.fromkeys(TIMED, 0)
    truth = {"speedup": 6 / 2, "latency": 2.0}
    for _ in range(runs):
        lengths = 2 * (1 + 0.3 * torch.randn(captions, 1, generator=generator, dtype=torch.float64)).clamp(0.1, 1.9)
        clock = 1 + 0.05 * torch.randn(2, captions, repetitions, generator=generator, dtype=torch.float64)
        for name, estimate in timed(6 * clock[0], lengths * clock[1]).items():
            inside[name] += abs(estimate.value - truth[name]) <= 2.201 * estimate.error
    for name in TIMED:
        assert 0.919 <= inside[name] / runs <= 0.971, (name, inside)
