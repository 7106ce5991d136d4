"""What drafters read in training, and an EAGLE layer unrolled over its own outputs, as when it
drafts.

That is the training-time test of EAGLE-3 (Li et al. 2025) and the idea of HASS (Zhang et al. 2024).

Shape legend: R rows, S slots, N tokens of an image, H heads, C channels of a head, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.drafters.eagle import EagleLayer
from workers.models.transformer import Layer
from workers.training.forward import finish, project, rotation


class Slots(NamedTuple):
    """What the drafters read and should predict."""

    embeddings: Tensor  # [R, S, D]
    features: Tensor  # [R, S, D], or tapped hidden states [R, S, taps * D]
    mask: Tensor  # [R, 1, S, S]; True: visible
    labels: Tensor  # [R, N - 1, D] the features that the last N - 1 slots should predict

    @property
    def positions(self) -> Tensor:
        """[S] positions of the slots' tokens."""
        return torch.arange(1, self.features.shape[1] + 1, device=self.features.device)


def unroll(layer: EagleLayer, inputs: Slots, levels: int) -> list[Tensor]:
    """Outputs [R, S, D] at draft levels 1..`levels`; slot s predicts the feature at position s + 1.
    An EAGLE-3 layer's features are its states.

    At level j, slot s stands for a draft whose j - 1 predecessors are drafts too: it reads the
    level j - 1 prediction of slot s - 1 instead of a true feature, and attends to slots s - i at
    level j - i for i < j - 1, to earlier ones at level 1. The first j - 1 image slots have no such
    history at level j; the loss leaves them out.
    """
    embeddings, features, mask, _ = inputs
    if levels == 1:
        return [layer(embeddings, features, inputs.positions, mask)]
    block = layer.decoder.layers[0]
    rope = rotation(layer.decoder, inputs.positions)
    assert isinstance(block, Layer)
    size = features.shape[1]
    order = torch.arange(size, device=features.device)
    distance = order[:, None] - order[None, :]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    current = features
    for level in range(levels):
        x, residual = layer.attention_inputs(embeddings, current)
        q, k, v = project(block.attention, x, rope)
        keys.append(k)
        values.append(v)
        # Slot s - i at level j - i is diagonal i of the scores against that level's keys; other
        # slots are at level 1.
        hidden = ~mask | (distance < level)
        bulk = (q @ keys[0].transpose(-1, -2)).float().masked_fill(hidden, float("-inf"))
        recent = [_diagonal(q, keys[level - i], i) for i in range(level)]
        weights = torch.cat([bulk, *recent], dim=-1).softmax(-1).to(v.dtype)
        attended = weights[..., :size] @ values[0]
        for i in range(level):
            attended = attended + weights[..., size + i, None] * _shift(values[level - i], i)
        outputs.append(layer.decoder.norm(finish(block, residual, attended)))
        current = torch.cat([features[:, :1], outputs[-1][:, :-1].to(features.dtype)], dim=1)
    return outputs


def _shift(x: Tensor, offset: int) -> Tensor:
    """x [R, H, S, C] shifted by `offset` slots to the right, padded with zeros on the left."""
    if not offset:
        return x
    return F.pad(x, (0, 0, offset, 0))[:, :, : x.shape[2]]


def _diagonal(q: Tensor, k: Tensor, offset: int) -> Tensor:
    """Scores [R, H, S, 1] of each slot's query against the key `offset` slots before; -inf where
    there is none.
    """
    scores = (q * _shift(k, offset)).float().sum(-1, keepdim=True)
    missing = torch.arange(q.shape[2], device=q.device)[:, None] < offset
    return scores.masked_fill(missing, float("-inf")) if offset else scores
