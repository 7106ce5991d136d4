"""LlamaGen in models.yaml: the keys of an entry, its target from files, and the published sizes without any.

llamagen-xl-256:
  family: llamagen
  transformer: t2i_XL_stage1_256.pt
  vq: vq_ds16_t2i.pt
  text: flan-t5-xl
  image_size: 256
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from search_spaces.params import Choices, ConfigError, Params, Range
from workers.models.families import llamagen
from workers.models.families.catalogue import Family
from workers.models.families.llamagen import CAPTION_DIM, CAPTION_TOKENS, CLASSES, SIZES, LlamaGenSize
from workers.models.target import Target
from workers.models.transformer import Transformer
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import WeightsError, load_tensors, unfilled


@dataclass(frozen=True, slots=True)
class LlamaGenFiles(Params):
    """Text- and class-conditional LlamaGen from official files, or from ones converted to Hugging Face's naming."""

    transformer: Annotated[str, "file or folder of the transformer's checkpoint"]
    vq: Annotated[str, "file of the VQ-16 tokenizer"]
    image_size: Annotated[int, "pixels along a side of its images", Range(16)]
    text: Annotated[str | None, "folder of the T5 encoder (flan-t5-xl), which text-conditional models need"] = None
    size: Annotated[str | None, "published size; left out, it is read from the checkpoint", Choices(SIZES)] = None
    heads: Annotated[int | None, "attention heads, for sizes that were not published", Range(1)] = None
    class_names: Annotated[str | None, "file with the classes' names, one a line, for class-conditional models"] = None

    def check(self) -> None:
        if self.size is not None and self.heads is not None:
            raise ConfigError(("heads",), f"size {self.size} says it already; remove one of the two")


def load_entry(entry: LlamaGenFiles, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry.

    Raises:
        WeightsError: a file that is missing, damaged, or of another family or size.
        ValueError: files that do not go together.
    """
    return llamagen.load_llamagen(
        entry.transformer,
        entry.vq,
        image_size=entry.image_size,
        text=entry.text,
        size=entry.size if entry.heads is None else _own_size(entry.transformer, entry.heads),
        class_names=_class_names(entry.class_names),
        vq_config=vq_config_of(load_tensors(entry.vq)),
        dtype=dtype,
        device=device,
    )


def outline(entry: LlamaGenFiles, dtype: torch.dtype) -> Target:
    """The target of a published size on the meta device, without files; text-conditional if the entry names `text`.

    Raises:
        ValueError: the entry names no size, or its image_size is no multiple of the codec's factor.
    """
    if entry.size is None:
        raise ValueError(f"without its files, LlamaGen's size must be said; give `size`: {', '.join(SIZES)}")
    config = VQConfig()
    if entry.image_size % config.factor:
        raise ValueError(f"image_size {entry.image_size} must be a multiple of {config.factor}")
    side, text = entry.image_size // config.factor, None if entry.text is None else FlanT5XL(dtype)
    size = SIZES[entry.size]
    parts = unfilled(lambda: llamagen.build_parts(size, config.codebook_size, side, text)).to("meta", dtype)
    codec = unfilled(lambda: VQModel(config)).to("meta")
    body, kind = parts["transformer"], "c2i" if text is None else "t2i"
    assert isinstance(body, Transformer)
    sampling = llamagen.CLASS_SAMPLING if text is None else llamagen.TEXT_SAMPLING
    name = f"llamagen-{kind}-{entry.size}-{entry.image_size}"
    return Target(name, body, parts["conditioner"], codec, sampling).eval().requires_grad_(False)


class FlanT5XL:
    """What flan-t5-xl's encoder weighs and gives, without its weights.

    24 layers of width 2048, 32 heads of 64, a gated feed-forward of 5120, 32128 words; one table of 32 relative
    distances (Raffel et al. 2020; Chung et al. 2022).
    """

    def __init__(self, dtype: torch.dtype) -> None:
        width, inner, layers, words, heads, distances = CAPTION_DIM, 5120, 24, 32128, 32, 32
        layer = 4 * width * heads * 64 + 3 * width * inner + 2 * width
        self.bytes = (words * width + layers * layer + width + heads * distances) * dtype.itemsize

    def __call__(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        shape = (len(captions), CAPTION_TOKENS)
        return torch.empty(*shape, CAPTION_DIM, device="meta"), torch.empty(shape, dtype=torch.bool, device="meta")


def vq_config_of(tensors: Mapping[str, Tensor]) -> VQConfig:
    """The sizes of a VQ tokenizer by its tensors' names and shapes; VQ-16's where they say nothing.

    VQ-16 in any width: what the file is beside that, loading finds out.
    """
    levels = _count(r"encoder\.conv_blocks\.(\d+)\.", tensors)
    try:
        base = tensors["encoder.conv_in.weight"].shape[0]
        widths = [tensors[f"encoder.conv_blocks.{i}.res.0.conv1.weight"].shape[0] for i in range(levels)]
        codes, dim = tensors["quantize.embedding.weight"].shape
        return VQConfig(
            codebook_size=codes,
            code_dim=dim,
            channels=base,
            multipliers=tuple(width // base for width in widths),
            encoder_blocks=_count(r"encoder\.conv_blocks\.0\.res\.(\d+)\.", tensors),
            decoder_blocks=_count(r"decoder\.conv_blocks\.0\.res\.(\d+)\.", tensors),
            z_channels=tensors["encoder.conv_out.weight"].shape[0],
        )
    except (KeyError, ValueError):
        return VQConfig()


def _count(pattern: str, tensors: Mapping[str, Tensor]) -> int:
    return len({found[1] for name in tensors if (found := re.match(pattern, name))})


def _own_size(transformer: str, heads: int) -> LlamaGenSize:
    """An unpublished size: width and depth as in the file.

    Raises:
        WeightsError: the width is not divisible by the heads, or this is no LlamaGen transformer.
    """
    tensors = load_tensors(transformer)
    names = [table[0].sources[0] for table in (llamagen.OFFICIAL, llamagen.CONVERTED)]
    width = next((tensors[name].shape[1] for name in names if name in tensors), 0)
    depth = _count(r"(?:model\.)?layers\.(\d+)\.", tensors)
    if width % heads:
        raise WeightsError(f"{transformer}: its width {width} is not divisible by heads {heads}; mend `heads`")
    return LlamaGenSize(width, depth, heads)


def _class_names(file: str | None) -> tuple[str, ...]:
    """A name a line, in the order of the classes.

    Raises:
        WeightsError: the file is missing, no UTF-8 text, or not a name for each class.
    """
    if file is None:
        return ()
    try:
        names = tuple(Path(file).read_text("utf-8").rstrip().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(f"{file}: no readable text with a class name a line ({error})") from error
    if len(names) != CLASSES:
        raise WeightsError(f"{file}: {len(names)} lines for {CLASSES} classes; give each its line, in their order")
    return names


def _published() -> dict[str, dict[str, Any]]:
    """The released models by name, their files as their authors call them."""
    text = {"vq": "vq_ds16_t2i.pt", "text": "flan-t5-xl", "size": "XL"}
    found: dict[str, dict[str, Any]] = {
        "llamagen-xl-stage1": {**text, "transformer": "t2i_XL_stage1_256.pt", "image_size": 256},
        "llamagen-xl-stage2": {**text, "transformer": "t2i_XL_stage2_512.pt", "image_size": 512},
    }
    for size in ("B", "L", "XL", "XXL", "3B"):
        for side in (256, 384) if size in ("B", "L") else (384,):
            file = {"transformer": f"c2i_{size}_{side}.pt", "vq": "vq_ds16_c2i.pt", "size": size}
            found[f"llamagen-{size.lower()}-c2i" + ("-256" if side == 256 else "")] = {**file, "image_size": side}
    return found


FAMILY = Family(name="llamagen", entry=LlamaGenFiles, load=load_entry, outline=outline, published=_published())
