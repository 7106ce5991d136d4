"""Seconds of a setting beside the baseline's: the same captions, the same process, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from workers.data.records import Timing
from workers.decoding.engine import Result
from workers.decoding.state import Request

Draw = Callable[[Sequence[Request]], list[Result]]


def timed(draw: Draw, requests: Sequence[Request], device: torch.device) -> tuple[float, list[Result]]:
    """Wall clock of drawing all requests in seconds, the device idle at both ends, and the results."""
    settle(device)
    begin = time.perf_counter()
    results = draw(requests)
    settle(device)
    return time.perf_counter() - begin, results


def settle(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pairs(
    baseline: Draw,
    setting: Draw | None,
    batches: Sequence[Sequence[Request]],
    repetitions: int,
    device: torch.device,
    *,
    read: Callable[[Sequence[Request]], object] = lambda _: None,
) -> list[Timing]:
    """Every batch of captions, `repetitions` times over, drawn by both in turn; they take turns in beginning, too.

    Both draw the first batch once before, unmeasured. `read` reads captions before the clock starts: neither side's
    seconds hold a text encoder's, as the papers' do not. `setting` None: it is the baseline itself, whose seconds then
    stand on both sides, so that its speed-up is 1 and not the machine's mood.
    """
    for draw in (baseline, setting):
        if draw is not None:
            draw(batches[0])
    rows = []
    for repetition in range(repetitions):
        for number, requests in enumerate(batches):
            read(requests)
            if setting is None:
                slow, results = timed(baseline, requests, device)
                fast = slow
            elif (repetition + number) % 2:
                fast, results = timed(setting, requests, device)
                slow, _ = timed(baseline, requests, device)
            else:
                slow, _ = timed(baseline, requests, device)
                fast, results = timed(setting, requests, device)
            rows.append(
                Timing(
                    caption_ids=tuple(request.caption_id for request in requests),
                    repetition=repetition,
                    batch=len(requests),
                    seconds_vanilla=slow,
                    seconds=fast,
                    mean_accepted_length=accepted_length(results),
                )
            )
    return rows


def accepted_length(results: Sequence[Result]) -> float:
    """Tokens per target pass over all images, prefill excluded."""
    emitted = sum(int(result.statistics.emitted.sum()) for result in results)
    return emitted / sum(result.statistics.rounds for result in results)
