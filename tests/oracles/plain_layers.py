"""The transformer spelled out: one sequence, one pass, float64, no cache, no mask, no padding.

Written from the formulas (pre-norm layers, RMSNorm, rotations of adjacent channel pairs, SwiGLU),
so that a mistake in positions, columns or masks of the fast code cannot repeat itself here. Places
are counted from the first image token: token n stands in place n, and the prompt in the negative
places before it.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from workers.models.transformer import Transformer, TransformerConfig


def causal_pass(model: Transformer, inputs: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """Outputs [S, D] for the inputs [D] of one sequence, each of which sees itself and all before
    it.
    """
    sees = [range(s + 1) for s in range(len(inputs))]
    return normed(model, states(model, inputs, places, sees)[-1])


def normed(model: Transformer, x: Tensor) -> Tensor:
    """The outputs of the last layer after the final norm."""
    if not model.config.final_norm:
        return x
    return rms_norm(x, model.state_dict()["norm.weight"].double(), model.config.norm_eps)


def states(
    model: Transformer,
    inputs: Sequence[Tensor],
    places: Sequence[int],
    sees: Sequence[Sequence[int]],
) -> list[Tensor]:
    """The inputs [S, D] of every layer, and the last one's outputs, for the inputs [D] of one
    sequence. sees: of each, which of them it sees.
    """
    config, x = model.config, torch.stack(list(inputs)).double()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    turns = torch.stack([rotation(config, place) for place in places])
    found = [x]
    for layer in range(config.n_layers):
        name = f"layers.{layer}"
        h = (
            rms_norm(x, weights[f"{name}.attention_norm.weight"], config.norm_eps)
            if config.input_norm
            else x
        )
        x = x + attention(config, h, weights[f"{name}.attention.wqkv.weight"], turns, sees) @ (
            weights[f"{name}.attention.wo.weight"].T
        )
        h = rms_norm(x, weights[f"{name}.ffn_norm.weight"], config.norm_eps)
        gate, up = (h @ weights[f"{name}.feed_forward.w13.weight"].T).chunk(2, dim=1)
        x = x + (silu(gate) * up) @ weights[f"{name}.feed_forward.w2.weight"].T
        found.append(x)
    return found


@cache
def rotation(config: TransformerConfig, place: int) -> Tensor:
    """What one place multiplies its channel pairs by: complex factors [C / 2]."""
    pairs = config.channels // 2
    if config.rope == "line":
        angles = [place * config.rope_base ** -(i / pairs) for i in range(pairs)]
    elif place < 0:
        return torch.full(
            (pairs,), 0.0 if config.prompt_rope == "zero" else 1.0, dtype=torch.complex128
        )
    else:
        row, col = divmod(place, config.cols)
        angles = [
            cell * config.rope_base ** -(i / pairs)
            for cell in (row, col)
            for i in range(0, pairs, 2)
        ]
    return torch.tensor([complex(math.cos(a), math.sin(a)) for a in angles], dtype=torch.complex128)


def attention(
    config: TransformerConfig,
    x: Tensor,
    wqkv: Tensor,
    turns: Tensor,
    sees: Sequence[Sequence[int]],
) -> Tensor:
    """Mixed values [S, heads * C] before the output projection."""
    assert config.kv_heads == config.n_heads
    assert not config.qk_norm
    q, k, v = (x @ wqkv.T).view(len(x), 3, config.n_heads, config.channels).unbind(1)
    q, k = turned(q, turns), turned(k, turns)
    mixed = torch.zeros_like(v)
    for s, seen in enumerate(sees):
        others = torch.tensor(list(seen))
        scores = (k[others] * q[s]).sum(-1) / math.sqrt(config.channels)  # [seen, heads]
        mixed[s] = (scores.softmax(0)[..., None] * v[others]).sum(0)
    return mixed.flatten(1)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """x [S, heads, C] with its adjacent channel pairs, read as complex numbers, times turns [S, C /
    2].
    """
    real, imaginary = x[..., 0::2], x[..., 1::2]
    cos, sin = turns.real[:, None], turns.imag[:, None]
    return torch.stack(
        [real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1
    ).flatten(2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """W x + b of a linear layer, in float64."""
    weights = layer.state_dict()
    out: Tensor = weights["weight"].double() @ x.double()
    return out + weights["bias"].double() if "bias" in weights else out
