"""The transformer's forward pass for training: complete sequences, real arithmetic, and on a CPU
plain attention.

It is the same function of the same weights as `Transformer.forward` (a test holds them equal).
Unlike that, it can be compiled, which complex rotations prevent, and a drafter that is unrolled can
attend to keys of several levels.

Shape legend: R rows, S positions, D width, H heads, K key-value heads, C channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.models.masks import additive_mask
from workers.models.transformer import Attention, Layer, Transformer


@dataclass(frozen=True, slots=True)
class Rotation:
    """Factors for `rotate`: x * cos + swap(x) * sin turns adjacent channel pairs."""

    cos: Tensor  # [S, 1, C]
    sin: Tensor  # [S, 1, C]


def rotation(model: Transformer, positions: Tensor) -> Rotation:
    """Rotation factors (fp32) at `positions` [S] of the model's own table."""
    factors = model.rotations[positions]
    cos = factors.real.repeat_interleave(2, dim=-1)
    sin = torch.stack([-factors.imag, factors.imag], dim=-1).flatten(-2)
    return Rotation(cos.unsqueeze(1), sin.unsqueeze(1))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """x [R, S, heads, C] turned by its positions' angles."""
    swapped = x.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
    return (x * by.cos + swapped * by.sin).to(x.dtype)


def project(attention: Attention, x: Tensor, by: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated, scaled queries and rotated keys, and values, each [R, H, S, C], of normalised inputs
    x [R, S, D].
    """
    heads = attention.heads
    kv_heads = attention.kv_heads
    q, k, v = (
        attention.wqkv(x)
        .unflatten(-1, (-1, attention.channels))
        .split([heads, kv_heads, kv_heads], dim=2)
    )
    if attention.q_norm is not None and attention.k_norm is not None:
        q = attention.q_norm(q).to(v.dtype)
        k = attention.k_norm(k).to(v.dtype)
    q = rotate(q, by) * attention.channels**-0.5
    k = rotate(k, by)
    if heads != kv_heads:
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def finish(layer: Layer, x: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a layer after attention: x [R, S, D], attended values [R, H, S, C]."""
    x = x + layer.attention.wo(mixed.transpose(1, 2).flatten(2))
    out: Tensor = x + layer.feed_forward(layer.ffn_norm(x))
    return out


def features(
    model: Transformer, x: Tensor, positions: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Features [R, S, D] of inputs; for the arguments see `layer_states`."""
    out: Tensor = model.norm(layer_states(model, x, positions, mask)[-1])
    return out


def layer_states(
    model: Transformer, x: Tensor, positions: Tensor, mask: Tensor | None = None
) -> list[Tensor]:
    """The inputs of every layer, and the output of the last one, [R, S, D] each, of inputs x [R, S,
    D] at `positions` [S]. Run it under autocast for bf16.

    mask: boolean [R|1, 1, S, S]; None: causal.
    """
    by = rotation(model, positions)
    size = x.shape[1]
    is_causal = mask is None
    if mask is None:
        mask = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
    mask = additive_mask(mask)
    states = [x]
    for layer in model.layers:
        assert isinstance(layer, Layer)
        q, k, v = project(layer.attention, layer.attention_norm(x), by)
        if x.is_cuda:
            mixed = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=None if is_causal else mask.to(q.dtype),
                is_causal=is_causal,
                scale=1.0,
            )
        else:
            scores = q @ k.transpose(-1, -2)
            mixed = (scores + mask.to(scores.dtype)).softmax(-1).to(v.dtype) @ v
        x = finish(layer, x, mixed)
        states.append(x)
    return states
