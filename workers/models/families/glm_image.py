"""GLM-Image (Z.ai, 2026) in the layout of `transformers`, through its own forward.

The official sequence is [caption in the chat template, "<sop>H W<eop><sop>h w<eop>", image start,
preview, image, image end]: the codes of a preview of h x w cells, then those of the image's own
grid of H x W cells, 32 pixels each. A code is its own id in the vocabulary. The image end is fixed
and not generated, and the head is cut to the codes: what else it can draw, the image's start and
end among them, has no probability here, and filters keep a share of the codes' own probs.

A position has three axes. They are equal in the prompt. In a grid the first is constant, the others
are the row and the column from there on, and what follows begins behind the longer side.

The authors' pipeline (of the library `diffusers`) turns the image's codes to pixels. Without it a
target has codes only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import ConfigError, PathField, Range
from search_spaces.trial import Sampling
from workers.data.grid import Grid
from workers.models.checkpoint_files import WeightsError, read_json_object
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.conditioners import TokenPrompts
from workers.models.hf_files import HFTokenizer, load_pretrained
from workers.models.target import Target
from workers.models.transformer import SPARE_POSITIONS

SAMPLING = Sampling(temperature=0.9, top_p=0.75, cfg=1.0)
_CODE_PX = 32
_PREVIEW_SIDE = 16  # codes along a side of the preview of a square image
_REPOSITORY = "hf://zai-org/GLM-Image"
_INSTALL = "`pip install 'diffusers>=0.37'`"  # the first version with its pipeline
# Parts of the pipeline that make pixels of codes.
_PARTS = ("transformer", "vae", "text_encoder", "tokenizer", "scheduler")
NO_DECODER = (
    "it has codes only: give `decoder`, the folder of the whole pipeline "
    f"({_REPOSITORY}), in its entry of models.yaml, and {_INSTALL}"
)


def grid_of(width: int, height: int) -> Grid:
    """The grid and preview of an image of width x height pixels, as the official processor has
    them.
    """
    rows, cols = height // _CODE_PX, width // _CODE_PX
    ratio = rows / cols
    preview = (
        int(math.sqrt(ratio) * _PREVIEW_SIDE),
        int(math.sqrt(1 / ratio) * _PREVIEW_SIDE),
    )
    return Grid(rows, cols, preview)


def sequence_places(prompt_len: int, grid: Grid) -> Tensor:
    """The position [positions, 3] of each token of prompt and image, and of drafts past the image's
    end, the first of which has the place of the image end.
    """
    cells = grid.cells(torch.arange(grid.tokens))
    start = torch.where(cells.in_preview, prompt_len, prompt_len + max(grid.preview))
    image = torch.stack([start, start + cells.row, start + cells.col], dim=1)
    end = prompt_len + max(grid.preview) + max(grid.rows, grid.cols)
    prompt = torch.arange(prompt_len)[:, None].expand(-1, 3)
    after = (end + torch.arange(SPARE_POSITIONS))[:, None].expand(-1, 3)
    return torch.cat([prompt, image, after])


def build_prompts(
    words: nn.Embedding, prompt_len: int, tokenizer: HFTokenizer, grid: Grid
) -> TokenPrompts:
    """The conditioner that turns captions into prompts for images of `grid`.

    The unconditional prompt is that of an empty caption. The model has no published one: it samples
    without guidance.

    Raises:
        WeightsError: another model's tokenizer, or one without its chat template; or the prompt of
            an empty caption is too long.
    """
    library = tokenizer.library
    if library.chat_template is None:
        raise WeightsError(
            f"{tokenizer.folder}: its tokenizer has no chat template; put the model's "
            "chat_template.jinja there"
        )
    begin = tokenizer.special_token("grid_bos_token")
    end = tokenizer.special_token("grid_eos_token")
    suffix = f"{begin}{grid.rows} {grid.cols}{end}"
    suffix += f"{begin}{grid.preview[0]} {grid.preview[1]}{end}"
    suffix += tokenizer.special_token("bos_token")

    def encode(caption: str) -> list[int]:
        content = [{"type": "text", "text": caption}]
        chat = [{"role": "user", "content": content}]
        text = library.apply_chat_template(chat, tokenize=False)
        return list(library(text + suffix)["input_ids"])

    null = encode("")
    if len(null) > prompt_len:
        raise WeightsError(
            f"prompt_tokens {prompt_len}: the prompt of an empty caption has {len(null)} tokens"
        )
    return TokenPrompts(words, prompt_len, encode, null)


class PixelDecoder:
    """The official pipeline as far as it makes pixels of codes: a diffusion transformer and a VAE.

    It is loaded when the first image is decoded. Every image starts from the same noise, so images
    depend on their codes alone. The texts that captions have in quotes, which the pipeline also
    reads, are left out.
    """

    def __init__(self, folder: str | Path, dtype: torch.dtype) -> None:
        """
        Raises:
            WeightsError: the folder has no such pipeline, or `diffusers` is not installed.
        """
        self.folder = Path(folder)
        self._dtype = dtype
        index = self.folder / "model_index.json"
        kind = read_json_object(index).get("_class_name")
        if kind != "GlmImagePipeline":
            raise WeightsError(f"{index}: a {kind!r}, not a 'GlmImagePipeline'; {NO_DECODER}")
        if missing := [part for part in _PARTS if not (self.folder / part).is_dir()]:
            raise WeightsError(f"{self.folder}: lacks {', '.join(missing)}; download them again")
        if find_spec("diffusers") is None:
            raise WeightsError(
                f"{self.folder}: `decoder` needs the library diffusers: {_INSTALL}, or leave "
                "`decoder` out to measure codes only"
            )

    @property
    def bytes(self) -> int:
        """Size of its weight files."""
        files = (file for part in _PARTS for file in (self.folder / part).glob("*.safetensors"))
        return sum(file.stat().st_size for file in files)

    @cached_property
    def _pipeline(self) -> Any:
        library = import_module("diffusers")
        try:
            pipeline = library.GlmImagePipeline.from_pretrained(
                str(self.folder),
                vision_language_encoder=None,
                processor=None,
                torch_dtype=self._dtype,
                local_files_only=True,
            )
        except (AttributeError, OSError, ValueError, TypeError) as error:
            raise WeightsError(
                f"{self.folder}: diffusers cannot load it ({str(error).partition(chr(10))[0]}): "
                f"download it again, or {_INSTALL}"
            ) from error
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def __call__(self, ids: Tensor) -> Tensor:
        """The image [1, 3, H, W] in [-1, 1] of codes [rows, cols]."""
        pipeline = self._pipeline.to(ids.device)
        rows, cols = ids.shape
        # its transformer has four patches to a code
        enlarged = ids.repeat_interleave(2, 0).repeat_interleave(2, 1)
        image: Tensor = pipeline(
            prompt=[""],
            height=rows * _CODE_PX,
            width=cols * _CODE_PX,
            prior_token_ids=enlarged.view(1, -1),
            generator=[torch.Generator().manual_seed(0)],
            output_type="pt",
        ).images
        return 2 * image - 1


class GlmImageCodec(nn.Module):
    """The codes of the model's VQ tokenizer, and the pixel decoder if there is one."""

    codebook: Tensor
    factor = _CODE_PX

    def __init__(self, codes: Tensor, decoder: PixelDecoder | None) -> None:
        """codes: [V, d], which the tokenizer normalises."""
        super().__init__()
        self.register_buffer("codebook", nn.functional.normalize(codes.float(), dim=-1))
        self._decoder = decoder

    @property
    def no_images(self) -> str:
        """Why codes cannot be decoded; "" if they can."""
        return "" if self._decoder else NO_DECODER

    @property
    def decoder_bytes(self) -> int:
        """Size of the pixel decoder."""
        return self._decoder.bytes if self._decoder else 0

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [-1, 1] of ids [B, rows, cols], one at a time. On the meta device
        their shapes only.
        """
        assert self._decoder is not None, "a target whose codec says `no_images` asks for none"
        if ids.is_meta:
            height, width = (_CODE_PX * side for side in ids.shape[1:])
            return torch.empty(len(ids), 3, height, width, device="meta")
        return torch.cat([self._decoder(image) for image in ids])


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class GlmImage(Family):
    """GLM-Image for images of one size."""

    kind: ClassVar[str] = "glm_image"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "glm-image": {"checkpoint": "vision_language_encoder", "processor": "processor"}
    }
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "glm-image": {
            "checkpoint": f"{_REPOSITORY}/vision_language_encoder",
            "processor": f"{_REPOSITORY}/processor",
        }
    }

    checkpoint: Annotated[str, "folder of a GlmImageForConditionalGeneration", PathField()]
    processor: Annotated[
        str | None, "folder of its tokenizer; default: the checkpoint's", PathField()
    ] = None
    decoder: Annotated[
        str | None,
        f"folder of the whole pipeline ({_REPOSITORY}), for images; needs diffusers",
        PathField(),
    ] = None
    width: Annotated[int, "of the images, pixels", Range(_CODE_PX, 64 * _CODE_PX)] = 1024
    height: Annotated[int, "of the images, pixels", Range(_CODE_PX, 64 * _CODE_PX)] = 1024
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 256

    def check(self) -> None:
        for key, pixels in (("width", self.width), ("height", self.height)):
            if pixels % _CODE_PX:
                raise ConfigError((key,), f"must be a multiple of {_CODE_PX}, got {pixels}")

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """Load the target.

        Raises:
            WeightsError: a file is missing, damaged, or of another family or size; `decoder` needs
                `diffusers`; the prompt of an empty caption is too long.
        """
        from transformers import GlmImageForConditionalGeneration

        folder = Path(self.checkpoint)
        decoder = PixelDecoder(self.decoder, dtype) if self.decoder else None
        whole = load_pretrained(
            folder, GlmImageForConditionalGeneration, dtype, keep="model.vqmodel."
        )
        if self.processor is None and not (folder / "tokenizer.json").is_file():
            raise WeightsError(
                f"{folder}: has no tokenizer; give `processor`, the folder of that name next to it"
            )
        tokenizer = HFTokenizer(self.processor or folder)
        _check_vocabulary(folder, whole.config, tokenizer)
        words = whole.model.language_model.get_input_embeddings()
        grid = grid_of(self.width, self.height)
        prompts = build_prompts(words, self.prompt_tokens, tokenizer, grid)
        return self._target(whole, prompts, decoder).to(device)

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """The 9B target: `transformers`' default config has the published sizes. Its tokenizer
        ignores the caption.
        """
        from transformers import GlmImageConfig, GlmImageForConditionalGeneration

        rope = {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [8, 12, 12],
        }
        config = GlmImageConfig(text_config={"rope_parameters": rope})
        with torch.device("meta"):
            whole: Any = GlmImageForConditionalGeneration(config)
        for parameter in whole.parameters():
            parameter.data = parameter.data.to(dtype)
        words = whole.model.language_model.get_input_embeddings()
        prompts = TokenPrompts(words, self.prompt_tokens, lambda caption: [])
        return self._target(whole, prompts, None).to("meta")

    def _target(self, whole: Any, prompts: TokenPrompts, decoder: PixelDecoder | None) -> Target:
        """The target of a loaded model; removes its word embedding."""
        from workers.models.hf_decoder import HFDecoder, decoder_config

        language = whole.model.language_model
        codes = whole.model.vqmodel.quantize.embedding.weight.detach()
        count = len(codes)
        grid = grid_of(self.width, self.height)
        config = decoder_config(
            language.config,
            codes=count,
            prompt_len=self.prompt_tokens,
            rows=grid.rows,
            cols=grid.cols,
            preview=grid.preview,
        )
        weight = whole.lm_head.weight.detach()[:count].clone()
        head = nn.Linear(config.dim, count, bias=False, device=weight.device, dtype=weight.dtype)
        head.weight = nn.Parameter(weight)
        embeddings = prompts.words.weight.detach()[:count].clone()
        places = sequence_places(self.prompt_tokens, grid)
        body = HFDecoder(config, language, embeddings, head, places)
        name = f"glm-image-{self.width}x{self.height}-{config.dim}x{config.n_layers}"
        codec = GlmImageCodec(codes, decoder)
        target = Target(name, body, prompts, codec, SAMPLING)
        return target.eval().requires_grad_(False)


def _check_vocabulary(folder: Path, config: Any, tokenizer: HFTokenizer) -> None:
    """Raises WeightsError unless codes are the first ids of model, head and tokenizer, and all ids
    of the tokenizer have an embedding.
    """
    codes = config.vq_config.num_embeddings
    text = config.text_config
    file = folder / "config.json"
    start = config.image_start_token_id
    if not codes <= start < text.vision_vocab_size <= text.vocab_size:
        raise WeightsError(
            f"{file}: {codes} codes, image_start_token_id {start}, {text.vision_vocab_size} rows "
            f"of the head and {text.vocab_size} tokens do not follow each other; is it of another "
            "model?"
        )
    if len(tokenizer.library) > text.vocab_size:
        raise WeightsError(
            f"{tokenizer.folder}: its tokenizer has {len(tokenizer.library)} tokens, the model "
            f"embeds {text.vocab_size}; give `processor`, the folder that came with the model"
        )
    (found,) = tokenizer(tokenizer.special_token("bos_token"))
    if found != start:
        raise WeightsError(
            f"{tokenizer.folder}: its bos_token is token {found}, the model begins images with "
            f"{start}; give `processor`, the folder that came with the model"
        )
