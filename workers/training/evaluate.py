"""Held-out figures of targets and drafters: the numbers in the README come from here.

All laws are at temperature 1 without top-k or top-p, in fp32. A scale is that of classifier-free guidance; 1 is none.
Shape legend: B images, N tokens of one, P prompt positions, V codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.drafters.eagle import EagleLayer
from workers.drafters.medusa import MedusaHeads
from workers.training.drafters import eagle_inputs, medusa_logits, unroll
from workers.training.loop import Figures
from workers.training.parts import ARModel, TokenSet

SCALES = (1.0, 3.0)
#: (student logits, teacher logits), each [2, B, n, V] (conditional and null stream), at the same n places.
Pair = tuple[Tensor, Tensor]
#: (tokens [B, N], codes [B, P]) to the pairs of each draft level.
Pairs = Callable[[Tensor, Tensor], dict[str, Pair]]


def mixed(logits: Tensor, scale: float | Tensor) -> Tensor:
    """Guided logits [B, n, V] of conditional and null ones [2, B, n, V]; scale a number or [B, 1, 1]."""
    cond, null = logits.float().unbind()
    return torch.add(null, scale * (cond - null))


def _batches(data: TokenSet, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(data), batch):
        yield data.pick(torch.arange(start, min(start + batch, len(data))))


@torch.no_grad()
def evaluate_target(model: ARModel, data: TokenSet, *, scales: Sequence[float] = SCALES, batch: int = 64) -> Figures:
    """Cross-entropy in nats per token with and without the caption; mean probability of the most likely 1 and 10."""
    sums: dict[str, Tensor] = {}
    for tokens, codes in _batches(data, batch):
        features = model.streams(tokens, codes)[:, model.conditioner.prompt_len - 1 :]
        logits = model.head(features).float().unflatten(0, (2, -1))
        weight = len(tokens) / len(data)
        for stream, rows in zip(("cond", "null"), logits, strict=True):
            value = F.cross_entropy(rows.flatten(0, 1), tokens.flatten())
            _add(sums, f"cross-entropy {stream}", value * weight)
        for scale in scales:
            top = mixed(logits, scale).softmax(-1).topk(10).values.mean((0, 1))
            _add(sums, f"top-1 cfg {scale:g}", top[0] * weight)
            _add(sums, f"top-10 cfg {scale:g}", top.sum() * weight)
    return {name: float(value) for name, value in sums.items()}


@torch.no_grad()
def evaluate_drafter(pairs: Pairs, data: TokenSet, *, scales: Sequence[float] = SCALES, batch: int = 32) -> Figures:
    """Per draft level and guidance scale, teacher forced on real tokens.

    top-k: share of places where the target's most likely token is among the drafter's k most likely; TV: mean total
    variation between the two laws (1 - TV is the exact rule's chance to accept a sampled draft).
    """
    sums: dict[str, Tensor] = {}
    for tokens, codes in _batches(data, batch):
        weight = len(tokens) / len(data)
        for level, (student, teacher) in pairs(tokens, codes).items():
            for scale in scales:
                p, q = mixed(student, scale).softmax(-1), mixed(teacher, scale).softmax(-1)
                hit = (p.topk(3).indices == q.argmax(-1, keepdim=True)).float()
                where = f"{level} cfg {scale:g}"
                _add(sums, f"{where} top-1", hit[..., 0].mean() * weight)
                _add(sums, f"{where} top-3", hit.sum(-1).mean() * weight)
                _add(sums, f"{where} TV", (p - q).abs().sum(-1).mean() / 2 * weight)
    return {name: float(value) for name, value in sums.items()}


def eagle_pairs(target: ARModel, layer: EagleLayer, levels: int = 3) -> Pairs:
    """The EAGLE layer's laws at draft levels 1..`levels`: from level 2 on it feeds on its own features."""

    def pairs(tokens: Tensor, codes: Tensor) -> dict[str, Pair]:
        features = target.streams(tokens, codes)
        outputs = unroll(layer, *eagle_inputs(target, tokens, features), levels)
        teacher = target.head(features)
        first = target.conditioner.prompt_len - 1  # the slot that drafts the image's second token
        return {
            f"level {j + 1}": (_split(target.head(out[:, first + j :])), _split(teacher[:, first + j + 1 :]))
            for j, out in enumerate(outputs)
        }

    return pairs


def medusa_pairs(target: ARModel, heads: MedusaHeads) -> Pairs:
    def pairs(tokens: Tensor, codes: Tensor) -> dict[str, Pair]:
        features = target.streams(tokens, codes)[:, target.conditioner.prompt_len - 1 :]
        teacher = target.head(features)
        return {
            f"level {m + 1}": (_split(logits), _split(teacher[:, m + 1 :]))
            for m, logits in enumerate(medusa_logits(target, heads, features))
        }

    return pairs


def independent_pairs(target: ARModel, drafter: ARModel) -> Pairs:
    def pairs(tokens: Tensor, codes: Tensor) -> dict[str, Pair]:
        first = target.conditioner.prompt_len - 1
        rows = [m.head(m.streams(tokens, codes)[:, first:]) for m in (drafter, target)]
        return {"level 1": (_split(rows[0]), _split(rows[1]))}

    return pairs


def _split(rows: Tensor) -> Tensor:
    return rows.view(2, -1, *rows.shape[1:])


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value
