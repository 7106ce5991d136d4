"""Passes as CUDA graphs: all kernels of a phase are launched at once, without Python between
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from workers.decoding.row_buffers import RowBuffers
from workers.decoding.timer import PhaseTimer

_logger = logging.getLogger(__name__)
_MAX_RUNS = 32  # a batch meets few keys, and each of them needs two passes at most
_Output = TypeVar("_Output")


class Graph(Protocol):
    """A captured computation. It reads and writes the memory that it had when it was captured."""

    def replay(self) -> None: ...


# A function that captures another one without carrying it out. It returns the graph and the
# captured function's result, which a replay overwrites.
Capture = Callable[[Callable[[], Any]], tuple[Graph, Any]]
RunPhase = Callable[[str, Callable[[], Any]], Any]  # carries out the phase of this name
# A batch's rows, its largest count of tokens, and what the drafting planned.
GraphKey = tuple[int, ...]


def are_supported(device: torch.device) -> bool:
    """Whether passes are captured on a device."""
    is_enabled = os.environ.get("SPECFRONTIER_CUDA_GRAPHS") != "0"
    return device.type == "cuda" and is_enabled and PassGraphs.failure is None


class CudaCapture:
    """Captures CUDA graphs that share their memory, as only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, function: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        torch._C._cuda_clearCublasWorkspaces()  # graphs and eager kernels must not share one
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                result = function()
            except BaseException:
                self._abandon(graph)
                raise
            graph.capture_end()
        torch._C._cuda_clearCublasWorkspaces()
        return graph, result

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Leave capture mode. The end of a failed capture raises before the allocator has left
        it.
        """
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)


def padded_batch_size(capacity: int, captions: int) -> int:
    """The rows of a static batch for so many captions: its capacity, halved as often as they still
    fit.
    """
    rows = capacity
    while rows // 2 >= max(1, captions):
        rows //= 2
    return rows


def eager_runner(timer: PhaseTimer) -> RunPhase:
    """Carries out each phase as it comes."""

    def run(name: str, function: Callable[[], Any]) -> Any:
        result = function()
        timer.lap(name)
        return result

    return run


def run_until_replayed(run: Callable[[], _Output]) -> _Output:
    """The output of the first run in which all passes of batches with graphs are replays.

    A key's first two passes take longer, and a setting whose images end at different times has more
    keys than vanilla. So `run` is called again as long as keys are new. It must compute the same
    each time, on engines that keep their graphs.

    Raises:
        RuntimeError: the keys are still new after many runs, because graphs are not kept.
    """
    for _ in range(_MAX_RUNS):
        before = PassGraphs.first_passes
        output = run()
        if PassGraphs.first_passes == before:
            return output
    raise RuntimeError(
        f"after {_MAX_RUNS} runs of the same captions, passes are still captured as CUDA graphs"
    )


class PassGraphs:
    """The graphs of a batch's passes by key, one graph for each phase, so that phases can be timed.

    A key's first pass runs eagerly: it compiles kernels and fills tables. The second is captured,
    and from then on its graphs are replayed. After a phase that cannot be captured, all passes of
    this process run eagerly, also those that have graphs: settings are compared in one mode.
    """

    # Why passes run eagerly; None while graphs are used.
    failure: ClassVar[str | None] = None
    # How many passes of this process ran eagerly or were captured because their key was new.
    first_passes: ClassVar[int] = 0

    def __init__(self, capture: Capture, buffers: RowBuffers) -> None:
        self._capture = capture
        self._buffers = buffers
        self._warm: set[GraphKey] = set()
        self._captured: dict[GraphKey, tuple[list[tuple[str, Graph]], Any]] = {}

    @property
    def keys(self) -> list[GraphKey]:
        """The keys that have graphs."""
        return list(self._captured)

    def run(self, key: GraphKey, timer: PhaseTimer, phases: Callable[[RunPhase], Any]) -> Any:
        """The result of `phases`, which lets its argument carry out each phase of a pass. The next
        pass of this key overwrites the result.

        Raises:
            torch.OutOfMemoryError: during capture, as in any pass.
        """
        if key in self._captured and self.failure is None:
            graphs, result = self._captured[key]
            for name, graph in graphs:
                graph.replay()
                timer.lap(name)
            return result
        if self.failure is not None:
            return phases(eager_runner(timer))
        PassGraphs.first_passes += 1
        if key not in self._warm:
            self._warm.add(key)
            return phases(eager_runner(timer))
        graphs = []
        result = phases(self._capturing_runner(graphs, timer))
        if self.failure is None:
            self._captured[key] = graphs, result
        return result

    def _capturing_runner(self, graphs: list[tuple[str, Graph]], timer: PhaseTimer) -> RunPhase:
        """Captures each phase, and replays it once."""
        eagerly = eager_runner(timer)

        def run(name: str, function: Callable[[], Any]) -> Any:
            if self.failure is not None:
                return eagerly(name, function)
            try:
                graph, result = self._capture(function)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                PassGraphs.failure = str(error)
                # the phase has assigned tensors that were never computed
                self._buffers.reset(self._buffers.size)
                _logger.warning(
                    "a pass cannot be captured as a CUDA graph, so passes take longer: %s", error
                )
                return eagerly(name, function)
            graphs.append((name, graph))
            graph.replay()
            timer.lap(name)
            return result

        return run
