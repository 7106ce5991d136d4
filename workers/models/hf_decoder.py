"""Any decoder of `transformers` as a target's body: its own forward and weights, the engine's cache and masks.

For families that nobody has written down in this project's transformer. It is slower (a module a projection, masks for
every pass) and exact: a pass goes through the library's code, told by a 4-D mask what each token may see, and its
layers write into the engine's cache, so that drafts, commits and refills are what they are for any other target.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from workers.models.cache import KVCache
from workers.models.transformer import Body, TransformerConfig, line_places

STATIC_ROPES = ("default", "linear", "llama3", "yarn")


class ForeignBody(Body):
    """A decoder-only model of `transformers` that rotates by position, its embedding and head cut to the image's codes.

    decoder: called as decoder(inputs_embeds, attention_mask, position_ids, past_key_values); gives features after its
    final norm. codes [V, D]: an embedding for each code of the image. head: features to logits over the codes.
    """

    places: Tensor

    def __init__(self, config: TransformerConfig, decoder: PreTrainedModel, codes: Tensor, head: nn.Module) -> None:
        super().__init__()
        if tuple(codes.shape) != (config.vocab_size, config.dim):
            raise ValueError(f"codes are {tuple(codes.shape)}, the config says {(config.vocab_size, config.dim)}")
        self.config = config
        self.decoder = decoder
        self.embed = nn.Embedding(config.vocab_size, config.dim, device=codes.device, dtype=codes.dtype)
        self.embed.weight = nn.Parameter(codes, requires_grad=False)
        self.head = head
        self.register_buffer("places", line_places(config), persistent=False)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        columns: Tensor | None = None,
        span: int | None = None,
    ) -> Tensor:
        length = x.shape[1]
        if mask is None:  # the library would make one by its own idea of where the inputs stand
            mask = torch.ones(length, (span or cache.columns) if cache else length, dtype=torch.bool, device=x.device)
            mask = (mask if cache else mask.tril())[None, None]
        places = self.places[positions.clamp(max=len(self.places) - 1)]
        out = self.decoder(
            inputs_embeds=x,
            attention_mask=mask.expand(len(x), -1, -1, -1),
            position_ids=places.expand(len(x), -1),
            past_key_values=_Window(cache, columns, span) if cache is not None and columns is not None else None,
            use_cache=cache is not None,
        )
        return cast("Tensor", out.last_hidden_state)


class _Window(Cache):
    """The engine's cache as the library's layers see it during one pass."""

    def __init__(self, cache: KVCache, columns: Tensor, span: int | None) -> None:
        super().__init__(layers=[])  # the library's own layers of keys and values: none
        self._cache, self._flat, self._span = cache, cache.flat(columns), span or cache.columns

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, K, S, C]; what a query may look at is [R, K, span, C]."""
        self._cache.write(layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2), self._flat)
        return self._cache.read(layer_idx, self._span)


def body_config(
    text: PreTrainedConfig, *, codes: int, prompt_len: int, rows: int, cols: int, row_ends: bool = False
) -> TransformerConfig:
    """What the engine and drafters must know of a model with the library's usual keys (Llama's and its kin's).

    Raises:
        ValueError: a key is missing, or the model cannot be decoded by a mask over all positions.
    """
    said: dict[str, Any] = text.to_dict()
    rope = said.get("rope_parameters") or {}
    if said.get("sliding_window") and said.get("use_sliding_window", True):
        raise ValueError(f"its attention slides over {said['sliding_window']} positions: trees need all of them")
    if said.get("attention_chunk_size") or set(said.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError("some of its layers do not attend to all positions: trees need all of them")
    if rope.get("rope_type", "default") not in STATIC_ROPES:
        raise ValueError(f"its rotations ({rope['rope_type']}) depend on the length so far; here they must not")
    try:
        dim, heads = int(said["hidden_size"]), int(said["num_attention_heads"])
        return TransformerConfig(
            dim=dim,
            n_layers=int(said["num_hidden_layers"]),
            n_heads=heads,
            n_kv_heads=int(said.get("num_key_value_heads") or heads),
            head_dim=int(said.get("head_dim") or dim // heads),
            ffn_dim=int(said["intermediate_size"]),
            norm_eps=float(said.get("rms_norm_eps", 1e-5)),
            rope="line",
            rope_base=float(rope.get("rope_theta") or said.get("rope_theta") or 10000.0),
            vocab_size=codes,
            prompt_len=prompt_len,
            rows=rows,
            cols=cols,
            row_ends=row_ends,
        )
    except KeyError as error:
        raise ValueError(f"its config lacks {error}") from error
