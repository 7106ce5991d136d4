"""Janus and Janus-Pro (Wu et al., 2024; Chen et al., 2025) in the layout of `transformers`, through
its own forward.

Prompts are those of Janus-Pro's official code: a chat with one request, followed by the token that
begins an image. (Janus-1.3B's names the roles without bars.) The unconditional stream keeps a
prompt's first and last token and replaces those between with padding tokens, which attention does
see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import PathField, Range
from search_spaces.trial import Sampling
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.conditioners import TokenPrompts
from workers.models.hf_files import HFCodec, HFTokenizer, load_pretrained
from workers.models.target import Prompt, Target

SAMPLING = Sampling(temperature=1.0, cfg=5.0)
REQUEST = "<|User|>: "
ANSWER = "\n\n<|Assistant|>:"


class JanusPrompts(TokenPrompts):
    """Captions to prompts [B, P, D]; the unconditional ones depend on them."""

    def __init__(self, words: nn.Embedding, prompt_len: int, tokenizer: HFTokenizer) -> None:
        start = tokenizer.special_token("bos_token") + REQUEST
        end = ANSWER + tokenizer.special_token("boi_token")
        super().__init__(
            words, prompt_len, lambda caption: tokenizer(start + caption.strip() + end)
        )
        self._inner = tokenizer(tokenizer.special_token("pad_token"))[0]

    def null(self, prompt: Prompt) -> Prompt:
        inner = prompt.valid & prompt.valid.roll(1, 1)
        # `roll` wraps around: the first position is not inside. Neither is the last one.
        inner[:, 0] = False
        inner[:, -1] = False
        padding = self.words.weight[self._inner]
        return Prompt(torch.where(inner[..., None], padding, prompt.embeds), prompt.valid)


class JanusCodec(HFCodec):
    """The model's own VQ decoder. Codes are normalised before decoding, and distances are measured
    between those.
    """

    @property
    def codebook(self) -> Tensor:
        return nn.functional.normalize(super().codebook, dim=-1)

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Images [B, 3, H, W] in about [-1, 1] of ids [B, rows, cols]."""
        images: Tensor = self.vq.decode(ids.flatten(1))
        return images


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Janus(Family):
    """Janus and Janus-Pro."""

    kind: ClassVar[str] = "janus"
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"janus-pro-{size}": {"checkpoint": f"hf://deepseek-community/Janus-Pro-{size.upper()}"}
        for size in ("1b", "7b")
    }

    checkpoint: Annotated[
        str, "folder of a JanusForConditionalGeneration with its tokenizer", PathField()
    ]
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 128

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        from transformers import JanusForConditionalGeneration

        from workers.models.hf_decoder import HFDecoder, decoder_config

        whole = load_pretrained(
            self.checkpoint, JanusForConditionalGeneration, dtype, keep="model.vqmodel."
        )
        tokenizer = HFTokenizer(self.checkpoint)
        model = whole.model
        decoder = whole.model.language_model
        codes = model.vqmodel.config.num_embeddings
        side = model.vqmodel.config.num_patches
        config = decoder_config(
            decoder.config, codes=codes, prompt_len=self.prompt_tokens, rows=side, cols=side
        )
        with torch.no_grad():
            code_embeddings = model.generation_aligner(model.generation_embeddings.weight)
        words = decoder.get_input_embeddings()
        codec = JanusCodec(model.vqmodel)
        assert isinstance(words, nn.Embedding)
        # As a sequence of linear layers the head's logits are accumulated in fp32.
        head = nn.Sequential(*model.generation_head.children())
        body = HFDecoder(config, decoder, code_embeddings, head)
        conditioner = JanusPrompts(words, self.prompt_tokens, tokenizer)
        target = Target(f"janus-{config.dim}x{config.n_layers}", body, conditioner, codec, SAMPLING)
        return target.to(device).eval().requires_grad_(False)
