"""Metrics of speed: passes of all images times the cost of a pass, from timing sessions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fakes.metric_inputs import CHAIN, VANILLA, price_list, timed_session
from workers.metrics.estimate import Estimate
from workers.metrics.metric import POSITION, MetricInputs, Rows
from workers.metrics.registry import compute_metrics


def images(passes: list[int]) -> Rows:
    """One image of each caption, 16 tokens long."""
    captions = torch.arange(len(passes))
    return Rows(
        {
            "caption_id": captions,
            POSITION: captions,
            "sample": torch.zeros_like(captions),
            "emitted": torch.full_like(captions, 15),
            "passes": torch.tensor(passes),
            "depth": torch.full((len(passes),), 2.0),
        }
    )


def measure(inputs: MetricInputs, *names: str) -> dict[str, Estimate]:
    found, skipped = compute_metrics(inputs, names)
    assert not skipped
    return found


def timed(**inputs: Any) -> MetricInputs:
    """Vanilla: a prefill of 0.2 seconds and 143 passes of 0.04; the setting: passes of 0.08."""
    session = timed_session(
        {VANILLA: [0.04, 0.04], CHAIN: [0.08, 0.08]}, batch=inputs.pop("batch", 1)
    )
    return MetricInputs(**{"config": CHAIN, "timings": price_list(session), **inputs})


def test_counts_of_all_images_and_costs_of_the_timed_ones() -> None:
    """10 passes on average: 0.2 + 10 x 0.08 = 1 second against 0.2 + 143 x 0.04."""
    found = measure(timed(images=images([8, 12])), "speedup", "latency", "step_cost")
    assert found["latency"].value == pytest.approx(1.0)
    assert found["speedup"].value == pytest.approx(5.92)
    assert found["speedup"].replicates == pytest.approx((5.92 / 1.16, 5.92 / 0.84))
    assert found["step_cost"].value == pytest.approx(2.0)
    assert found["speedup"].n == found["latency"].n == 2


def test_a_batch_ends_with_its_longest_image() -> None:
    """Batches of 2 out of images of 4, 10 and 12 passes: the longest takes 10, 12 or 12."""
    found = measure(timed(images=images([12, 4, 10]), batch=2), "speedup", "latency")
    seconds = 0.2 + 0.08 * (10 + 12 + 12) / 3
    assert found["latency"].value == pytest.approx(seconds / 2)
    assert found["speedup"].value == pytest.approx(5.92 / seconds)


@pytest.mark.parametrize("batch", [1, 4])
def test_vanilla_is_exactly_as_fast_as_itself(batch: int) -> None:
    found = measure(
        timed(images=images([15] * 31), config=VANILLA, batch=batch), "speedup", "step_cost"
    )
    assert all((found[name].value, found[name].error) == (1.0, 0.0) for name in found)


def test_what_was_not_timed_is_named() -> None:
    names = ("speedup", "latency", "step_cost")
    skipped = compute_metrics(MetricInputs(images=images([8, 12])), names)[1]
    assert skipped == dict.fromkeys(names, "nothing was timed")
    alone = price_list(timed_session({VANILLA: [0.04, 0.04]}))
    skipped = compute_metrics(
        MetricInputs(images=images([8, 12]), config=CHAIN, timings=alone), names
    )[1]
    assert skipped == dict.fromkeys(names, "its shape was not timed")
    assert "speedup" in compute_metrics(timed(), names)[1], "there are no images"


def test_counts_by_hand() -> None:
    names = ["mean_accepted_length", "step_compression", "mean_tree_depth", "target_passes"]
    values = {
        name: estimate.value
        for name, estimate in measure(MetricInputs(images=images([5, 15])), *names).items()
    }
    assert values == pytest.approx(
        {
            "mean_accepted_length": 1.5,
            "step_compression": (16 / 6 + 1) / 2,
            "mean_tree_depth": 2.0,
            "target_passes": 10.0,
        }
    )
