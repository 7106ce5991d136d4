"""Attention in fused forms: it is attention, and every published target's passes fit a fused kernel
of CUDA.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.presets import preset
from workers.loading.dry_run import footprint
from workers.loading.models_yaml import published_entries, published_entry, shape_only_models
from workers.models import attention
from workers.models.attention import attend


def plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """The definition, in double precision."""
    q, (k, v) = (
        q.double(),
        (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)),
    )
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    probs: Tensor = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return probs @ v


@pytest.mark.parametrize("channels", [8, 12, 100])
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("mask", ["boolean", "additive", "shared", "causal"])
def test_attention(channels: int, kv_heads: int, mask: str) -> None:
    generator = torch.Generator().manual_seed(channels + kv_heads)
    q = torch.randn(3, 6, 5, channels, generator=generator)
    k, v = torch.randn(2, 3, kv_heads, 5 if mask == "causal" else 9, channels, generator=generator)
    allowed = torch.rand(1 if mask == "shared" else 3, 1, 5, k.shape[2], generator=generator) < 0.6
    allowed[..., 0] = True
    if mask == "causal":
        allowed = torch.ones(5, 5, dtype=torch.bool).tril()
        found = attend(q, k, v, None, causal=True)
    else:
        found = attend(q, k, v, allowed.log() if mask == "additive" else allowed)
    torch.testing.assert_close(found.double(), plain(q, k, v, allowed), atol=1e-5, rtol=1e-5)


def test_channels_that_a_cache_has_added() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 12).unbind()
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    wide_k, wide_v = (F.pad(x, (0, 4)) for x in (k, v))
    assert torch.equal(attend(q, wide_k, wide_v, mask), attend(q, k, v, mask))


@pytest.mark.parametrize("name", published_entries())
def test_every_published_target_fits_a_fused_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules of CUDA's memory-efficient kernel, which is what takes a mask: as many key-value
    heads as heads, 16 bytes of channels, and rows of the mask that start at multiples of 16 bytes,
    or it is copied.
    """
    calls: list[tuple[Tensor, Tensor, Tensor | None, bool]] = []

    def record(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None,
        enable_gqa: bool = False,
        **rest: Any,
    ) -> Any:
        calls.append((q, k, attn_mask, enable_gqa))
        return F.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=enable_gqa, **rest)

    monkeypatch.setattr(
        attention, "F", SimpleNamespace(scaled_dot_product_attention=record, pad=F.pad)
    )
    models = shape_only_models(published_entry(name), torch.bfloat16)
    for config in (preset("vanilla"), preset("sjd")):
        footprint(models, config, 2, 1)
    masked = [call for call in calls if call[2] is not None]
    assert masked
    for q, k, mask, grouped in masked:
        assert q.shape[1] == k.shape[1]
        assert not grouped
        assert q.shape[3] == k.shape[3]
        assert q.shape[3] % 8 == 0
        assert mask is not None
        if mask.dtype != torch.bool:  # a boolean one, of a prefill, is converted anyway
            assert not [
                step
                for step, size in zip(mask.stride()[:-1], mask.shape, strict=False)
                if size > 1 and step % 8
            ]
