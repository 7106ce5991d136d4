"""Timing sessions as files, and prices by device and batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces.trial import Sampling
from tests.fakes.metric_inputs import CHAIN, VANILLA, price_list, timed_session
from workers.data.records import ShardError, write_shard
from workers.data.storage import Storage
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.timings import (
    CPU_CLOCK,
    EAGER,
    TIME_WORKER,
    WALL_CLOCK,
    Device,
    Load,
    joint_sittings,
    read_session,
    relative_noise,
    session_table,
)

NAME = "timings/timing-1.parquet"
FACTS: dict[str, Any] = {
    "kind": "timing",
    "configs": [VANILLA.to_mapping(), CHAIN.to_mapping()],
    "timed_on": "a processor",
    "threads": 2,
    "clock": CPU_CLOCK,
    "started": "2026-01-01T00:00:00+00:00",
}


def rows(seconds: dict[str, list[float]], batch: int = 1) -> list[dict[str, Any]]:
    """A prefill of half a second and 10 passes, in an order that changes from unit to unit."""
    count = len(next(iter(seconds.values())))
    return [
        {
            "setting": setting,
            "caption_ids": list(range(unit * batch, (unit + 1) * batch)),
            "repetition": 0,
            "batch": batch,
            "turn": turn,
            "seconds": seconds[setting][unit],
            "prefill": 0.5,
            "passes": 10,
            "wall": 9.0,
        }
        for unit in range(count)
        for turn, setting in enumerate(sorted(seconds, reverse=unit % 2 == 0))
    ]


def test_a_session_comes_back(tmp_path: Path) -> None:
    storage, vanilla, chain = Storage(tmp_path), VANILLA.digest(), CHAIN.digest()
    found = rows({vanilla: [1.5, 2.5], chain: [3.5, 4.5]}) + rows(
        {vanilla: [5.5] * 2, chain: [6.5] * 2}, batch=8
    )
    write_shard(storage, NAME, session_table(found), FACTS)
    session = read_session(storage, NAME)
    assert session.device == Device("a processor", 2)
    assert session.device.clock == CPU_CLOCK
    assert not session.is_later
    assert session.load == Load(), "of a file that does not say"
    assert session.vanilla == VANILLA
    assert session.readings.keys() == {1, 8}
    assert session.readings[1].settings == (vanilla, chain)
    assert session.readings[1].per_pass == pytest.approx(np.array([[0.1, 0.2], [0.3, 0.4]]))
    assert session.readings[8].seconds.tolist() == [[5.5, 5.5], [6.5, 6.5]]
    with pytest.raises(ShardError):
        read_session(storage, _other_kind(storage))


def _other_kind(storage: Storage) -> str:
    write_shard(
        storage, "timings/quality-1.parquet", session_table([]), FACTS | {"kind": "quality"}
    )
    return "timings/quality-1.parquet"


@pytest.mark.parametrize("fact", ["configs", "started", "timed_on", "threads", "clock"])
def test_a_file_without_a_fact_is_no_session(fact: str, tmp_path: Path) -> None:
    storage, found = (
        Storage(tmp_path),
        rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]}),
    )
    write_shard(
        storage,
        NAME,
        session_table(found),
        {key: value for key, value in FACTS.items() if key != fact},
    )
    with pytest.raises(
        ShardError, match=rf"timing-1\.parquet: not a timing session, it lacks .*{fact}"
    ):
        read_session(storage, NAME)


@pytest.mark.parametrize("started", ["7", "yesterday", None])
def test_a_session_without_a_start_is_refused(started: object, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    found = rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]})
    write_shard(storage, NAME, session_table(found), FACTS | {"started": started})
    with pytest.raises(ShardError, match=r"timing-1\.parquet: not a timing session, started: "):
        read_session(storage, NAME)


def test_a_file_says_whose_session_it_is_and_how_busy_the_machine_was(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    found = rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]})
    load = {"wall_over_cpu": 1.5, "average": 3.0, "cores": 2}
    own = {"call": "one", "host": "node", "load": load, "started": "2026-01-01T00:00:00"}
    write_shard(storage, NAME, session_table(found), FACTS | own)
    session = read_session(storage, NAME)
    assert (session.call, session.host, session.load) == ("one", "node", Load(1.5, 3.0, 2))
    assert session.started == "2026-01-01T00:00:00+00:00", "UTC, if it does not say"
    assert session.is_busy


@pytest.mark.parametrize(
    ("load", "threads", "busy"),
    [
        (Load(), 1, False),
        (Load(1.02, 3.0, 2), 1, False),  # what wants a core starts now, or waits for a disk
        (Load(None, 3.0, 2), 1, True),
        (Load(1.5, 2.0, 2), 1, True),
        (Load(1.5, 2.0, 2), 2, False),  # it may have waited for its own other thread
        (Load(1.0, 3.0, 2), 2, True),
        (Load(None, 3.0, 2), 0, True),  # a GPU
        (Load(3.0, 3.0, 16), 0, False),
        (Load(None, 3.0, None), 0, False),
    ],
)
def test_a_machine_is_busy_where_processes_wait(load: Load, threads: int, busy: bool) -> None:
    assert load.is_busy_on(Device("a processor", threads)) is busy


def sittings_of(*sessions: tuple[str, str, str]) -> list[str]:
    """The sitting of each session, from its machine, call and start on 2026-01-0."""
    prices = price_list(
        *(
            timed_session(
                host=host, call=call, started=f"2026-01-0{start}:00+00:00", name=f"{number}"
            )
            for number, (host, call, start) in enumerate(sessions)
        )
    )
    found = prices.of(CHAIN.shape)[0].sessions
    assert [session.name for session in found] == list(map(str, range(len(sessions))))
    return [session.sitting for session in found]


def test_sessions_of_one_call_on_one_machine_are_a_sitting() -> None:
    one, same, other, later = sittings_of(
        ("node", "a", "1T00:00"),
        ("node", "a", "1T09:00"),
        ("node2", "a", "1T09:10"),
        ("node", "b", "2T00:00"),
    )
    assert one == same, "however long the call takes"
    assert len({one, other, later}) == 3


def test_calls_that_follow_each_other_share_the_state_of_the_machine() -> None:
    """Three calls of `specfrontier time` in a row are one sitting."""
    launch, soon, again, late, night = sittings_of(
        ("node", "launch", "1T00:00"),
        ("node", "a", "1T00:40"),
        ("node", "b", "1T01:30"),
        ("node", "b", "1T05:00"),
        ("node", "c", "1T06:01"),
    )
    assert launch == soon == again == late, "each begins within an hour of the last session"
    assert night != launch


def test_a_call_between_two_sessions_of_another_joins_both() -> None:
    launch, between, again = sittings_of(
        ("node", "launch", "1T00:00"), ("node", "a", "1T05:00"), ("node", "launch", "1T05:30")
    )
    assert launch == between == again


def test_a_sitting_is_named_by_its_machine_and_start() -> None:
    assert (
        sittings_of(("node", "a", "1T00:00"), ("node", "b", "1T00:40"))
        == ["node, 2026-01-01T00:00:00+00:00"] * 2
    )


def test_sittings_of_several_sweeps() -> None:
    """The second sweep's session joins two sittings of the first. What did not say where it ran is
    of no other sweep's machine.
    """
    first = price_list(
        timed_session(host="node", call="a", started="2026-01-01T00:00:00+00:00"),
        timed_session(host="node", call="b", started="2026-01-01T01:30:00+00:00"),
        timed_session(host="node2", call="c", started="2026-01-01T01:40:00+00:00"),
        timed_session(started="2026-01-01T01:50:00+00:00"),
    )
    second = price_list(
        timed_session(host="node", call="d", started="2026-01-01T00:45:00+00:00"),
        timed_session(started="2026-01-01T01:50:00+00:00"),
    )
    one, other = joint_sittings([first, second])
    assert len(set(first.sittings)) == 4
    joint = [one[name] for name in first.sittings]
    assert joint[0] == joint[1] == other[second.sittings[0]]
    assert len(set(joint)) == 3
    assert other[second.sittings[1]] not in joint


def test_sittings_weigh_alike_in_a_price_list() -> None:
    """Five sessions of one call say 2, one of another day says 2.2: as of two readings."""
    costs = {VANILLA: [0.03, 0.03]}
    day = [
        timed_session(
            costs | {CHAIN: [0.06, 0.06]}, prefill=0.0, call="a", name=f"a{number}",
            started=f"2026-01-01T00:0{number}:00+00:00",
        )
        for number in range(5)
    ]  # fmt: skip
    other = timed_session(
        costs | {CHAIN: [0.066, 0.066]}, prefill=0.0, call="b", name="b",
        started="2026-01-02T00:00:00+00:00",
    )  # fmt: skip
    found = price_list(*day, other).of(CHAIN.shape)[0].step_cost(CHAIN.shape)
    assert found.value == pytest.approx(math.sqrt(2 * 2.2), rel=0.005)


def test_a_session_that_lacks_a_reading_is_refused(tmp_path: Path) -> None:
    storage, found = (
        Storage(tmp_path),
        rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]}),
    )
    write_shard(storage, NAME, session_table(found[:-1]), FACTS)
    with pytest.raises(
        ShardError,
        match=r"timing-1\.parquet: not a timing session, its settings differ in their rows",
    ):
        read_session(storage, NAME)


def test_the_noise_of_costs_so_far() -> None:
    assert relative_noise(rows({"a": [1.5], "b": [2.5]})) == math.inf
    assert relative_noise(rows({"a": [1.5, 2.5]})) == math.inf
    steady = rows({"a": [1.5, 2.5], "b": [1.5, 2.5]})
    assert relative_noise(steady) == pytest.approx(0.0, abs=1e-9)
    unsteady = rows({"a": [1.0, 1.1], "b": [1.1, 1.0]})
    assert relative_noise(unsteady) == pytest.approx(math.log(1.1)), (
        "of means of two readings, and one degree of freedom"
    )


def test_the_threads_of_a_host_make_no_other_gpu(tmp_path: Path) -> None:
    """Nor does the number of a worker; `specfrontier time` is told from workers."""
    storage, found = (
        Storage(tmp_path),
        rows({VANILLA.digest(): [1.5, 2.5], CHAIN.digest(): [3.5, 4.5]}),
    )
    for threads, worker in ((1, "worker-0"), (8, TIME_WORKER)):
        write_shard(
            storage,
            f"timings/{threads}.parquet",
            session_table(found),
            FACTS
            | {"clock": WALL_CLOCK, "threads": threads, "timed_on": "a GPU", "worker": worker},
        )
    one, eight = (read_session(storage, f"timings/{threads}.parquet") for threads in (1, 8))
    assert one.device == eight.device == Device("a GPU")
    assert str(one.device) == "a GPU"
    assert [one.is_later, eight.is_later] == [False, True]


BOTH = {VANILLA: [0.04, 0.04], CHAIN: [0.08, 0.08]}
ALONE = {VANILLA: [0.04, 0.04]}
HERE, THERE = Device("here", 1), Device("there", 1)


def test_devices_and_batches_never_mix() -> None:
    here = timed_session(BOTH, device="here", name="a")
    there = timed_session({VANILLA: [0.04, 0.04], CHAIN: [0.40, 0.40]}, device="there", name="b")
    large = timed_session(
        {VANILLA: [0.04, 0.04], CHAIN: [0.20, 0.20]}, device="here", batch=8, name="c"
    )
    prices = price_list(here, there, large)

    def cost(batch: int | None = None, device: Device | None = None) -> float:
        return prices.of(CHAIN.shape, batch, device)[0].step_cost(CHAIN.shape).value

    assert prices.devices == (HERE, THERE)
    assert (prices.own, prices.batches, prices.batches_on(THERE)) == (HERE, (1, 8), (1,))
    assert [cost(), cost(8), cost(1, HERE), cost(1, THERE)] == pytest.approx([2.0, 5.0, 2.0, 10.0])
    places = ((HERE, 1), (HERE, 8), (THERE, 8))
    assert [len(prices.sessions_on(*place)) for place in places] == [1, 1, 0]
    with pytest.raises(MetricUnavailable, match="not timed on there, 1 thread at batch 8"):
        cost(8, THERE)


@pytest.mark.parametrize(
    ("sessions", "own"),
    [
        ((("here", ALONE, False), ("there", BOTH, False)), THERE),  # it timed more shapes
        ((("here", BOTH, False), ("there", BOTH, False)), HERE),  # the first of equals
        # `specfrontier time` does not change it
        ((("here", ALONE, False), ("there", BOTH, True)), HERE),
        ((("there", BOTH, True),), None),
        ((), None),
    ],
)
def test_the_sweeps_own_device_timed_the_most_shapes(sessions: Any, own: Device | None) -> None:
    found = [
        timed_session(
            costs,
            device=device,
            is_later=later,
            name=str(n),
            started=f"2026-01-0{n + 1}T00:00:00+00:00",
        )
        for n, (device, costs, later) in enumerate(sessions)
    ]
    assert price_list(*found).own == price_list(*reversed(found)).own == own


def test_a_shape_that_another_device_timed_has_no_price_on_the_own_one() -> None:
    """A search that named no device is told the speed of the one that timed it."""
    more = {**ALONE, CHAIN.with_sampling(Sampling(temperature=0.5)): [0.05, 0.05]}
    prices = price_list(
        timed_session(more, device="here", name="a"), timed_session(BOTH, device="there", name="b")
    )
    assert prices.own == HERE
    with pytest.raises(MetricUnavailable, match="not timed on here, 1 thread"):
        prices.of(CHAIN.shape, device=HERE)
    assert prices.of(CHAIN.shape)[0] is prices.of(CHAIN.shape, device=THERE)[0]
    with pytest.raises(MetricUnavailable, match="its shape was not timed at batch 8"):
        prices.of(CHAIN.shape, 8)
    with pytest.raises(MetricUnavailable, match="nothing was timed"):
        price_list().of(CHAIN.shape)


def test_a_gpu_that_gives_up_graphs_is_another_device_of_the_same_hardware() -> None:
    eager = Device("a GPU" + EAGER)
    assert eager != Device("a GPU")
    assert eager.hardware == Device("a GPU").hardware == "a GPU"
    assert Device("a processor", 2).hardware == "a processor, 2 threads"


def test_prices_of_two_devices_share_no_noise() -> None:
    """So that errors of differences between them do not cancel."""
    passes = np.array([50.0, 51.0])
    first, second = (
        price_list(timed_session(device=name, name=name)).of(CHAIN.shape)[0]
        for name in ("here", "there")
    )
    noises = [
        {(noise.group, noise.source) for noise in prices.latency(CHAIN.shape, passes, 9, 1).noises}
        for prices in (first, second)
    ]
    groups = [{group for group, _ in found} for found in noises]
    assert groups[0].isdisjoint(groups[1])


def test_readings_at_two_batch_sizes_share_no_noise(tmp_path: Path) -> None:
    storage, vanilla, chain = Storage(tmp_path), VANILLA.digest(), CHAIN.digest()
    found = rows({vanilla: [1.5, 2.5], chain: [3.5, 4.6]}) + rows(
        {vanilla: [5.5, 5.6], chain: [6.5, 6.7]}, batch=8
    )
    write_shard(storage, NAME, session_table(found), FACTS)
    prices = price_list(read_session(storage, NAME))
    one, eight = (
        prices.of(CHAIN.shape, batch)[0].speedup(CHAIN.shape, np.array([50.0]), 9)
        for batch in (1, 8)
    )
    assert {noise.group for noise in one.noises}.isdisjoint(noise.group for noise in eight.noises)
