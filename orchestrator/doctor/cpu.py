"""A CPU in the simple model of plans: what a short timing of its own arithmetic says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from orchestrator.doctor.gpus import Gpu
from orchestrator.doctor.machine import memory
from workers.loading.dry_run import Work
from workers.runtime.device import this_device
from workers.runtime.process import cores

_TIMING_S = 0.15  # of each of three timings
_SIDE = 512  # of the matrices whose product is timed
_ROWS = 4096  # of the matrix, of as many columns, that is read once
_SMALL = 16  # numbers in a tensor whose arithmetic takes no time
# The share of what is timed that decoding reaches: with the built-in model 0.39 to 0.59 at batch 1,
# and 0.26 to 0.52 at batch 96, in the quick start's settings on two cores of an AMD EPYC.
_REACHED_SHARE = 0.45


@dataclass(frozen=True, slots=True)
class Cpu(Gpu):
    """One worker of a sweep on this machine: a thread of its CPU. It begins each operation after
    the one before it.
    """

    operation_s: float = 0.0  # an operation without any work

    has_graphs: ClassVar[bool] = False
    reserved: ClassVar[int] = 0

    @classmethod
    def here(cls) -> Cpu:
        """This machine's, as timed now: half a second."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            square = torch.rand(_SIDE, _SIDE)
            large = torch.rand(_ROWS, _ROWS)
            row = torch.rand(_ROWS)
            small = torch.rand(_SMALL)
            compute = 2 * _SIDE**3 / _shortest_s(lambda: square @ square)
            bandwidth = large.nbytes / _shortest_s(lambda: large @ row)
            operation = _shortest_s(lambda: torch.nn.functional.silu(small) * small) / 2
        finally:
            torch.set_num_threads(threads)
        name = this_device(torch.device("cpu")).hardware
        total = memory()[0] or 0
        return cls(name, total // cores(), bandwidth, compute, operation_s=operation)

    def seconds(self, work: Work) -> float:
        working = max(work.moved / self.bandwidth, work.flops / self.compute)
        return (work.kernels * self.operation_s + working) / _REACHED_SHARE

    @property
    def assumption(self) -> str:
        return (
            f"a worker has one thread of this CPU ({self.name}), which moves "
            f"{self.bandwidth / 1e9:.0f} GB/s, computes {self.compute / 1e9:.0f} GFLOP/s and takes "
            f"{self.operation_s * 1e6:.1f} µs to begin an operation, as timed just now; "
            f"{_REACHED_SHARE:.0%} of that are reached, less while the machine does other work"
        )


def _shortest_s(run: Callable[[], object]) -> float:
    """Seconds of the shortest of several calls."""
    run()
    end = time.perf_counter() + _TIMING_S
    shortest = float("inf")
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest
