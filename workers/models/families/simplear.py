"""SimpleAR (Wang et al., 2025): Qwen2 with 64,000 codes at the end of its vocabulary. The codes are
those of a video codec, Cosmos-1.0-Tokenizer-DV8x16x16; an image is a first frame.

The unconditional stream is the official negative prompt. The published code guides log-softmax
probabilities, this project logits: the two differ by a constant at each position, so probs are the
same. The published code also samples from all ids, and decodes one of a text as code 0. Without
those ids the codes keep their ratios, and the published top-k of 64,000 keeps every code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import PathField, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError
from workers.models.families.catalogue import FAMILIES
from workers.models.families.extended_lm import PATCH, ExtendedLM
from workers.models.torchscript import load_torchscript

COSMOS = "Cosmos-1.0-Tokenizer-DV8x16x16"
DECODER = "decoder.jit"
LEVELS = (8, 8, 8, 5, 5, 5)  # of the codec's finite scalar quantisation (Mentzer et al., 2024)
CODES = math.prod(LEVELS)
WORDS = 151_672  # tokens of Qwen2.5's tokenizer, and seven of its own
# Sizes of Qwen2.5 by the part of a checkpoint's name: width, layers, heads, key-value heads, width
# of the feed-forward layers.
_SIZES = {"0.5B": (896, 24, 14, 2, 4864), "1.5B": (1536, 28, 12, 2, 8960)}

# Of the decoder in bfloat16; the bytes are its peak for images of 256 to 1024 pixels. Counted in a
# dry run of a decoder that was traced from the codec's published class.
_PARAMETERS = 66_148_080
_BYTES_PER_CODE = 65_544


def lattice(levels: Sequence[int]) -> Tensor:
    """The points [V, d] of all codes of a finite scalar quantisation, from -1 to at most 1. The
    first level changes fastest.
    """
    sizes = torch.tensor(levels)
    steps = sizes.cumprod(0) // sizes
    digits = torch.arange(math.prod(levels))[:, None] // steps % sizes
    half = sizes // 2
    return (digits - half) / half


class CosmosDecoder(nn.Module):
    """The codec's decoder; distances are measured between the points of its lattice.

    Args:
        program: ids [B, 1, rows, cols] to frames [B, 3, 1, H, W] in about [-1, 1].
    """

    codebook: Tensor

    def __init__(self, program: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.program = program
        self.register_buffer("codebook", lattice(LEVELS).to(device), persistent=False)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols], in the file's type.

        One image at a time: each takes 0.3 GB at 1024 pixels.
        """
        return torch.cat([self.program(image[None, None])[:, :, 0] for image in ids])


def load_decoder(file: Path, device: torch.device) -> CosmosDecoder:
    """The codec of a `decoder.jit`, on a device.

    Raises:
        WeightsError: the file is damaged, or not this codec's decoder.
    """
    try:
        program = load_torchscript(file, device)
    except WeightsError as error:
        raise WeightsError(f"{error} (`vq` needs the {DECODER} of {COSMOS})") from error
    problem = ""
    for name, value in program.named_buffers():
        if name.rpartition(".")[2] == "_levels" and tuple(value.tolist()) != LEVELS:
            problem = f"its levels are {value.tolist()}, not {list(LEVELS)}"
    if device.type == "meta":
        program.drop_values()
    codec = CosmosDecoder(program, device)
    if not problem:
        problem = _trial_problem(codec, device)
    if problem:
        raise WeightsError(
            f"{file}: not the decoder of {COSMOS}: {problem}; give that file as `vq`"
        )
    return codec


def _trial_problem(codec: CosmosDecoder, device: torch.device) -> str:
    """What is wrong with the decoder of 2 x 2 codes; "" if nothing is."""
    expected = [1, 3, 2 * PATCH, 2 * PATCH]
    try:
        with torch.no_grad():
            image = codec.decode_ids(torch.zeros(1, 2, 2, dtype=torch.int64, device=device))
    except (RuntimeError, IndexError) as error:
        return f"it cannot decode [1, 1, 2, 2] ids ({str(error).strip().rpartition(chr(10))[2]})"
    if list(image.shape) != expected:
        return f"its image of 2 x 2 codes has the shape {list(image.shape)}, not {expected}"
    return ""


class _DecoderShapes(nn.Module):
    """Memory of the published decoder, whose program only its file has; its work is not counted."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.empty(_PARAMETERS, dtype=torch.bfloat16, device="meta")
        self.weight = nn.Parameter(weight)

    def forward(self, ids: Tensor) -> Tensor:
        count, _, rows, cols = ids.shape
        peak = torch.empty(ids.numel(), _BYTES_PER_CODE, dtype=torch.uint8, device=ids.device)
        del peak
        return self.weight.new_empty(count, 3, 1, PATCH * rows, PATCH * cols)


def _entries(folder: str, decoder: str) -> dict[str, dict[str, str]]:
    """The published checkpoints in a folder, which may be one of the Hub, by name."""
    return {
        f"simplear-{size.lower()}": {"checkpoint": f"{folder}SimpleAR-{size}-RL", "vq": decoder}
        for size in _SIZES
    }


@FAMILIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleAR(ExtendedLM):
    """SimpleAR, after supervised training (SFT) or reinforcement learning (RL)."""

    kind: ClassVar[str] = "simplear"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = _entries("", f"{COSMOS}/{DECODER}")
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = _entries(
        "hf://Daniel0724/", f"hf://nvidia/{COSMOS}/{DECODER}"
    )
    codes: ClassVar[int] = CODES
    sampling: ClassVar[Sampling] = Sampling(temperature=1.0, top_k=CODES, cfg=6.0)
    prefix: ClassVar[str] = "<|t2i|>A highly realistic image of "
    suffix: ClassVar[str] = "<|soi|>"
    null: ClassVar[str] = (
        "<|t2i|>An image of aerial view, overexposed, low quality, deformation, a poor "
        "composition, bad hands, bad teeth, bad eyes, bad limbs, distortion<|soi|>"
    )
    special_tokens: ClassVar[tuple[str, ...]] = ("<|t2i|>", "<|soi|>")

    image_size: Annotated[
        int, "side of the images, pixels: 256, 512, 768 or 1024", Range(PATCH)
    ] = 1024
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 256
    vq: Annotated[
        str | None,
        f"{DECODER} of {COSMOS}, or its folder; default: in the model's folder",
        PathField(),
    ] = None

    @staticmethod
    def model_class() -> Any:
        from transformers import Qwen2ForCausalLM

        return Qwen2ForCausalLM

    def published_config(self) -> Any:
        from transformers import Qwen2Config

        found = re.search(r"SimpleAR-(0\.5B|1\.5B)", self.checkpoint)
        if found is None:
            raise ValueError(
                "without its files, an architecture is known by the names SimpleAR-0.5B and "
                "SimpleAR-1.5B"
            )
        dim, layers, heads, kv_heads, ffn = _SIZES[found[1]]
        return Qwen2Config(
            vocab_size=WORDS + self.codes,
            hidden_size=dim,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )

    def codec(self, device: torch.device) -> nn.Module:
        place = Path(self.vq or self.checkpoint)
        file = place / DECODER if place.is_dir() else place
        if not file.is_file():
            raise WeightsError(
                f"{place}: has no {DECODER}; give `vq`, the {DECODER} of {COSMOS} or its folder"
            )
        return load_decoder(file, device)

    def codec_on_meta(self) -> nn.Module:
        return CosmosDecoder(_DecoderShapes(), torch.device("meta"))
