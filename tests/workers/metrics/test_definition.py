"""Metrics as objectives: what the registered ones compare, and how better values are worded."""

from __future__ import annotations

from workers.metrics.definition import Metric
from workers.metrics.metric import METRICS


def test_what_the_metrics_are_of() -> None:
    metrics = [
        Metric.from_mapping(name, metric.to_mapping()) for name, metric in METRICS.all().items()
    ]
    assert {metric.name for metric in metrics if metric.is_speed} == {"speedup", "latency"}
    assert {metric.name for metric in metrics if metric.is_time} == {"latency"}
    of_vanilla = {metric.name for metric in metrics if metric.is_of_vanilla}
    assert of_vanilla == {"drift", "fid_gain", "token_agreement", "token_drift"}
    assert {metric.name for metric in metrics if metric.is_gain} == {"fid_gain"}


def test_better_speeds_are_faster() -> None:
    rate = Metric("rate", "maximize", "images/s", "", ("timings",))
    assert (rate.better, rate.best, rate.best_lossless) == ("faster", "fastest", "fastest lossless")
    fid = Metric("fid", "minimize", "", "", ("features",))
    assert (fid.better, fid.best, fid.best_lossless) == (
        "better fid",
        "best fid",
        "lossless with the best fid",
    )
