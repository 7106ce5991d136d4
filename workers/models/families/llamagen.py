"""LlamaGen (Sun et al., 2024): class- and text-conditional targets of all published sizes, from its
official files.

The family defines its sizes, the names in its checkpoints (official ones, and those converted to
Hugging Face naming), a prompt of one class embedding or of 120 caption features, and its VQ-16
tokenizer. Prompt positions are rotated by *zero* (`prompt_rope`), so their order has no influence
on the score that an image token gives them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import Choices, ConfigError, PathField, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError, describe_contents, load_tensors
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.llamagen_prompts import (
    CAPTION_DIM,
    CaptionConditioner,
    ClassConditioner,
    FlanT5XLShapes,
    read_class_names,
)
from workers.models.layouts import find_layout
from workers.models.target import Target
from workers.models.text import CAPTION_TOKENS, T5Encoder, TextEncoder
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import CODEC_LANDMARKS, VQConfig, VQModel, infer_config, load_codec
from workers.models.weights import KeyMapping, hf_layer_mappings, load_weights, skip_init


@dataclass(frozen=True, slots=True)
class LlamaGenSize:
    """Width, depth and number of heads; they determine the head and feed-forward widths."""

    dim: int
    layers: int
    heads: int

    @property
    def ffn(self) -> int:
        """8/3 of the width, rounded up to a multiple of 256."""
        return -(-(8 * self.dim // 3) // 256) * 256


SIZES: Mapping[str, LlamaGenSize] = {
    "B": LlamaGenSize(768, 12, 12),
    "L": LlamaGenSize(1024, 24, 16),
    "XL": LlamaGenSize(1280, 36, 20),
    "XXL": LlamaGenSize(1536, 48, 24),
    "XXXL": LlamaGenSize(2560, 48, 40),
    "1B": LlamaGenSize(2048, 22, 32),
    "3B": LlamaGenSize(3200, 24, 32),  # the only size whose heads have 100 channels, not 64 or 128
    "7B": LlamaGenSize(4096, 32, 32),
}

_TRANSFORMER_NAME = re.compile(
    r"\b(?P<kind>c2i|t2i)_(?:X*L|B|\dB)_(?:stage\d_)?(?P<pixels>256|384|512)(?!\d)"
)
_VQ_NAME = re.compile(r"\bvq_ds(?P<factor>8|16)_(?P<kind>c2i|t2i)")

# The sampling of the official demo.
TEXT_SAMPLING = Sampling(temperature=1.0, top_k=1000, cfg=7.5)
# The official guidance scale without top-k, as in the LANTERN paper.
CLASS_SAMPLING = Sampling(temperature=1.0, top_k=0, cfg=4.0)


def _condition_mappings(condition: str) -> list[KeyMapping]:
    return [
        KeyMapping(f"{condition}.embedding_table.weight", "conditioner.classes.weight"),
        KeyMapping(f"{condition}.cap_proj.{{fc}}.weight", "conditioner.{fc}.weight"),
        KeyMapping(f"{condition}.uncond_embedding", "conditioner.uncond_embedding"),
    ]


_OFFICIAL = [
    KeyMapping("tok_embeddings.weight", "transformer.embed.weight"),
    KeyMapping("output.weight", "transformer.head.weight"),
    *_condition_mappings("cls_embedding"),
    KeyMapping(
        ("layers.{l}.feed_forward.w1.weight", "layers.{l}.feed_forward.w3.weight"),
        "transformer.layers.{l}.feed_forward.w13.weight",
    ),
    KeyMapping("{...}.weight", "transformer.{...}.weight"),
]
# Converted files split wqkv and still rotate adjacent channels, so no permutation is needed.
_CONVERTED = [
    KeyMapping("model.embed_tokens.weight", "transformer.embed.weight"),
    KeyMapping("lm_head.weight", "transformer.head.weight"),
    *_condition_mappings("model.cls_embedding"),
    KeyMapping("model.norm.weight", "transformer.norm.weight"),
    *hf_layer_mappings("model.layers.{l}", "transformer.layers.{l}"),
]

# VQModel has the official names. `codebook_used` is a usage counter of the training.
_VQ = [KeyMapping("quantize.codebook_used", None), KeyMapping("{...}", "{...}")]


def build_parts(
    size: LlamaGenSize,
    codes: int,
    side: int,
    text: TextEncoder | None,
    class_names: Sequence[str] = (),
) -> nn.ModuleDict:
    """An untrained transformer over side x side tokens and its conditioner: captions with `text`,
    else classes.
    """
    body = Transformer(
        TransformerConfig(
            dim=size.dim,
            n_layers=size.layers,
            n_heads=size.heads,
            ffn_dim=size.ffn,
            vocab_size=codes,
            rope="grid",
            prompt_rope="zero",
            rows=side,
            cols=side,
            prompt_len=1 if text is None else CAPTION_TOKENS,
        )
    )
    conditioner: nn.Module
    if text is None:
        conditioner = ClassConditioner(size.dim, names=class_names)
    else:
        conditioner = CaptionConditioner(size.dim, text)
    return nn.ModuleDict({"transformer": body, "conditioner": conditioner})


def load_vq16(path: str | Path, codes: int) -> VQModel:
    """LlamaGen's tokenizer from its official file, of any size, in fp32, for a target with `codes`
    codes.

    Raises:
        WeightsError: the file is missing, damaged or of another kind, or does not fit the target.
    """
    tensors = load_tensors(path, CODEC_LANDMARKS)
    config = infer_config(tensors, VQConfig(), "encoder.conv_blocks", "decoder.conv_blocks", "res")
    return load_codec(tensors, config, _VQ, codes=codes, where=path)


def _assemble(parts: nn.ModuleDict, codec: VQModel, label: str, image_size: int) -> Target:
    body = parts["transformer"]
    conditioner = parts["conditioner"]
    assert isinstance(body, Transformer)
    if isinstance(conditioner, ClassConditioner):
        kind = "c2i"
        sampling = CLASS_SAMPLING
    else:
        kind = "t2i"
        sampling = TEXT_SAMPLING
    target = Target(f"llamagen-{kind}-{label}-{image_size}", body, conditioner, codec, sampling)
    return target.eval().requires_grad_(False)


def _naming(tensors: Mapping[str, Tensor], where: str | Path) -> tuple[str, list[KeyMapping]]:
    """The name of the token embedding, and the key mappings of the checkpoint's naming."""
    layout = find_layout(tensors)
    for mappings in (_OFFICIAL, _CONVERTED):
        if mappings[0].sources[0] in tensors and not (layout and layout.fix):
            return mappings[0].sources[0], mappings
    first = f"its first tensor is {next(iter(tensors))}" if tensors else "it has no tensors"
    raise WeightsError(
        f"{where}: not a LlamaGen transformer, which has {_OFFICIAL[0].source} or "
        f"{_CONVERTED[0].source}; {first}{describe_contents(tensors)}"
    )


def _count_layers(tensors: Mapping[str, Tensor]) -> int:
    """The number of transformer layers in a checkpoint."""
    return len(
        {found[1] for name in tensors if (found := re.match(r"(?:model\.)?layers\.(\d+)\.", name))}
    )


def _published_entries() -> dict[str, dict[str, Any]]:
    """The entries of models.yaml for the official checkpoints, by name."""
    text = {"vq": "vq_ds16_t2i.pt", "text": "flan-t5-xl", "size": "XL"}
    entries: dict[str, dict[str, Any]] = {
        "llamagen-xl-stage1": {**text, "transformer": "t2i_XL_stage1_256.pt", "image_size": 256},
        "llamagen-xl-stage2": {**text, "transformer": "t2i_XL_stage2_512.pt", "image_size": 512},
    }
    for size in ("B", "L", "XL", "XXL", "3B"):
        sides = (256, 384) if size in ("B", "L") else (384,)
        for side in sides:
            keys = {
                "transformer": f"c2i_{size}_{side}.pt",
                "vq": "vq_ds16_c2i.pt",
                "size": size,
                "image_size": side,
            }
            suffix = "-256" if side == 256 else ""
            entries[f"llamagen-{size.lower()}-c2i{suffix}"] = keys
    return entries


def _hub_entries() -> dict[str, dict[str, Any]]:
    """The same entries with the files' places on the Hugging Face Hub, and LANTERN's drafters."""
    entries = _published_entries()
    for keys in entries.values():
        repo = "FoundationVision/LlamaGen"
        if "text" in keys:
            repo = "peizesun/llamagen_t2i"
            keys["text"] = "hf://google/flan-t5-xl"
        keys |= {key: f"hf://{repo}/{keys[key]}" for key in ("transformer", "vq")}
    for name, drafter in (("stage1", "llamagen_drafter"), ("stage2", "llamagen2_drafter")):
        entries[f"llamagen-xl-{name}"]["drafters"] = {"eagle": f"hf://jadohu/{drafter}"}
    return entries


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class LlamaGen(Family):
    """Text- and class-conditional LlamaGen from official files, or from ones converted to Hugging
    Face naming.
    """

    kind: ClassVar[str] = "llamagen"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = _published_entries()
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = _hub_entries()

    transformer: Annotated[str, "file or folder of the transformer's checkpoint", PathField()]
    vq: Annotated[str, "file of the VQ-16 tokenizer", PathField()]
    image_size: Annotated[int, "pixels along a side of its images", Range(16)]
    text: Annotated[
        str | None,
        "folder of the T5 encoder (flan-t5-xl), for text-conditional models",
        PathField(),
    ] = None
    size: Annotated[
        str | None, "published size; default: read from the checkpoint", Choices(SIZES)
    ] = None
    heads: Annotated[int | None, "attention heads, for unpublished sizes", Range(1)] = None
    class_names: Annotated[
        str | None, "file with one class name per line, for class-conditional models", PathField()
    ] = None

    def check(self) -> None:
        if self.size is not None and self.heads is not None:
            raise ConfigError(
                ("heads",), f"size {self.size} already determines the heads; remove one of the two"
            )

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """The target; the checkpoint determines whether it is class- or text-conditional. The VQ
        decoder stays in fp32, as in the official code.

        Raises:
            WeightsError: a file is missing, damaged, or of another family or size.
            ValueError: options that cannot be combined.
        """
        tensors = load_tensors(
            self.transformer, [mappings[0].sources[0] for mappings in (_OFFICIAL, _CONVERTED)]
        )
        embedding, mappings = _naming(tensors, self.transformer)
        codes, width = tensors[embedding].shape
        label, size = self._find_size(width, _count_layers(tensors))
        text = None
        if any(".cap_proj." in name for name in tensors):
            text = self._text_encoder(device, dtype)
        names = () if self.class_names is None else read_class_names(self.class_names)
        codec = load_vq16(self.vq, codes)
        side = self._grid_side(codec.config.factor)
        parts = skip_init(lambda: build_parts(size, codes, side, text, names))
        load_weights(parts, tensors, mappings, where=self.transformer, dtype=dtype)
        return _assemble(parts, codec, label, self.image_size).to(device)

    @property
    def name_notes(self) -> list[str]:
        body, codec = (Path(path).name for path in (self.transformer, self.vq))
        notes = list[str]()
        transformer = _TRANSFORMER_NAME.search(body)
        vq = _VQ_NAME.search(codec)
        if transformer and int(transformer["pixels"]) != self.image_size:
            fix = (
                f"image_size {self.image_size}; set image_size to {transformer['pixels']}, or "
                "rename the file"
            )
            notes.append(
                f"by its name, {body} makes images of {transformer['pixels']} pixels, the entry "
                f"has {fix}"
            )
        if transformer and vq and vq["factor"] != "16":
            fix = (
                f"published transformers such as {body} have 16; give "
                f"vq_ds16_{transformer['kind']}.pt"
            )
            notes.append(
                f"by its name, {codec} has {vq['factor']} pixels per code along a side, {fix}"
            )
        elif transformer and vq and vq["kind"] != transformer["kind"]:
            fix = f"give vq_ds16_{transformer['kind']}.pt"
            notes.append(
                f"by their names, {body} is of {transformer['kind']} and {codec} of {vq['kind']}; "
                f"{fix}"
            )
        return notes

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """A published size; text-conditional if the entry names `text`."""
        if self.size is None:
            raise ValueError(
                f"LlamaGen's size is unknown without its files; give `size`: {', '.join(SIZES)}"
            )
        config = VQConfig()
        size = SIZES[self.size]
        text = None if self.text is None else FlanT5XLShapes(dtype)
        side = self._grid_side(config.factor)
        parts = skip_init(lambda: build_parts(size, config.codebook_size, side, text)).to(
            "meta", dtype
        )
        return _assemble(
            parts, skip_init(lambda: VQModel(config)).to("meta"), self.size, self.image_size
        )

    def _grid_side(self, pixels: int) -> int:
        """Codes along a side of an image, each of `pixels` pixels along a side."""
        if self.image_size % pixels:
            raise ValueError(
                f"image_size {self.image_size} must be a multiple of {pixels} (LlamaGen: 256, 384 "
                "or 512)"
            )
        return self.image_size // pixels

    def _text_encoder(self, device: torch.device, dtype: torch.dtype) -> T5Encoder:
        if self.text is None:
            raise ValueError(
                f"{self.transformer} is text-conditional: give `text`, the folder of its T5 "
                "encoder (flan-t5-xl)"
            )
        encoder = T5Encoder(self.text, dtype=dtype, device=device)
        if encoder.width != CAPTION_DIM:
            raise WeightsError(
                f"{self.text}: this T5 gives features of width {encoder.width}, LlamaGen reads "
                f"{CAPTION_DIM}; give flan-t5-xl"
            )
        return encoder

    def _find_size(self, dim: int, layers: int) -> tuple[str, LlamaGenSize]:
        """Label and sizes of a model with this width and depth: a published one, or with the given
        number of heads.
        """
        mismatch = f"{self.transformer}: width {dim} and {layers} layers are not"
        if self.heads is not None:
            if dim % self.heads:
                raise WeightsError(
                    f"{self.transformer}: its width {dim} is not divisible by heads {self.heads}; "
                    "correct `heads`"
                )
            return f"{dim}x{layers}", LlamaGenSize(dim, layers, self.heads)
        label = next(
            (label for label, size in SIZES.items() if (size.dim, size.layers) == (dim, layers)),
            None,
        )
        if self.size is not None and self.size != label:
            raise WeightsError(f"{mismatch} size {self.size} ({SIZES[self.size]})")
        if label is None:
            raise WeightsError(f"{mismatch} a published LlamaGen size; give `heads`")
        return label, SIZES[label]
