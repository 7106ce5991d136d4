"""Paired timing: who draws when, what is left out, and what the seconds are of."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch

from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES
from workers.runtime.timing import Generate, time_images, time_pairs

BATCHES = [[Request(3, "a"), Request(4, "b")], [Request(9, "c")]]
CPU = torch.device("cpu")


class Clock:
    """Time that passes only while something is drawn; remembers what was drawn, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.drawn = 0.0, [("", 0)][:0]
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def draw(self, name: str, seconds: float) -> Generate:
        def draw(requests: Sequence[Request]) -> list[Result]:
            self.now += seconds * len(requests)
            self.drawn.append((name, requests[0].caption_id))
            rounds = torch.tensor([2, 4])
            times = dict.fromkeys(PHASES, 0.0) | {"prefill": 0.25 / len(requests)}
            return [
                Result(request, torch.zeros(7), ImageStatistics(rounds, rounds, rounds, rounds, times))
                for request in requests
            ]

        return draw


def test_both_take_turns_after_an_unmeasured_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rows = time_pairs(clock.draw("v", 3.0), clock.draw("s", 1.0), BATCHES, 2, CPU)
    order = [("v", 3), ("s", 3)]  # warm-up
    order += [("v", 3), ("s", 3), ("s", 9), ("v", 9)]
    order += [("s", 3), ("v", 3), ("v", 9), ("s", 9)]
    assert clock.drawn == order
    assert [(row["caption_ids"], row["repetition"], row["batch"]) for row in rows] == [
        ([3, 4], 0, 2), ([9], 0, 1), ([3, 4], 1, 2), ([9], 1, 1),
    ]  # fmt: skip
    assert [row["seconds_vanilla"] for row in rows] == [6.0, 3.0, 6.0, 3.0]
    assert [row["seconds"] for row in rows] == [2.0, 1.0, 2.0, 1.0]
    assert {(row["passes"], row["passes_vanilla"]) for row in rows} == {(2, 2)}
    assert {(row["prefill"], row["prefill_vanilla"]) for row in rows} == {(0.25, 0.25)}, "both images' shares"


@pytest.mark.parametrize(("precision", "repetitions"), [(0.0, 4), (0.01, 1)])
def test_timing_ends_when_the_costs_are_precise(
    precision: float, repetitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, batches = Clock(monkeypatch), [[Request(3, "a")], [Request(4, "b")]]
    rows = time_pairs(clock.draw("v", 3.0), clock.draw("s", 1.0), batches, 4, CPU, precision=precision)
    assert [row["repetition"] for row in rows] == [number for number in range(repetitions) for _ in batches]


def test_timing_goes_on_while_the_costs_are_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captions' costs differ by 2 to 1: a relative error of a third at first, and still above 0.05 at the end."""
    clock, batches = Clock(monkeypatch), [[Request(3, "a")], [Request(4, "b")]]

    def uneven(requests: Sequence[Request]) -> list[Result]:
        return clock.draw("s", 2.0 if requests[0].caption_id == 3 else 1.0)(requests)

    rows = time_pairs(clock.draw("v", 3.0), uneven, batches, 4, CPU, precision=0.05)
    assert [row["repetition"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_captions_are_read_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text encoder's seconds are in neither side's, whoever begins."""
    clock, read = Clock(monkeypatch), [0][:0]

    def encode(requests: Sequence[Request]) -> None:
        clock.now += 100.0
        read.extend(request.caption_id for request in requests)

    rows = time_pairs(clock.draw("v", 3.0), clock.draw("s", 1.0), BATCHES, 2, CPU, encode=encode)
    assert read == [3, 4, 9, 3, 4, 9]
    assert [row["seconds_vanilla"] for row in rows] == [6.0, 3.0, 6.0, 3.0]
    assert [row["seconds"] for row in rows] == [2.0, 1.0, 2.0, 1.0]


def test_the_baseline_beside_itself_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rows = time_pairs(clock.draw("v", 3.0), None, BATCHES, 1, CPU)
    assert clock.drawn == [("v", 3), ("v", 3), ("v", 9)]
    assert all(row["seconds"] == row["seconds_vanilla"] for row in rows)


def test_the_device_is_idle_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, events = Clock(monkeypatch), ["begin"][:0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(str(device)))
    seconds, results = time_images(clock.draw("s", 1.0), BATCHES[0], torch.device("cuda:1"))
    assert events == ["cuda:1", "cuda:1"]
    assert seconds == 2.0
    assert [result.request.caption_id for result in results] == [3, 4]
