"""Held-out metrics of drafters, teacher forced on real tokens.

Probabilities are at temperature 1 without top-k or top-p, in fp32. Scales are those of classifier-free guidance; 1 is
no guidance.

Shape legend: B images, N tokens of an image, P prompt positions, V codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workers.decoding.row_ends import teacher_forced
from workers.models.target import Target
from workers.training.drafters import Drafter, combine, draft_levels, encode_pairs, head_logits
from workers.training.examples import Examples
from workers.training.loop import Figures

SCALES = (1.0, 3.0)


@torch.no_grad()
def evaluate_drafter(
    target: Target,
    drafter: Drafter | Target,
    data: Examples,
    *,
    scales: Sequence[float] = SCALES,
    levels: int = 1,
    batch: int = 16,
) -> Figures:
    """Metrics per guidance scale and draft level. An independent drafter is given as a `Target` and has one level.

    top-k: fraction of positions where the target's most likely token is among the drafter's k most likely; TV: mean
    total variation between their probabilities (1 - TV is the exact rule's probability of accepting a sampled draft).
    """
    sums: defaultdict[str, Any] = defaultdict(float)  # tensors: reading them waits for the device
    for captions, tokens in data.batches(batch, target.device):
        weight = len(tokens) / len(data)
        for level, (student, teacher) in enumerate(_pairs(target, drafter, captions, tokens, levels), start=1):
            for scale in scales:
                p, q = combine(student, scale).softmax(-1), combine(teacher, scale).softmax(-1)
                hit = (p.topk(3).indices == q.argmax(-1, keepdim=True)).float()
                suffix = suffix_of(scale) + (f" level {level}" if level > 1 else "")
                sums[f"top-1{suffix}"] += hit[..., 0].mean() * weight
                sums[f"top-3{suffix}"] += hit.sum(-1).mean() * weight
                sums[f"TV{suffix}"] += (p - q).abs().sum(-1).mean() / 2 * weight
    return {name: float(value) for name, value in sums.items()}


def _pairs(
    target: Target, drafter: Drafter | Target, captions: list[str], tokens: Tensor, levels: int
) -> list[tuple[Tensor, Tensor]]:
    """For each draft level the logits [2B, n, V] of drafter and target at the same positions."""
    if isinstance(drafter, Target):
        return [(target_logits(drafter, captions, tokens), target_logits(target, captions, tokens))]
    inputs = encode_pairs(target, captions, tokens)
    teacher = head_logits(target, inputs.labels)
    return [(logits, teacher[:, j:]) for j, (logits, _) in enumerate(draft_levels(target, drafter, inputs, levels))]


def target_logits(target: Target, captions: list[str], tokens: Tensor) -> Tensor:
    """Logits [2B, N, V] of every token of images [B, N] under their captions, then under the null prompt."""
    features = teacher_forced(target, target.encode(captions, guided=True), tokens[:, :-1].repeat(2, 1))
    return head_logits(target, features[:, target.prompt_len - 1 :])


def suffix_of(scale: float) -> str:
    """How a metric's name ends at a guidance scale."""
    return "" if scale == 1 else f" cfg {scale:g}"
