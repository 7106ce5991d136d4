"""Drafters from their files: the project's own safetensors, and published EAGLE drafters as LANTERN distributes them.

A published drafter is a file, or a folder with a `config.json` beside the weights, with these tensors:

    embed_tokens.weight                      a token embedding of its own
    fc.weight, fc.bias                       [embedding ; feature] -> D; the bias may be absent
    layers.0.self_attn.{q,k,v,o}_proj.weight, layers.0.mlp.{gate,up,down}_proj.weight
    layers.0.post_attention_layernorm.weight
    layers.0.input_layernorm.weight          Anole's and Lumina's only
    layers.0.self_attn.{q,k}_norm.{weight,bias}     likewise

Which of the optional ones are there is read off the file. Every tensor is used; one that nobody knows, and one that is
missing, is named in the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.decoding.drafter import Drafter
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter, MedusaHeads
from workers.models.checkpoint_files import PICKLED, read_object, safetensors_metadata
from workers.models.pieces import build_ar_model, read_with_config
from workers.models.target import Target
from workers.models.transformer import Attention, HeadNorm, Transformer, TransformerConfig
from workers.models.weights import Row, WeightsError, interleave, load_into, load_tensors, unfilled

CONFIG = "config.json"
CHAMELEON_CODES = 65536, 4  # tokens of its vocabulary, and the id of code 0: targets count codes
QK_NORM_EPS = 1e-5  # of Chameleon's LayerNorm over a head, whatever the RMSNorms' is


def load_drafter(target: Target, kind: str, path: Path) -> Drafter:
    """A drafter of a kind from its file, ready to decode on the target's device in the target's dtype.

    Raises:
        WeightsError: the file is missing, damaged, of another kind, or made for another target.
        ValueError: its sizes do not fit the target; an unknown kind.
    """
    if kind not in LOADERS:
        raise ValueError(f"no drafter {kind!r} has weights of its own; those that have: {', '.join(LOADERS)}")
    drafter = LOADERS[kind](path, target)
    return drafter.to(target.device, target.dtype).eval().requires_grad_(False)


def load_eagle(path: Path, target: Target) -> EagleDrafter:
    """An EAGLE drafter of the target's, from the project's own file or a published one (a file or a folder).

    Raises:
        WeightsError: nothing is there, it is damaged, no EAGLE drafter, or a tensor is unknown or missing.
        ValueError: it was made for a target of another size.
    """
    path = Path(path)
    own = path / "eagle.safetensors" if path.is_dir() else path
    if own.suffix == ".safetensors" and own.is_file() and "config" in safetensors_metadata(own):
        layer, header = read_with_config(own, "an EAGLE layer", build_eagle)
        drafter = EagleDrafter(target, layer, filler=header.get("filler", 0))
    else:
        drafter = _published(path, target)
    made: EagleDrafter = drafter.to(target.device, target.dtype).eval().requires_grad_(False)
    return made


def build_eagle(config: Mapping[str, Any]) -> EagleLayer:
    """An EAGLE layer from {"transformer": TransformerConfig's fields}."""
    return EagleLayer(TransformerConfig(**config["transformer"]))


def build_medusa(config: Mapping[str, Any]) -> MedusaHeads:
    """Medusa heads from {"dim", "vocab_size", "heads", "shared_head"}."""
    return MedusaHeads(config["dim"], config["vocab_size"], config["heads"], shared_head=config["shared_head"])


def _medusa(path: Path, target: Target) -> Drafter:
    return MedusaDrafter(target, read_with_config(path, "Medusa heads", build_medusa)[0])


def _independent(path: Path, target: Target) -> Drafter:
    parts = read_with_config(path, "an AR model", build_ar_model)[0]
    body = parts["transformer"]
    assert isinstance(body, Transformer)
    return IndependentDrafter(target, body, parts["conditioner"])


#: How each kind that has weights of its own is read; a new drafter of that sort is a line here.
LOADERS: Mapping[str, Callable[[Path, Target], Drafter]] = {
    "eagle": load_eagle,
    "medusa": _medusa,
    "independent": _independent,
}


def _published(path: Path, target: Target) -> EagleDrafter:
    """A drafter in the published layout.

    LlamaGen's prompts ("grid") have no token ids and its drafters see their padding; Chameleon's are made of tokens,
    and the padding is hidden. Constant shifts of a stream's positions, which differ between the published families,
    do not count under rotations that depend on distances alone.
    """
    tensors, given = load_tensors(_weights_file(path)), _config(path)
    if "fc.weight" not in tensors:
        begins = next(iter(tensors), "nothing")
        raise WeightsError(f"{path}: no EAGLE drafter: fc.weight is not in it (it begins with {begins})")
    config = _sizes(path, tensors, given, target.transformer.config)
    codes = tensors["embed_tokens.weight"].shape[0] if "embed_tokens.weight" in tensors else target.vocab_size
    whole, first = CHAMELEON_CODES
    if codes not in (target.vocab_size, whole if config.rope == "line" else target.vocab_size):
        raise ValueError(
            f"{path}: the drafter embeds {codes} tokens, the target {target.vocab_size}; it was made for another target"
        )
    layer = unfilled(lambda: EagleLayer(config, bias="fc.bias" in tensors, codes=codes))
    load_into(layer, tensors, _table(config), where=path)
    if layer.embed is not None and codes != target.vocab_size:  # of the whole vocabulary, the image's codes
        rows = layer.embed.weight[first : first + target.vocab_size].clone()
        layer.embed = nn.Embedding.from_pretrained(rows)  # type: ignore[no-untyped-call]
    if layer.embed is not None and _same(layer.embed.weight, target.embed.weight):
        layer.embed = None  # a frozen copy of the target's own, as training leaves it
    attention = layer.decoder.layers[0].attention
    assert isinstance(attention, Attention)
    for norm in (attention.q_norm, attention.k_norm):
        if isinstance(norm, HeadNorm):
            norm.eps = QK_NORM_EPS
    grid = config.rope == "grid"
    return EagleDrafter(target, layer, filler=0 if grid else None, masked=not grid)


def _weights_file(path: Path) -> Path:
    """The weights of a published drafter: the file itself, or the one in its folder."""
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return path
    found = sorted(file for file in path.iterdir() if file.suffix in PICKLED)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise WeightsError(
            f"{path}: a drafter's folder holds one weight file (.safetensors, {', '.join(PICKLED)}); found {names}. "
            "Give the path of the file itself"
        )
    return found[0]


def _config(path: Path) -> Mapping[str, Any]:
    """The drafter's config.json; empty where there is none."""
    file = (path if path.is_dir() else path.parent) / CONFIG
    return read_object(file) if file.is_file() else {}


def _sizes(
    path: Path, tensors: Mapping[str, Tensor], given: Mapping[str, Any], target: TransformerConfig
) -> TransformerConfig:
    """The layer's config: sizes from the tensors, what they do not say from config.json, else as the target has it."""
    dim = tensors["fc.weight"].shape[0]
    if dim != target.dim:
        raise ValueError(f"{path}: the drafter's width is {dim}, the target's {target.dim}; it was made for another")
    said = given.get("hidden_size", dim)
    if said != dim:
        raise WeightsError(f"{path}: {CONFIG} says hidden_size {said}, fc.weight has {dim} rows: files of two drafters")
    heads = int(given.get("num_attention_heads", target.n_heads))
    channels = target.channels if heads == target.n_heads else dim // heads
    gate, keys = (tensors.get(f"layers.0.{name}_proj.weight") for name in ("mlp.gate", "self_attn.k"))
    return replace(
        target,
        n_layers=1,
        vocab_size=0,
        n_heads=heads,
        n_kv_heads=target.kv_heads if keys is None else max(1, keys.shape[0] // channels),
        head_dim=channels,
        ffn_dim=target.ffn_dim if gate is None else gate.shape[0],
        norm_eps=float(given.get("rms_norm_eps", target.norm_eps)),
        rope_base=float(given.get("rope_theta", given.get("rope_base", target.rope_base))),
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        input_norm="layers.0.input_layernorm.weight" in tensors,
        final_norm=False,
    )


def _table(config: TransformerConfig) -> list[Row]:
    """Published names to the layer's. Chameleon's heads rotate by halves, ours by neighbours: their rows change places;
    LlamaGen's converted files kept the neighbours.
    """

    def turned(weight: Tensor) -> Tensor:
        # a size that does not fit is left for the comparison of shapes to name
        fits = config.rope == "line" and weight.shape[0] % config.channels == 0
        return interleave(weight, config.channels) if fits else weight

    def stacked(parts: Sequence[Tensor]) -> Tensor:
        q, k, v = parts
        return torch.cat([turned(q), turned(k), v])

    def norm(parts: Sequence[Tensor]) -> Tensor:
        (weight,) = parts
        return turned(weight.flatten()).view(weight.shape)

    there, here = "layers.0.self_attn", "decoder.layers.0.attention"
    return [
        Row("embed_tokens.weight", "embed.weight"),
        Row("fc.{part}", "fc.{part}"),
        Row(tuple(f"{there}.{part}_proj.weight" for part in "qkv"), f"{here}.wqkv.weight", stacked),
        Row(f"{there}.o_proj.weight", f"{here}.wo.weight"),
        Row(f"{there}.q_norm.{{part}}", f"{here}.q_norm.{{part}}", norm),
        Row(f"{there}.k_norm.{{part}}", f"{here}.k_norm.{{part}}", norm),
        Row(
            ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"),
            "decoder.layers.0.feed_forward.w13.weight",
        ),
        Row("layers.0.mlp.down_proj.weight", "decoder.layers.0.feed_forward.w2.weight"),
        Row("layers.0.input_layernorm.weight", "decoder.layers.0.attention_norm.weight"),
        Row("layers.0.post_attention_layernorm.weight", "decoder.layers.0.ffn_norm.weight"),
    ]


def _same(own: Tensor, other: Tensor) -> bool:
    """Whether two tables hold the same numbers. Of tables that have shapes alone, nobody knows."""
    return not own.is_meta and not other.is_meta and torch.equal(own, other.cpu().float())
