"""The errors of timed metrics: repetitions are not independent captions, and errors cover at their nominal rate."""

from __future__ import annotations

import pytest
import torch

from tests.fakes import metric_inputs
from workers.metrics.estimate import Estimate
from workers.metrics.metric import TIMING_KEYS, MetricInputs, Rows
from workers.metrics.registry import compute_metrics

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
    found, skipped = compute_metrics(timings(vanilla, setting, images), TIMED)
    assert not skipped
    return found


def test_speed_metrics_by_hand() -> None:
    images = Rows(
        {
            **metric_inputs.keys(2),
            "emitted": torch.tensor([15, 15]),
            "rounds": torch.tensor([5, 15]),
            "depth": torch.tensor([3.0, 1.0]),
        }
    )
    timings = Rows(
        {
            "caption_id": torch.tensor([0, 2]),
            "repetition": torch.tensor([0, 0]),
            "images": torch.tensor([2, 2]),
            "seconds_vanilla": torch.tensor([6.0, 4.0]),
            "seconds": torch.tensor([2.0, 3.0]),
        },
        TIMING_KEYS,
    )
    names = ["speedup", "latency", "mean_accepted_length", "step_compression", "mean_tree_depth", "target_passes"]
    estimates, skipped = compute_metrics(MetricInputs(images=images, timings=timings), names)
    assert not skipped
    values = {name: estimate.value for name, estimate in estimates.items()}
    assert values == pytest.approx(
        {
            "speedup": 2.0,
            "latency": 1.25,
            "mean_accepted_length": 1.5,
            "step_compression": (16 / 6 + 1) / 2,
            "mean_tree_depth": 2.0,
            "target_passes": 10.0,
        }
    )
    assert estimates["speedup"].error == pytest.approx(abs(4 / 3 - 3) / 2)


def test_identical_repetitions_change_nothing() -> None:
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
    found, skipped = compute_metrics(timings(2 * seconds, seconds, images=4), TIMED)
    assert not found
    assert set(skipped) == set(TIMED)
    assert "raise timing.images above timing.batch" in skipped["speedup"]
    assert compute_metrics(MetricInputs(), TIMED)[1] == dict.fromkeys(TIMED, "nothing was timed")


def test_errors_cover_at_their_nominal_rate() -> None:
    """12 captions of their own lengths, each timed 3 times with noise; nominal 95% (t, 11 degrees of freedom).

    400 runs: 3 deviations of the share are 3.3 points, and a ratio over 12 groups may lose another point. If all 36
    rows counted as independent, the intervals would cover 76%.
    """
    generator = torch.Generator().manual_seed(0)
    captions, repetitions, runs = 12, 3, 400
    inside = dict.fromkeys(TIMED, 0)
    truth = {"speedup": 6 / 2, "latency": 2.0}
    for _ in range(runs):
        lengths = 2 * (1 + 0.3 * torch.randn(captions, 1, generator=generator, dtype=torch.float64)).clamp(0.1, 1.9)
        clock = 1 + 0.05 * torch.randn(2, captions, repetitions, generator=generator, dtype=torch.float64)
        for name, estimate in timed(6 * clock[0], lengths * clock[1]).items():
            inside[name] += abs(estimate.value - truth[name]) <= 2.201 * estimate.error
    for name in TIMED:
        assert 0.907 <= inside[name] / runs <= 0.983, (name, inside)
