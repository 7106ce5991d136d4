"""What a checkpoint is, by tensor names that occur in no other kind, so that errors can name a
wrong or foreign one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_JANUS_FIX = (
    "give one converted for transformers: deepseek-community/Janus-Pro-1B or "
    "deepseek-community/Janus-Pro-7B"
)
_EMU3_FIX = "give the one converted for transformers: BAAI/Emu3-Gen-hf"


class Layout(NamedTuple):
    """A kind of checkpoint."""

    kind: str
    starts: tuple[str, ...]  # patterns, each of which matches the beginning of some tensor's name
    fix: str = ""  # what to give instead, if this project does not read it


EAGLE_3 = Layout(
    "an EAGLE-3 drafter",
    (r"(model\.)?(midlayer\.|d2t$|t2d$|(decoder|layers\.0)\.hidden_norm\.)",),
    "name it under drafters.eagle3",
)

_LAYOUTS = (
    Layout(
        "Janus in DeepSeek's own layout", (r"gen_vision_model\.", r"language_model\."), _JANUS_FIX
    ),
    Layout(
        "Chameleon or Anole in Meta's own layout",
        (r"tok_embeddings\.weight", r"layers\.0\.attention\.q_normalization\."),
        "give one converted for transformers, such as leloy/Anole-7b-v0.1-hf",
    ),
    Layout(
        "Emu3's vision tokenizer in BAAI's own layout", (r"encoder\.time_res_stack\.",), _EMU3_FIX
    ),
    EAGLE_3,
    Layout(
        "Hydra heads",
        (r"(hydra_head\.)?hydra_(mlp|lm_head)\.",),
        "Hydra is not supported; give an EAGLE drafter, or Medusa heads that `specfrontier train` "
        "wrote",
    ),
    Layout(
        "Medusa heads in their authors' layout",
        (r"(medusa_head\.)?\d+\.\d+\.linear\.weight",),
        "give Medusa heads that `specfrontier train` wrote",
    ),
    Layout("Medusa heads that `specfrontier train` wrote", (r"residuals\.0\.weight",)),
    Layout("a vertical head that `specfrontier train` wrote", (r"gate\.scalar$",)),
    Layout(
        "an AR model that `specfrontier train` wrote", (r"transformer\.layers\.", r"conditioner\.")
    ),
    Layout("Janus in the layout of transformers", (r"model\.generation_embeddings\.",)),
    Layout("Emu3 in the layout of transformers", (r"model\.text_model\.", r"model\.vqmodel\.")),
    Layout(
        "GLM-Image in the layout of transformers",
        (r"model\.visual\.", r"model\.vqmodel\."),
        "give it to the family glm_image",
    ),
    Layout("an official LlamaGen transformer", (r"tok_embeddings\.weight",)),
    Layout("a LlamaGen transformer in Hugging Face naming", (r"model\.cls_embedding\.",)),
    Layout("a Chameleon model in Hugging Face naming", (r"model\.vqmodel\.",)),
    Layout("a VQ tokenizer (LlamaGen's layout)", (r"encoder\.conv_blocks\.",)),
    Layout("a VQGAN tokenizer (taming's layout)", (r"encoder\.down\.",)),
    Layout("a T5 text encoder", (r"encoder\.block\.0\.layer\.0\.SelfAttention\.",)),
    Layout("an Inception network", (r"Mixed_5b\.",)),
    Layout("a CLIP model in open_clip's naming", (r"visual\.transformer\.resblocks\.",)),
    Layout("ImageReward", (r"blip\.visual_encoder\.",)),
    Layout("a VGG network", (r"classifier\.6\.",)),
    Layout("a CLIP model", (r"(text|vision)_model\.",)),
    Layout("an EAGLE drafter", (r"fc\.weight",)),
    Layout("a decoder in Hugging Face naming", (r"model\.layers\.0\.self_attn\.",)),
)

# Checkpoints that only their authors' code reads, by the `model_type` of their config.json.
FOREIGN_CONFIGS = {
    "multi_modality": Layout("Janus in DeepSeek's own layout", (), _JANUS_FIX),
    "Emu3": Layout("Emu3 in BAAI's own layout", (), _EMU3_FIX),
}


def find_layout(names: Iterable[str]) -> Layout | None:
    """The kind of checkpoint whose tensors have these names; None if unknown."""
    listed = list(names)
    for layout in _LAYOUTS:
        if all(any(re.match(start, name) for name in listed) for start in layout.starts):
            return layout
    return None
