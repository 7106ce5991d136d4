"""Warnings about shared step costs: what they compare, and how often they are false alarms; notes on times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.results import status
from orchestrator.results.status import LEVEL, time_notes
from orchestrator.results.trials import TrialRecord
from tests.fakes.synthetic_sweeps import identity
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate
from workers.metrics.metric import METRICS


def speed_warnings(records: list[TrialRecord], batch: int = 1) -> list[str]:
    return status.speed_warnings(records, {"batch": batch})


def trial(number: int, exact: float, timed: float | None, error: float = 0.1, **fields: object) -> TrialRecord:
    metrics = {"speedup": Estimate(exact, 0.0, 192)}
    if timed is not None:
        metrics["speedup_timed"] = Estimate(timed, error, 8)
    return TrialRecord(number, "", fields.pop("state", "complete"), None, metrics=metrics, **fields)  # type: ignore[arg-type]


def beside(number: int, vanilla: float, *, noise: float = 0.0, speedup: float = 2.0, **fields: Any) -> TrialRecord:
    """A trial of a shape of its own, beside which vanilla took so many seconds. noise: relative, of both speeds."""
    metrics = {"speedup": speedup, "latency": vanilla / speedup}
    measured = {name: Estimate(value, 0.1, 192, noise=noise * value) for name, value in metrics.items()}
    return replace(trial(number, speedup, None, shape=f"shards/timing-{number}", **fields), metrics=measured)


@pytest.mark.parametrize(
    ("slower", "noise", "warned"), [(1.15, 0.0, False), (1.3, 0.0, True), (1.3, 0.1, False), (1.8, 0.1, True)]
)
def test_speeds_that_drift_beyond_their_noise_are_told(slower: float, noise: float, warned: bool) -> None:
    """Of four shapes, vanilla is slower beside one: a spread of log(slower) / 2."""
    steady = [beside(n, 0.5, noise=noise, speedup=n + 1.0) for n in range(3)]
    failed = beside(9, 50.0, state="failed")
    assert not speed_warnings([*steady, failed])
    found = speed_warnings([*steady, failed, beside(4, 0.5 * slower, noise=noise)])
    assert bool(found) is warned
    assert not warned or f"0.5 to {0.5 * slower:.3g} s" in found[0]


def test_noise_alone_is_no_drift() -> None:
    """In 1,000 sweeps of ten shapes whose vanilla times have 8 % noise; the seed is fixed."""
    rng = np.random.default_rng(0)
    sweeps = [
        [beside(n, 0.5 * np.exp(0.08 * e), noise=0.08) for n, e in enumerate(row)]
        for row in rng.normal(size=(1000, 10))
    ]
    assert sum(bool(speed_warnings(sweep)) for sweep in sweeps) < 10


@pytest.mark.parametrize(("distance", "warned"), [(3.4, False), (3.6, True)])
def test_a_distance_beyond_the_quantile_warns(distance: float, warned: bool) -> None:
    """The two-sided 1 % quantile of Student's t with 7 degrees of freedom is 3.499."""
    assert bool(speed_warnings([trial(3, 2.0, 2.0 + 0.1 * distance)])) is warned
    assert bool(speed_warnings([trial(3, 2.0, 2.0 - 0.1 * distance)])) is warned


def test_more_trials_need_a_larger_distance() -> None:
    same = [trial(number, 2.0, 2.0) for number in range(9)]
    assert not speed_warnings([*same, trial(9, 2.0, 2.36)])
    (warning,) = speed_warnings([*same, trial(9, 2.0, 2.8)])
    assert "trial 9" in warning


def test_a_batch_counts_once() -> None:
    """8 images in batches of 4 are 2 independent times: 1 degree of freedom, whose quantile is 63.7."""
    assert speed_warnings([trial(3, 2.0, 2.5)])
    assert not speed_warnings([trial(3, 2.0, 2.5)], batch=4)
    assert not speed_warnings([trial(3, 2.0, 2.5)], batch=8)


def test_noise_counts_unless_both_speeds_have_it_from_the_same_timings() -> None:
    """With 7 degrees of freedom the quantile is 3.499: 0.35 for an error of 0.1, 0.78 with noise of 0.2."""
    own, others = ("shards/quality-q", "shards/timing-a"), ("shards/timing-a", "shards/timing-b")

    def warned(difference: float, shards: tuple[str, ...]) -> bool:
        record = trial(3, 2.0, 2.0 + difference, shape="shards/timing-a", shards=shards)
        exact = Estimate(2.0, 0.3, 192, noise=0.2, noise_dof=15)
        return bool(speed_warnings([replace(record, metrics={**record.metrics, "speedup": exact})]))

    assert [warned(difference, own) for difference in (0.34, 0.36)] == [False, True]
    assert [warned(difference, others) for difference in (0.36, 0.77, 0.79)] == [False, False, True]


def costed(number: int, cost: float, shape: str = "a", units: int = 8) -> TrialRecord:
    metrics = {"speedup_timed": Estimate(2.0, 0.1, 8), "step_cost": Estimate(cost, 0.03, units)}
    return TrialRecord(number, "", "complete", None, metrics=metrics, shape=shape)


def test_step_costs_are_compared_within_a_shape() -> None:
    """Both errors are 0.03: with 7 degrees of freedom the 1 % quantile is a distance of 0.148."""
    assert not speed_warnings([costed(1, 1.4), costed(2, 1.54)])
    (warning,) = speed_warnings([costed(1, 1.4), costed(2, 1.56)])
    assert "trial 2" in warning
    assert "trial 1" in warning
    assert not speed_warnings([costed(1, 1.4), costed(2, 9.0, shape="b")])
    assert not speed_warnings([costed(1, 1.4), costed(2, 1.56, units=3)]), "the quantile with 2 is 9.92"


def test_trials_without_both_speeds_are_not_checked() -> None:
    records = [
        trial(0, 1.0, 1.0, error=0.0),
        trial(1, 2.0, None),
        trial(2, 2.0, 9.0, state="failed"),
        trial(3, 2.0, 9.0, duplicate_of=1),
    ]
    assert speed_warnings(records) == []


def test_false_alarms_are_as_rare_as_stated() -> None:
    """2,000 sweeps of 6 trials whose speeds agree, timed on 8 captions each: a warning in at most 1 % of them. The
    share's deviation is 0.22 %, so 1.7 % is 3 deviations above.
    """
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(2000):
        captions = 2 + 0.3 * generator.standard_normal((6, 8))
        errors = captions.std(axis=1, ddof=1) / 8**0.5
        alarms += bool(speed_warnings([trial(n, 2.0, captions[n].mean(), errors[n]) for n in range(6)]))
    assert 0.003 < alarms / 2000 <= LEVEL + 0.007


@pytest.mark.parametrize(
    ("unit", "needs", "is_time", "is_ratio"),
    [
        ("s/image", ["timings", "rounds"], True, False),
        ("images/s", ["timings"], True, False),
        ("ms", ["timings", "own_timings"], True, False),
        ("x", ["timings", "rounds"], False, True),
        ("x", ["timings", "own_timings"], False, False),
        ("share", ["timings"], False, True),
        ("s", ["rounds"], False, False),
    ],
)
def test_a_metrics_unit_and_needs_make_it_a_time(unit: str, needs: list[str], is_time: bool, is_ratio: bool) -> None:
    axis = Metric("mine", "minimize", unit, "", tuple(needs))
    assert (axis.is_time, status._is_ratio(axis)) == (is_time, is_ratio)


def test_a_plugins_rate_is_noted_as_well_as_latency() -> None:
    """Without speedup in the sweep nothing is named instead."""
    facts = {name: metric.to_mapping() for name, metric in METRICS.all().items()}
    facts["throughput"] = {"direction": "maximize", "unit": "images/s", "about": "", "needs": ["timings"]}
    (note,) = time_notes([identity("timed", metrics=facts)], ["fid", "throughput", "latency <= 2 * vanilla"])
    assert note.startswith("throughput and latency ")
    assert "speedup is paired" in note
    assert time_notes([identity("timed", metrics=facts)], ["speedup", "fid <= 2", "tree.depth=3"]) == []
    (note,) = time_notes([identity("timed", metrics={"throughput": facts["throughput"]})], ["throughput"])
    assert "paired" not in note
