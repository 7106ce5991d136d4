"""Any decoder of `transformers` as a target's body: the library's forward and weights, the engine's
cache and masks.

For families that this project's transformer does not implement. It is slower (one module per
projection, a mask for every pass) and exact: a pass runs the library's code with a 4-D attention
mask, and its layers write into the engine's cache, so drafting, committing and refilling work as
for any other target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.masking_utils import sdpa_mask

from workers.models.attention import attend
from workers.models.cache import CacheView
from workers.models.transformer import Body, TransformerConfig, line_places

_STATIC_ROPES = ("default", "linear", "llama3", "yarn")
_ATTENTION = "specfrontier"  # name of `_attend` in the library's registry of attention functions


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """`attend` as the library calls it. Passes of `HFDecoder` always have a mask.

    Raises:
        ValueError: the decoder's attention has other terms.
    """
    if others := [
        name for name in ("softcap", "position_bias", "s_aux") if options.get(name) is not None
    ]:
        raise ValueError(
            f"attention of {type(module).__name__} has {others[0]}, which is not supported"
        )
    out = attend(query, key, value, attention_mask, scale=options.get("scaling"))
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


class HFDecoder(Body):
    """A decoder-only model of `transformers` that rotates by position, its embedding and head cut
    to the image's codes.

    Args:
        config: its sizes.
        decoder: called as decoder(inputs_embeds, attention_mask, position_ids, past_key_values);
            returns features after its final norm. Its input embedding is removed: take it before.
        codes: an embedding for each code of the image [V, D].
        head: features to logits over the codes.
        places: the decoder's own position of each position that a pass may use: [positions], or
            [positions, axes] if it rotates by several; None: the index in the token sequence.
    """

    places: Tensor

    def __init__(
        self,
        config: TransformerConfig,
        decoder: PreTrainedModel,
        codes: Tensor,
        head: nn.Module,
        places: Tensor | None = None,
    ) -> None:
        super().__init__()
        if tuple(codes.shape) != (config.vocab_size, config.dim):
            raise ValueError(
                f"codes are {tuple(codes.shape)}, the config says {(config.vocab_size, config.dim)}"
            )
        self.config = config
        self.decoder = decoder
        decoder.set_attn_implementation(_ATTENTION)
        decoder.set_input_embeddings(nn.Identity())  # codes and prompts are embedded already
        self.embed = nn.Embedding(
            config.vocab_size, config.dim, device=codes.device, dtype=codes.dtype
        )
        self.embed.weight = nn.Parameter(codes, requires_grad=False)
        self.head = head
        if places is None:
            places = line_places(config)
        self.register_buffer("places", places, persistent=False)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        if mask is None:  # the library's default mask assumes other positions
            length = x.shape[1]
            if cache is None:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            else:
                mask = torch.ones(length, cache.span or length, dtype=torch.bool, device=x.device)
            mask = mask[None, None]
        out = self.decoder(
            inputs_embeds=x,
            attention_mask=mask.expand(len(x), -1, -1, -1),
            position_ids=self._position_ids(positions, len(x)),
            past_key_values=None if cache is None else _EngineCache(cache),
            use_cache=cache is not None,
            output_hidden_states=bool(taps),
        )
        features = cast("Tensor", out.last_hidden_state)
        if taps:
            return torch.cat([features, *(out.hidden_states[index] for index in taps)], dim=-1)
        return features

    def _position_ids(self, positions: Tensor, rows: int) -> Tensor:
        """The decoder's positions [rows, S] or [axes, rows, S], of `positions` [rows, S] or [S]."""
        places = self.places[positions.clamp(max=len(self.places) - 1)]
        if positions.dim() == 1:
            places = places[None]
        if self.places.dim() == 1:
            return places.expand(rows, -1)
        return places.movedim(-1, 0).expand(-1, rows, -1)


class _EngineCache(Cache):
    """The engine's cache behind the library's interface, for one pass."""

    def __init__(self, view: CacheView) -> None:
        super().__init__(layers=[])  # no storage of the library's own
        self._view = view

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, K, S, C]; returns the visible ones, each [R, K, span, C]."""
        return self._view.update(
            layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2)
        )


def decoder_config(
    text: PreTrainedConfig,
    *,
    codes: int,
    prompt_len: int,
    rows: int,
    cols: int,
    row_ends: bool = False,
    preview: tuple[int, ...] = (),
) -> TransformerConfig:
    """The config that engine and drafters need, from one of the library's with Llama's usual keys.

    Args:
        text: the library's config of the decoder.
        codes: number of the image's codes.
        prompt_len: tokens of a prompt.
        rows: codes in a column of the image.
        cols: codes in a row of the image.
        row_ends: whether a fixed token follows every row.
        preview: rows and columns of the image's preview, if it has one.

    Raises:
        ValueError: a key is missing, or attention does not cover all positions.
    """
    keys: dict[str, Any] = text.to_dict()
    rope = keys.get("rope_parameters") or {}
    _check_attention(keys, rope)
    try:
        dim = int(keys["hidden_size"])
        heads = int(keys["num_attention_heads"])
        return TransformerConfig(
            dim=dim,
            n_layers=int(keys["num_hidden_layers"]),
            n_heads=heads,
            n_kv_heads=int(keys.get("num_key_value_heads") or heads),
            head_dim=int(keys.get("head_dim") or dim // heads),
            ffn_dim=int(keys["intermediate_size"]),
            norm_eps=float(keys.get("rms_norm_eps", 1e-5)),
            rope="line",
            rope_base=float(rope.get("rope_theta") or keys.get("rope_theta") or 10000.0),
            vocab_size=codes,
            prompt_len=prompt_len,
            rows=rows,
            cols=cols,
            row_ends=row_ends,
            preview=preview,
        )
    except KeyError as error:
        raise ValueError(f"its config lacks {error}") from error


def _check_attention(keys: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """Raises ValueError unless attention covers all positions, by rotations that do not change."""
    if keys.get("sliding_window") and keys.get("use_sliding_window", True):
        raise ValueError(
            f"its attention window has {keys['sliding_window']} positions; tree attention needs all"
        )
    if keys.get("attention_chunk_size") or set(keys.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(
            "some of its layers do not attend to all positions; tree attention needs all"
        )
    if rope.get("rope_type", "default") not in _STATIC_ROPES:
        raise ValueError(
            f"its rotations ({rope['rope_type']}) depend on the sequence length, which is not "
            "supported"
        )
