"""Objectives: what the registered metrics compare, and how better values are worded."""

from __future__ import annotations

from typing import Any

from orchestrator.results.axes import Axis
from workers.metrics.registry import registered_metrics


def axis_of(name: str, description: Any) -> Axis:
    return Axis(name, description["direction"], description["unit"], "", tuple(description["needs"]))


def test_what_the_metrics_are_of() -> None:
    axes = [axis_of(name, metric.description) for name, metric in registered_metrics().items()]
    assert {axis.name for axis in axes if axis.is_speed} == {"speedup", "speedup_timed", "latency"}
    assert {axis.name for axis in axes if axis.is_time} == {"latency"}
    assert {axis.name for axis in axes if axis.is_of_vanilla} == {"drift", "fid_gain"}


def test_better_speeds_are_faster() -> None:
    rate = Axis("rate", "maximize", "images/s", "", ("timings",))
    assert (rate.better, rate.best, rate.best_lossless) == ("faster", "fastest", "fastest lossless")
    fid = Axis("fid", "minimize", "", "", ("features",))
    assert (fid.better, fid.best, fid.best_lossless) == ("better fid", "best fid", "lossless with the best fid")
