"""Conditioners that several families share: a caption as a few small integers of the model's own,
or as token ids.

A `CodedConditioner` reads a caption as a fixed number of small integers, one prompt token each.
`codes` turns captions into integers, which subclasses define; `embed` turns those into prompt
embeddings. Training stores the integers. Every caption fills every prompt position, so there is no
padding to mask. `TokenPrompts` reads a caption as token ids, padded on the left (Chameleon,
Lumina-mGPT, Janus and Emu3).

Shape legend: B captions, P prompt positions, D width.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from workers.models.checkpoint_files import preview
from workers.models.target import Prompt
from workers.scenes.captions import SLOTS, parse


class CodedConditioner(nn.Module, ABC):
    """An embedding per value, plus one per position if positions share values; the null prompt is
    learned.
    """

    kind: ClassVar[str]

    def __init__(self, values: int, prompt_len: int, dim: int, *, places: bool) -> None:
        super().__init__()
        self.values = nn.Embedding(values, dim)
        self.places = nn.Parameter(torch.zeros(prompt_len, dim)) if places else None
        self.nothing = nn.Parameter(torch.randn(prompt_len, dim))

    @property
    def prompt_len(self) -> int:
        return self.nothing.shape[0]

    @abstractmethod
    def codes(self, captions: Sequence[str]) -> Tensor:
        """int64 [B, P] on the CPU. Raises ValueError for a caption that the model cannot read."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The input of `build_conditioner`, without the width, as JSON values."""

    def check(self, captions: Sequence[str]) -> None:
        """Raise ValueError for a caption that the model cannot read."""
        self.codes(captions)

    def embed(self, codes: Tensor) -> Tensor:
        """Prompt embeddings [B, P, D] of codes [B, P]."""
        rows: Tensor = self.values(codes)
        return rows if self.places is None else rows + self.places

    def forward(self, captions: Sequence[str]) -> Prompt:
        embeds = self.embed(self.codes(captions).to(self.nothing.device))
        return Prompt(embeds, torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device))

    def null(self, prompt: Prompt) -> Prompt:
        return Prompt(self.nothing.expand_as(prompt.embeds), prompt.valid)


class SceneConditioner(CodedConditioner):
    """Captions of procedural scenes: one prompt token per attribute slot, each slot with its own
    values.
    """

    kind = "scenes"

    def __init__(self, dim: int) -> None:
        sizes = [len(values) for _, values in SLOTS]
        super().__init__(sum(sizes), len(sizes), dim, places=False)
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes))]

    def codes(self, captions: Sequence[str]) -> Tensor:
        return torch.tensor([parse(caption) for caption in captions]) + torch.tensor(self.offsets)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}


class WordConditioner(CodedConditioner):
    """One prompt token per word, up to `length`; a shorter caption is padded with a learned blank
    (code 0).
    """

    kind = "words"

    def __init__(self, dim: int, words: Sequence[str], length: int) -> None:
        super().__init__(len(words) + 1, length, dim, places=True)
        self.words = {word: number + 1 for number, word in enumerate(words)}

    def codes(self, captions: Sequence[str]) -> Tensor:
        rows = torch.zeros(len(captions), self.prompt_len, dtype=torch.int64)
        for row, caption in zip(rows, captions, strict=True):
            found = split_words(caption)
            unknown = [word for word in found if word not in self.words]
            if unknown:
                raise ValueError(
                    f"caption {caption!r}: unknown word {unknown[0]!r}; known words: "
                    f"{preview(list(self.words), 30)}"
                )
            if not found or len(found) > self.prompt_len:
                raise ValueError(
                    f"caption {caption!r} has {len(found)} words; this model reads 1 to "
                    f"{self.prompt_len}"
                )
            row[: len(found)] = torch.tensor([self.words[word] for word in found])
        return rows

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": list(self.words), "length": self.prompt_len}


def split_words(caption: str) -> list[str]:
    """Lower-case words and numbers of a caption."""
    return re.findall(r"\w+", caption.lower())


def build_conditioner(settings: Mapping[str, Any], dim: int) -> CodedConditioner:
    """An untrained conditioner of width `dim` from its `settings()`.

    Raises:
        ValueError: an unknown kind.
    """
    match settings.get("kind"):
        case "scenes":
            return SceneConditioner(dim)
        case "words":
            return WordConditioner(dim, settings["words"], settings["length"])
    raise ValueError(f"unknown conditioner {settings.get('kind')!r}; known: scenes, words")


class TokenPrompts(nn.Module):
    """Captions to prompts of P tokens, with the caption's tokens at the end and masked padding
    before them.

    Args:
        words: the embedding [W, D] of all ids.
        prompt_len: number P of prompt positions.
        encode: returns the ids of a caption's whole prompt.
        null: ids of the unconditional prompt.
        padding: the id of masked positions.
    """

    def __init__(
        self,
        words: nn.Embedding,
        prompt_len: int,
        encode: Callable[[str], list[int]],
        null: Sequence[int] = (),
        padding: int = 0,
    ) -> None:
        super().__init__()
        self.words = words
        self.prompt_len = prompt_len
        self.padding = padding
        self._encode = encode
        self._null = list(null)

    def token_ids(self, captions: Sequence[str]) -> list[list[int]]:
        """The ids of each caption's prompt, without padding.

        Raises:
            ValueError: an empty caption, or one that is too long.
        """
        rows = []
        for number, caption in enumerate(captions):
            if not caption.strip():
                raise ValueError(f"caption {number} is empty; this model needs a text")
            rows.append(self._encode(caption))
            if len(rows[-1]) > self.prompt_len:
                raise ValueError(
                    f"caption {caption[:60]!r} needs a prompt of {len(rows[-1])} tokens, the limit "
                    f"is {self.prompt_len}: shorten it, or load the model with a larger "
                    "prompt_tokens"
                )
        return rows

    def embed(self, rows: Sequence[Sequence[int]]) -> Prompt:
        """The prompt [B, P, D] of rows of at most P ids."""
        device = self.words.weight.device
        lengths = torch.tensor([len(row) for row in rows])
        valid = torch.arange(self.prompt_len) >= self.prompt_len - lengths[:, None]
        ids = torch.tensor(
            [[self.padding] * (self.prompt_len - len(row)) + list(row) for row in rows],
            device=device,
        )
        return Prompt(self.words(ids), valid.to(device))

    def forward(self, captions: Sequence[str]) -> Prompt:
        return self.embed(self.token_ids(captions))

    def null(self, prompt: Prompt) -> Prompt:
        row = self.embed([self._null])
        return Prompt(row.embeds.expand_as(prompt.embeds), row.valid.expand_as(prompt.valid))
