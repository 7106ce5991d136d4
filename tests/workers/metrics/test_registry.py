"""The catalogue: what is found, what is asked for, what is skipped with a reason, and numbers that no order moves."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.fakes import metric_inputs
from workers.metrics.estimate import (
    Estimate,
    MetricUnavailable,
    caption_groups,
    grouped_mean,
    mean_estimate,
    ratio_estimate,
)
from workers.metrics.features import load_features
from workers.metrics.metric import BASELINE, NET, REFERENCE, TIMING_KEYS, TIMINGS, MetricInputs, Reference, Rows
from workers.metrics.registry import measure, registered_metrics, scorers, select_metrics, uses_timings

EXPECTED = {
    "fid", "fid_debiased", "drift", "fid_gain", "kid", "inception_score", "precision", "recall", "clip_score",
    "caption_accuracy", "speedup", "latency", "mean_accepted_length", "step_compression", "mean_tree_depth",
    "target_passes",
}  # fmt: skip
WITHOUT_NET = sorted(EXPECTED - {"inception_score"})


def test_every_metric_is_found_and_says_what_it_is() -> None:
    assert set(registered_metrics()) >= EXPECTED
    for metric in registered_metrics().values():
        assert metric.direction in ("maximize", "minimize")
        assert metric.unit
        assert metric.about
        assert metric.needs
    columns = {f"score.{name}" for name in scorers()} | {"features", "emitted", "rounds", "depth"}
    needed = {need for metric in registered_metrics().values() for need in metric.needs}
    assert needed <= columns | {REFERENCE, BASELINE, TIMINGS, NET}


def test_what_is_asked_for_and_what_can_be_had() -> None:
    there, lacking = select_metrics(None, {"emitted", "rounds", "depth", TIMINGS})
    assert {metric.name for metric in there} >= {"speedup", "step_compression"}
    assert lacking["fid"] == "needs features, reference"
    assert not select_metrics(["latency"], {TIMINGS})[1]
    with pytest.raises(ValueError, match="did you mean 'drift'"):
        select_metrics(["drifd"], {TIMINGS})


def test_all_can_be_measured_and_none_is_negative_in_its_error() -> None:
    estimates, skipped = measure(metric_inputs.evidence(), WITHOUT_NET)
    assert not skipped
    assert set(estimates) == set(WITHOUT_NET)
    for estimate in estimates.values():
        assert estimate.error >= 0
    assert {estimates[name].n for name in ("fid", "kid", "recall", "clip_score")} == {120}
    assert {estimates[name].n for name in ("speedup", "latency")} == {6}  # 3 batches of 2 images, 4 times over


def test_shards_in_any_order_give_exactly_the_same() -> None:
    shards = cut(metric_inputs.columns(60, 2, seed=1), [30, 50, 40])
    parts = cut(metric_inputs.timings(12), [5, 7])
    results = []
    for number, order in enumerate(itertools.permutations(shards)):
        evidence = MetricInputs(
            images=Rows.merge(order),
            baseline=Rows.merge(order[::-1]),
            timings=Rows.merge(parts if number % 2 else parts[::-1], TIMING_KEYS),
            reference=metric_inputs.reference(),
        )
        results.append(measure(evidence, WITHOUT_NET))
    assert all(result == results[0] for result in results[1:])


def cut(columns: dict[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    places = torch.split(torch.arange(sum(sizes)), sizes)
    return [{name: column[rows] for name, column in columns.items()} for rows in places]


@pytest.mark.parametrize("captions", [0, 1, 4])
def test_too_few_images_are_a_reason_and_no_crash(captions: int) -> None:
    images = Rows(metric_inputs.columns(captions)) if captions else Rows.merge([])
    evidence = MetricInputs(images=images, baseline=images, reference=metric_inputs.reference())
    estimates, skipped = measure(evidence, [*WITHOUT_NET, "inception_score"])
    assert estimates.keys() | skipped.keys() == {*WITHOUT_NET, "inception_score"}
    assert {"fid", "recall", "speedup", "inception_score"} <= skipped.keys()
    assert all(skipped.values())
    assert ("clip_score" in estimates) == (captions > 1)


def test_a_small_reference_and_a_partial_baseline_are_reasons() -> None:
    rows = metric_inputs.columns(60)
    evidence = MetricInputs(
        images=Rows(rows),
        baseline=Rows({name: column[:50] for name, column in rows.items()}),
        reference=Reference(torch.randn(3, metric_inputs.DIM)),
    )
    _, skipped = measure(evidence, ["fid", "drift", "precision", "kid"])
    assert "3 images cannot fill a covariance" in skipped["fid"]
    assert "no image for 10 of 60" in skipped["drift"]
    assert skipped.keys() == {"fid", "drift", "precision"}


def test_the_baseline_itself_has_no_drift_and_no_gain() -> None:
    rows = Rows(metric_inputs.columns(60))
    evidence = MetricInputs(images=rows, baseline=rows, reference=metric_inputs.reference())
    estimates, _ = measure(evidence, ["drift", "fid_gain"])
    assert estimates["drift"] == Estimate(0.0, 0.0, 60)
    assert estimates["fid_gain"].value == pytest.approx(0, abs=1e-9)


def test_rows_are_paired_by_caption_and_sample() -> None:
    trial = metric_inputs.columns(40, 2, shift=0.2)
    more = metric_inputs.columns(60, 2)
    evidence = MetricInputs(images=Rows(trial), baseline=Rows(more))
    assert torch.equal(evidence.vanilla("features"), more["features"][:80])


def test_rows_that_overlap_are_refused() -> None:
    rows = metric_inputs.columns(5)
    with pytest.raises(ValueError, match="caption_id 0, sample 0 is in two rows"):
        Rows.merge([rows, rows])


def test_samples_of_a_caption_leave_together() -> None:
    captions = torch.tensor([3, 3, 3, 7, 8, 8, 20])
    assert caption_groups(captions).tolist() == [0, 0, 0, 1, 2, 2, 3]
    assert caption_groups(captions, 2).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert caption_groups(captions[:0], 2).tolist() == []


def test_errors_of_means_count_a_caption_once() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    alone = grouped_mean(scores, torch.arange(50))
    assert alone.value == pytest.approx(mean_estimate(scores).value, rel=1e-9)
    assert alone.error == pytest.approx(mean_estimate(scores).error, rel=1e-9)
    tripled = grouped_mean(scores.repeat_interleave(3), torch.arange(50).repeat_interleave(3))
    assert tripled.error == pytest.approx(alone.error, rel=1e-9)
    assert tripled.n == 150


def test_ratios_are_of_sums() -> None:
    above, below = torch.tensor([10.0, 30.0, 20.0]), torch.tensor([5.0, 5.0, 10.0])
    ratio = ratio_estimate(above, below, torch.arange(3))
    assert ratio.value == pytest.approx(3.0)
    left_out = torch.tensor([50 / 15, 30 / 15, 40 / 10])
    assert ratio.error == pytest.approx((2 / 3 * (left_out - left_out.mean()).square().sum()).sqrt().item(), rel=1e-6)
    with pytest.raises(MetricUnavailable, match="at least 2"):
        ratio_estimate(above[:1], below[:1], torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="not finite"):
        ratio_estimate(above * torch.nan, below, torch.arange(3))


def test_speed_metrics_by_hand() -> None:
    images = Rows(
        {
            "caption_id": torch.tensor([0, 1]),
            "sample": torch.tensor([0, 0]),
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
    estimates, skipped = measure(MetricInputs(images=images, timings=timings), names)
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


def test_the_inception_score_reads_the_built_in_heads() -> None:
    net = load_features()
    evidence = MetricInputs(images=Rows(metric_inputs.columns(40) | {"features": torch.randn(40, 64).half()}), net=net)
    estimates, skipped = measure(evidence, ["inception_score"])
    assert not skipped
    assert 1 <= estimates["inception_score"].value <= 48


def test_which_metrics_are_read_off_timings() -> None:
    assert uses_timings(())
    assert uses_timings({"fid", "latency"})
    assert not uses_timings({"fid", "step_compression", "clip_score"})
