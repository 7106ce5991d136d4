"""A target: the transformer, the conditioner that turns captions into its prompt, and the codec that turns tokens into
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from search_spaces.trial import Sampling
from workers.models.transformer import Body

_AT_ONCE = 64  # captions


@dataclass(frozen=True, slots=True)
class Grid:
    """The image's token grid, in raster order."""

    rows: int
    cols: int

    @property
    def tokens(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt embeddings [R, P, D] and which of their positions exist [R, P] (bool; padding is False)."""

    embeds: Tensor
    valid: Tensor

    def __add__(self, other: Prompt) -> Prompt:
        """Both prompts' rows, this one's first."""
        return Prompt(torch.cat([self.embeds, other.embeds]), torch.cat([self.valid, other.valid]))


class Conditioner(Protocol):
    """Captions (or class names) to prompt rows, and the unconditional rows that stand beside them under guidance.

    Where reading a caption is dear (a large text encoder), `check(captions)` refuses without reading, and
    `read_together(count)` lets so many be read at once.
    """

    def __call__(self, captions: Sequence[str]) -> Prompt: ...

    def null(self, prompt: Prompt) -> Prompt: ...


class Codec(Protocol):
    """Tokens to images. `codebook` [V, d] holds the codes as they are decoded (normalised, where the codec does
    that).
    """

    @property
    def codebook(self) -> Tensor: ...

    def decode_ids(self, ids: Tensor) -> Tensor: ...


class Target(nn.Module):
    """A visual AR model, ready to decode. `name` identifies it in results; `sampling` are its own defaults.

    row_end [D]: the embedding of the fixed token that follows every row of the image, where the family has one (see
    `workers.decoding.row_ends`); it is no token of the image.
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
            raise ValueError(f"target {name}: the transformer needs a token embedding and a head (vocab_size > 0)")
        if transformer.config.row_ends != (row_end is not None):
            raise ValueError(f"target {name}: rows end in a token exactly where the transformer's config says row_ends")
        self.name = name
        self.transformer = transformer
        self.embed, self.head = transformer.embed, transformer.head
        self.conditioner = conditioner
        self.codec = codec
        self.sampling = sampling
        self.register_buffer("row_end", row_end)
        self.grid = Grid(transformer.config.rows, transformer.config.cols)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the transformer's numbers."""
        return self.embed.weight.dtype

    @property
    def prompt_len(self) -> int:
        return self.transformer.config.prompt_len

    @property
    def vocab_size(self) -> int:
        return self.transformer.config.vocab_size

    @property
    def codebook(self) -> Tensor:
        """[V, d]; neighbourhoods are measured here."""
        if self.codec is None:
            raise ValueError(
                f"target {self.name} was loaded without its codec: there is no codebook to measure distances in"
            )
        return cast("Codec", self.codec).codebook

    def check(self, captions: Sequence[str]) -> None:
        """Refuse captions that this model cannot read.

        Raises:
            ValueError: see `encode`.
        """
        look = getattr(self.conditioner, "check", None)
        for at in range(0, len(captions), _AT_ONCE):
            some = captions[at : at + _AT_ONCE]
            self.encode(some, guided=False) if look is None else look(some)

    def read_together(self, count: int) -> None:
        """Let a text encoder take so many captions at once, though their company then shows in the last bits: for
        training, never for drawing."""
        if (allow := getattr(self.conditioner, "read_together", None)) is not None:
            allow(count)

    def encode(self, captions: Sequence[str], *, guided: bool) -> Prompt:
        """Prompt rows of the captions; with guidance, the unconditional rows follow them (R = 2B).

        Raises:
            ValueError: a caption that this model cannot read.
        """
        conditioner = cast("Conditioner", self.conditioner)
        prompt = conditioner(captions)
        return prompt + conditioner.null(prompt) if guided else prompt

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [0, 1] of token rows [B, rows * cols]."""
        if self.codec is None:
            raise ValueError(f"target {self.name} was loaded without its codec: tokens cannot be turned into images")
        images = cast("Codec", self.codec).decode_ids(tokens.view(-1, self.grid.rows, self.grid.cols))
        return images.float().add(1).div(2).clamp(0, 1)
