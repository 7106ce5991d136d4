"""Timing sessions as files, and prices by device and batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.metric_inputs import CHAIN, VANILLA, price_list, timed_session
from workers.data.records import ShardError, write_shard
from workers.data.storage import Storage
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.timings import CPU_CLOCK, Device, read_session, relative_noise, session_table

NAME = "timings/timing-1.parquet"
FACTS: dict[str, Any] = {
    "kind": "timing", "configs": [VANILLA.to_mapping(), CHAIN.to_mapping()], "timed_on": "a processor", "threads": 2,
    "clock": CPU_CLOCK, "started": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


def rows(seconds: dict[str, list[float]], batch: int = 1) -> list[dict[str, Any]]:
    """A prefill of half a second and 10 passes, in an order that changes from unit to unit."""
    count = len(next(iter(seconds.values())))
    return [
        {"setting": setting, "caption_ids": list(range(unit * batch, (unit + 1) * batch)), "repetition": 0,
         "batch": batch, "turn": turn, "seconds": seconds[setting][unit], "prefill": 0.5, "passes": 10, "wall": 9.0}
        for unit in range(count)
        for turn, setting in enumerate(sorted(seconds, reverse=unit % 2 == 0))
    ]  # fmt: skip


def test_a_session_comes_back(tmp_path: Path) -> None:
    storage, vanilla, chain = Storage(tmp_path), VANILLA.digest(), CHAIN.digest()
    found = rows({vanilla: [1.5, 2.5], chain: [3.5, 4.5]}) + rows({vanilla: [5.5] * 2, chain: [6.5] * 2}, batch=8)
    write_shard(storage, NAME, session_table(found), FACTS)
    session = read_session(storage, NAME)
    assert session.device == Device("a processor", 2, CPU_CLOCK)
    assert session.vanilla == VANILLA
    assert session.readings.keys() == {1, 8}
    assert session.readings[1].settings == (vanilla, chain)
    assert session.readings[1].per_pass == pytest.approx(np.array([[0.1, 0.2], [0.3, 0.4]]))
    assert session.readings[8].seconds.tolist() == [[5.5, 5.5], [6.5, 6.5]]
    with pytest.raises(ShardError):
        read_session(storage, _other_kind(storage))


def _other_kind(storage: Storage) -> str:
    write_shard(storage, "timings/quality-1.parquet", session_table([]), FACTS | {"kind": "quality"})
    return "timings/quality-1.parquet"


@pytest.mark.parametrize("fact", ["configs", "started", "timed_on", "threads", "clock"])
def test_a_file_without_a_fact_is_no_session(fact: str, tmp_path: Path) -> None:
    storage, found = Storage(tmp_path), rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]})
    write_shard(storage, NAME, session_table(found), {key: value for key, value in FACTS.items() if key != fact})
    with pytest.raises(ShardError, match=rf"timing-1\.parquet: not a timing session, it lacks .*{fact}"):
        read_session(storage, NAME)


def test_a_session_that_lacks_a_reading_is_refused(tmp_path: Path) -> None:
    storage, found = Storage(tmp_path), rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]})
    write_shard(storage, NAME, session_table(found[:-1]), FACTS)
    with pytest.raises(ShardError, match=r"timing-1\.parquet: not a timing session, its settings differ in their rows"):
        read_session(storage, NAME)


def test_the_noise_of_costs_so_far() -> None:
    assert relative_noise(rows({"a": [1.5], "b": [2.5]})) == math.inf
    assert relative_noise(rows({"a": [1.5, 2.5]})) == math.inf
    steady = rows({"a": [1.5, 2.5], "b": [1.5, 2.5]})
    assert relative_noise(steady) == pytest.approx(0.0, abs=1e-9)
    assert relative_noise(rows({"a": [1.0, 1.1], "b": [1.1, 1.0]})) > 0.05


def test_devices_never_mix() -> None:
    """A sweep that went on on another machine has two prices of a shape; each is of one machine."""
    here = timed_session({VANILLA: [0.04, 0.04], CHAIN: [0.08, 0.08]}, device="here", name="a")
    there = timed_session({VANILLA: [0.04, 0.04], CHAIN: [0.40, 0.40]}, device="there", name="b")
    prices = price_list(here, there)
    assert [device.name for device in prices.devices] == ["here", "there"]
    costs = {
        device.name: prices.of(CHAIN.shape, devices=[device])[0].step_cost(CHAIN.shape).value
        for device in prices.devices
    }
    assert costs == pytest.approx({"here": 2.0, "there": 10.0})
    assert prices.of(CHAIN.shape)[0].step_cost(CHAIN.shape).value == pytest.approx(2.0)


def test_the_first_device_that_timed_a_shape_prices_it() -> None:
    only_vanilla = timed_session({VANILLA: [0.04, 0.04]}, device="here", name="a")
    there = timed_session({VANILLA: [0.04, 0.04], CHAIN: [0.40, 0.40]}, device="there", name="b")
    prices = price_list(only_vanilla, there)
    assert prices.of(CHAIN.shape)[0].step_cost(CHAIN.shape).value == pytest.approx(10.0)
    with pytest.raises(MetricUnavailable):
        prices.of(CHAIN.shape, devices=prices.devices[:1])
    with pytest.raises(MetricUnavailable, match="batch 8"):
        prices.of(CHAIN.shape, batch=8)
    with pytest.raises(MetricUnavailable, match="nothing was timed"):
        price_list().of(CHAIN.shape)
