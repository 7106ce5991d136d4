"""Statistics of decoding, by pass and by image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.state import Request
from workers.decoding.timer import PHASES, PhaseTimer


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """The passes of one image. A pass with an unverified path drafts the levels of two trees, and
    emits and reads the path's tokens as well.
    """

    emitted: Tensor  # [passes] emitted tokens, int64: the accepted drafts and one more
    position: Tensor  # [passes] the token index of the first emitted token
    depth: Tensor  # [passes] levels drafted
    nodes: Tensor  # [passes] nodes that the target reads after the root
    # By phase, the image's equal share of its prefill and of each of its passes.
    seconds: dict[str, float]

    @property
    def passes(self) -> int:
        """Passes of the target, prefill excluded."""
        return int(self.emitted.numel())

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per target pass; 1 for vanilla decoding. The prefill's token does not
        count.
        """
        return float(self.emitted.float().mean())

    @property
    def step_compression(self) -> float:
        """Tokens of the image divided by its target passes; both counts include the prefill."""
        return (int(self.emitted.sum()) + 1) / (self.passes + 1)

    @property
    def mean_tree_depth(self) -> float:
        """Levels drafted per pass. Vanilla decoding counts as 1, as in the papers' tables."""
        return float(self.depth.clamp(min=1).float().mean())

    @property
    def latency(self) -> float:
        """Seconds, prefill included."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Result:
    """One finished image."""

    request: Request
    tokens: Tensor  # [image_len] int64 on the CPU
    statistics: ImageStatistics


@dataclass(frozen=True, slots=True)
class PassCounts:
    """What a pass did, for every row."""

    so_far: list[int]  # image tokens emitted by all passes
    emitted: list[int]  # image tokens emitted by this pass
    depth: list[int]  # levels drafted
    nodes: list[int]  # nodes drafted


class StatisticsRecorder:
    """Collects the passes of every row of a batch until its image is finished."""

    def __init__(self, size: int, timer: PhaseTimer) -> None:
        self.requests: list[Request | None] = [None] * size  # None at rows without an open image
        # for each row, the emitted tokens, depth and nodes of every pass
        self._passes: list[list[tuple[int, int, int]]] = [[] for _ in range(size)]
        self._timer = timer
        self._share = dict.fromkeys(PHASES, 0.0)  # one row's share of all passes' seconds
        self._start_share: list[dict[str, float]] = [{}] * size

    @property
    def open_rows(self) -> list[int]:
        """The rows at which an image is open."""
        return [row for row, request in enumerate(self.requests) if request is not None]

    def open(self, rows: list[int], requests: list[Request], seconds: float = 0.0) -> None:
        """Start new images at these rows. The timer has just measured their prefill, but for
        `seconds` of each image, which were measured before.
        """
        prefill = seconds + self._timer.take()["prefill"] / len(rows)
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = request
            self._passes[row] = []
            self._start_share[row] = {**self._share, "prefill": self._share["prefill"] - prefill}

    def record(self, counts: PassCounts) -> None:
        """Append one pass of every row."""
        for row, passes in enumerate(self._passes):
            passes.append((counts.emitted[row], counts.depth[row], counts.nodes[row]))

    def close(self, rows: list[int]) -> list[tuple[Request, ImageStatistics]]:
        """The requests and the statistics of the finished images at these rows."""
        images = len(self.open_rows)
        for phase, seconds in self._timer.take().items():
            self._share[phase] += seconds / images
        return [self._close(row) for row in rows]

    def _close(self, row: int) -> tuple[Request, ImageStatistics]:
        request = self.requests[row]
        self.requests[row] = None
        assert request is not None, "an image is open at this row"
        emitted, depth, nodes = torch.tensor(self._passes[row]).T.contiguous()
        seconds = {
            phase: total - self._start_share[row][phase] for phase, total in self._share.items()
        }
        return request, ImageStatistics(
            emitted, emitted.cumsum(0) - emitted + 1, depth, nodes, seconds
        )

    def keep(self, rows: list[int]) -> None:
        """Keep only these rows, in that order."""
        self.requests = [self.requests[row] for row in rows]
        self._passes = [self._passes[row] for row in rows]
        self._start_share = [self._start_share[row] for row in rows]
