"""Liquid (Wu et al., 2024): Gemma with the codes of Chameleon's VQGAN at the end of its vocabulary.

The unconditional stream has a token of its own. The published model generates images of 512 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from search_spaces.params import PathField
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import load_tensors
from workers.models.families.catalogue import FAMILIES
from workers.models.families.chameleon import CODES, vqgan
from workers.models.families.extended_lm import ExtendedLM
from workers.models.vq import CHAMELEON, CODEC_LANDMARKS, VQModel
from workers.models.weights import skip_init

WORDS = 256_000  # tokens of Gemma's tokenizer


@FAMILIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Liquid(ExtendedLM):
    """Liquid."""

    kind: ClassVar[str] = "liquid"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "liquid-7b": {"checkpoint": "Liquid_V1_7B", "vq": "vqgan.ckpt"}
    }
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "liquid-7b": {"checkpoint": "hf://Junfeng5/Liquid_V1_7B", "vq": "vqgan.ckpt"}
    }
    codes: ClassVar[int] = CODES
    sampling: ClassVar[Sampling] = Sampling(temperature=0.99, top_k=4096, top_p=0.96, cfg=7.0)
    prefix: ClassVar[str] = "<bos>"  # which the published code's tokenizer adds
    suffix: ClassVar[str] = " Generate an image based on this description.<boi>"
    null: ClassVar[str] = "<bos><unconditional><boi>"
    special_tokens: ClassVar[tuple[str, ...]] = ("<bos>", "<unconditional>", "<boi>")

    vq: Annotated[str, "file of Chameleon's VQGAN (vqgan.ckpt)", PathField()]

    @staticmethod
    def model_class() -> Any:
        from transformers import GemmaForCausalLM

        return GemmaForCausalLM

    def published_config(self) -> Any:
        """That of Gemma 7B, the library's default."""
        from transformers import GemmaConfig

        return GemmaConfig(vocab_size=WORDS + self.codes)

    def codec(self, device: torch.device) -> nn.Module:
        return vqgan(load_tensors(self.vq, CODEC_LANDMARKS), where=self.vq)

    def codec_on_meta(self) -> nn.Module:
        return skip_init(lambda: VQModel(CHAMELEON)).to("meta")
