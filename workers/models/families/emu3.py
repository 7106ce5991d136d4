"""Emu3-Gen (Wang et al., 2024) in the layout of `transformers`, through its own forward.

The official sequence is [start, caption and style, image start, "H*W", image token, row, line end,
row, line end, ...]: the codes of a row have their own names in the vocabulary, and row ends are
processed as Lumina's are (`workers.decoding.row_ends`). The unconditional stream is the official
negative prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import PathField, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError, read_json_object
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.conditioners import TokenPrompts
from workers.models.hf_files import HFCodec, HFTokenizer, load_pretrained
from workers.models.target import Target

SAMPLING = Sampling(temperature=1.0, top_k=2048, cfg=3.0)
STYLE = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
CODE = "<|visual token {code:06d}|>"
LINE_END = "<|extra_200|>"


def build_prompts(
    words: nn.Embedding, prompt_len: int, tokenizer: HFTokenizer, rows: int, cols: int
) -> TokenPrompts:
    """The conditioner that turns captions into prompts for images of rows x cols codes.

    Raises:
        WeightsError: another model's tokenizer.
        ValueError: the negative prompt is too long.
    """
    start = tokenizer.special_token("bos_token")
    wrapper = tokenizer.special_token("image_wrapper_token")
    end = f"{tokenizer.special_token('boi_token')}{rows}*{cols}{wrapper}"
    return TokenPrompts(
        words,
        prompt_len,
        lambda caption: tokenizer(start + caption + STYLE + end),
        tokenizer(start + NEGATIVE + end),
    )


class Emu3Codec(HFCodec):
    """The model's own VQ decoder."""

    mean: Tensor  # [3, 1, 1] mean by channel with which training images were normalised
    deviation: Tensor  # [3, 1, 1] their standard deviation

    def __init__(self, vq: Any, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__(vq)
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols].

        One image at a time: the decoder makes four frames of each at full size, which are gigabytes
        at 720 pixels.
        """
        images = torch.cat([self.vq.decode(image[None]) for image in ids])
        scaled: Tensor = 2 * (images * self.deviation + self.mean) - 1
        return scaled


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Emu3(Family):
    """Emu3-Gen for images of one size."""

    kind: ClassVar[str] = "emu3"
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "emu3-gen": {"checkpoint": "hf://BAAI/Emu3-Gen-hf"}
    }

    checkpoint: Annotated[
        str, "folder of an Emu3ForConditionalGeneration with its tokenizer", PathField()
    ]
    width: Annotated[int, "of the images, pixels", Range(8)] = 720
    height: Annotated[int, "of the images, pixels", Range(8)] = 720
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 192

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """Load the target.

        Raises:
            WeightsError: a file is missing, damaged, or of another family or size.
            ValueError: a size that is not a multiple of the codec's patch; the negative prompt is
                too long.
        """
        from transformers import Emu3ForConditionalGeneration

        from workers.models.hf_decoder import HFDecoder, decoder_config

        folder = Path(self.checkpoint)
        whole = load_pretrained(folder, Emu3ForConditionalGeneration, dtype, keep="model.vqmodel.")
        tokenizer = HFTokenizer(folder)
        decoder = whole.model.text_model
        vq = whole.model.vqmodel
        patch = vq.spatial_scale_factor
        if self.width % patch or self.height % patch:
            raise ValueError(
                f"width {self.width} and height {self.height} must be multiples of {patch} px"
            )
        ids, line_end = _code_ids(folder, whole.config, vq.config.codebook_size)
        rows, cols = self.height // patch, self.width // patch
        config = decoder_config(
            decoder.config,
            codes=len(ids),
            prompt_len=self.prompt_tokens,
            rows=rows,
            cols=cols,
            row_ends=True,
        )
        words = decoder.get_input_embeddings()
        codec = Emu3Codec(vq, *_image_statistics(folder))
        assert isinstance(words, nn.Embedding)
        head = nn.Linear(config.dim, len(ids), bias=False, device=words.weight.device, dtype=dtype)
        head.weight = nn.Parameter(whole.lm_head.weight.detach()[ids].clone())
        body = HFDecoder(config, decoder, words.weight.detach()[ids].clone(), head)
        conditioner = build_prompts(words, self.prompt_tokens, tokenizer, rows, cols)
        name = f"emu3-{self.width}x{self.height}-{config.dim}x{config.n_layers}"
        end = words.weight.detach()[line_end]
        target = Target(name, body, conditioner, codec, SAMPLING, row_end=end.clone())
        return target.to(device).eval().requires_grad_(False)


def _code_ids(folder: Path, config: Any, codes: int) -> tuple[list[int], int]:
    """Ids of all codes in order, and of the token that ends a line."""
    vocabulary = config.vocabulary_map or {}
    names = [CODE.format(code=code) for code in range(codes)]
    if missing := [name for name in (*names, LINE_END) if name not in vocabulary]:
        raise WeightsError(
            f"{folder / 'config.json'}: vocabulary_map lacks {len(missing)} tokens, the first is "
            f"{missing[0]}"
        )
    return [vocabulary[name] for name in names], vocabulary[LINE_END]


def _image_statistics(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and standard deviation by channel, from the config of the folder's image processor."""
    names = ("preprocessor_config.json", "processor_config.json")
    path = next((folder / name for name in names if (folder / name).is_file()), folder / names[0])
    config = read_json_object(path)
    config = config.get("image_processor", config)
    for key in ("image_mean", "image_std"):
        if not isinstance(config.get(key), list) or len(config[key]) != 3:
            raise WeightsError(
                f"{path}: {key} is missing; without it, decoded images have the wrong colours"
            )
    return config["image_mean"], config["image_std"]
