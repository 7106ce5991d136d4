"""Emu3-Gen (Wang et al., 2024) in the layout of `transformers`, through its own forward.

The official sequence is [start, caption and style, image start, "H*W", image token, row, line end, row, line end, ...]:
the tokens of a row are codes under names of their own in the vocabulary, and the ends of rows are carried along as
Lumina's are (`workers.decoding.row_ends`). The unconditional stream is the official negative prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import Params, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError, read_object
from workers.models.families.catalogue import Family
from workers.models.families.hf_files import Tokens, open_model
from workers.models.families.word_prompts import WordPrompts
from workers.models.target import Target

SAMPLING = Sampling(temperature=1.0, top_k=2048, cfg=3.0)
STYLE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
CODE, LINE_END = "<|visual token {code:06d}|>", "<|extra_200|>"


@dataclass(frozen=True, slots=True)
class Emu3Files(Params):
    """An entry of family emu3."""

    kind: ClassVar[str] = "emu3"

    checkpoint: Annotated[str, "folder of an Emu3ForConditionalGeneration with its tokenizer"]
    width: Annotated[int, "pixels", Range(8)] = 720
    height: Annotated[int, "pixels", Range(8)] = 720
    prompt_tokens: Annotated[int, "room for a prompt", Range(8)] = 192


def prompts(words: nn.Embedding, prompt_len: int, tokens: Tokens, rows: int, cols: int) -> WordPrompts:
    """Captions to prompts for images of rows x cols codes.

    Raises:
        WeightsError: another model's tokenizer; no room for the negative prompt.
    """
    lead, wrapper = tokens.named("bos_token"), tokens.named("image_wrapper_token")
    end = f"{tokens.named('boi_token')}{rows}*{cols}{wrapper}"
    negative = tokens(lead + NEGATIVE + end)
    if len(negative) > prompt_len:
        raise WeightsError(f"prompt_tokens {prompt_len}: the negative prompt alone has {len(negative)} tokens")
    return WordPrompts(words, prompt_len, lambda caption: tokens(lead + caption + STYLE + end), negative)


class Emu3Codec(nn.Module):
    """The model's own VQ decoder. mean, deviation [3]: those by which its images were normalised."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, vq: Any, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        vq.encoder = vq.quant_conv = nn.Identity()  # they read images, which nothing here does
        self.vq = vq.float()
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    @property
    def codebook(self) -> Tensor:
        weight: Tensor = self.vq.quantize.embedding.weight
        return weight

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols].

        One at a time: the decoder makes four frames of each at full size, gigabytes at 720 pixels.
        """
        images = torch.cat([self.vq.decode(one[None]) for one in ids])
        scaled: Tensor = 2 * (images * self.deviation + self.mean) - 1
        return scaled


def load_entry(entry: Emu3Files, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry.

    Raises:
        WeightsError: files that are missing, damaged, of another family or size.
        ValueError: a size that is no multiple of the codec's patch; no room for the negative prompt.
    """
    from transformers import Emu3ForConditionalGeneration

    from workers.models.hf_decoder import ForeignBody, body_config

    folder = Path(entry.checkpoint)
    whole, tokens = open_model(folder, Emu3ForConditionalGeneration, dtype, codec="model.vqmodel"), Tokens(folder)
    decoder, vq = whole.model.text_model, whole.model.vqmodel
    unit = vq.spatial_scale_factor
    if entry.width % unit or entry.height % unit:
        raise ValueError(f"width {entry.width} and height {entry.height} must be multiples of {unit} px")
    ids, line_end = _vocabulary(folder, whole.config, vq.config.codebook_size)
    rows, cols = entry.height // unit, entry.width // unit
    config = body_config(
        decoder.config, codes=len(ids), prompt_len=entry.prompt_tokens, rows=rows, cols=cols, row_ends=True
    )
    words, codec = decoder.get_input_embeddings(), Emu3Codec(vq, *_normalised_by(folder))
    assert isinstance(words, nn.Embedding)
    decoder.set_input_embeddings(nn.Identity())  # prompts come embedded
    head = nn.Linear(config.dim, len(ids), bias=False, device=words.weight.device, dtype=dtype)
    head.weight = nn.Parameter(whole.lm_head.weight.detach()[ids].clone())
    body = ForeignBody(config, decoder, words.weight.detach()[ids].clone(), head)
    conditioner = prompts(words, entry.prompt_tokens, tokens, rows, cols)
    name, end = f"emu3-{entry.width}x{entry.height}-{config.dim}x{config.n_layers}", words.weight.detach()[line_end]
    return Target(name, body, conditioner, codec, SAMPLING, row_end=end.clone()).to(device).eval().requires_grad_(False)


def _vocabulary(folder: Path, config: Any, codes: int) -> tuple[list[int], int]:
    """Ids of all codes in their order, and of the token that ends a line."""
    known = config.vocabulary_map or {}
    names = [CODE.format(code=code) for code in range(codes)]
    if missing := [name for name in (*names, LINE_END) if name not in known]:
        raise WeightsError(f"{folder / 'config.json'}: vocabulary_map lacks {len(missing)} tokens, {missing[0]} first")
    return [known[name] for name in names], known[LINE_END]


def _normalised_by(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation by channel, which the folder's image processor states."""
    names = ("preprocessor_config.json", "processor_config.json")
    path = next((folder / name for name in names if (folder / name).is_file()), folder / names[0])
    said = read_object(path)
    said = said.get("image_processor", said)
    for key in ("image_mean", "image_std"):
        if not isinstance(said.get(key), list) or len(said[key]) != 3:
            raise WeightsError(f"{path}: {key} is missing; without it, decoded images have the wrong colours")
    return said["image_mean"], said["image_std"]


FAMILY = Family(name="emu3", entry=Emu3Files, load=load_entry)
