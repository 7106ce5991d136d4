"""Timing in turn: who generates when, what is left out, and what the seconds are of."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
import torch

from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES
from workers.runtime.device import this_device
from workers.runtime.timing import Generate, time_images, time_in_turn

BATCHES = [[Request(3, "a"), Request(4, "b")], [Request(9, "c")]]
CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


class Clock:
    """CPU time that passes only while something is generated, and wall time at twice its pace.
    Remembers what was generated, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.generated = 0.0, [("", 0)][:0]
        monkeypatch.setattr(time, "thread_time", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter", lambda: 2 * self.now)

    def generate(self, name: str, seconds: float) -> Generate:
        def generate(requests: Sequence[Request]) -> list[Result]:
            self.now += seconds * len(requests)
            self.generated.append((name, requests[0].caption_id))
            passes = torch.tensor([2, 4])
            counts = (passes,) * 6
            times = dict.fromkeys(PHASES, 0.0) | {"prefill": 0.25 / len(requests)}
            return [
                Result(request, torch.zeros(7), ImageStatistics(*counts, times))
                for request in requests
            ]

        return generate


def test_all_take_turns_after_an_unmeasured_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    settings = {
        name: clock.generate(name, seconds)
        for name, seconds in (("v", 3.0), ("s", 1.0), ("t", 2.0))
    }
    rows = time_in_turn(settings, BATCHES, CPU, repetitions=20)
    assert clock.generated[:3] == [("v", 3), ("s", 3), ("t", 3)], "before the clock starts"
    turns = [clock.generated[i : i + 3] for i in range(3, len(clock.generated), 3)]
    assert [{name for name, _ in turn} for turn in turns] == [{"v", "s", "t"}] * 40
    assert [turn[0][1] for turn in turns] == [3, 9] * 20
    assert len({tuple(name for name, _ in turn) for turn in turns}) == 6, "in every order"
    assert [row["setting"] for row in rows] == [name for turn in turns for name, _ in turn]
    assert [row["turn"] for row in rows[:6]] == [0, 1, 2, 0, 1, 2]
    assert {
        (row["setting"], tuple(row["caption_ids"]), row["batch"], row["seconds"], row["wall"])
        for row in rows
    } == {
        (name, captions, size, size * seconds, 2 * size * seconds)
        for name, seconds in (("v", 3.0), ("s", 1.0), ("t", 2.0))
        for captions, size in (((3, 4), 2), ((9,), 1))
    }
    assert {(row["passes"], row["prefill"]) for row in rows} == {(2, 0.25)}, (
        "the prefill is of all images together"
    )


def test_the_order_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(seed: int) -> list[str]:
        clock = Clock(monkeypatch)
        settings = {name: clock.generate(name, 1.0) for name in "vst"}
        return [
            row["setting"] for row in time_in_turn(settings, BATCHES, CPU, repetitions=3, seed=seed)
        ]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 4


def test_a_session_ends_when_it_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = Clock(monkeypatch), []

    def is_enough(rows: Sequence[object]) -> bool:
        seen.append(len(rows))
        return len(rows) >= 8

    rows = time_in_turn(
        {n: clock.generate(n, 1.0) for n in "vs"}, BATCHES, CPU, repetitions=9, is_enough=is_enough
    )
    assert seen == [4, 8]
    assert len(rows) == 8


def test_captions_are_read_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text encoder's seconds are in no setting's, whoever begins."""
    clock, read = Clock(monkeypatch), [0][:0]

    def encode(requests: Sequence[Request]) -> None:
        clock.now += 100.0
        read.extend(request.caption_id for request in requests)

    settings = {"v": clock.generate("v", 3.0), "s": clock.generate("s", 1.0)}
    rows = time_in_turn(settings, BATCHES, CPU, repetitions=2, encode=encode)
    assert read == [3, 4, 9, 3, 4, 9]
    assert {(row["setting"], row["seconds"] / row["batch"]) for row in rows} == {
        ("v", 3.0),
        ("s", 1.0),
    }


def test_a_gpu_is_idle_at_both_ends_and_timed_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, events = Clock(monkeypatch), ["begin"][:0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(str(device)))
    seconds, wall, results = time_images(clock.generate("s", 1.0), BATCHES[0], GPU)
    assert events == ["cuda:1", "cuda:1"]
    assert (seconds, wall) == (4.0, 4.0)
    assert [result.request.caption_id for result in results] == [3, 4]
    monkeypatch.setattr(torch.cuda, "get_device_name", str)
    assert [this_device(device).clock for device in (GPU, CPU)] == ["wall clock", "cpu time"]
    assert str(this_device(GPU)) == "cuda:1", "its threads change nothing"


def wait_for_another_thread(requests: Sequence[Request]) -> list[Result]:
    """Computes in another thread for half a second of its CPU time, and waits for it."""

    def compute() -> None:
        start = time.thread_time()
        while time.thread_time() - start < 0.5:
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return []


def test_the_time_in_which_the_thread_waits_does_not_count() -> None:
    """As it waits for its core while other processes have it. How much they slow a sweep's speeds
    down besides, by caches and memory, is what `benchmarks.speed_repeats` measures.
    """
    seconds, wall, _ = time_images(wait_for_another_thread, [], CPU)
    assert seconds < 0.5 <= wall
