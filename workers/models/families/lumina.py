"""Lumina-mGPT (Liu et al., 2024): Chameleon's architecture, for images of any aspect whose rows each end in a token.

The official sequence of an image is [8197, height, width, row, 8803, row, 8803, ..., 8196]. The three tokens before
the first row are forced and belong to the prompt; the rows' ends are carried along (`workers.decoding.row_ends`) and
are no tokens of the image; what follows the last image token decides nothing. So an image of 48 x 48 codes has 2304
tokens here, where the published code counts 2353 generated ones: its accepted lengths include the forced tokens, and
its plain decoding spends a pass on each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from search_spaces.params import ConfigError, Range
from workers.models.families.catalogue import Family
from workers.models.families.chameleon import (
    BEGIN_IMAGE,
    END_IMAGE,
    END_TURN,
    NAMED,
    PROMPT_TOKENS,
    ChameleonFiles,
    Tokenize,
    Wording,
    load_target,
    with_codec,
)
from workers.models.families.chameleon_files import FIRST_IMAGE_ID
from workers.models.target import Target

ROW_END = 8803
NO_SIZE = 8804  # a size token is this plus the side in units of 32 px: 8828 says 768
UNIT, CODE = 32, 16  # pixels
LARGEST = 2048 // UNIT  # the longest side of a 1024 px model's widest aspect, 4:1


def size_token(pixels: int) -> int:
    """The token that says an image's height or width.

    Raises:
        ValueError: not a multiple of 32, or out of range.
    """
    if pixels % UNIT or not 0 < pixels <= LARGEST * UNIT:
        raise ValueError(
            f"an image of Lumina-mGPT cannot be {pixels} px wide or high: give a multiple of {UNIT}, "
            f"{LARGEST * UNIT} at most"
        )
    return NO_SIZE + pixels // UNIT


def wording(width: int, height: int) -> Wording:
    """The sentence and the forced tokens for images of this size in pixels. The unconditional stream has the image's
    first tokens only.
    """
    start = (BEGIN_IMAGE, size_token(height), size_token(width))
    sentence = f"Generate an image of {width}x{height} according to the following prompt:\n"
    return Wording(lead=sentence, ending=(END_TURN, *start), null=start)


def sequence(tokens: Tensor, rows: int, cols: int) -> Tensor:
    """The official ids [B, 3 + rows * (cols + 1) + 1] of images given as codes [B, rows * cols]."""
    images = tokens.view(-1, rows, cols) + FIRST_IMAGE_ID
    lines = torch.nn.functional.pad(images, (0, 1), value=ROW_END).flatten(1)
    start = tokens.new_tensor([BEGIN_IMAGE, size_token(rows * CODE), size_token(cols * CODE)])
    end = tokens.new_tensor([END_IMAGE])
    return torch.cat([start.expand(len(lines), -1), lines, end.expand(len(lines), -1)], dim=1)


def load_lumina(
    transformer: str | Path,
    vq: str | Path | None = None,
    tokenizer: Tokenize | str | Path | None = None,
    *,
    width: int = 768,
    height: int = 768,
    prompt_tokens: int = PROMPT_TOKENS,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Target:
    """Lumina-mGPT for images of width x height pixels. For the rest see `load_target`.

    Raises:
        ValueError: a size that no token stands for.
    """
    name = f"lumina-mgpt-{width}" if width == height else f"lumina-mgpt-{width}x{height}"
    return load_target(
        name, transformer, vq, tokenizer, wording=wording(width, height), rows=height // CODE, cols=width // CODE,
        row_end=ROW_END, named={**NAMED, "<reserved08799>": ROW_END}, prompt_tokens=prompt_tokens,
        dtype=dtype, device=device,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LuminaFiles(ChameleonFiles):
    """An entry of family lumina."""

    kind: ClassVar[str] = "lumina"
    width: Annotated[int, "of the images, pixels", Range(UNIT, LARGEST * UNIT)] = 768
    height: Annotated[int, "of the images, pixels", Range(UNIT, LARGEST * UNIT)] = 768

    def check(self) -> None:
        for key, pixels in (("width", self.width), ("height", self.height)):
            if pixels % UNIT:
                raise ConfigError((key,), f"must be a multiple of {UNIT}, got {pixels}")


def load_entry(entry: LuminaFiles, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry. WeightsError or ValueError as `load_target`."""
    target = load_lumina(
        entry.transformer, entry.vq, entry.tokenizer, width=entry.width, height=entry.height,
        prompt_tokens=entry.prompt_tokens, dtype=dtype, device=device,
    )  # fmt: skip
    return with_codec(target, entry)


FAMILY = Family(name="lumina", entry=LuminaFiles, load=load_entry)
