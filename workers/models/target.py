"""A target: a transformer, the conditioner that makes its prompts from captions, and the codec that
decodes tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from search_spaces.trial import Sampling
from workers.models.transformer import Body

_CHECK_BATCH = 64  # captions that are checked at a time


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompts of R rows."""

    embeds: Tensor  # [R, P, D] embeddings
    valid: Tensor  # [R, P] bool; False: padding

    def __add__(self, other: Prompt) -> Prompt:
        """Both prompts' rows, this one's first."""
        return Prompt(torch.cat([self.embeds, other.embeds]), torch.cat([self.valid, other.valid]))


class Conditioner(Protocol):
    """Turns captions (or class names) into prompt rows, and into unconditional rows for
    classifier-free guidance.

    Two optional methods for large text encoders: `check(captions)` raises without encoding, and
    `set_encoder_batch(count)` encodes `count` captions at once.
    """

    def __call__(self, captions: Sequence[str]) -> Prompt:
        """The prompt of each caption."""
        ...

    def null(self, prompt: Prompt) -> Prompt:
        """The unconditional prompt for each row of a prompt."""
        ...


class Codec(Protocol):
    """Turns tokens into images.

    Optional attributes: `factor`, pixels along a side of a token's patch, so that nothing must be
    decoded to know the size of images; `no_images`, why codes cannot be decoded here ("" if they
    can); `decoder_bytes`, the size of a decoder that is loaded later.
    """

    @property
    def codebook(self) -> Tensor:
        """The codes [V, d] as they are decoded (normalised if the codec does so)."""
        ...

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols]."""
        ...


class Target(nn.Module):
    """A visual AR model, ready to decode.

    Args:
        name: identifies it in results.
        transformer: the decoder.
        conditioner: turns captions into prompts.
        codec: turns tokens into images; None: the target cannot decode images.
        sampling: its default sampling.
        row_end: the embedding [D] of the fixed token after every row of the image, if the family
            has one (see `workers.decoding.row_ends`); it does not count as a token of the image.
    """

    row_end: Tensor | None

    def __init__(
        self,
        name: str,
        transformer: Body,
        conditioner: nn.Module,
        codec: nn.Module | None,
        sampling: Sampling,
        *,
        row_end: Tensor | None = None,
    ) -> None:
        super().__init__()
        if transformer.embed is None or transformer.head is None:
            raise ValueError(
                f"target {name}: the transformer needs a token embedding and a head (vocab_size "
                "> 0)"
            )
        if transformer.config.row_ends != (row_end is not None):
            raise ValueError(
                f"target {name}: row_end must be given exactly if the transformer's config has "
                "row_ends"
            )
        self.name = name
        self.transformer = transformer
        self.embed = transformer.embed
        self.head = transformer.head
        self.conditioner = conditioner
        self.codec = codec
        self.sampling = sampling
        self.register_buffer("row_end", row_end)
        self.grid = transformer.config.grid

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the transformer."""
        return self.embed.weight.dtype

    @property
    def prompt_len(self) -> int:
        return self.transformer.config.prompt_len

    @property
    def vocab_size(self) -> int:
        return self.transformer.config.vocab_size

    @property
    def no_images(self) -> str:
        """Why this target cannot decode images; "" if it can."""
        if self.codec is None:
            return "it was loaded without its codec"
        return str(getattr(self.codec, "no_images", ""))

    def require_images(self) -> None:
        """Raises ValueError if this target cannot decode images, with the reason."""
        if self.no_images:
            raise ValueError(f"target {self.name} cannot decode images: {self.no_images}")

    @property
    def codebook(self) -> Tensor:
        """[V, d] the codes, whose distances define neighbourhoods."""
        if self.codec is None:
            raise ValueError(
                f"target {self.name} was loaded without its codec, so it has no codebook"
            )
        return cast("Codec", self.codec).codebook

    def check(self, captions: Sequence[str]) -> None:
        """Raise for captions that this model cannot read.

        Raises:
            ValueError: see `encode`.
        """
        check = getattr(self.conditioner, "check", None)
        for start in range(0, len(captions), _CHECK_BATCH):
            batch = captions[start : start + _CHECK_BATCH]
            if check is None:
                self.encode(batch, guided=False)
            else:
                check(batch)

    def set_encoder_batch(self, count: int) -> None:
        """Let `encode` process `count` captions at once. This changes the last bits of features:
        use it in training only.
        """
        if (set_batch := getattr(self.conditioner, "set_encoder_batch", None)) is not None:
            set_batch(count)

    def encode(self, captions: Sequence[str], *, guided: bool) -> Prompt:
        """Prompt rows of the captions; with `guided`, the unconditional rows follow (R = 2B).

        Raises:
            ValueError: a caption that this model cannot read.
        """
        conditioner = cast("Conditioner", self.conditioner)
        prompt = conditioner(captions)
        if guided:
            return prompt + conditioner.null(prompt)
        return prompt

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] of token rows [B, tokens]. Those of a preview are left out.

        Raises:
            ValueError: see `no_images`.
        """
        self.require_images()
        grid = self.grid
        ids = tokens[:, grid.preview_tokens :].reshape(-1, grid.rows, grid.cols)
        images = cast("Codec", self.codec).decode_ids(ids)
        return images.float().add(1).div(2).clamp(0, 1)
