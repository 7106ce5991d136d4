"""LlamaGen (Sun et al., 2024): class- and text-conditional targets of all published sizes, from its official files.

What the family is beyond the one transformer: its sizes, the names in its checkpoints (official ones and those
converted to Hugging Face naming), a prompt of one class embedding or of 120 caption features, and its VQ-16 tokenizer.
Prompt positions are rotated by *zero* (`prompt_rope`), so that every image token scores all of them alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.trial import Sampling
from workers.models.target import Prompt, Target
from workers.models.text import T5Encoder, TextEncoder
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import Row, WeightsError, load_into, load_tensors, unfilled

CAPTION_TOKENS, CAPTION_DIM = 120, 2048  # of the T5 features (flan-t5-xl)
CLASSES = 1000  # of ImageNet


@dataclass(frozen=True, slots=True)
class LlamaGenSize:
    """Width, depth and heads; head and feed-forward widths follow from them."""

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
    "3B": LlamaGenSize(3200, 24, 32),  # the one with heads of 100 channels
    "7B": LlamaGenSize(4096, 32, 32),
}

# text: the official demo's; class: the official scale over all codes, as the LANTERN paper has it
TEXT_SAMPLING = Sampling(temperature=1.0, top_k=1000, cfg=7.5)
CLASS_SAMPLING = Sampling(temperature=1.0, top_k=0, cfg=4.0)


def _names(cells: Mapping[str, str | tuple[str, ...]], condition: str) -> list[Row]:
    """A transformer's table from the family's names for its parts, `{l}` standing for a layer."""
    rows = [Row(source, f"transformer.{target}.weight") for target, source in cells.items()]
    return [
        *rows,
        Row(f"{condition}.embedding_table.weight", "conditioner.classes.weight"),
        Row(f"{condition}.cap_proj.{{fc}}.weight", "conditioner.{fc}.weight"),
        Row(f"{condition}.uncond_embedding", "conditioner.uncond_embedding"),
    ]


OFFICIAL = _names(
    {
        "embed": "tok_embeddings.weight",
        "layers.{l}.attention.wqkv": "layers.{l}.attention.wqkv.weight",
        "layers.{l}.attention.wo": "layers.{l}.attention.wo.weight",
        "layers.{l}.feed_forward.w13": ("layers.{l}.feed_forward.w1.weight", "layers.{l}.feed_forward.w3.weight"),
        "layers.{l}.feed_forward.w2": "layers.{l}.feed_forward.w2.weight",
        "layers.{l}.attention_norm": "layers.{l}.attention_norm.weight",
        "layers.{l}.ffn_norm": "layers.{l}.ffn_norm.weight",
        "norm": "norm.weight",
        "head": "output.weight",
    },
    "cls_embedding",
)

# Converted files split wqkv and keep rotating adjacent channels: no permutation.
_ATTENTION, _MLP = "model.layers.{l}.self_attn", "model.layers.{l}.mlp"
CONVERTED = _names(
    {
        "embed": "model.embed_tokens.weight",
        "layers.{l}.attention.wqkv": tuple(f"{_ATTENTION}.{part}_proj.weight" for part in "qkv"),
        "layers.{l}.attention.wo": f"{_ATTENTION}.o_proj.weight",
        "layers.{l}.feed_forward.w13": (f"{_MLP}.gate_proj.weight", f"{_MLP}.up_proj.weight"),
        "layers.{l}.feed_forward.w2": f"{_MLP}.down_proj.weight",
        "layers.{l}.attention_norm": "model.layers.{l}.input_layernorm.weight",
        "layers.{l}.ffn_norm": "model.layers.{l}.post_attention_layernorm.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    "model.cls_embedding",
)

# VQModel has the official names; the buffer is a usage counter of training, read by nobody.
VQ_OFFICIAL = [Row("quantize.codebook_used", None), Row("{...}", "{...}")]


class ClassConditioner(nn.Module):
    """One prompt position: the class's embedding. A caption is a class number, or one of `names` where given."""

    def __init__(self, dim: int, classes: int = CLASSES, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.classes = nn.Embedding(classes + 1, dim)  # the last row is the null class
        self.null_class = classes
        self._numbers: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            self._numbers.setdefault(name.strip().lower(), []).append(number)

    def forward(self, captions: Sequence[str]) -> Prompt:
        """
        Raises:
            ValueError: a caption that is no class.
        """
        numbers = [self._number(caption) for caption in captions]
        embeds = self.classes(torch.tensor(numbers, device=self.classes.weight.device))[:, None]
        return Prompt(embeds, torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device))

    def null(self, prompt: Prompt) -> Prompt:
        return Prompt(self.classes.weight[self.null_class].expand_as(prompt.embeds), prompt.valid)

    def _number(self, caption: str) -> int:
        text = caption.strip().lower()
        if text in self._numbers:
            number, *others = self._numbers[text]
            if others:
                raise ValueError(f"{caption!r} is the name of several classes; say {number} or {others[0]}")
            return number
        if text.isascii() and text.isdigit() and int(text) < self.null_class:
            return int(text)
        names = f", or one of its {len(self._numbers)} class names" if self._numbers else ""
        raise ValueError(
            f"{caption!r} is no class of this class-conditional model: give a number from 0 to "
            f"{self.null_class - 1}{names}"
        )


class CaptionConditioner(nn.Module):
    """120 prompt positions: T5 features through a two-layer MLP, the caption's at the end, padding before it."""

    uncond_embedding: Tensor

    def __init__(
        self, dim: int, encoder: TextEncoder, tokens: int = CAPTION_TOKENS, features: int = CAPTION_DIM
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)
        self.register_buffer("uncond_embedding", torch.empty(tokens, features).fill_(torch.nan))
        # in a tuple: an encoder that is a module must not become part of this one, it has its own dtype and device
        self._encoder = (encoder,)
        self.encoder_bytes: int = getattr(encoder, "bytes", 0)

    def project(self, features: Tensor) -> Tensor:
        """cap_proj: [..., features] -> [..., dim]. Without biases, so that zeroed padding stays zero."""
        weight = self.fc1.weight
        out: Tensor = self.fc2(F.gelu(self.fc1(features.to(weight.device, weight.dtype)), approximate="tanh"))
        return out

    def check(self, captions: Sequence[str]) -> None:
        """Refuse captions that cannot be read, without the text encoder.

        Raises:
            ValueError: an empty caption.
        """
        if empty := [number for number, caption in enumerate(captions) if not caption.strip()]:
            raise ValueError(f"caption {empty[0]} is empty; this model draws from a text")

    def read_together(self, count: int) -> None:
        """Let a T5 take so many captions at once."""
        if isinstance(self._encoder[0], T5Encoder):
            self._encoder[0].together = count

    def forward(self, captions: Sequence[str]) -> Prompt:
        """
        Raises:
            ValueError: an empty caption, or an encoder of another width or length.
        """
        self.check(captions)
        features, valid = self._encoder[0](captions)
        if features.shape[1:] != self.uncond_embedding.shape:
            raise ValueError(
                f"the text encoder gives features {list(features.shape[1:])}, this model reads "
                f"{list(self.uncond_embedding.shape)}; LlamaGen's encoder is flan-t5-xl"
            )
        features, valid = pad_left(features, valid)
        return Prompt(self.project(features), valid.to(self.fc1.weight.device))

    def null(self, prompt: Prompt) -> Prompt:
        """The learned null caption for every row, seen through the caption's own mask, as the official code has it."""
        embeds = self.project(self.uncond_embedding)
        return Prompt(embeds.expand_as(prompt.embeds), prompt.valid)


def pad_left(features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded features [B, L, F] with validity [B, L], moved to the end in their order; padding becomes zero."""
    length = valid.shape[1]
    gap = length - valid.sum(1, keepdim=True)
    source = (torch.arange(length, device=valid.device) - gap) % length
    valid = valid.gather(1, source)
    moved = features.gather(1, source[..., None].expand_as(features))
    return moved * valid[..., None], valid


def load_llamagen(
    transformer: str | Path,
    vq: str | Path | None,
    *,
    image_size: int,
    text: TextEncoder | str | Path | None = None,
    size: str | LlamaGenSize | None = None,
    class_names: Sequence[str] = (),
    vq_config: VQConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Target:
    """A target from local files: the transformer's checkpoint, the VQ-16 tokenizer's, and T5 for captions.

    Whether it is class- or text-conditional, and its size, are read from the checkpoint; `size` is for unpublished
    ones. `text` is an encoder or the folder of flan-t5-xl. Without `vq`, tokens cannot be turned into images. The VQ
    decoder stays in fp32 whatever `dtype` says, as in the official code.

    Raises:
        WeightsError: a file that is missing, damaged, or of another family or size.
        ValueError: options that do not go together.
    """
    config = vq_config or VQConfig()
    if image_size < config.factor or image_size % config.factor:
        raise ValueError(f"image_size {image_size} must be a multiple of {config.factor} (LlamaGen: 256, 384 or 512)")
    tensors = load_tensors(transformer)
    layout, table = _layout(tensors, transformer)
    kind: Literal["t2i", "c2i"] = "t2i" if any(".cap_proj." in name for name in tensors) else "c2i"
    label, sizes = _size(size, tensors, layout, transformer)
    if kind == "t2i" and text is None:
        raise ValueError(f"{transformer} draws from captions: give `text`, the folder of its T5 encoder (flan-t5-xl)")
    if isinstance(text, str | Path):
        text = T5Encoder(folder := text, dtype=dtype, device=device)
        if text.width != CAPTION_DIM:
            raise WeightsError(
                f"{folder}: this T5 gives features of width {text.width}, LlamaGen reads {CAPTION_DIM}; give flan-t5-xl"
            )
    side = image_size // config.factor
    vocabulary = tensors[layout].shape[0]
    encoder = text if kind == "t2i" else None
    parts = unfilled(lambda: build_parts(sizes, vocabulary, side, encoder, class_names))
    load_into(parts, tensors, table, where=transformer, dtype=dtype)
    codec = load_vq16(vq, config) if vq is not None else None
    if codec is not None and codec.config.codebook_size != vocabulary:
        raise WeightsError(f"{transformer} has {vocabulary} codes, {vq} has {codec.config.codebook_size}: no pair")
    body = parts["transformer"]
    assert isinstance(body, Transformer)
    sampling = TEXT_SAMPLING if kind == "t2i" else CLASS_SAMPLING
    target = Target(f"llamagen-{kind}-{label}-{image_size}", body, parts["conditioner"], codec, sampling)
    return target.to(device).eval().requires_grad_(False)


def build_parts(
    size: LlamaGenSize, vocabulary: int, side: int, text: TextEncoder | None, class_names: Sequence[str] = ()
) -> nn.ModuleDict:
    """An untrained transformer over side x side tokens and its conditioner: captions by `text`, or else classes."""
    body = Transformer(
        TransformerConfig(
            dim=size.dim, n_layers=size.layers, n_heads=size.heads, ffn_dim=size.ffn, vocab_size=vocabulary,
            rope="grid", prompt_rope="zero", rows=side, cols=side, prompt_len=1 if text is None else CAPTION_TOKENS,
        )
    )  # fmt: skip
    conditioner = ClassConditioner(size.dim, names=class_names) if text is None else CaptionConditioner(size.dim, text)
    return nn.ModuleDict({"transformer": body, "conditioner": conditioner})


def load_vq16(path: str | Path, config: VQConfig | None = None) -> VQModel:
    """LlamaGen's tokenizer from its official file, in fp32.

    Raises:
        WeightsError: a file that is missing, damaged or of another kind.
    """
    codec = unfilled(lambda: VQModel(config or VQConfig()))
    load_into(codec, load_tensors(path), VQ_OFFICIAL, where=path)
    return codec.eval()


def _layout(tensors: Mapping[str, Tensor], where: str | Path) -> tuple[str, list[Row]]:
    """The name of the token embedding, and the table that goes with it."""
    for row_table in (OFFICIAL, CONVERTED):
        if row_table[0].sources[0] in tensors:
            return row_table[0].sources[0], row_table
    raise WeightsError(
        f"{where}: no LlamaGen transformer: neither {OFFICIAL[0].source} nor {CONVERTED[0].source} is in it. "
        f"It begins with {next(iter(tensors), 'nothing')}; did the VQ file and the transformer's change places?"
    )


def _size(
    size: str | LlamaGenSize | None, tensors: Mapping[str, Tensor], embedding: str, where: str | Path
) -> tuple[str, LlamaGenSize]:
    """The size asked for, or the published one with the checkpoint's width and depth."""
    if isinstance(size, LlamaGenSize):
        return f"{size.dim}x{size.layers}", size
    if size is not None and size not in SIZES:
        raise ValueError(f"unknown LlamaGen size {size!r}; known: {', '.join(SIZES)}")
    dim = tensors[embedding].shape[1]
    layers = len({found[1] for name in tensors if (found := re.search(r"layers\.(\d+)\.", name))})
    label = next((label for label, known in SIZES.items() if (known.dim, known.layers) == (dim, layers)), None)
    if size is not None and size != label:
        raise WeightsError(f"{where}: width {dim} and {layers} layers are not size {size} ({SIZES[size]})")
    if label is None:
        raise WeightsError(f"{where}: width {dim} and {layers} layers are no published LlamaGen size; give `size`")
    return label, SIZES[label]
