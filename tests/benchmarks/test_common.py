"""What the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from benchmarks.common import paired_speedup
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES

_WAIT_S = 50.0


class Clocks:
    """CPU time that passes while something is computed, and wall time that passes besides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu, self.waited = 0.0, 0.0
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(time, "perf_counter", lambda: self.cpu + self.waited)


def _engine(clocks: Clocks, seconds: float) -> Engine:
    """Computes for some seconds in each call, and waits for `_WAIT_S` as if another process had its
    core.
    """

    def run(requests: Sequence[Request]) -> list[Result]:
        clocks.waited += _WAIT_S
        clocks.cpu += seconds
        counts = (torch.tensor([1]),) * 6
        statistics = ImageStatistics(*counts, dict.fromkeys(PHASES, 0.0))
        return [Result(request, torch.zeros(2), statistics) for request in requests]

    return cast(Engine, SimpleNamespace(device=torch.device("cpu"), batch_size=1, run=run))


def test_paired_speed_ups_are_by_the_clock_of_timing_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time for which a process waits for its core changes no speed-up."""
    requests, clocks = [Request(0, "a"), Request(1, "b")], Clocks(monkeypatch)
    paired = paired_speedup(_engine(clocks, 4.0), _engine(clocks, 1.0), requests, repetitions=5)
    assert paired.speedup == 4
    assert paired.latency == 0.5  # both images are of one batch
    assert paired.drawn.wall == _WAIT_S + 1.0
