"""Seconds of an operation, launched from Python and replayed as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.gpu.record import Setup
from workers.runtime.timing import synchronize

_REPETITIONS, _WARM = 20, 3


def seconds_of(
    work: Callable[[], object], setup: Setup, *, is_first: bool = False
) -> dict[str, float]:
    """Mean seconds of a call: eager_s, and on CUDA graph_s, those of its kernels alone. is_first:
    of a single call, eagerly, without a warm-up.
    """
    if is_first:
        return {"eager_s": _mean_seconds(work, setup.device, 1)}
    for _ in range(1 if setup.is_tiny else _WARM):
        work()
    found = {"eager_s": _mean_seconds(work, setup.device, 1 if setup.is_tiny else _REPETITIONS)}
    if setup.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()
        found["graph_s"] = _mean_seconds(graph.replay, setup.device, _REPETITIONS)
    return found


def _mean_seconds(work: Callable[[], object], device: torch.device, repetitions: int) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(repetitions):
        work()
    synchronize(device)
    return (time.perf_counter() - begin) / repetitions
