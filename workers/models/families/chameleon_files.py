"""Chameleon checkpoints (Chameleon-7B, Anole, Lumina-mGPT) in Hugging Face's layout, and their VQGAN in taming's.

Every tensor of a checkpoint is loaded or known to be unused. The head keeps only the image ids, because a target draws
images; the embedding keeps all ids, because prompts need them. Sizes come from the tensors' shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.models.checkpoint_files import WeightsError, describe_contents, load_tensors, read_json_object
from workers.models.families.vq_shapes import CODEC_LANDMARKS, infer_config, load_codec
from workers.models.transformer import TransformerConfig
from workers.models.vq import CHAMELEON, VQConfig, VQModel
from workers.models.weights import KeyMapping, hf_layer_mappings, load_weights

FIRST_IMAGE_ID, CODES = 4, 8192  # a code's id in the vocabulary is code + 4
IMAGE_IDS = slice(FIRST_IMAGE_ID, FIRST_IMAGE_ID + CODES)

_EMBEDDING, _HEAD, _VQ = "model.embed_tokens.weight", "lm_head.weight", "model.vqmodel."
_LAYER = "model.layers.{l}"


def _vq_mappings(levels: int) -> list[KeyMapping]:
    """taming's names for a codec of n levels. Its decoder counts them from the finest, `VQModel` from the coarsest."""
    same_names = [
        *(f"{side}.{part}.{{...}}" for side in ("encoder", "decoder") for part in ("conv_in", "norm_out", "conv_out")),
        "quantize.embedding.weight",
        "quant_conv.{...}",
        "post_quant_conv.{...}",
    ]
    mappings = [KeyMapping(name, name) for name in same_names]
    for side in ("encoder", "decoder"):
        for index, name in enumerate(("block_1", "attn_1", "block_2")):
            mappings.append(KeyMapping(f"{side}.mid.{name}.{{...}}", f"{side}.mid.{index}.{{...}}"))
    for level in range(levels):
        for side, direction, index in (("encoder", "down", level), ("decoder", "up", levels - 1 - level)):
            source, target = f"{side}.{direction}.{level}", f"{side}.conv_blocks.{index}"
            mappings.append(KeyMapping(f"{source}.block.{{b}}.{{...}}", f"{target}.res.{{b}}.{{...}}"))
            mappings.append(
                KeyMapping(f"{source}.{direction}sample.conv.{{...}}", f"{target}.{direction}sample.conv.{{...}}")
            )
    return mappings


def _transformer_mappings(channels: int, levels: int) -> list[KeyMapping]:
    """Hugging Face's names of the transformer, with those of the codec, which `codec` loads."""
    return [
        KeyMapping(_EMBEDDING, "conditioner.words.weight"),
        KeyMapping(_EMBEDDING, "transformer.embed.weight", lambda parts: parts[0][IMAGE_IDS]),
        KeyMapping(_HEAD, "transformer.head.weight", lambda parts: parts[0][IMAGE_IDS]),
        KeyMapping("model.norm.weight", "transformer.norm.weight"),
        *hf_layer_mappings(_LAYER, "transformer.layers.{l}", channels),
        *(KeyMapping(f"{_VQ}{mapping.source}", None) for mapping in _vq_mappings(levels)),
    ]


class ChameleonCheckpoint:
    """The tensors of one checkpoint, a folder or a file, and the sizes that they imply."""

    def __init__(self, path: str | Path, *, highest_id: int) -> None:
        """`highest_id`: the last id that the family's prompts use.

        Raises:
            WeightsError: the file is missing, damaged, or not a Chameleon model in Hugging Face's layout.
        """
        self.path = Path(path)
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.tensors = load_tensors(path, (_EMBEDDING, _HEAD))
        #: The VQGAN's tensors in the checkpoint, under the names of its own file.
        self._own_vqgan = {name.removeprefix(_VQ): self.tensors[name] for name in self.tensors if name.startswith(_VQ)}
        for name in (_EMBEDDING, f"{_LAYER.format(l=0)}.self_attn.q_norm.weight"):
            if name not in self.tensors:
                raise WeightsError(
                    f"{path}: not a Chameleon model in Hugging Face's layout: {name} is missing; its first tensor is "
                    f"{next(iter(self.tensors), 'missing')}{describe_contents(self.tensors)}. Give the folder that "
                    "holds model.safetensors.index.json"
                )
        config = self.folder / "config.json"
        if config.is_file() and read_json_object(config).get("swin_norm"):
            raise WeightsError(
                f"{config}: swin_norm is on, as in Chameleon-30B, whose norms are placed differently; give a 7B "
                "checkpoint"
            )
        self.vocabulary = self._shape(_EMBEDDING)[0]
        for name in (_EMBEDDING, _HEAD):
            if self._shape(name)[0] <= highest_id:
                raise WeightsError(
                    f"{path}: {name} has {self._shape(name)[0]} rows, but this family uses ids up to {highest_id}: "
                    "this is not its vocabulary"
                )

    def config(self, **geometry: Any) -> TransformerConfig:
        """The transformer's config; geometry: its fields for prompts and images.

        Raises:
            WeightsError: a tensor that determines a size is missing.
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
            **geometry,
        )

    def fill(self, parts: torch.nn.ModuleDict, channels: int, dtype: torch.dtype) -> None:
        """Load {"transformer", "conditioner"}, using every tensor. WeightsError names what is missing or unknown."""
        mappings = _transformer_mappings(channels, len(_vqgan_config(self._own_vqgan).multipliers))
        load_weights(parts, self.tensors, mappings, where=self.path, dtype=dtype)

    def codec(self, vq: str | Path | None) -> VQModel:
        """The codec, in fp32, from a VQGAN file (`vqgan.ckpt`) or, without one, from the checkpoint.

        Raises:
            WeightsError: the file is not usable, its sizes do not fit the target, or its codebook differs from the
                checkpoint's; there is no file, and the checkpoint contains no decoder.
        """
        own = self._own_vqgan
        if vq is None and "decoder.conv_in.weight" not in own:
            raise WeightsError(
                f"{self.path}: contains no VQGAN decoder (Hugging Face's Chameleon leaves it out); give `vq`, the path "
                "of vqgan.ckpt"
            )
        tensors, where = (own, self.path) if vq is None else (load_tensors(vq, CODEC_LANDMARKS), vq)
        codebook, config = own.get("quantize.embedding.weight"), _vqgan_config(tensors)
        geometry = CHAMELEON if codebook is None else replace(CHAMELEON, code_dim=codebook.shape[1])
        training = KeyMapping("loss.{...}", None)  # the discriminator, in files kept from training
        mappings = [*_vq_mappings(len(config.multipliers)), training]
        codec = load_codec(tensors, config, mappings, codes=CODES, geometry=geometry, where=where)
        if codebook is not None and _differ(codebook.float(), codec.quantize.embedding.weight):
            raise WeightsError(f"{vq}: its codebook differs from the one in {self.path}: the two do not match")
        return codec

    def _shape(self, name: str) -> torch.Size:
        if name not in self.tensors:
            raise WeightsError(f"{self.path}: missing weights (1): {name}. Give a whole Chameleon checkpoint")
        return self.tensors[name].shape


def _vqgan_config(tensors: Mapping[str, Tensor]) -> VQConfig:
    return infer_config(tensors, CHAMELEON, "encoder.down", "decoder.up", "block")


def _differ(left: Tensor, right: Tensor) -> bool:
    """Whether two copies of a codebook differ by more than bfloat16 rounding; False on the meta device."""
    if left.is_meta or right.is_meta:
        return False
    return bool((left - right).abs().max() > 0.01 * right.abs().max())
