"""Conditioners that several families share: a caption as a few small integers of the model's own,
or as token ids.

A `CodedConditioner` reads a caption as small integers, of which each of a fixed number of prompt
tokens has one or several. `codes` turns captions into integers, which subclasses define; `embed`
turns those into prompt embeddings. Every caption fills every prompt position, so there is no
padding to mask. `TokenPrompts` reads a caption as token ids, padded on the left (all families whose
words and codes are one vocabulary, and Janus).

Shape legend: B captions, P prompt positions, G n-grams of a word, D width.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from workers.models.checkpoint_files import preview
from workers.models.target import Prompt
from workers.scenes.captions import SLOTS, parse

_NGRAMS = range(3, 7)  # lengths of the n-grams of a word, as in Bojanowski et al. 2017


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
        """int64 [B, P] or [B, P, G] on the CPU. Raises ValueError for a caption that the model
        cannot read.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The input of `build_conditioner`, without the width, as JSON values."""

    def check(self, captions: Sequence[str]) -> None:
        """Raise ValueError for a caption that the model cannot read."""
        self.codes(captions)

    def embed(self, codes: Tensor) -> Tensor:
        """Prompt embeddings [B, P, D] of codes."""
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


class NGramConditioner(CodedConditioner):
    """Captions of any words: one prompt token per word, for the first `length` words; a shorter
    caption is padded with a learned blank (code 0).

    A word's embedding is the sum of those of its character n-grams over the square root of their
    number, where n-grams share `buckets` embeddings by their hash (Bojanowski et al. 2017 average
    them, and hash with FNV-1a). So a word that training has not seen has the embedding of its
    parts.
    """

    kind = "ngrams"

    def __init__(self, dim: int, buckets: int, length: int) -> None:
        super().__init__(buckets + 1, length, dim, places=True)

    def codes(self, captions: Sequence[str]) -> Tensor:
        """int64 [B, P, G]: each word's n-grams, padded with zeros to the longest word's G."""
        buckets = self.values.num_embeddings - 1
        rows = [[_hashes(word, buckets) for word in self._words(caption)] for caption in captions]
        longest = max(len(codes) for row in rows for codes in row)
        padded = torch.zeros(len(rows), self.prompt_len, longest, dtype=torch.int64)
        for caption, row in zip(padded, rows, strict=True):
            for word, codes in zip(caption, row, strict=False):
                word[: len(codes)] = torch.tensor(codes)
        return padded

    def check(self, captions: Sequence[str]) -> None:
        for caption in captions:
            self._words(caption)

    def embed(self, codes: Tensor) -> Tensor:
        used = codes > 0
        used[..., 0] = True  # of a blank, code 0
        parts = self.values(codes) * used[..., None]
        assert self.places is not None
        count = used.sum(2, keepdim=True).to(parts.dtype)
        out: Tensor = parts.sum(2) / count.sqrt() + self.places
        return out

    def settings(self) -> dict[str, Any]:
        buckets = self.values.num_embeddings - 1
        return {"kind": self.kind, "buckets": buckets, "length": self.prompt_len}

    def _words(self, caption: str) -> list[str]:
        words = split_words(caption)
        if not words:
            raise ValueError(f"caption {caption!r} has no words; describe an image")
        return words[: self.prompt_len]


@lru_cache(maxsize=1 << 14)
def _hashes(word: str, buckets: int) -> list[int]:
    """The codes from 1 to `buckets` of a word's distinct n-grams, and of the whole word, whose ends
    are marked by < and >.
    """
    marked = f"<{word}>"
    parts = {marked}
    for n in _NGRAMS:
        parts.update(marked[start : start + n] for start in range(len(marked) - n + 1))
    return [1 + zlib.crc32(part.encode()) % buckets for part in sorted(parts)]


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
        case "ngrams":
            return NGramConditioner(dim, settings["buckets"], settings["length"])
    raise ValueError(f"unknown conditioner {settings.get('kind')!r}; known: scenes, words, ngrams")


class TokenPrompts(nn.Module):
    """Captions to prompts of P tokens, with the caption's tokens at the end and masked padding
    before them.

    Args:
        words: the embedding [W, D] of all ids.
        prompt_len: number P of prompt positions.
        encode: returns the ids of a caption's whole prompt.
        null: ids of the unconditional prompt.
        padding: the id of masked positions.

    Raises:
        ValueError: the unconditional prompt is too long.
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
        if len(self._null) > prompt_len:
            raise ValueError(
                f"prompt_tokens {prompt_len}: the unconditional prompt alone has "
                f"{len(self._null)} tokens; load the model with a larger prompt_tokens"
            )

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
