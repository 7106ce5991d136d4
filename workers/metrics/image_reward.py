"""ImageReward v1 (Xu et al. 2023): predicted human rating of an image for its caption, in standard
deviations.

The key `metrics.image_reward` of models.yaml gives its weight file (`ImageReward.pt`: BLIP's
ViT-L/16, BERT with cross-attention, and a linear head). The towers are transformers' BLIP. Captions
are padded or truncated to 35 tokens by BERT's uncased tokenizer; its vocab.txt or tokenizer.json
must be next to the checkpoint. The reward is the head's output on BERT's last hidden state at the
first token, minus 0.16717, divided by 1.03334: the published mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workers.metrics.aesthetic import LinearHead
from workers.metrics.clip_files import load_tokenizer
from workers.metrics.networks import ScoreContext, Scorer, load_frozen, register_score
from workers.metrics.pixels import clip_input, squares
from workers.models.checkpoint_files import WeightsError, content_hash
from workers.models.weights import KeyMapping

if TYPE_CHECKING:
    from transformers import BertTokenizer, BlipTextConfig, BlipVisionConfig

KEY = "image_reward"
_MEAN = 0.16717362830052426
_STD = 1.0333394966054072
_TEXT_LENGTH = 35
VISION: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
}
TEXT: dict[str, Any] = {
    "hidden_size": 768,
    "encoder_hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30524,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}

_BLOCK = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_TABLE = (
    KeyMapping("blip.visual_encoder.cls_token", "vision.embeddings.class_embedding"),
    KeyMapping("blip.visual_encoder.pos_embed", "vision.embeddings.position_embedding"),
    KeyMapping(
        "blip.visual_encoder.patch_embed.proj.{...}", "vision.embeddings.patch_embedding.{...}"
    ),
    *(
        KeyMapping(
            f"blip.visual_encoder.blocks.{{i}}.{a}.{{...}}",
            f"vision.encoder.layers.{{i}}.{b}.{{...}}",
        )
        for a, b in _BLOCK.items()
    ),
    KeyMapping("blip.visual_encoder.norm.{...}", "vision.post_layernorm.{...}"),
    KeyMapping("blip.text_encoder.embeddings.position_ids", None),
    KeyMapping("blip.text_encoder.{...}", "text.{...}"),
    KeyMapping("blip.vision_proj.{...}", None),  # for BLIP's own training
    KeyMapping("blip.text_proj.{...}", None),
    KeyMapping("mlp.{...}", "head.{...}"),
)


class ImageReward(nn.Module):
    """Both towers and the head."""

    def __init__(
        self, vision: BlipVisionConfig, text: BlipTextConfig, tokenizer: BertTokenizer
    ) -> None:
        super().__init__()
        from transformers import BlipTextModel, BlipVisionModel

        self.vision = BlipVisionModel(vision)
        self.text = BlipTextModel(text, add_pooling_layer=False)
        self.head = LinearHead(text.hidden_size)
        side: Any = vision.image_size
        self.tokenizer = tokenizer
        self.image_size = int(side)

    @torch.no_grad()
    def rewards(self, images: Tensor, captions: Sequence[str]) -> Tensor:
        """Reward [n] of each image [n, 3, H, W] for its own caption, float32 on the CPU."""
        device = next(self.head.parameters()).device
        tokens = self.tokenizer(
            list(captions),
            padding="max_length",
            truncation=True,
            max_length=_TEXT_LENGTH,
            return_tensors="pt",
        )
        image = self.vision(
            clip_input(squares(images, None), self.image_size).to(device)
        ).last_hidden_state
        states = self.text(
            input_ids=tokens["input_ids"].to(device),
            attention_mask=tokens["attention_mask"].to(device),
            encoder_hidden_states=image,
        ).last_hidden_state
        rewards: Tensor = (self.head(states[:, 0].float()) - _MEAN) / _STD
        return rewards.cpu()


def load_image_reward(
    path: Path, *, vision: BlipVisionConfig | None = None, text: BlipTextConfig | None = None
) -> ImageReward:
    """Load the model and the tokenizer next to it. `vision` and `text` are the configs of the
    towers; by default they are those of v1.

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; there is no
            tokenizer next to it.
    """
    from transformers import BertTokenizer, BlipTextConfig, BlipVisionConfig

    if not path.is_file():
        raise WeightsError(f"{path}: no such file; check the path")
    tokenizer = load_tokenizer(
        BertTokenizer, path.parent, ("vocab.txt", "tokenizer.json"), "those of bert-base-uncased"
    )
    vision = vision or BlipVisionConfig(**VISION)
    text = text or BlipTextConfig(**TEXT)
    if len(tokenizer) > text.vocab_size:
        raise WeightsError(
            f"{path.parent}: its tokenizer has {len(tokenizer)} entries, but the model's "
            f"vocabulary only {text.vocab_size}; copy the files of bert-base-uncased there"
        )
    return load_frozen(lambda: ImageReward(vision, text, tokenizer), path, _TABLE)


def _load(context: ScoreContext) -> Scorer:
    path = context.path(KEY)
    return Scorer(
        f"image-reward@{content_hash(path)}", load_image_reward(path).to(context.device).rewards
    )


register_score(
    "image_reward",
    unit="standard deviations",
    about=(
        "ImageReward v1: predicted human rating of an image for its caption, in standard "
        "deviations from the mean"
    ),
    load=_load,
    weights={KEY: "the file ImageReward.pt"},
)
