"""Statistics of decoding: small tensors that record each round, and the statistics of each image."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.state import Request
from workers.decoding.tree import DraftTree

PHASES = ("prefill", "drafter", "target", "acceptance", "commit")


class PhaseTimer:
    """Seconds by phase. On CUDA, events are recorded in the stream and read later, so timing does not synchronise."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last_time: float = 0.0
        self._last_event: torch.cuda.Event | None = None

    def start(self) -> PhaseTimer:
        if self._cuda:
            self._last_event = _record_event()
        else:
            self._last_time = time.perf_counter()
        return self

    def lap(self, phase: str) -> None:
        """Charge the time since the last call of `start` or `lap` to a phase."""
        if self._cuda:
            assert self._last_event is not None
            now = _record_event()
            self._events.append((phase, self._last_event, now))
            self._last_event = now
        else:
            last = time.perf_counter()
            self._seconds[phase] += last - self._last_time
            self._last_time = last

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. Waits for the device."""
        for phase, begin, end in self._events:
            end.synchronize()
            self._seconds[phase] += begin.elapsed_time(end) / 1e3
        self._events.clear()
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return seconds


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """The rounds of one image.

    Per round: `emitted` tokens (accepted drafts + 1), token index `position` of the first emitted token, drafted tree
    `depth` and `nodes`. `seconds` by phase: the image's equal share of its prefill and of each of its rounds.
    """

    emitted: Tensor  # [rounds] int64
    position: Tensor  # [rounds]
    depth: Tensor  # [rounds]
    nodes: Tensor  # [rounds]
    seconds: dict[str, float]

    @property
    def rounds(self) -> int:
        """Passes of the target, prefill excluded."""
        return int(self.emitted.numel())

    @property
    def mean_accepted_length(self) -> float:
        """Tokens emitted per target pass; 1 for vanilla decoding. The prefill's token does not count."""
        return float(self.emitted.float().mean())

    @property
    def step_compression(self) -> float:
        """Tokens of the image divided by its target passes; both counts include the prefill."""
        return (int(self.emitted.sum()) + 1) / (self.rounds + 1)

    @property
    def mean_tree_depth(self) -> float:
        """Levels drafted per round. Vanilla decoding counts as 1, as in the papers' tables."""
        return float(self.depth.clamp(min=1).float().mean())

    @property
    def latency(self) -> float:
        """Seconds, prefill included."""
        return sum(self.seconds.values())


class StatisticsRecorder:
    """Collects the rounds of every row of a batch until its image is finished.

    Rounds are appended to a list; they are written to the log when an image is closed. Rows change only at that time.
    """

    def __init__(self, size: int, image_len: int, timer: PhaseTimer, device: torch.device) -> None:
        self.requests: list[Request] = [Request(0, "")] * size
        self._log = torch.zeros(size, 3, image_len, dtype=torch.int64, device=device)  # emitted, depth, nodes
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._rounds = [0] * size
        self._timer = timer
        self._share = dict.fromkeys(PHASES, 0.0)  # seconds: one row's share of all rounds so far
        self._start_share: list[dict[str, float]] = [{}] * size

    def open(self, rows: list[int], requests: list[Request]) -> None:
        """Start new images at these rows, whose prefill the timer has just measured."""
        prefill = self._timer.take()["prefill"] / len(rows)
        for row, request in zip(rows, requests, strict=True):
            self.requests[row] = request
            self._start_share[row] = {**self._share, "prefill": self._share["prefill"] - prefill}
            self._rounds[row] = 0

    def record(self, num_emitted: Tensor, tree: DraftTree) -> None:
        """Append one round of every row."""
        self._pending.append((num_emitted, tree.levels, tree.exists.sum(1)))

    def close(self, row: int) -> ImageStatistics:
        """The statistics of the finished image at this row."""
        if self._pending:
            self._flush()
        log = self._log[row, :, : self._rounds[row]].to("cpu", copy=True)  # the row is about to be reused
        emitted, depth, nodes = log
        seconds = {phase: total - self._start_share[row][phase] for phase, total in self._share.items()}
        return ImageStatistics(emitted, emitted.cumsum(0) - emitted + 1, depth, nodes, seconds)

    def keep(self, rows: list[int]) -> None:
        """Keep only these rows, in that order."""
        self._log = self._log[torch.tensor(rows, dtype=torch.int64, device=self._log.device)]
        self._rounds = [self._rounds[row] for row in rows]
        self.requests = [self.requests[row] for row in rows]
        self._start_share = [self._start_share[row] for row in rows]

    def _flush(self) -> None:
        """Write the pending rounds to the log, and add their seconds to every row's share."""
        new = torch.stack([torch.stack(column, dim=1) for column in zip(*self._pending, strict=True)], dim=1)
        rounds = [[*range(first, first + len(self._pending))] for first in self._rounds]
        self._log.scatter_(2, torch.tensor(rounds, device=self._log.device)[:, None].expand_as(new), new)
        self._rounds = [found[-1] + 1 for found in rounds]
        for phase, seconds in self._timer.take().items():
            self._share[phase] += seconds / len(self._rounds)
        self._pending.clear()
