"""Janus and Janus-Pro (Wu et al., 2024; Chen et al., 2025) in the layout of `transformers`, through its own forward.

Prompts are those of the official code: a chat of one request, ended by the token that begins an image. The
unconditional stream keeps a prompt's first and last token and has padding tokens between them, which it does see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import Params, Range
from search_spaces.trial import Sampling
from workers.models.families.catalogue import Family
from workers.models.families.hf_files import Tokens, open_model
from workers.models.families.word_prompts import WordPrompts
from workers.models.target import Prompt, Target

SAMPLING = Sampling(temperature=1.0, cfg=5.0)
REQUEST, ANSWER = "<|User|>: ", "\n\n<|Assistant|>:"


@dataclass(frozen=True, slots=True)
class JanusFiles(Params):
    """An entry of family janus."""

    kind: ClassVar[str] = "janus"

    checkpoint: Annotated[str, "folder of a JanusForConditionalGeneration with its tokenizer"]
    prompt_tokens: Annotated[int, "room for a prompt", Range(8)] = 128


class JanusPrompts(WordPrompts):
    """Captions to prompts [B, P, D]; the unconditional ones depend on them."""

    def __init__(self, words: nn.Embedding, prompt_len: int, tokens: Tokens) -> None:
        lead, end = tokens.named("bos_token") + REQUEST, ANSWER + tokens.named("boi_token")
        super().__init__(words, prompt_len, lambda caption: tokens(lead + caption + end))
        self._between = tokens(tokens.named("pad_token"))[0]

    def null(self, prompt: Prompt) -> Prompt:
        inner = prompt.valid & prompt.valid.roll(1, 1)
        inner[:, 0], inner[:, -1] = False, False  # what has nothing before it is the first token; then the last
        between = self.words.weight[self._between]
        return Prompt(torch.where(inner[..., None], between, prompt.embeds), prompt.valid)


class JanusCodec(nn.Module):
    """The model's own VQ decoder; codes are normalised before they are decoded, and distances measured there."""

    def __init__(self, vq: Any) -> None:
        super().__init__()
        vq.encoder = vq.quant_conv = nn.Identity()  # they read images, which nothing here does
        self.vq = vq.float()

    @property
    def codebook(self) -> Tensor:
        return nn.functional.normalize(self.vq.quantize.embedding.weight, dim=-1)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols]."""
        images: Tensor = self.vq.decode(ids.flatten(1))
        return images


def load_entry(entry: JanusFiles, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry.

    Raises:
        WeightsError: files that are missing, damaged, of another family or size.
    """
    from transformers import JanusForConditionalGeneration

    from workers.models.hf_decoder import ForeignBody, body_config

    whole = open_model(entry.checkpoint, JanusForConditionalGeneration, dtype, codec="model.vqmodel")
    tokens = Tokens(entry.checkpoint)
    model, decoder = whole.model, whole.model.language_model
    side = model.vqmodel.config.num_patches
    config = body_config(
        decoder.config, codes=model.vqmodel.config.num_embeddings, prompt_len=entry.prompt_tokens, rows=side, cols=side
    )
    with torch.no_grad():
        codes = model.generation_aligner(model.generation_embeddings.weight)
    words, codec = decoder.get_input_embeddings(), JanusCodec(model.vqmodel)
    assert isinstance(words, nn.Embedding)
    decoder.set_input_embeddings(nn.Identity())  # prompts come embedded
    body = ForeignBody(config, decoder, codes, model.generation_head)
    name = f"janus-{config.dim}x{config.n_layers}"
    conditioner = JanusPrompts(words, entry.prompt_tokens, tokens)
    return Target(name, body, conditioner, codec, SAMPLING).to(device).eval().requires_grad_(False)


FAMILY = Family(name="janus", entry=JanusFiles, load=load_entry)
