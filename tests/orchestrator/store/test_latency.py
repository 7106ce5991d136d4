"""`latency` is vanilla's over the speed-up in every table, so the two never contradict each
other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest

import specfrontier as api
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import specfrontier
from tests.fakes.metric_inputs import write_session
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.metrics.estimate import Estimate

DEVICES = ("processor A", "processor B")
SIZES = (4, 1, 8)


def timed(folder: Path, seed: int) -> Sweep:
    """A sweep and sessions of random parts of its settings, with random costs and noise, on two
    devices.
    """
    rng = np.random.default_rng(seed)
    sweep = write_timed_sweep(folder, 14, SIZES, stopped={9: 2}, repeated={11: 6}, seed=seed)
    vanilla, *configs = dict.fromkeys(record.config for record in sweep.records if record.config)
    for number in range(8):
        chosen = [config for config in configs if rng.random() < 0.7]
        costs: dict[DecodingConfig, list[float]] = {
            config: (0.01 * rng.uniform(0.5, 2) * np.exp(rng.normal(0, 0.1, 5))).tolist()
            for config in (vanilla, *chosen)
        }
        size, device = int(rng.choice(SIZES)), DEVICES[number % 2]
        write_session(
            sweep.storage,
            costs,
            batch=size,
            device=device,
            name=f"timings/{number}.parquet",
            is_later=True,
        )
    return Sweep.open(folder)


Speeds = dict[int, tuple[float, float]]  # by the trial's number: speed-up, latency


def check(table: Speeds) -> None:
    speeds, latencies = np.array(list(table.values())).T
    assert (speeds * latencies).tolist() == pytest.approx([table[0][1]] * len(table), rel=1e-9)
    assert (
        np.argsort(speeds, kind="stable").tolist() == np.argsort(-latencies, kind="stable").tolist()
    )
    assert len(set(speeds)) > 3


def of_records(records: tuple[TrialRecord, ...], suffix: str = "") -> Speeds:
    found = [record for record in records if f"speedup{suffix}" in record.metrics]
    return {
        record.number: (
            record.metrics[f"speedup{suffix}"].value,
            record.metrics[f"latency{suffix}"].value,
        )
        for record in found
    }


@pytest.mark.parametrize("seed", range(3))
def test_latency_times_speed_up_is_vanillas_latency_in_every_table(
    seed: int, tmp_path: Path
) -> None:
    """On each device, at each batch size, in Python and in the JSON of commands."""
    sweep, folder = timed(tmp_path, seed), str(tmp_path)
    tables = 0
    for suffix in ("", "_batch1", "_batch8"):
        check(of_records(sweep.records, suffix))
    for device in sweep.prices.devices:
        for batch in sweep.prices.batches_on(device):
            there = Sweep.open(folder, str(device), batch)
            check(of_records(there.records))
            rows = api.Sweep.open(folder, str(device), batch).trials(["speedup > 0"]).to_pylist()
            check({row["number"]: (row["speedup"], row["latency"]) for row in rows})
            assert len(rows) == len(of_records(there.records))
            words = ("--device", str(device), "--batch", str(batch), "--json")
            listed = specfrontier("pareto", folder, "--all", "--infeasible", *words).json["rows"]
            metrics = {row["number"]: row["metrics"] for row in listed}
            check(
                {
                    n: (found["speedup"]["value"], found["latency"]["value"])
                    for n, found in metrics.items()
                }
            )
            tables += 1
    assert tables > 4


def relative_effects(entry: Estimate) -> defaultdict[tuple[Hashable, Hashable], float]:
    """What each source of noise changes in the logarithm of a value."""
    effects = {(noise.group, noise.source): noise.effect / entry.value for noise in entry.noises}
    return defaultdict(float, effects)


def test_replicates_and_errors_of_latency_follow_from_those_of_the_speed_up(tmp_path: Path) -> None:
    """Each jackknife value of one is vanilla's latency over that of the other, and what a source of
    noise changes in the logarithm of vanilla's latency is what it changes in both together.
    """
    sweep = timed(tmp_path, 0)
    vanilla = sweep.records[0].metrics["latency"]
    level = relative_effects(vanilla)
    for record in sweep.records[1:]:
        if "speedup" in record.metrics:
            speed, latency = record.metrics["speedup"], record.metrics["latency"]
            expected = [vanilla.value / value for value in speed.replicates]
            assert list(latency.replicates) == pytest.approx(expected, rel=1e-9)
            assert latency.known_error
            assert speed.known_error
            own, ratio = relative_effects(latency), relative_effects(speed)
            assert {source: own[source] + ratio[source] for source in own} == pytest.approx(
                {source: level[source] for source in own}, abs=1e-12
            )
