"""Rounds as CUDA graphs: all kernels of a phase are launched at once, without Python between them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from workers.decoding.row_tensors import RowTensors
from workers.decoding.timer import PhaseTimer

_logger = logging.getLogger(__name__)


class Graph(Protocol):
    """A recorded computation. It reads and writes the memory that it had when it was recorded."""

    def replay(self) -> None: ...


# Records a function without carrying it out; returns the graph and the function's result, which a replay overwrites.
Capture = Callable[[Callable[[], Any]], tuple[Graph, Any]]
Shape = tuple[int, ...]  # a batch's rows, its largest count of tokens, and what the drafting planned
RunPhase = Callable[[str, Callable[[], Any]], Any]  # carries out the phase of this name


def graph_capture(device: torch.device) -> Capture | None:
    """How graphs are recorded on a device; None where they are not. Graphs share their memory, as only one of them runs
    at a time.
    """
    if device.type != "cuda" or os.environ.get("SPECFRONTIER_CUDA_GRAPHS") == "0":
        return None
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(function: Callable[[], Any]) -> tuple[Graph, Any]:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        try:
            with torch.cuda.device(device), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                result = function()
        except Exception:
            torch.cuda.set_stream(before)  # a failed capture leaves its own stream in place
            raise
        return graph, result

    return capture


def halved(capacity: int, captions: int) -> int:
    """The rows of a batch for so many captions: its capacity, halved as often as they still fit."""
    rows = capacity
    while rows // 2 >= max(1, captions):
        rows //= 2
    return rows


def run_eagerly(timer: PhaseTimer) -> RunPhase:
    """Carries out each phase as it comes."""

    def run(name: str, function: Callable[[], Any]) -> Any:
        result = function()
        timer.lap(name)
        return result

    return run


class RoundGraphs:
    """The graphs of a batch's rounds by shape, one graph for each phase, so that phases can be timed.

    A shape's first round runs eagerly: it compiles kernels and fills tables. The second is recorded, and from then on
    rounds of this shape are replayed. Where a phase cannot be recorded, this and all further rounds run eagerly.
    """

    def __init__(self, capture: Capture, carried: RowTensors) -> None:
        self.failure: Exception | None = None  # why rounds run eagerly
        self._capture, self._carried = capture, carried
        self._seen: set[Shape] = set()
        self._recorded: dict[Shape, tuple[list[tuple[str, Graph]], Any]] = {}

    @property
    def shapes(self) -> list[Shape]:
        """The shapes that have graphs."""
        return list(self._recorded)

    def run(self, shape: Shape, timer: PhaseTimer, phases: Callable[[RunPhase], Any]) -> Any:
        """The result of `phases`, which gives each phase of a round to its argument. The next round of this shape
        overwrites it.
        """
        if shape not in self._recorded:
            if shape not in self._seen or self.failure:
                self._seen.add(shape)
                return phases(run_eagerly(timer))
            return self._record(shape, timer, phases)
        graphs, result = self._recorded[shape]
        for name, graph in graphs:
            graph.replay()
            timer.lap(name)
        return result

    def _record(self, shape: Shape, timer: PhaseTimer, phases: Callable[[RunPhase], Any]) -> Any:
        graphs: list[tuple[str, Graph]] = []
        eagerly = run_eagerly(timer)

        def run(name: str, function: Callable[[], Any]) -> Any:
            if self.failure:
                return eagerly(name, function)
            try:
                graph, result = self._capture(function)
            except RuntimeError as error:
                self.failure = error
                self._recorded.clear()
                self._carried.reset(self._carried.size)  # the phase has assigned tensors that were never computed
                _logger.warning("a round cannot be recorded as a CUDA graph, so rounds take longer: %s", error)
                return eagerly(name, function)
            graphs.append((name, graph))
            graph.replay()
            timer.lap(name)
            return result

        result = phases(run)
        if not self.failure:
            self._recorded[shape] = graphs, result
        return result
