"""Metrics of speed: passes of all images times the cost of a pass, and the directly timed ratio."""

from __future__ import annotations

import pytest
import torch

from workers.metrics.estimate import Estimate
from workers.metrics.metric import POSITION, TIMING_KEYS, MetricInputs, Rows
from workers.metrics.registry import compute_metrics


def images(rounds: list[int]) -> Rows:
    """One image of each caption, 16 tokens long."""
    captions = torch.arange(len(rounds))
    return Rows(
        {
            "caption_id": captions,
            POSITION: captions,
            "sample": torch.zeros_like(captions),
            "emitted": torch.full_like(captions, 15),
            "rounds": torch.tensor(rounds),
            "depth": torch.full((len(rounds),), 2.0),
        }
    )


def units(**changes: list[float]) -> Rows:
    """Two timed batches: a prefill of 1 second and 15 passes of 0.2 for vanilla, 0.5 and 0.3 a pass for the setting."""
    columns = {
        "caption_id": [0, 1],
        "repetition": [0, 0],
        "images": [1, 1],
        "seconds_vanilla": [4.0, 4.0],
        "prefill_vanilla": [1.0, 1.0],
        "passes_vanilla": [15.0, 15.0],
        "seconds": [0.5 + 4 * 0.3, 0.5 + 6 * 0.3],
        "prefill": [0.5, 0.5],
        "passes": [4.0, 6.0],
    }
    types = dict.fromkeys(("caption_id", "repetition", "images"), torch.int64)
    tensors = {
        name: torch.tensor(column, dtype=types.get(name, torch.float64)) for name, column in (columns | changes).items()
    }
    return Rows(tensors, TIMING_KEYS)


def measure(inputs: MetricInputs, *names: str) -> dict[str, Estimate]:
    found, skipped = compute_metrics(inputs, names)
    assert not skipped
    return found


def test_counts_of_all_images_and_costs_of_the_timed_ones() -> None:
    """10 passes on average: 0.5 + 10 x 0.3 = 3.5 seconds against 4, though the timed images took 5 passes."""
    found = measure(MetricInputs(images=images([8, 12]), timings=units()), "speedup", "latency")
    assert found["latency"].value == pytest.approx(3.5)
    assert found["speedup"].value == pytest.approx(4 / 3.5)
    assert found["speedup"].replicates == pytest.approx((4 / 4.1, 4 / 2.9))
    assert found["speedup"].n == found["latency"].n == 2
    for name in found:  # both timed units have the same costs
        assert found[name].noise == pytest.approx(0, abs=1e-12)
        assert found[name].error == pytest.approx(abs(found[name].replicates[0] - found[name].replicates[1]) / 2)


def test_noise_is_from_the_timed_units_alone() -> None:
    """Without the first unit a pass costs 0.4 seconds, without the second 0.2; with both (0.8 + 2.4) / 10."""
    timings = units(seconds=[0.5 + 4 * 0.2, 0.5 + 6 * 0.4])
    found = measure(MetricInputs(images=images([10] * 30), timings=timings), "speedup", "latency")
    assert found["latency"].value == pytest.approx(0.5 + 3.2)
    assert found["latency"].noise == pytest.approx((4.5 - 2.5) / 2)
    assert found["speedup"].noise == pytest.approx((4 / 2.5 - 4 / 4.5) / 2)
    assert found["speedup"].error == pytest.approx(found["speedup"].noise), "all images take the same passes"
    assert len(found["speedup"].replicates) == 24


def test_a_drift_of_the_machine_cancels() -> None:
    """Twice as slow in the second unit, on both sides."""
    baseline = {"seconds_vanilla": [4.0, 8.0], "prefill_vanilla": [1.0, 2.0]}
    timings = units(**baseline, seconds=[2.0, 4.0], prefill=[0.5, 1.0], passes=[5.0, 5.0])
    found = measure(MetricInputs(images=images([10] * 4), timings=timings), "speedup", "latency")
    assert found["speedup"].value == pytest.approx(4 / 3.5)
    assert found["speedup"].noise == pytest.approx(0, abs=1e-12)
    assert found["latency"].noise > 0.5


def test_a_batch_ends_with_its_longest_image() -> None:
    """Batches of 2 out of images of 4, 10 and 12 passes: the longest takes 10, 12 or 12."""
    timings = units(images=[2, 2])
    found = measure(MetricInputs(images=images([12, 4, 10]), timings=timings), "speedup", "latency")
    seconds = 0.5 + 0.3 * (10 + 12 + 12) / 3
    assert found["latency"].value == pytest.approx(seconds / 2)
    assert found["speedup"].value == pytest.approx(4 / seconds)


@pytest.mark.parametrize("batch", [1, 4])
def test_vanilla_is_exactly_as_fast_as_itself(batch: int) -> None:
    own = {name: [3.7, 4.9] for name in ("seconds", "seconds_vanilla")}
    own |= {name: [0.1, 0.3] for name in ("prefill", "prefill_vanilla")}
    timings = units(**own, images=[batch, batch], passes=[15.0, 15.0])
    inputs = MetricInputs(images=images([15] * 31), timings=timings, own_timings=timings)
    found = measure(inputs, "speedup", "speedup_timed")
    assert all((found[name].value, found[name].error) == (1.0, 0.0) for name in found)


def test_the_cost_of_a_step_is_from_the_own_timings() -> None:
    """Without the first unit (0.4 / 0.2), without the second (0.2 / 0.2), with both 0.32 / 0.2."""
    own = units(seconds=[0.5 + 4 * 0.2, 0.5 + 6 * 0.4])
    found = measure(MetricInputs(timings=units(), own_timings=own), "step_cost")["step_cost"]
    assert found.value == pytest.approx(1.6)
    assert found.error == pytest.approx(0.5)
    assert found.n == 2
    assert not found.noise, "no other trial has it"


def test_what_was_not_timed_is_named() -> None:
    names = ("speedup", "latency", "speedup_timed", "step_cost")
    skipped = compute_metrics(MetricInputs(images=images([8, 12])), names)[1]
    assert skipped.keys() == set(names)
    assert skipped["speedup"] == "nothing was timed"
    assert "timing.direct" in skipped["speedup_timed"]
    assert "speedup" in compute_metrics(MetricInputs(timings=units()), names)[1], "there are no images"
    once = Rows({name: column[:1] for name, column in units().items()}, TIMING_KEYS)
    skipped = compute_metrics(MetricInputs(images=images([8, 12]), timings=once, own_timings=once), names)[1]
    assert "timing.repetitions" in skipped["speedup"]
    assert "timing.images" in skipped["speedup_timed"]


def timed(vanilla: torch.Tensor, setting: torch.Tensor, size: int = 1) -> Estimate:
    """`speedup_timed` of seconds [batches of captions, repetitions]."""
    batches, repetitions = setting.shape
    columns = {
        "caption_id": (torch.arange(batches) * size).repeat_interleave(repetitions),
        "repetition": torch.arange(repetitions).repeat(batches),
        "images": torch.full((batches * repetitions,), size),
        "seconds_vanilla": vanilla.flatten(),
        "seconds": setting.flatten(),
    }
    return measure(MetricInputs(own_timings=Rows(columns, TIMING_KEYS)), "speedup_timed")["speedup_timed"]


def test_identical_repetitions_change_nothing() -> None:
    seconds = torch.tensor([[1.0], [2.0], [1.5], [3.0]], dtype=torch.float64)
    once = timed(torch.full_like(seconds, 4.0), seconds, 2)
    thrice = timed(torch.full((4, 3), 4.0, dtype=torch.float64), seconds.repeat(1, 3), 2)
    assert thrice.value == pytest.approx(once.value)
    assert thrice.error == pytest.approx(once.error)
    assert thrice.n == once.n == 8


def test_errors_of_the_timed_ratio_cover_at_their_nominal_rate() -> None:
    """12 captions of their own lengths, each timed 3 times with noise; nominal 95% (t, 11 degrees of freedom).

    400 runs: 3 deviations of the share are 3.3 points, and a ratio over 12 groups may lose another point. If all 36
    rows counted as independent, the intervals would cover 76%.
    """
    generator = torch.Generator().manual_seed(0)
    captions, repetitions, runs, inside = 12, 3, 400, 0
    for _ in range(runs):
        lengths = 2 * (1 + 0.3 * torch.randn(captions, 1, generator=generator, dtype=torch.float64)).clamp(0.1, 1.9)
        clock = 1 + 0.05 * torch.randn(2, captions, repetitions, generator=generator, dtype=torch.float64)
        estimate = timed(6 * clock[0], lengths * clock[1])
        inside += abs(estimate.value - 3) <= 2.201 * estimate.error
    assert 0.907 <= inside / runs <= 0.983


def test_counts_by_hand() -> None:
    names = ["mean_accepted_length", "step_compression", "mean_tree_depth", "target_passes"]
    values = {name: estimate.value for name, estimate in measure(MetricInputs(images=images([5, 15])), *names).items()}
    assert values == pytest.approx(
        {
            "mean_accepted_length": 1.5,
            "step_compression": (16 / 6 + 1) / 2,
            "mean_tree_depth": 2.0,
            "target_passes": 10.0,
        }
    )
