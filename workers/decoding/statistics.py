"""What a round leaves behind, as small tensors, and what an image's rounds add up to."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.decoding.state import Request
from workers.decoding.tree import DraftTree

PHASES = ("prefill", "drafter", "target", "acceptance", "commit")


class PhaseTimer:
    """Seconds by phase. On CUDA, events are recorded in the stream and read later, so that timing stalls nothing."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._mark: float = 0.0
        self._event: torch.cuda.Event | None = None

    def start(self) -> PhaseTimer:
        if self.cuda:
            self._event = _mark_now()
        else:
            self._mark = time.perf_counter()
        return self

    def lap(self, phase: str) -> None:
        """Charge the time since the last mark to a phase."""
        if self.cuda:
            assert self._event is not None
            now = _mark_now()
            self._events.append((phase, self._event, now))
            self._event = now
        else:
            mark = time.perf_counter()
            self.seconds[phase] += mark - self._mark
            self._mark = mark

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. Waits for the device."""
        for phase, begin, end in self._events:
            end.synchronize()
            self.seconds[phase] += begin.elapsed_time(end) / 1e3
        self._events.clear()
        taken, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return taken


def _mark_now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


@dataclass(frozen=True, slots=True)
class ImageStatistics:
    """One image's rounds. Per round: `emitted` tokens (accepted drafts + 1), token index `position` of the first of
    them, drafted tree `depth` and `nodes`. `seconds` by phase: this image's equal share of every round it took part
    in, and its prefill."""

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
        """Tokens emitted per target pass; plain decoding has 1. The prefill's token does not count."""
        return float(self.emitted.float().mean())

    @property
    def step_compression(self) -> float:
        """Tokens of the image over its target passes, the prefill counted on both sides."""
        return (int(self.emitted.sum()) + 1) / (self.rounds + 1)

    @property
    def mean_tree_depth(self) -> float:
        """Levels drafted per round. Plain decoding counts as 1, as the papers print it."""
        return float(self.depth.clamp(min=1).float().mean())

    @property
    def latency(self) -> float:
        """Seconds, prefill included."""
        return sum(self.seconds.values())


class StatisticsRecorder:
    """The rounds of every row of a batch, until its image is finished.

    A round is only noted; notes are entered in the log when an image is closed. Rows come and go only then.
    """

    def __init__(self, size: int, image_len: int, timer: PhaseTimer, device: torch.device) -> None:
        self.log = torch.zeros(size, image_len, 3, dtype=torch.int64, device=device)
        self.notes: list[tuple[Tensor, Tensor, Tensor]] = []
        self.rounds = [0] * size
        self.requests: list[Request] = [Request(0, "")] * size
        self.timer = timer
        self.share = dict.fromkeys(PHASES, 0.0)  # one row's share of all rounds so far
        self.opened: list[dict[str, float]] = [{}] * size

    def open(self, places: list[int], requests: list[Request]) -> None:
        """New images at these rows; what the stopwatch holds is their prefill."""
        prefill = self.timer.take()["prefill"] / len(places)
        for place, request in zip(places, requests, strict=True):
            self.requests[place] = request
            self.opened[place] = {**self.share, "prefill": self.share["prefill"] - prefill}
            self.rounds[place] = 0

    def record(self, emitted: Tensor, tree: DraftTree) -> None:
        """One round of every row."""
        self.notes.append((emitted, tree.levels, tree.exists.sum(1)))

    def close(self, row: int) -> ImageStatistics:
        """The finished image at this row."""
        if self.notes:
            self._enter()
        log = self.log[row, : self.rounds[row]].to("cpu", copy=True)  # the row is about to be reused
        emitted = log[:, 0].clone()
        seconds = {phase: total - self.opened[row][phase] for phase, total in self.share.items()}
        return ImageStatistics(emitted, emitted.cumsum(0) - emitted + 1, log[:, 1].clone(), log[:, 2].clone(), seconds)

    def keep(self, rows: list[int]) -> None:
        """Keep only these rows, in that order."""
        self.log = self.log[torch.tensor(rows, dtype=torch.int64, device=self.log.device)]
        self.rounds = [self.rounds[r] for r in rows]
        self.requests = [self.requests[r] for r in rows]
        self.opened = [self.opened[r] for r in rows]

    def _enter(self) -> None:
        """Enter the noted rounds, and the seconds that they took, in the log."""
        fresh = torch.stack([torch.stack(column, dim=1) for column in zip(*self.notes, strict=True)], dim=2)
        for row, first in enumerate(self.rounds):
            self.log[row, first : first + len(self.notes)] = fresh[row]
            self.rounds[row] += len(self.notes)
        for phase, seconds in self.timer.take().items():
            self.share[phase] += seconds / len(self.rounds)
        self.notes.clear()
