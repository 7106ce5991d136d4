"""Chameleon checkpoints (Chameleon-7B, Anole, Lumina-mGPT) in Hugging Face's layout, and their VQGAN in taming's.

Everything that a checkpoint holds is used or known: the language model's vocabulary beyond the image ids is cut off
the head (a target draws images), kept in the embedding (it reads captions). Sizes are read off the tensors.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from workers.models.checkpoint_files import WeightsError, load_tensors, read_object
from workers.models.transformer import TransformerConfig
from workers.models.vq import CHAMELEON, VQConfig, VQModel
from workers.models.weights import Row, interleave, load_into, unfilled

FIRST_IMAGE_ID, CODES = 4, 8192  # a code's id in the vocabulary is code + 4
IMAGE_IDS = slice(FIRST_IMAGE_ID, FIRST_IMAGE_ID + CODES)

_EMBEDDING, _HEAD, _VQ = "model.embed_tokens.weight", "lm_head.weight", "model.vqmodel."
_IMAGE_EMBEDDING = f"{_EMBEDDING}[image ids]"  # no tensor of its own: rows of the embedding
_LAYER = "model.layers.{l}"


def _vq_table(levels: int) -> list[Row]:
    """taming's names for a codec of so many levels. Its decoder counts them from the finest, ours from the coarsest."""
    same = [
        *(f"{side}.{part}.{{...}}" for side in ("encoder", "decoder") for part in ("conv_in", "norm_out", "conv_out")),
        "quantize.embedding.weight",
        "quant_conv.{...}",
        "post_quant_conv.{...}",
    ]
    rows = [Row(name, name) for name in same]
    for side in ("encoder", "decoder"):
        for place, name in enumerate(("block_1", "attn_1", "block_2")):
            rows.append(Row(f"{side}.mid.{name}.{{...}}", f"{side}.mid.{place}.{{...}}"))
    for level in range(levels):
        for side, way, ours in (("encoder", "down", level), ("decoder", "up", levels - 1 - level)):
            theirs, own = f"{side}.{way}.{level}", f"{side}.conv_blocks.{ours}"
            rows.append(Row(f"{theirs}.block.{{b}}.{{...}}", f"{own}.res.{{b}}.{{...}}"))
            rows.append(Row(f"{theirs}.{way}sample.conv.{{...}}", f"{own}.{way}sample.conv.{{...}}"))
    return rows


def _transformer_table(channels: int, levels: int) -> list[Row]:
    """Hugging Face's names. Its queries and keys, and their norms, turn in halves: see `interleave`."""

    def turned(parts: Sequence[Tensor]) -> Tensor:
        query, key, value = parts
        return torch.cat([interleave(query, channels), interleave(key, channels), value])

    def turned_norm(parts: Sequence[Tensor]) -> Tensor:
        return interleave(parts[0].reshape(-1), channels).view(parts[0].shape)

    attention, ours = f"{_LAYER}.self_attn", "transformer.layers.{l}"
    projections = tuple(f"{attention}.{part}_proj.weight" for part in "qkv")
    return [
        Row(_EMBEDDING, "conditioner.words.weight"),
        Row(_IMAGE_EMBEDDING, "transformer.embed.weight"),
        Row(_HEAD, "transformer.head.weight", lambda parts: parts[0][IMAGE_IDS]),
        Row("model.norm.weight", "transformer.norm.weight"),
        Row(projections, f"{ours}.attention.wqkv.weight", turned),
        Row(f"{attention}.q_norm.{{part}}", f"{ours}.attention.q_norm.{{part}}", turned_norm),
        Row(f"{attention}.k_norm.{{part}}", f"{ours}.attention.k_norm.{{part}}", turned_norm),
        Row(f"{attention}.o_proj.weight", f"{ours}.attention.wo.weight"),
        Row(
            (f"{_LAYER}.mlp.gate_proj.weight", f"{_LAYER}.mlp.up_proj.weight"),
            f"{ours}.feed_forward.w13.weight",
        ),
        Row(f"{_LAYER}.mlp.down_proj.weight", f"{ours}.feed_forward.w2.weight"),
        Row(f"{_LAYER}.input_layernorm.weight", f"{ours}.attention_norm.weight"),
        Row(f"{_LAYER}.post_attention_layernorm.weight", f"{ours}.ffn_norm.weight"),
        *(Row(f"{_VQ}{row.source}", None) for row in _vq_table(levels)),  # read by `read_codec`
    ]


class ChameleonCheckpoint:
    """The tensors of one checkpoint, a folder or a file, with the sizes that they tell."""

    def __init__(self, path: str | Path, *, highest_id: int) -> None:
        """`highest_id`: the last id that the family's prompts use.

        Raises:
            WeightsError: no such file, a damaged one, or not a Chameleon model in Hugging Face's layout.
        """
        self.path = Path(path)
        self.tensors = load_tensors(path)
        self._shapes: dict[str, torch.Size] = {}
        for name in (_EMBEDDING, f"{_LAYER.format(l=0)}.self_attn.q_norm.weight"):
            if name not in self.tensors:
                raise WeightsError(
                    f"{path}: no Chameleon model in Hugging Face's layout: {name} is not in it. It begins with "
                    f"{next(iter(self.tensors), 'nothing')}; give the folder that holds model.safetensors.index.json"
                )
        self._refuse_other_norms()
        for name in (_EMBEDDING, _HEAD):
            if self._shape(name)[0] <= highest_id:
                raise WeightsError(
                    f"{path}: {name} has {self._shape(name)[0]} rows, but this family uses ids up to {highest_id}: "
                    "this is not its vocabulary"
                )

    def config(self, *, prompt_len: int, rows: int, cols: int, row_ends: bool) -> TransformerConfig:
        """The transformer's sizes.

        Raises:
            WeightsError: a tensor that tells a size is missing.
        """
        first = _LAYER.format(l=0)
        heads, channels = self._shape(f"{first}.self_attn.q_norm.weight")
        found = {int(hit[1]) for name in self.tensors if (hit := re.match(r"model\.layers\.(\d+)\.", name))}
        return TransformerConfig(
            dim=self._shape(_EMBEDDING)[1],
            n_layers=max(found) + 1,
            n_heads=heads,
            n_kv_heads=self._shape(f"{first}.self_attn.k_norm.weight")[0],
            head_dim=channels,
            ffn_dim=self._shape(f"{first}.mlp.gate_proj.weight")[0],
            vocab_size=CODES,
            rope="line",
            qk_norm=True,
            prompt_len=prompt_len,
            rows=rows,
            cols=cols,
            row_ends=row_ends,
        )

    @property
    def vocabulary(self) -> int:
        return self._shape(_EMBEDDING)[0]

    def fill(self, parts: torch.nn.ModuleDict, channels: int, dtype: torch.dtype) -> None:
        """Load {"transformer", "conditioner"}, using every tensor. WeightsError names what is missing or unknown."""
        image = {_IMAGE_EMBEDDING: self.tensors[_EMBEDDING][IMAGE_IDS]}
        every = ChainMap(image, cast("MutableMapping[str, Tensor]", self.tensors))
        table = _transformer_table(channels, len(vqgan_config(self._own_vqgan()).multipliers))
        load_into(parts, every, table, where=self.path, dtype=dtype)

    def codec(self, vq: str | Path | None) -> VQModel | None:
        """The codec of a VQGAN file or, without one, of the checkpoint itself; None if that holds no decoder.

        Raises:
            WeightsError: an unfit file, or one whose codebook is not the one that the checkpoint carries.
        """
        own = self._own_vqgan()
        if vq is None:
            return _fill_codec(own, self.path) if "decoder.conv_in.weight" in own else None
        codec = load_vqgan(vq)
        ours, theirs = own.get("quantize.embedding.weight"), codec.quantize.embedding.weight
        if ours is not None and (ours.shape != theirs.shape or _far(ours.float(), theirs)):
            raise WeightsError(f"{vq}: its codebook is not the one in {self.path}: the two are no pair")
        return codec

    def _own_vqgan(self) -> dict[str, Tensor]:
        """The VQGAN's tensors in the checkpoint, under the names of its own file."""
        return {name.removeprefix(_VQ): self.tensors[name] for name in self.tensors if name.startswith(_VQ)}

    def _shape(self, name: str) -> torch.Size:
        if name not in self.tensors:
            raise WeightsError(f"{self.path}: missing weights (1): {name}. Give a whole Chameleon checkpoint")
        if name not in self._shapes:  # large tensors are read from the disk each time
            self._shapes[name] = self.tensors[name].shape
        return self._shapes[name]

    def _refuse_other_norms(self) -> None:
        folder = self.path if self.path.is_dir() else self.path.parent
        if (folder / "config.json").is_file() and read_object(folder / "config.json").get("swin_norm"):
            raise WeightsError(
                f"{folder / 'config.json'}: swin_norm is on, as in Chameleon-30B, whose norms stand elsewhere; "
                "give a 7B checkpoint"
            )


def load_vqgan(path: str | Path) -> VQModel:
    """Chameleon's VQGAN from its own file (`vqgan.ckpt`, the names under `state_dict`), in fp32.

    Raises:
        WeightsError: a file that is missing, damaged, of another kind, or with another number of codes.
    """
    return _fill_codec(load_tensors(path), path)


def vqgan_config(tensors: Mapping[str, Tensor]) -> VQConfig:
    """A VQGAN's sizes by its tensors' shapes, the official ones where they say nothing: loading finds out what is
    missing then. The number of codes is always the vocabulary's.
    """

    def count(pattern: str) -> int:
        return len({hit[1] for name in tensors if (hit := re.match(pattern, name))})

    levels = range(count(r"encoder\.down\.(\d+)\."))
    try:
        base, blocks = tensors["encoder.conv_in.weight"].shape[0], count(r"encoder\.down\.0\.block\.(\d+)\.")
        widths = [tensors[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in levels]
        return replace(
            CHAMELEON,
            code_dim=tensors["quantize.embedding.weight"].shape[1],
            channels=base,
            multipliers=tuple(width // base for width in widths),
            encoder_blocks=blocks,
            decoder_blocks=blocks + 1,
            z_channels=tensors["encoder.conv_out.weight"].shape[0],
        )
    except (KeyError, ValueError):
        return CHAMELEON


def _fill_codec(tensors: Mapping[str, Tensor], where: str | Path) -> VQModel:
    config = vqgan_config(tensors)
    codec = unfilled(lambda: VQModel(config))
    training = Row("loss.{...}", None)  # the discriminator, where a training file was kept
    load_into(codec, tensors, [*_vq_table(len(config.multipliers)), training], where=where)
    return codec.eval()


def _far(left: Tensor, right: Tensor) -> bool:
    """Whether two copies of a codebook differ by more than bfloat16 rounds. Copies without values (on the meta device,
    where only shapes are checked) never do.
    """
    if left.is_meta or right.is_meta:
        return False
    return bool((left - right).abs().max() > 0.01 * right.abs().max())
