"""Prompts made of token ids and padded on the left, for the families Chameleon, Lumina-mGPT, Janus and Emu3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from workers.models.target import Prompt


class TokenPrompts(nn.Module):
    """Captions to prompts of P tokens, with the caption's tokens at the end and masked padding before them.

    words [W, D]: the embedding of all ids. encode: a caption to the ids of its whole prompt. null: ids of the
    unconditional prompt. padding: the id of masked positions.
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
        self.words, self.prompt_len, self.padding = words, prompt_len, padding
        self._encode, self._null = encode, list(null)

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
                    f"caption {caption[:60]!r} needs a prompt of {len(rows[-1])} tokens, the limit is "
                    f"{self.prompt_len}: shorten it, or load the model with a larger prompt_tokens"
                )
        return rows

    def embed(self, rows: Sequence[Sequence[int]]) -> Prompt:
        """The prompt [B, P, D] of rows of at most P ids."""
        device = self.words.weight.device
        lengths = torch.tensor([len(row) for row in rows])
        valid = torch.arange(self.prompt_len) >= self.prompt_len - lengths[:, None]
        ids = torch.tensor([[self.padding] * (self.prompt_len - len(row)) + list(row) for row in rows], device=device)
        return Prompt(self.words(ids), valid.to(device))

    def forward(self, captions: Sequence[str]) -> Prompt:
        return self.embed(self.token_ids(captions))

    def null(self, prompt: Prompt) -> Prompt:
        row = self.embed([self._null])
        return Prompt(row.embeds.expand_as(prompt.embeds), row.valid.expand_as(prompt.valid))
