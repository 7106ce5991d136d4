"""What the benchmark of sittings says of made-up ones whose differences are known."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from benchmarks.speed_repeats import VANILLA, coverage, is_busy, settings, show, speeds

NAMED = settings()
PASSES = {name: 143.0 if name == VANILLA else 50.0 for name in NAMED}
SPREAD = 0.05


def sitting(
    seed: int, spread: float, wall_over_cpu: float = 1.0, noise: float = 1e-4
) -> dict[str, Any]:
    """Three sessions of all settings on three images. A pass of each setting costs twice vanilla's,
    but for what the day does, half of whose variance all settings share. Vanilla's day is another.
    """
    rng = np.random.default_rng(seed)
    level = rng.normal(0, 0.1)
    common = rng.standard_normal()
    day = {
        config.shape: spread * (common + rng.standard_normal()) / math.sqrt(2)
        for name, config in NAMED.items()
        if name != VANILLA
    }
    sessions = []
    for _ in range(3):
        rows = []
        for _ in range(3):
            for name, config in NAMED.items():
                cost = 0.01 if name == VANILLA else 0.02
                cost *= math.exp(level + day.get(config.shape, 0.0) + rng.normal(0, noise))
                row = {"setting": config.digest(), "passes": PASSES[name], "prefill": 1e-9}
                rows.append(row | {"seconds": 1e-9 + PASSES[name] * cost})
        load = {"wall_over_cpu": wall_over_cpu, "average": 1.0, "cores": 2}
        sessions.append({"rows": rows, "load": load, "started": "2026-01-01T00:00:00+00:00"})
    return {"seed": seed, "sessions": sessions}


def test_speed_ups_of_made_up_sittings() -> None:
    found = speeds([sitting(0, 0.0)], PASSES)
    assert found.keys() == set(NAMED) - {VANILLA}
    assert [entry.value for entry in found.values()] == pytest.approx([1.43] * len(found), rel=1e-3)
    assert not is_busy(sitting(0, 0.0))
    assert is_busy(sitting(0, 0.0, wall_over_cpu=1.5))


def test_what_differs_between_sittings_is_printed_by_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Six quiet sittings and six busy ones, which differ twice as much. A standard deviation of six
    has a relative standard error of 32 %, less for several shapes.
    """
    quiet = [sitting(seed, SPREAD) for seed in range(6)]
    busy = [sitting(seed, 2 * SPREAD, wall_over_cpu=1.5) for seed in range(6, 12)]
    show([*quiet, *busy], PASSES)
    text = capsys.readouterr().out
    ratios = [float(part) for part in re.findall(r"between sittings: ratio (\d\.\d+)", text)]
    assert len(ratios) == 3, "of quiet ones, of busy ones, and of all"
    assert ratios[0] == pytest.approx(SPREAD, rel=0.5)
    assert ratios[1] == pytest.approx(2 * SPREAD, rel=0.5)
    seconds = [float(part) for part in re.findall(r"seconds (\d\.\d+)", text)]
    assert seconds[0] == pytest.approx(0.1, rel=0.6)
    parts = re.findall(r"variance of the ratio (\d\.\d+), of which (-?\d\.\d+) all", text)
    assert all(0.15 < float(common) / float(whole) < 0.9 for whole, common in parts)
    (distance,) = re.findall(r"against the mean of quiet ones: ratio (\d\.\d+)", text)
    assert float(distance) == pytest.approx(2 * SPREAD, rel=0.5)
    assert text.count("of differences of sets of 2 sittings") == 3


def test_pairs_have_no_sitting_in_common() -> None:
    sittings = [sitting(seed, 0.01) for seed in range(4)]
    assert coverage([[each] for each in sittings], PASSES) == (1.0, 6)
    sets = [[sittings[a], sittings[b]] for a, b in ((0, 1), (0, 2), (2, 3))]
    assert coverage(sets, PASSES)[1] == 1
