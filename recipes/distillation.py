"""Distillation of the built-in model's drafters, beyond the published recipe of `workers.training.drafters`.

Target and drafter are compared as decoding compares them: conditional and null logits are combined by classifier-free
guidance, at a scale sampled per image. The EAGLE layer is unrolled: at level j it reads its own predictions of the
levels before, as when drafting (the idea of HASS, Zhang et al. 2024). The loss has a total variation between their
probabilities as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.forward import finish, project, rotation
from workers.drafters.eagle import EagleLayer
from workers.models.target import Target
from workers.models.transformer import Layer
from workers.training.drafters import Drafter, Level, LevelsOf, Slots, combine, draft_levels, head_logits, slots
from workers.training.examples import Examples
from workers.training.loop import LossFunction, ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedDistillation:
    """Weights of the loss. guidance: bounds of the guidance scales, sampled uniformly per image. levels: of an EAGLE
    layer. level_decay: factor of the loss from one level to the next.
    """

    cross_entropy: float = 0.5
    variation: float = 1.0
    feature: float = 0.1
    levels: int = 3
    level_decay: float = 0.8
    guidance: tuple[float, float] = (1.0, 4.0)


def unroll(layer: EagleLayer, inputs: Slots, levels: int) -> list[Tensor]:
    """Predicted features [R, S, D] at draft levels 1..`levels`; slot s predicts the feature at position s + 1.

    At level j, slot s stands for a draft whose j - 1 predecessors are drafts too: it reads the level j - 1 prediction
    of slot s - 1 instead of a true feature, and attends to slots s - i at level j - i for i < j - 1, to earlier ones at
    level 1. The first j - 1 image slots have no such history at level j; the loss leaves them out.
    """
    embeddings, features, mask, _ = inputs
    if levels == 1:
        return [layer(embeddings, features, inputs.positions, mask)]
    block, rope = layer.decoder.layers[0], rotation(layer.decoder, inputs.positions)
    assert isinstance(block, Layer)
    size = features.shape[1]
    order = torch.arange(size, device=features.device)
    distance = order[:, None] - order[None, :]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    current = features
    for level in range(levels):
        x = layer.fuse(embeddings, current)
        q, k, v = project(block.attention, block.attention_norm(x), rope)
        keys.append(k)
        values.append(v)
        # slot s - i at level j - i is diagonal i of the scores against that level's keys; other slots are at level 1
        hidden = ~mask | (distance < level)
        bulk = (q @ keys[0].transpose(-1, -2)).float().masked_fill(hidden, float("-inf"))
        recent = [_diagonal(q, keys[level - i], i) for i in range(level)]
        weights = torch.cat([bulk, *recent], dim=-1).softmax(-1).to(v.dtype)
        attended = weights[..., :size] @ values[0]
        for i in range(level):
            attended = attended + weights[..., size + i, None] * _shift(values[level - i], i)
        outputs.append(layer.decoder.norm(finish(block, x, attended)))
        current = torch.cat([features[:, :1], outputs[-1][:, :-1].to(features.dtype)], dim=1)
    return outputs


def _shift(x: Tensor, offset: int) -> Tensor:
    """x [R, H, S, C] shifted by `offset` slots to the right, padded with zeros on the left."""
    return F.pad(x, (0, 0, offset, 0))[:, :, : x.shape[2]] if offset else x


def _diagonal(q: Tensor, k: Tensor, offset: int) -> Tensor:
    """Scores [R, H, S, 1] of each slot's query against the key `offset` slots before; -inf where there is none."""
    scores = (q * _shift(k, offset)).float().sum(-1, keepdim=True)
    missing = torch.arange(q.shape[2], device=q.device)[:, None] < offset
    return scores.masked_fill(missing, float("-inf")) if offset else scores


def unrolled(levels: int) -> LevelsOf:
    """As `draft_levels`, with this many levels of an EAGLE layer."""

    def levels_of(target: Target, drafter: Drafter, inputs: Slots) -> list[Level]:
        if not isinstance(drafter, EagleLayer):
            return draft_levels(target, drafter, inputs)
        count = inputs.labels.shape[1]
        outputs = [out[:, out.shape[1] - count + j :] for j, out in enumerate(unroll(drafter, inputs, levels))]
        return [(head_logits(target, out), out) for out in outputs]

    return levels_of


def soft_loss(logits: Tensor, probs: Tensor, config: GuidedDistillation) -> Tensor:
    """Weighted cross-entropy and total variation of the drafter's logits to the target's probabilities [B, n, V]."""
    log_p = logits.log_softmax(-1)
    cross_entropy = -(probs * log_p).sum(-1).mean()
    return config.cross_entropy * cross_entropy + config.variation * (probs - log_p.exp()).abs().sum(-1).mean() / 2


def guided_loss(
    target: Target,
    drafter: Drafter,
    data: Examples,
    config: GuidedDistillation,
    *,
    compiled: bool = False,
) -> LossFunction:
    """A function that computes the loss of this process's share of a batch of examples."""
    levels_of = unrolled(config.levels)

    def levels_loss(inputs: Slots, probs: Tensor, scales: Tensor) -> Tensor:
        total = torch.zeros((), device=probs.device)
        for j, (logits, predicted) in enumerate(levels_of(target, drafter, inputs)):
            loss = soft_loss(combine(logits, scales), probs[:, j:], config)
            if predicted is not None:
                loss = loss + config.feature * F.smooth_l1_loss(predicted.float(), inputs.labels[:, j:])
            total = total + config.level_decay**j * loss
        return total

    run = torch.compile(levels_loss, dynamic=False) if compiled else levels_loss

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share, (low, high) = ProcessGroup.current().share(len(indices)), config.guidance
        captions, tokens = data.pick(indices[share], target.device)
        sampled = low + (high - low) * torch.rand(len(indices), generator=generator)
        scales = sampled[share][:, None, None].to(tokens.device)
        inputs = slots(target, target.encode(captions, guided=True), tokens.repeat(2, 1))
        with torch.no_grad():
            probs = combine(head_logits(target, inputs.labels), scales).softmax(-1)
        out: Tensor = run(inputs, probs, scales)
        return out

    return loss
