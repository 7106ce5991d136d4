"""What the benchmarks share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import torch

from benchmarks.common import paired_speedup
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES

_WAIT_S = 0.05


def _engine(work: int) -> Engine:
    """Computes so many sums for each call, and waits for `_WAIT_S` as if another process had its core."""

    def run(requests: Sequence[Request]) -> list[Result]:
        time.sleep(_WAIT_S)
        sum(range(work))
        counts = torch.tensor([1])
        statistics = ImageStatistics(counts, counts, counts, counts, dict.fromkeys(PHASES, 0.0))
        return [Result(request, torch.zeros(2), statistics) for request in requests]

    return cast(Engine, SimpleNamespace(device=torch.device("cpu"), batch_size=1, run=run))


def test_paired_speed_ups_are_by_the_clock_of_timing_sessions() -> None:
    """The time for which a process waits for its core changes no speed-up."""
    requests = [Request(0, "a"), Request(1, "b")]
    paired = paired_speedup(_engine(400_000), _engine(100_000), requests, repetitions=5)
    assert paired.speedup > 2
    assert paired.latency < _WAIT_S / 2
    assert paired.drawn.wall > _WAIT_S
