"""Distillation of the built-in model's drafters, beyond the published recipe of
`workers.training.drafters`.

Target and drafter are compared as decoding compares them: conditional and null logits are combined
by classifier-free guidance, at a scale sampled per image. EAGLE layers are unrolled (see
`workers.training.unroll`). The loss has a total variation between their probabilities as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.drafters.eagle import EagleLayer
from workers.models.target import Target
from workers.training.drafters import (
    Drafter,
    Level,
    LevelsOf,
    combine,
    draft_levels,
    drafted_probs,
    head_logits,
    slots,
    unrolled_levels,
)
from workers.training.examples import Examples
from workers.training.loop import LossFunction, ProcessGroup
from workers.training.unroll import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedDistillation:
    """Weights of the loss. guidance: bounds of the guidance scales, sampled uniformly per image.
    levels: of an EAGLE layer. level_decay: factor of the loss from one level to the next.
    """

    cross_entropy: float = 0.5
    variation: float = 1.0
    feature: float = 0.1
    levels: int = 3
    level_decay: float = 0.8
    guidance: tuple[float, float] = (1.0, 4.0)


def unrolled(levels: int) -> LevelsOf:
    """As `draft_levels`, with this many levels of an EAGLE layer."""

    def levels_of(target: Target, drafter: Drafter, inputs: Slots) -> list[Level]:
        if not isinstance(drafter, EagleLayer):
            return draft_levels(target, drafter, inputs)
        return unrolled_levels(target, drafter, inputs, levels)

    return levels_of


def soft_loss(logits: Tensor, probs: Tensor, config: GuidedDistillation) -> Tensor:
    """Weighted cross-entropy and total variation of the drafter's logits to the target's
    probabilities [B, n, V].
    """
    log_p = logits.log_softmax(-1)
    cross_entropy = -(probs * log_p).sum(-1).mean()
    return (
        config.cross_entropy * cross_entropy
        + config.variation * (probs - log_p.exp()).abs().sum(-1).mean() / 2
    )


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
                loss = loss + config.feature * F.smooth_l1_loss(
                    predicted.float(), inputs.labels[:, j:]
                )
            total = total + config.level_decay**j * loss
        return total

    run = torch.compile(levels_loss, dynamic=False) if compiled else levels_loss

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share, (low, high) = ProcessGroup.current().share(len(indices)), config.guidance
        captions, tokens = data.pick(indices[share], target.device)
        sampled = low + (high - low) * torch.rand(len(indices), generator=generator)
        scales = sampled[share][:, None, None].to(tokens.device)
        inputs = slots(
            target, target.encode(captions, guided=True), tokens.repeat(2, 1), drafter.taps
        )
        with torch.no_grad():
            probs = drafted_probs(
                drafter, combine(head_logits(target, inputs.labels), scales).softmax(-1)
            )
        out: Tensor = run(inputs, probs, scales)
        return out

    return loss
