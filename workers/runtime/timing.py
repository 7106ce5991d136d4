"""Timing of a config next to the baseline: the same captions in the same process, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from workers.decoding.engine import Result
from workers.decoding.state import Request

Draw = Callable[[Sequence[Request]], list[Result]]


def time_draw(draw: Draw, requests: Sequence[Request], device: torch.device) -> tuple[float, list[Result]]:
    """Wall clock in seconds of drawing all requests, the device idle at both ends, and the results."""
    synchronize(device)
    start = time.perf_counter()
    results = draw(requests)
    synchronize(device)
    return time.perf_counter() - start, results


def synchronize(device: torch.device) -> None:
    """Waits until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_pairs(
    baseline: Draw,
    candidate: Draw | None,
    batches: Sequence[Sequence[Request]],
    repetitions: int,
    device: torch.device,
    *,
    encode: Callable[[Sequence[Request]], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Times every batch of captions, `repetitions` times over, drawn by both in turn; the order alternates.

    Both first draw one batch unmeasured. `encode` encodes the captions before the clock starts, so neither side's
    seconds include a text encoder, as in the papers. candidate None: the baseline itself; its seconds then count for
    both sides, so that its speed-up is exactly 1, free of timing noise.

    Returns a row per batch and repetition: caption_ids, repetition, batch, images; seconds_vanilla and seconds, the
    wall clock of the whole batch; mean_accepted_length, the candidate's tokens per target pass over its images.
    """
    sides = {"seconds_vanilla": baseline} if candidate is None else {"seconds_vanilla": baseline, "seconds": candidate}
    for draw in sides.values():
        draw(batches[0])
    rows = []
    for repetition in range(repetitions):
        for number, requests in enumerate(batches):
            encode(requests)
            order = list(sides)[:: -1 if (repetition + number) % 2 else 1]
            timed = {side: time_draw(sides[side], requests, device) for side in order}
            seconds, results = timed.get("seconds", timed["seconds_vanilla"])
            rows.append(
                {
                    "caption_ids": [request.caption_id for request in requests],
                    "repetition": repetition,
                    "batch": len(requests),
                    "images": len(requests),
                    "seconds_vanilla": timed["seconds_vanilla"][0],
                    "seconds": seconds,
                    "mean_accepted_length": _mean_accepted_length(results),
                }
            )
    return rows


def _mean_accepted_length(results: Sequence[Result]) -> float:
    """Tokens per target pass over all images, prefill excluded."""
    emitted = sum(int(result.statistics.emitted.sum()) for result in results)
    return emitted / sum(result.statistics.rounds for result in results)
