"""The registry of metrics: selection, reasons for skipped ones, and results that do not depend on
the shards' order.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.fakes import metric_inputs
from workers.metrics.definition import (
    ATTRIBUTES,
    BASELINE,
    CLASSIFIER,
    FEATURES,
    REFERENCE,
    TIMINGS,
    TOKENS,
)
from workers.metrics.estimate import BLOCKS, Estimate, MetricUnavailable, block_mean, ratio_estimate
from workers.metrics.features import load_features
from workers.metrics.metric import METRICS, MetricInputs, ReferenceFeatures, Rows
from workers.metrics.networks import EXTRACTORS, SCORERS
from workers.metrics.registry import compute_metrics, select_metrics, uses_timings

EXPECTED = {
    "fid",
    "fid_debiased",
    "drift",
    "fid_gain",
    "kid",
    "inception_score",
    "precision",
    "recall",
    "clip_score",
    "caption_accuracy",
    "speedup",
    "step_cost",
    "latency",
    "mean_accepted_length",
    "step_compression",
    "mean_tree_depth",
    "target_passes",
}
WITHOUT_CLASSIFIER = sorted(EXPECTED - {"inception_score"})


def test_every_metric_is_registered_with_its_description() -> None:
    assert set(METRICS.all()) >= EXPECTED
    for metric in METRICS.all().values():
        assert metric.direction in ("maximize", "minimize")
        assert metric.unit
        assert metric.about
        assert metric.needs
    columns = {f"score.{name}" for name in SCORERS.all()} | {
        "features",
        *EXTRACTORS,
        "emitted",
        "passes",
        "depth",
    }
    needed = {need for metric in METRICS.all().values() for need in metric.needs}
    assert needed <= columns | {REFERENCE, BASELINE, TIMINGS, CLASSIFIER, ATTRIBUTES, TOKENS}


def test_selection_by_available_inputs() -> None:
    selected, missing = select_metrics(None, {"emitted", "passes", "depth", TIMINGS})
    assert {metric.name for metric in selected} >= {"speedup", "step_compression"}
    assert missing["fid"] == "needs features, reference"
    assert not select_metrics(["latency"], {TIMINGS, "passes"})[1]
    with pytest.raises(ValueError, match="did you mean 'drift'"):
        select_metrics(["drifd"], {TIMINGS})


def test_all_metrics_are_computed_with_errors() -> None:
    estimates, skipped = compute_metrics(metric_inputs.trial_inputs(), WITHOUT_CLASSIFIER)
    assert not skipped
    assert set(estimates) == set(WITHOUT_CLASSIFIER)
    for estimate in estimates.values():
        assert estimate.error >= 0
    assert {estimates[name].n for name in ("fid", "kid", "recall", "clip_score")} == {120}
    assert {estimates[name].n for name in ("speedup", "latency")} == {120}


def test_the_order_of_shards_does_not_matter() -> None:
    shards = split_rows(metric_inputs.columns(60, 2, seed=1), [30, 50, 40])
    sessions = [metric_inputs.timed_session(name=name) for name in "ab"]
    results = []
    for number, order in enumerate(itertools.permutations(shards)):
        inputs = MetricInputs(
            images=Rows.merge(order),
            baseline=Rows.merge(order[::-1]),
            config=metric_inputs.CHAIN,
            timings=metric_inputs.price_list(*(sessions if number % 2 else sessions[::-1])),
            references={FEATURES: metric_inputs.reference()},
        )
        results.append(compute_metrics(inputs, WITHOUT_CLASSIFIER))
    assert all(result == results[0] for result in results[1:])


def split_rows(columns: dict[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    return [
        {name: column[rows] for name, column in columns.items()}
        for rows in torch.split(torch.arange(sum(sizes)), sizes)
    ]


@pytest.mark.parametrize("captions", [0, 1, 4])
def test_too_few_images_are_skipped_with_a_reason(captions: int) -> None:
    images = Rows(metric_inputs.columns(captions)) if captions else Rows.merge([])
    inputs = MetricInputs(
        images=images, baseline=images, references={FEATURES: metric_inputs.reference()}
    )
    estimates, skipped = compute_metrics(inputs, [*WITHOUT_CLASSIFIER, "inception_score"])
    assert estimates.keys() | skipped.keys() == {*WITHOUT_CLASSIFIER, "inception_score"}
    assert {"fid_debiased", "recall", "speedup", "inception_score"} <= skipped.keys()
    assert all(skipped.values())
    assert ("clip_score" in estimates) == ("fid" in estimates) == (captions > 1)


def test_a_small_reference_and_a_partial_baseline_are_skipped_with_a_reason() -> None:
    rows = metric_inputs.columns(60)
    inputs = MetricInputs(
        images=Rows(rows),
        baseline=Rows({name: column[:50] for name, column in rows.items()}),
        references={FEATURES: ReferenceFeatures(torch.randn(3, metric_inputs.DIM))},
    )
    _, skipped = compute_metrics(inputs, ["fid", "drift", "precision", "kid"])
    assert "3 images cannot fill a covariance" in skipped["fid"]
    assert "no image for 10 of 60" in skipped["drift"]
    assert skipped.keys() == {"fid", "drift", "precision"}


def test_the_baseline_has_zero_drift_and_gain() -> None:
    rows = Rows(metric_inputs.columns(60))
    inputs = MetricInputs(
        images=rows, baseline=rows, references={FEATURES: metric_inputs.reference()}
    )
    estimates, _ = compute_metrics(inputs, ["drift", "fid_gain"])
    assert estimates["drift"] == Estimate(0.0, 0.0, 60, (0.0,) * BLOCKS)
    assert estimates["fid_gain"].value == pytest.approx(0, abs=1e-9)


def test_rows_are_paired_by_caption_and_sample() -> None:
    trial = metric_inputs.columns(40, 2, shift=0.2)
    more = metric_inputs.columns(60, 2)
    inputs = MetricInputs(images=Rows(trial), baseline=Rows(more))
    assert torch.equal(inputs.baseline_column("features"), more["features"][:80])


def test_overlapping_shards_are_refused() -> None:
    rows = metric_inputs.columns(5)
    with pytest.raises(ValueError, match="caption_id 0, sample 0"):
        Rows.merge([rows, rows])


def test_a_caption_is_in_the_block_of_its_position_in_the_sweep() -> None:
    """Not of its id, nor of its rank among the captions of this trial: rungs share their blocks."""
    ids = torch.tensor([900, 900, 20, 31, 7, 5])
    position = torch.tensor([1, 1, 0, 23, 24, 26])
    sample = torch.tensor([0, 1, 0, 0, 0, 0])
    inputs = MetricInputs(images=Rows({"caption_id": ids, "sample": sample, "position": position}))
    by_id = dict(zip(inputs.column("caption_id").tolist(), inputs.blocks.tolist(), strict=True))
    assert by_id == {900: 1, 20: 0, 31: 23, 7: 0, 5: 2}


def test_errors_of_means_count_a_caption_once() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    single = block_mean(scores, torch.arange(50))
    assert single.value == pytest.approx(scores.double().mean().item(), rel=1e-9)
    assert single.error == pytest.approx(
        (scores.double().std() / len(scores) ** 0.5).item(), rel=1e-9
    )
    tripled = block_mean(scores.repeat_interleave(3), torch.arange(50).repeat_interleave(3))
    assert tripled.error == pytest.approx(single.error, rel=1e-9)
    assert tripled.n == 150


def test_a_ratio_is_one_of_sums() -> None:
    above, below = torch.tensor([10.0, 30.0, 20.0]), torch.tensor([5.0, 5.0, 10.0])
    ratio = ratio_estimate(above, below, torch.arange(3))
    assert ratio.value == pytest.approx(3.0)
    left_out = torch.tensor([50 / 15, 30 / 15, 40 / 10])
    assert ratio.error == pytest.approx(
        (2 / 3 * (left_out - left_out.mean()).square().sum()).sqrt().item(), rel=1e-6
    )
    with pytest.raises(MetricUnavailable, match="at least 2"):
        ratio_estimate(above[:1], below[:1], torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="not finite"):
        ratio_estimate(above * torch.nan, below, torch.arange(3))


def test_the_inception_score_uses_the_built_in_heads() -> None:
    rows = Rows(metric_inputs.columns(40) | {"features": torch.randn(40, 64).half()})
    inputs = MetricInputs(images=rows, classifier=load_features())
    estimates, skipped = compute_metrics(inputs, ["inception_score"])
    assert not skipped
    assert 1 <= estimates["inception_score"].value <= 48


def test_metrics_that_use_timings() -> None:
    assert uses_timings(())
    assert uses_timings({"fid", "latency"})
    assert not uses_timings({"fid", "step_compression", "clip_score"})
