"""EAGLE-3: one decoder layer over hidden states from three depths of the target, with its own head
(Li et al. 2025).

The inputs of three layers of the target (un-normed; its *taps*) at token t are mixed to a state g_t
= W_f [a_t ; b_t ; c_t]. Slot t takes the embedding of token t+1 and g_t:

    z_t = [RMSNorm(embedding) ; RMSNorm(g_t)]      2D wide: the inputs of attention
    u_t = g_t + Attention(z_t),  o_t = u_t + MLP(RMSNorm(u_t))
    logits of token t+2 = W_head RMSNorm(o_t)      over the draft vocabulary

A drafted slot takes its parent's o (un-normed) in place of g. The draft vocabulary is some of the
target's codes; the others have no mass.

Weights are the project's own safetensors, or a published drafter: a file, or a folder with a
`config.json` beside the weights. SafeAILab's and SpecForge's tensors are

    embed_tokens.weight                      may be missing: the target's
    fc.weight                                W_f
    midlayer.{input_layernorm,hidden_norm,post_attention_layernorm}.weight
    midlayer.self_attn.{q,k,v,o}_proj.weight, midlayer.mlp.{gate,up,down}_proj.weight
    norm.weight, lm_head.weight
    d2t, t2d                                 draft token i is token i + d2t[i]; whether one of the
                                             target's tokens is drafted

and speculators' have `layers.0` for `midlayer`. Every tensor is used; an error names unknown and
missing tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.decoding.state import Batch
from workers.drafters.eagle import (
    EagleDrafter,
    EagleLayer,
    image_codes,
    is_same_table,
    layer_config,
    read_config,
)
from workers.models.cache import CacheView
from workers.models.checkpoint_files import (
    WeightsError,
    describe_contents,
    load_tensors,
)
from workers.models.layouts import EAGLE_3, find_layout
from workers.models.linear import PackedLinear
from workers.models.own_files import read_module
from workers.models.target import Prompt, Target
from workers.models.transformer import Layer, RMSNorm, Transformer, TransformerConfig
from workers.models.weights import KeyMapping, hf_layer_mappings, load_weights, skip_init

_TAPS = "eagle_aux_hidden_state_layer_ids"
_INTEGERS = (torch.int64, torch.int32, torch.int16)
_LATER_KEYS = ("fc_norm", "norm_before_fc")  # keys of EAGLE-3.1


def default_taps(layers: int) -> tuple[int, ...]:
    """The layers whose inputs the published drafters read: a low, a middle and a high one."""
    return tuple(sorted((min(2, layers - 1), layers // 2, max(0, layers - 3))))


class Eagle3Decoder(Transformer):
    """One layer over [embedding ; state], both D wide. With `norm_before_residual`, the output of
    attention is added to the normalised state.
    """

    capturable = True

    def __init__(self, config: TransformerConfig, *, norm_before_residual: bool = False) -> None:
        super().__init__(config)
        wqkv = self.block.attention.wqkv
        self.block.attention.wqkv = PackedLinear(2 * config.dim, wqkv.out_features, bias=False)
        self.hidden_norm = RMSNorm(config.dim, config.norm_eps)
        self.norm_before_residual = norm_before_residual

    @property
    def block(self) -> Layer:
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer

    def attention_inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs [R, S, 2D] of attention, and the states [R, S, D] that its output is added
        to.
        """
        embeddings, states = x.chunk(2, dim=-1)
        normed = self.hidden_norm(states)
        inputs = torch.cat([self.block.attention_norm(embeddings), normed], dim=-1)
        if self.norm_before_residual:
            states = normed
        return inputs, states

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        attention = self.block.attention
        inputs, states = self.attention_inputs(x)
        q, k, v = attention.project(inputs, self.factors(positions))
        if cache is None:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        else:
            k, v = cache.update(0, k, v)
        x = states + attention.attend(q, k, v, mask, causal=cache is None and mask is None)
        out: Tensor = x + self.block.feed_forward(self.block.ffn_norm(x))
        return out


class Eagle3Layer(EagleLayer):
    """The layer of EAGLE-3, with a head of its own over the codes that it drafts.

    Args:
        config: sizes of the layer.
        taps: the layers of the target whose inputs `fc` mixes.
        vocab_size: number of the target's codes.
        draft_vocab: number of codes that it drafts.
        codes: see `EagleLayer`.
        norm_before_residual: the output of attention is added to the normalised state.
    """

    decoder: Eagle3Decoder
    ids: Tensor  # [V_d] the codes that it drafts

    def __init__(
        self,
        config: TransformerConfig,
        *,
        taps: Sequence[int],
        vocab_size: int,
        draft_vocab: int,
        codes: int = 0,
        norm_before_residual: bool = False,
    ) -> None:
        super().__init__(config, bias=False, codes=codes)
        self.taps = tuple(taps)
        self.vocab_size = vocab_size
        self.fc = PackedLinear(len(self.taps) * config.dim, config.dim, bias=False)
        self.decoder = Eagle3Decoder(config, norm_before_residual=norm_before_residual)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = PackedLinear(config.dim, draft_vocab, bias=False)
        self.register_buffer("ids", torch.arange(draft_vocab))

    @property
    def drafts_all(self) -> bool:
        """Whether it drafts every code of the target."""
        return len(self.ids) == self.vocab_size

    def fuse(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Decoder inputs [R, S, 2D] of token embeddings [R, S, D] and the states [R, S, D] that
        precede them.
        """
        return torch.cat([embeddings, features], dim=-1)

    def attention_inputs(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.decoder.attention_inputs(self.fuse(embeddings, features))

    def spread(self, logits: Tensor, others: float = -torch.inf) -> Tensor:
        """Logits [..., V] of logits [..., V_d] of the draft vocabulary; `others` for the codes that
        it lacks.
        """
        if self.drafts_all:
            return logits
        return logits.new_full((*logits.shape[:-1], self.vocab_size), others).index_copy_(
            -1, self.ids, logits
        )


class Eagle3Drafter(EagleDrafter):
    """The EAGLE-3 layer as a drafter. What `EagleDrafter` does with the target's features, it does
    with the states.
    """

    kind = "eagle3"
    capturable = True
    layer: Eagle3Layer

    def __init__(
        self, target: Target, layer: Eagle3Layer, *, filler: int | None = 0, masked: bool = True
    ) -> None:
        super().__init__(target, layer, filler=filler, masked=masked)
        self.check_size("vocab_size", layer.vocab_size, target.vocab_size)
        layers = target.transformer.config.n_layers
        if not all(0 <= tap < layers for tap in layer.taps):
            raise ValueError(
                f"eagle3 drafter: it reads the layers {list(layer.taps)}, the target has {layers}; "
                "it was made for another target"
            )
        self.taps = layer.taps

    @classmethod
    def load(cls, path: Path, target: Target) -> Eagle3Drafter:
        """A drafter from the project's own file or a published drafter (a file or a folder)."""
        own = cls.own_file(path)
        if own is None:
            return _load_published(path, target)
        layer, header = read_module(own, "an EAGLE-3 layer", build_eagle3)
        return cls(target, layer, filler=header.get("filler", 0))

    @classmethod
    def usual(cls, target: Target, levels: int) -> tuple[Eagle3Drafter, str]:
        body = target.transformer.config
        codes = target.vocab_size
        config = replace(
            body, n_layers=1, vocab_size=0, qk_norm=False, input_norm=True, final_norm=False
        )
        taps = default_taps(body.n_layers)
        layer = skip_init(
            lambda: Eagle3Layer(config, taps=taps, vocab_size=codes, draft_vocab=codes)
        )
        drafter = cls(target, layer.to("meta", target.dtype)).eval().requires_grad_(False)
        return (
            drafter,
            "the EAGLE-3 drafter is one layer of the target's width with a head for all codes",
        )

    @property
    def head(self) -> nn.Module:
        return self.layer.head

    def logits(self, batch: Batch, outputs: Tensor) -> Tensor:
        return self.layer.spread(super().logits(batch, self.layer.norm(outputs)))

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        super().admit(indices, prompt, captions, self.layer.fc(features), first_tokens)

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        super().commit(batch, tokens, self.layer.fc(features), counts)


def build_eagle3(config: Mapping[str, Any]) -> Eagle3Layer:
    """An EAGLE-3 layer from {"transformer": TransformerConfig's fields, "taps", "vocab_size",
    "draft_vocab"}.
    """
    sizes = {name: config[name] for name in ("taps", "vocab_size", "draft_vocab")}
    return Eagle3Layer(TransformerConfig(**config["transformer"]), **sizes)


def _load_published(path: Path, target: Target) -> Eagle3Drafter:
    """A drafter in a published layout."""
    tensors: dict[str, Tensor] = load_tensors(path, ["fc.weight"])
    if find_layout(tensors) is not EAGLE_3 or "fc.weight" not in tensors:
        raise WeightsError(
            f"{path}: not an EAGLE-3 drafter: it needs fc.weight and the tensors of a layer with "
            f"hidden_norm.weight{describe_contents(tensors)}"
        )
    block = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
    keys = read_config(path)
    body = target.transformer.config
    taps = _read_taps(path, keys, body.n_layers)
    _check_form(path, keys)
    config = layer_config(path, tensors, body, keys.get("transformer_layer_config", keys), block)
    config = replace(config, qk_norm=False, input_norm=True)
    if tensors["fc.weight"].shape[1] != len(taps) * body.dim:
        raise WeightsError(
            f"{path}: fc.weight has {tensors['fc.weight'].shape[1]} columns, {len(taps)} hidden "
            f"states of the target have {len(taps) * body.dim}; it was made for another target"
        )
    vocabulary = keys.get("transformer_layer_config", keys).get("vocab_size")
    tensors = _own_vocabulary(path, tensors, target, vocabulary)
    layer = skip_init(
        lambda: Eagle3Layer(
            config,
            taps=taps,
            vocab_size=target.vocab_size,
            draft_vocab=len(tensors["ids"]),
            codes=target.vocab_size if "embed_tokens.weight" in tensors else 0,
            norm_before_residual=bool(keys.get("norm_before_residual")),
        )
    )
    halves = config.channels if config.rope == "line" else None
    mappings = [
        KeyMapping("embed_tokens.weight", "embed.weight"),
        KeyMapping("lm_head.weight", "head.weight"),
        KeyMapping(f"{block}.hidden_norm.weight", "decoder.hidden_norm.weight"),
        *(KeyMapping(name, name) for name in ("fc.weight", "norm.weight", "ids")),
        *hf_layer_mappings(block, "decoder.layers.0", halves),
    ]
    load_weights(layer, tensors, mappings, where=path)
    if layer.embed is not None and is_same_table(layer.embed.weight, target.embed.weight):
        layer.embed = None
    return Eagle3Drafter(target, layer, filler=0 if config.rope == "grid" else None)


def _read_taps(path: Path, keys: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers whose inputs a published drafter reads. speculators names these layers; SpecForge
    names, in `eagle_config`, the layers before them.
    """
    taps: tuple[Any, ...] = default_taps(layers)
    earlier = (keys.get("eagle_config") or {}).get(_TAPS)
    if earlier is not None:
        taps = tuple(tap + 1 for tap in earlier)
    elif keys.get(_TAPS) is not None:
        taps = tuple(keys[_TAPS])
    if not taps or not all(isinstance(tap, int) and 0 <= tap < layers for tap in taps):
        raise WeightsError(
            f"{path}: {_TAPS} names the inputs of layers {list(taps)}, the target has the layers 0 "
            f"to {layers - 1}; it was made for another target"
        )
    return taps


def _check_form(path: Path, keys: Mapping[str, Any]) -> None:
    """Raises WeightsError if the config is that of a layer of another form."""
    layer = keys.get("transformer_layer_config", keys)
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    form = rope.get("rope_type", rope.get("type", "default"))
    usual_norm = "speculators_model_type" not in keys  # in speculators the key has another meaning
    problem = next((f"{key} is of EAGLE-3.1" for key in _LATER_KEYS if keys.get(key)), None)
    if keys.get("norm_output", usual_norm) != usual_norm:
        problem = "norm_output is of EAGLE-3.1"
    elif keys.get("speculators_model_type", "eagle3") != "eagle3":
        problem = f"speculators_model_type is {keys['speculators_model_type']!r}"
    elif form != "default":
        problem = f"rope_scaling is {form!r}"
    if problem:
        raise WeightsError(
            f"{path}: {problem}, which is not supported; give an EAGLE-3 drafter without it"
        )


def _own_vocabulary(
    path: Path, tensors: Mapping[str, Tensor], target: Target, vocabulary: int | None
) -> dict[str, Tensor]:
    """The tensors with embeddings, and rows of the head, for the target's codes only, and `ids` in
    place of d2t and t2d. `vocabulary` is the size of the target's vocabulary by config.json, which
    is needed without t2d and embeddings.
    """
    if "lm_head.weight" not in tensors:
        raise WeightsError(
            f"{path}: lm_head.weight is missing; an EAGLE-3 drafter has a head of its own"
        )
    out = {name: value for name, value in tensors.items() if name not in ("d2t", "t2d")}
    head = tensors["lm_head.weight"]
    rows = len(head)
    offsets = tensors.get("d2t")
    listed = next(
        (name for name in ("t2d", "embed_tokens.weight") if name in tensors), "lm_head.weight"
    )
    count = len(tensors[listed])
    # Without t2d and embeddings, only d2t says which tokens are drafted.
    if listed == "lm_head.weight" and offsets is not None:
        if vocabulary is None and target.transformer.config.rope == "line":
            raise WeightsError(
                f"{path}: t2d and embed_tokens.weight are missing, and config.json has no "
                "vocab_size: nothing says how many tokens the target has; add vocab_size to "
                "config.json"
            )
        listed = "vocab_size"
        count = vocabulary or target.vocab_size
    codes = image_codes(count, target)
    if codes is None:
        raise WeightsError(
            f"{path}: {listed} has {count} tokens, the target {target.vocab_size}; it was made for "
            "another target"
        )
    if "embed_tokens.weight" in tensors:
        out["embed_tokens.weight"] = tensors["embed_tokens.weight"][codes]
    ids = torch.arange(rows)
    if rows != count:
        ids = _drafted_ids(path, offsets, tensors.get("t2d"), rows, count)
    ids = ids - codes.start
    kept = (ids >= 0) & (ids < target.vocab_size)
    if not bool(kept.any()):
        raise WeightsError(
            f"{path}: d2t covers none of the target's image codes; it was made for another target"
        )
    if not bool(kept.all()):
        head = head[kept]
        ids = ids[kept]
    out["lm_head.weight"] = head
    out["ids"] = ids
    return out


def _drafted_ids(
    path: Path, offsets: Tensor | None, drafted: Tensor | None, rows: int, count: int
) -> Tensor:
    """Each draft token's id [rows] in a vocabulary of `count` tokens.

    Args:
        path: path of the drafter, for messages.
        offsets: d2t, each draft token's id minus its row [rows]. On the meta device they are 0.
        drafted: t2d, which tokens are drafted [count]; None: the file has none.
        rows: number of draft tokens.
        count: number of the target's tokens.

    Raises:
        WeightsError: the two are missing, damaged, or contradict each other.
    """
    ids = torch.arange(rows)
    if offsets is None or offsets.shape != ids.shape or offsets.dtype not in _INTEGERS:
        raise WeightsError(
            f"{path}: d2t must have an integer for each of the {rows} rows of lm_head.weight"
        )
    if not offsets.is_meta:
        ids = ids + offsets.cpu()
    out_of_range = (ids < 0) | (ids >= count)
    if bool(out_of_range.any()) or len(set(ids.tolist())) < rows:
        raise WeightsError(f"{path}: d2t must give every draft token another one of {count} tokens")
    if drafted is None or drafted.is_meta or offsets.is_meta:
        return ids
    if not torch.equal(drafted.cpu().nonzero()[:, 0], ids.sort().values):
        raise WeightsError(
            f"{path}: t2d and d2t name different tokens; give the files of one drafter"
        )
    return ids
