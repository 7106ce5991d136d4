"""Timing of a config next to the baseline: the same captions in the same process, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.metrics.costs import TIMED_COLUMNS, VANILLA, relative_noise

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
    precision: float = 0.0,
    encode: Callable[[Sequence[Request]], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Times every batch of captions, at most `repetitions` times over, drawn by both in turn; the order alternates.

    It ends after a repetition in which the relative standard error of the step costs has reached `precision`.

    Both first draw one batch unmeasured. `encode` encodes the captions before the clock starts, so neither side's
    seconds include a text encoder, as in the papers. candidate None: the baseline itself; its seconds then count for
    both sides, so that its speed-up is exactly 1, free of timing noise.

    Returns a row per batch and repetition: caption_ids, repetition, batch, images; and by side, with the suffix
    "_vanilla" for the baseline's: `seconds`, the wall clock of the whole batch; `prefill`, the part of it before the
    first pass; `passes`, the engine's steps after that.
    """
    sides = {VANILLA: baseline} if candidate is None else {VANILLA: baseline, "": candidate}
    for draw in sides.values():
        draw(batches[0])
    rows: list[dict[str, Any]] = []
    for repetition in range(repetitions):
        for number, requests in enumerate(batches):
            encode(requests)
            order = list(sides)[:: -1 if (repetition + number) % 2 else 1]
            timed = {side: _measure(sides[side], requests, device) for side in order}
            size = len(requests)
            row = {"caption_ids": [r.caption_id for r in requests], "repetition": repetition, "batch": size}
            row |= {"images": size, **{key + VANILLA: value for key, value in timed[VANILLA].items()}}
            rows.append(row | timed.get("", timed[VANILLA]))
        if precision and relative_noise(timed_columns(rows)) <= precision:
            break
    return rows


def timed_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Both sides' TIMED_COLUMNS of the rows."""
    names = [name + side for name in TIMED_COLUMNS for side in ("", VANILLA)]
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in names}


def _measure(draw: Draw, requests: Sequence[Request], device: torch.device) -> dict[str, float]:
    """Seconds, prefill's seconds and passes of one batch, all of whose images start together."""
    seconds, results = time_draw(draw, requests, device)
    statistics = [result.statistics for result in results]
    prefill = sum(image.seconds["prefill"] for image in statistics)
    return {"seconds": seconds, "prefill": prefill, "passes": max(image.passes for image in statistics)}
