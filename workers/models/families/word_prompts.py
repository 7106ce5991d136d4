"""Prompts of word ids, padded on the left: what Chameleon's, Janus's and Emu3's families make of captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from workers.models.target import Prompt


class WordPrompts(nn.Module):
    """Captions to prompts of P tokens, the caption's at the end; the padding before them is hidden.

    words [W, D]: embeds all ids. read: a caption's ids, with all that belongs to a prompt. null: the unconditional
    prompt's ids. padding: the id that stands where there is nothing.
    """

    def __init__(
        self,
        words: nn.Embedding,
        prompt_len: int,
        read: Callable[[str], list[int]],
        null: Sequence[int] = (),
        padding: int = 0,
    ) -> None:
        super().__init__()
        self.words, self.prompt_len, self.padding = words, prompt_len, padding
        self._read, self._null = read, list(null)

    def rows(self, captions: Sequence[str]) -> list[list[int]]:
        """Each caption's ids, as long as they are.

        Raises:
            ValueError: an empty caption, or one that does not fit.
        """
        rows = []
        for number, caption in enumerate(captions):
            if not caption.strip():
                raise ValueError(f"caption {number} is empty; this model draws from a text")
            rows.append(self._read(caption))
            if len(rows[-1]) > self.prompt_len:
                raise ValueError(
                    f"caption {caption[:60]!r} makes a prompt of {len(rows[-1])} tokens; there is room for "
                    f"{self.prompt_len}: shorten it, or load the model with a larger prompt_tokens"
                )
        return rows

    def ids(self, captions: Sequence[str]) -> Tensor:
        """Padded ids, int64 [B, P] on the CPU. ValueError as of `rows`."""
        return self._padded(self.rows(captions))

    def embed(self, rows: Sequence[Sequence[int]]) -> Prompt:
        """The prompt [B, P, D] of rows of ids, P at most."""
        device = self.words.weight.device
        lengths = torch.tensor([len(row) for row in rows])
        valid = torch.arange(self.prompt_len) >= self.prompt_len - lengths[:, None]
        return Prompt(self.words(self._padded(rows).to(device)), valid.to(device))

    def forward(self, captions: Sequence[str]) -> Prompt:
        return self.embed(self.rows(captions))

    def null(self, prompt: Prompt) -> Prompt:
        one = self.embed([self._null])
        return Prompt(one.embeds.expand_as(prompt.embeds), one.valid.expand_as(prompt.valid))

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[self.padding] * (self.prompt_len - len(row)) + list(row) for row in rows])
