"""Anole-7B and Lumina-mGPT-7B-768 by their architecture alone, on the meta device: for plans, without any file.

Chameleon (Chameleon team 2024): 32 layers of width 4096, 32 heads with qk-norm, a feed-forward of 11008, 65536 words,
of which 8192 are the codes of the VQGAN. Only these have a row in the embedding and the head that decoding uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from search_spaces.trial import Sampling
from workers.models.target import Prompt, Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import CHAMELEON, VQModel
from workers.models.weights import unfilled

WORDS, PROMPT_TOKENS = 65536, 128
#: By the names that sweeps use: the family, and rows and columns of the grid.
SIZES: Mapping[str, tuple[str, int, int]] = {"anole-7b": ("anole", 32, 32), "lumina-mgpt-7b-768": ("lumina", 48, 48)}


class Words(nn.Module):
    """Prompts of words, in shape: a table of all words' embeddings."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)

    def forward(self, captions: Sequence[str]) -> Prompt:
        weight, shape = self.words.weight, (len(captions), PROMPT_TOKENS)
        return Prompt(
            weight.new_empty(*shape, weight.shape[1]), torch.ones(shape, dtype=torch.bool, device=weight.device)
        )

    def null(self, prompt: Prompt) -> Prompt:
        return prompt


def outline(name: str, dtype: torch.dtype) -> Target:
    """The target of one of `SIZES`."""
    family, rows, cols = SIZES[name]
    row_ends = family == "lumina"
    config = TransformerConfig(
        dim=4096, n_layers=32, n_heads=32, ffn_dim=11008, vocab_size=CHAMELEON.codebook_size, rope="line",
        qk_norm=True, prompt_len=PROMPT_TOKENS, rows=rows, cols=cols, row_ends=row_ends,
    )  # fmt: skip
    body = unfilled(lambda: Transformer(config)).to("meta", dtype)
    words = unfilled(lambda: Words(config.dim)).to("meta", dtype)
    codec = unfilled(lambda: VQModel(CHAMELEON)).to("meta")
    sampling = Sampling(temperature=1.0, top_k=2000, cfg=3.0)
    row_end = words.words.weight[0] if row_ends else None
    return Target(name, body, words, codec, sampling, row_end=row_end).eval().requires_grad_(False)
