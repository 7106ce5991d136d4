"""LlamaGen's prompts: one class embedding, or 120 caption features of a T5 encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.data.text_files import read_lines
from workers.models.checkpoint_files import WeightsError
from workers.models.target import Prompt
from workers.models.text import CAPTION_TOKENS, T5Encoder, TextEncoder

CAPTION_DIM = 2048  # width of the T5 features (flan-t5-xl)
CLASSES = 1000  # classes of ImageNet


class ClassConditioner(nn.Module):
    """One prompt position: the class's embedding. A caption is a class number, or one of `names` if
    given.
    """

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
            ValueError: a caption that is not a class.
        """
        numbers = [self._class_number(caption) for caption in captions]
        embeds = self.classes(torch.tensor(numbers, device=self.classes.weight.device))[:, None]
        return Prompt(embeds, torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device))

    def null(self, prompt: Prompt) -> Prompt:
        return Prompt(self.classes.weight[self.null_class].expand_as(prompt.embeds), prompt.valid)

    def _class_number(self, caption: str) -> int:
        text = caption.strip().lower()
        if text in self._numbers:
            number, *others = self._numbers[text]
            if others:
                raise ValueError(
                    f"{caption!r} is the name of several classes; give {number} or {others[0]}"
                )
            return number
        if text.isascii() and text.isdigit() and int(text) < self.null_class:
            return int(text)
        names = f", or one of its {len(self._numbers)} class names" if self._numbers else ""
        raise ValueError(
            f"{caption!r} is not a class of this class-conditional model: give a number from 0 to "
            f"{self.null_class - 1}{names}"
        )


class CaptionConditioner(nn.Module):
    """120 prompt positions: T5 features through a two-layer MLP, with the caption's at the end and
    padding before.
    """

    uncond_embedding: Tensor

    def __init__(self, dim: int, encoder: TextEncoder) -> None:
        super().__init__()
        self.fc1 = nn.Linear(CAPTION_DIM, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)
        # NaN until it is loaded, so that a file without it is noticed.
        self.register_buffer(
            "uncond_embedding", torch.empty(CAPTION_TOKENS, CAPTION_DIM).fill_(torch.nan)
        )
        # In a tuple, because an encoder that is a module must not become a submodule: it has its
        # own dtype and device.
        self._encoder = (encoder,)
        self.encoder_bytes: int = getattr(encoder, "bytes", 0)

    def project(self, features: Tensor) -> Tensor:
        """Caption features [..., CAPTION_DIM] -> embeddings [..., dim] (`cap_proj` in the official
        files). It has no biases, so zeroed padding stays zero.
        """
        weight = self.fc1.weight
        out: Tensor = self.fc2(
            F.gelu(self.fc1(features.to(weight.device, weight.dtype)), approximate="tanh")
        )
        return out

    def check(self, captions: Sequence[str]) -> None:
        """Refuse captions that cannot be read, without running the text encoder.

        Raises:
            ValueError: an empty caption.
        """
        if empty := [number for number, caption in enumerate(captions) if not caption.strip()]:
            raise ValueError(f"caption {empty[0]} is empty; this model needs a text")

    def set_encoder_batch(self, count: int) -> None:
        """Let a T5 encode `count` captions at once."""
        if isinstance(self._encoder[0], T5Encoder):
            self._encoder[0].batch_size = count

    def forward(self, captions: Sequence[str]) -> Prompt:
        """
        Raises:
            ValueError: an empty caption.
        """
        self.check(captions)
        features, valid = self._encoder[0](captions)
        features, valid = pad_left(features, valid)
        return Prompt(self.project(features), valid.to(self.fc1.weight.device))

    def null(self, prompt: Prompt) -> Prompt:
        """The learned null caption for every row, under the caption's own mask, as in the official
        code.
        """
        embeds = self.project(self.uncond_embedding)
        return Prompt(embeds.expand_as(prompt.embeds), prompt.valid)


class FlanT5XLShapes:
    """flan-t5-xl's encoder on the meta device: its size in bytes and the shapes of its features.

    24 layers of width 2048, 32 heads of 64, a gated feed-forward of 5120, 32128 words; one table of
    32 relative distances (Raffel et al. 2020; Chung et al. 2022).
    """

    def __init__(self, dtype: torch.dtype) -> None:
        width = CAPTION_DIM
        inner = 5120
        layers = 24
        words = 32128
        heads = 32
        distances = 32
        layer = 4 * width * heads * 64 + 3 * width * inner + 2 * width
        self.bytes = (words * width + layers * layer + width + heads * distances) * dtype.itemsize

    def __call__(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        shape = (len(captions), CAPTION_TOKENS)
        return torch.empty(*shape, CAPTION_DIM, device="meta"), torch.empty(
            shape, dtype=torch.bool, device="meta"
        )


def pad_left(features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Right-padded features [B, L, F] with validity [B, L], moved to the end in order; padding
    becomes zero.
    """
    length = valid.shape[1]
    gap = length - valid.sum(1, keepdim=True)
    source = (torch.arange(length, device=valid.device) - gap) % length
    valid = valid.gather(1, source)
    moved = features.gather(1, source[..., None].expand_as(features))
    return moved * valid[..., None], valid


def read_class_names(file: str) -> tuple[str, ...]:
    """One name per line, in the order of the classes.

    Raises:
        WeightsError: the file is missing, not UTF-8 text, or does not have one name per class.
    """
    try:
        names = tuple(line.strip() for _, line in read_lines(Path(file)))
    except ValueError as error:
        raise WeightsError(str(error)) from error
    if len(names) != CLASSES:
        raise WeightsError(f"{file}: {len(names)} lines for {CLASSES} classes; give one per class")
    return names
