"""Scaled dot-product attention in the forms that torch has a fused kernel for.

With an additive mask, which every pass over a cache has, CUDA's memory-efficient kernel is the only
fused one. It needs heads of a multiple of 8 channels (in 16-bit types) and as many key-value heads
as query heads; otherwise torch stores all scores (torch 2.13,
aten/native/transformers/cuda/sdp_utils.cpp). LlamaGen 3B has heads of 100 channels; Emu3 and
SimpleAR share each key-value head among four to seven query heads.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def aligned(size: int) -> int:
    """The next multiple of 8, for the channels of a head and the columns of a mask, which kernels
    copy otherwise.
    """
    return -(-size // 8) * 8


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention [R, H, S, C] of queries over keys and values.

    Args:
        q: queries [R, H, S, C].
        k: keys [R, K, T, C'], whose channels from C on are zeros.
        v: values [R, K, T, C'], likewise.
        mask: [R|1, 1, S, T], boolean or additive; None: all positions are attended to, or with
            `causal` those up to the query.
        causal: without a mask, a query attends to the positions up to its own.
        scale: factor of the scores; None: 1 / sqrt(C).
    """
    rows, heads, queries, channels = q.shape
    kv_heads = k.shape[1]
    scale = channels**-0.5 if scale is None else scale
    width = aligned(channels)
    q, k, v = (_widened(x, width) for x in (q, k, v))
    if heads == kv_heads or mask is None:
        is_grouped = heads != kv_heads
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=is_grouped, scale=scale
        )
    else:  # the heads of a group, which share keys, as more queries of one head
        q = q.reshape(rows, kv_heads, -1, width)
        columns = mask.shape[3]
        mask = _widened(mask, aligned(columns)).repeat(1, 1, heads // kv_heads, 1)[..., :columns]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).view(
            rows, heads, queries, width
        )
    return out[..., :channels]


def _widened(x: Tensor, width: int) -> Tensor:
    """x [..., C] with zeros from C to `width`."""
    missing = width - x.shape[3]
    if not missing:
        return x
    return F.pad(x, (0, missing))
