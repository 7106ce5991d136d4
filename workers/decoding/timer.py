"""Where the seconds of decoding go."""

from __future__ import annotations

import time

import torch

PHASES = ("prefill", "drafter", "target", "acceptance", "commit")


class PhaseTimer:
    """Seconds by phase. On a CPU they are the CPU time of this thread, in which other processes
    have no part. On CUDA, events are recorded in the stream and read later, so timing does not
    synchronise.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._last_time: float = 0.0
        self._last_event: torch.cuda.Event | None = None

    def start(self) -> PhaseTimer:
        """Begin to measure, and return the timer."""
        if self._cuda:
            self._last_event = _record_event()
        else:
            self._last_time = time.thread_time()
        return self

    def lap(self, phase: str) -> None:
        """Charge the time since the last call of `start` or `lap` to a phase."""
        if self._cuda:
            assert self._last_event is not None
            now = _record_event()
            self._events.append((phase, self._last_event, now))
            self._last_event = now
        else:
            last = time.thread_time()
            self._seconds[phase] += last - self._last_time
            self._last_time = last

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. Waits for the device."""
        for phase, begin, end in self._events:
            end.synchronize()
            self._seconds[phase] += begin.elapsed_time(end) / 1e3
        self._events.clear()
        seconds = self._seconds
        self._seconds = dict.fromkeys(PHASES, 0.0)
        return seconds


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
