"""EAGLE: one decoder layer that extrapolates the target's features (Li et al. 2024, EAGLE-1;
EAGLE-2's trees use it unchanged).

Slot t takes the embedding of token t+1 and the target's feature of token t (after the final norm)
and predicts the feature of token t+1; the target's own head turns that into the logits of token
t+2.

Weights are the project's own safetensors, or a published drafter as LANTERN distributes them: a
file, or a folder with a `config.json` beside the weights, with these tensors:

    embed_tokens.weight                      its own token embedding
    fc.weight, fc.bias                       [embedding ; feature] -> D; the bias is optional
    layers.0.self_attn.{q,k,v,o}_proj.weight, layers.0.mlp.{gate,up,down}_proj.weight
    layers.0.post_attention_layernorm.weight
    layers.0.input_layernorm.weight          Anole's and Lumina's only
    layers.0.self_attn.{q,k}_norm.{weight,bias}     likewise

The file shows which optional tensors there are. Every tensor is used; an error names unknown and
missing tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.decoding.drafter import CachedDrafter
from workers.models.checkpoint_files import (
    WeightsError,
    describe_contents,
    load_tensors,
    read_json_object,
    safetensors_metadata,
)
from workers.models.layouts import EAGLE_3, find_layout
from workers.models.linear import PackedLinear
from workers.models.own_files import read_module
from workers.models.target import Prompt, Target
from workers.models.transformer import Layer, Transformer, TransformerConfig
from workers.models.weights import KeyMapping, hf_layer_mappings, load_weights, skip_init

_CONFIG = "config.json"
# Published drafters of Chameleon's models embed the whole vocabulary, of which the target's codes
# are a part.
_CHAMELEON_VOCAB_SIZE = 65536
_CHAMELEON_FIRST_CODE = 4


class EagleLayer(nn.Module):
    """h = W [embedding ; feature] + b, then one transformer layer; no norm after it (features are
    normed already).

    Published drafters have their own token embedding with `codes` rows; 0: the target's embedding
    is used.
    """

    taps: tuple[int, ...] = ()  # see `Drafter.taps`

    def __init__(self, config: TransformerConfig, *, bias: bool = True, codes: int = 0) -> None:
        super().__init__()
        self.fc = PackedLinear(2 * config.dim, config.dim, bias=bias)
        self.decoder = Transformer(config)
        self.embed = nn.Embedding(codes, config.dim) if codes else None

    def fuse(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Layer inputs [R, S, D] of token embeddings [R, S, D] and the features [R, S, D] that
        precede them.
        """
        out: Tensor = self.fc(torch.cat([embeddings, features], dim=-1))
        return out

    def attention_inputs(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised inputs of attention, and the states [R, S, D] that its output is added
        to.
        """
        x = self.fuse(embeddings, features)
        block = self.decoder.layers[0]
        assert isinstance(block, Layer)
        return block.attention_norm(x), x

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Predicted features [R, S, D]; `positions` [S] or [R, S] are the tokens' positions in the
        target's rotation table.
        """
        out: Tensor = self.decoder(self.fuse(embeddings, features), positions, mask=mask)
        return out


class EagleDrafter(CachedDrafter):
    """The EAGLE layer as a drafter. Its prompt has prompt_len - 1 slots: token n of the image is in
    slot prompt_len - 1 + n.

    Args:
        target: the target.
        layer: the layer.
        filler: the code whose embedding stands for the tokens of LlamaGen's prompts, which have no
            token ids; None: prompts are made of tokens, and each slot takes the next position's
            embedding.
        masked: whether the prompt's padding is hidden, as it is from the target; LANTERN's drafters
            for LlamaGen were trained without a mask and attend to it.
    """

    kind = "eagle"
    capturable = True

    def __init__(
        self, target: Target, layer: EagleLayer, *, filler: int | None = 0, masked: bool = True
    ) -> None:
        super().__init__(target, layer.decoder, base=target.prompt_len - 1)
        self.check_size("dim", layer.decoder.config.dim, target.transformer.config.dim)
        self.layer = layer
        self.filler = filler
        self.masked = masked

    @classmethod
    def load(cls, path: Path, target: Target) -> EagleDrafter:
        """A drafter from the project's own file or a published drafter (a file or a folder)."""
        own = cls.own_file(path)
        if own is None:
            return _load_published(path, target)
        layer, header = read_module(own, "an EAGLE layer", build_eagle)
        return cls(target, layer, filler=header.get("filler", 0))

    @classmethod
    def own_file(cls, path: Path) -> Path | None:
        """The project's own weight file at a path or in a folder; None if there is none."""
        file = path
        if path.is_dir():
            file = path / f"{cls.kind}.safetensors"
        is_safetensors = file.suffix.lower() == ".safetensors" and file.is_file()
        if is_safetensors and "config" in safetensors_metadata(file):
            return file
        return None

    @classmethod
    def usual(cls, target: Target, levels: int) -> tuple[EagleDrafter, str]:
        config = replace(
            target.transformer.config, n_layers=1, vocab_size=0, input_norm=False, final_norm=False
        )
        layer = skip_init(lambda: EagleLayer(config)).to("meta", target.dtype)
        drafter = cls(target, layer).eval().requires_grad_(False)
        return drafter, "the EAGLE drafter is one layer of the target's width"

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of image tokens [...]: the layer's own, or the target's."""
        embed = self.target.embed if self.layer.embed is None else self.layer.embed
        out: Tensor = embed(tokens)
        return out

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.layer.fuse(self.embed(tokens), features)

    @property
    def head(self) -> nn.Module:
        return self.target.head

    def prompt_inputs(
        self, prompt: Prompt, captions: list[str], features: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.filler is None:
            next_embeddings = prompt.embeds[:, 1:]
        else:
            codes = torch.full(
                (features.shape[0], self.base),
                self.filler,
                dtype=torch.int64,
                device=features.device,
            )
            next_embeddings = self.embed(codes)
        attended = prompt.valid[:, :-1]
        if not self.masked:
            attended = torch.ones_like(attended)
        return self.layer.fuse(next_embeddings, features[:, :-1]), attended

    def prompt_positions(self, order: Tensor) -> Tensor:
        return order + 1


def build_eagle(config: Mapping[str, Any]) -> EagleLayer:
    """An EAGLE layer from {"transformer": TransformerConfig's fields}."""
    return EagleLayer(TransformerConfig(**config["transformer"]))


def _load_published(path: Path, target: Target) -> EagleDrafter:
    """A drafter in the published layout.

    LlamaGen's prompts (rope "grid") have no token ids and its drafters attend to their padding;
    Chameleon's prompts are made of tokens, and the padding is hidden. Constant shifts of a stream's
    positions, which differ between the published families, do not matter under rotations that
    depend on distances only.
    """
    tensors = load_tensors(path, ["fc.weight"])
    if (fc := tensors.get("fc.weight")) is None:
        raise WeightsError(
            f"{path}: not an EAGLE drafter: fc.weight is missing; its first tensor is "
            f"{next(iter(tensors), 'missing')}{describe_contents(tensors)}"
        )
    reads_three_states = fc.shape[1] == 3 * fc.shape[0]
    if reads_three_states or find_layout(tensors) is EAGLE_3:
        raise WeightsError(f"{path}: {EAGLE_3.kind}: {EAGLE_3.fix}")
    config = replace(
        layer_config(path, tensors, target.transformer.config, read_config(path), "layers.0"),
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        input_norm="layers.0.input_layernorm.weight" in tensors,
    )
    codes = target.vocab_size
    if "embed_tokens.weight" in tensors:
        codes = tensors["embed_tokens.weight"].shape[0]
    own_codes = image_codes(codes, target)
    if own_codes is None:
        raise ValueError(
            f"{path}: the drafter embeds {codes} tokens, the target {target.vocab_size}; it was "
            "made for another target"
        )
    layer = skip_init(lambda: EagleLayer(config, bias="fc.bias" in tensors, codes=codes))
    # LlamaGen's converted files rotate adjacent channels, the others halves.
    halves = config.channels if config.rope == "line" else None
    mappings = [
        KeyMapping("embed_tokens.weight", "embed.weight"),
        KeyMapping("fc.{part}", "fc.{part}"),
        *hf_layer_mappings("layers.0", "decoder.layers.0", halves),
    ]
    load_weights(layer, tensors, mappings, where=path)
    # Of a whole vocabulary, keep the image codes.
    if layer.embed is not None and codes != target.vocab_size:
        layer.embed = nn.Embedding.from_pretrained(layer.embed.weight[own_codes].clone())  # type: ignore[no-untyped-call]
    if layer.embed is not None and is_same_table(layer.embed.weight, target.embed.weight):
        layer.embed = None  # training left the target's own table unchanged
    if config.rope == "grid":
        return EagleDrafter(target, layer, filler=0, masked=False)
    return EagleDrafter(target, layer, filler=None)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a published drafter; empty if it has none."""
    folder = path if path.is_dir() else path.parent
    file = folder / _CONFIG
    if not file.is_file():
        return {}
    return read_json_object(file)


def image_codes(tokens: int, target: Target) -> slice | None:
    """The target's codes in the vocabulary of a published drafter, which has so many tokens; None:
    it was made for another target.
    """
    if tokens == target.vocab_size:
        return slice(0, tokens)
    if target.transformer.config.rope == "line" and tokens == _CHAMELEON_VOCAB_SIZE:
        return slice(_CHAMELEON_FIRST_CODE, _CHAMELEON_FIRST_CODE + target.vocab_size)
    return None


def layer_config(
    path: Path,
    tensors: Mapping[str, Tensor],
    target: TransformerConfig,
    config: Mapping[str, Any],
    layer: str,
) -> TransformerConfig:
    """The config of a published drafter's layer.

    Args:
        path: the drafter, for messages.
        tensors: its tensors, from which sizes are taken.
        target: the target's config, for what neither tensors nor `config` say.
        config: keys of its config.json.
        layer: beginning of the names of the layer's tensors.

    Raises:
        ValueError: it was made for another target.
        WeightsError: config and tensors disagree.
    """
    dim = tensors["fc.weight"].shape[0]
    if dim != target.dim:
        raise ValueError(
            f"{path}: the drafter's width is {dim}, the target's {target.dim}; it was made for "
            "another target"
        )
    hidden_size = config.get("hidden_size", dim)
    if hidden_size != dim:
        raise WeightsError(
            f"{path}: {_CONFIG} says hidden_size {hidden_size}, fc.weight has {dim} rows; use the "
            "files of one drafter"
        )
    heads = int(config.get("num_attention_heads", target.n_heads))
    channels = dim // heads
    if config.get("head_dim"):
        channels = int(config["head_dim"])
    elif heads == target.n_heads:
        channels = target.channels
    kv_heads = target.kv_heads
    if (keys := tensors.get(f"{layer}.self_attn.k_proj.weight")) is not None:
        kv_heads = max(1, keys.shape[0] // channels)
    ffn_dim = target.ffn_dim
    if (gate := tensors.get(f"{layer}.mlp.gate_proj.weight")) is not None:
        ffn_dim = gate.shape[0]
    return replace(
        target,
        n_layers=1,
        vocab_size=0,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=channels,
        ffn_dim=ffn_dim,
        norm_eps=float(config.get("rms_norm_eps", target.norm_eps)),
        rope_base=float(config.get("rope_theta", config.get("rope_base", target.rope_base))),
        final_norm=False,
    )


def is_same_table(own: Tensor, other: Tensor) -> bool:
    """Whether two tables hold the same numbers; False for tables that only have shapes."""
    return not own.is_meta and not other.is_meta and torch.equal(own, other.cpu().float())
