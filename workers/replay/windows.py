"""Jacobi windows in replay: recorded drafts of the same age stand for those of other rules and window lengths.

A draft gets better with every pass that it waits in the window. In a window of N drafts that slides by m tokens a pass,
the draft at position i (from 0) has waited (N - i) / m passes. So it is replaced by the recorded draft that has waited
equally long, at position L - (N - i) m_L / m of the recorded window; m is what the walk gives: a fixed point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from workers.replay.recording import RecordedSteps

_ITERATIONS = 3


def drafts_of_age(steps: RecordedSteps, length: int, ratio: float) -> RecordedSteps:
    """Steps of a window of `length` drafts that slides `ratio` times as fast as the recorded one."""
    recorded, device = steps.tokens.shape[1], steps.tokens.device
    position = torch.arange(length, device=device)
    picks = (recorded - (length - position) / ratio).round().long().clamp(0, recorded - 1)
    assert steps.proposal is not None, "a window's drafts are sampled"
    count = len(steps)
    return replace(
        steps,
        tokens=steps.tokens[:, picks],
        depth=(position + 1).expand(count, -1),
        inner=position.expand(count, -1),
        children=position.expand(count, -1)[..., None],
        target=steps.target[:, picks],
        proposal=steps.proposal[:, picks],
        levels=torch.full_like(steps.levels, length),
        code_distance=steps.code_distance[:, picks],
        surprise=steps.surprise[:, picks],
        ranking=None if steps.ranking is None else steps.ranking[:, picks],
    )


def solve_slide(slide: Callable[[float], float]) -> float:
    """The ratio of a rule's mean accepted length to the recorded one, where `slide` gives it for an assumed ratio."""
    ratio = 1.0
    for _ in range(_ITERATIONS):
        ratio = slide(ratio)
    return ratio
