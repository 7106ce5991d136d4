"""ImageReward v1 (Xu et al. 2023): how people would judge an image for its caption, in deviations from their mean.

`metrics.image_reward` is its file (`ImageReward.pt`: BLIP's ViT-L/16, BERT with cross-attention, and a linear head).
The towers are transformers' BLIP; captions are read by BERT's uncased tokenizer, whose vocab.txt or tokenizer.json
lies beside the checkpoint, in 35 tokens. The reward is the head's number on BERT's first state, less 0.16717, over
1.03334: the published mean and deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from workers.metrics.clip_files import AT_ONCE, combined_hash
from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean
from workers.metrics.linear_head import LinearHead
from workers.metrics.metric import Metric, MetricInputs, ScoreContext, Scorer, ScorerFactory
from workers.metrics.pixels import clip_input, squares
from workers.models.checkpoint_files import WeightsError, load_tensors
from workers.models.weights import KeyMapping, load_weights, skip_init

if TYPE_CHECKING:
    from transformers import BertTokenizer, BlipTextConfig, BlipVisionConfig

KEY = "image_reward"
MEAN, DEVIATION, TEXT_LENGTH = 0.16717362830052426, 1.0333394966054072, 35
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")
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
TABLE = (
    KeyMapping("blip.visual_encoder.cls_token", "vision.embeddings.class_embedding"),
    KeyMapping("blip.visual_encoder.pos_embed", "vision.embeddings.position_embedding"),
    KeyMapping("blip.visual_encoder.patch_embed.proj.{...}", "vision.embeddings.patch_embedding.{...}"),
    *(
        KeyMapping(f"blip.visual_encoder.blocks.{{i}}.{a}.{{...}}", f"vision.encoder.layers.{{i}}.{b}.{{...}}")
        for a, b in _BLOCK.items()
    ),
    KeyMapping("blip.visual_encoder.norm.{...}", "vision.post_layernorm.{...}"),
    KeyMapping("blip.text_encoder.embeddings.position_ids", None),
    KeyMapping("blip.text_encoder.{...}", "text.{...}"),
    KeyMapping("blip.vision_proj.{...}", None),  # of BLIP's own training
    KeyMapping("blip.text_proj.{...}", None),
    KeyMapping("mlp.{...}", "head.{...}"),
)


class ImageReward(nn.Module):
    """Both towers and the head."""

    def __init__(self, vision: BlipVisionConfig, text: BlipTextConfig, tokenizer: BertTokenizer) -> None:
        super().__init__()
        from transformers import BlipTextModel, BlipVisionModel

        self.vision = BlipVisionModel(vision)
        self.text = BlipTextModel(text, add_pooling_layer=False)
        self.head = LinearHead(text.hidden_size)
        side: Any = vision.image_size
        self.tokenizer, self.image_size = tokenizer, int(side)

    @torch.no_grad()
    def rewards(self, pictures: Sequence[Image.Image], captions: Sequence[str]) -> Tensor:
        """Reward [n] of each picture for its own caption, float32 on the CPU."""
        if len(pictures) != len(captions):
            raise ValueError(f"{len(pictures)} images and {len(captions)} captions: give one caption per image")
        starts = range(0, len(captions), AT_ONCE)
        return torch.cat([self._some(pictures[at : at + AT_ONCE], captions[at : at + AT_ONCE]) for at in starts])

    def _some(self, pictures: Sequence[Image.Image], captions: Sequence[str]) -> Tensor:
        device = next(self.head.parameters()).device
        words = self.tokenizer(
            list(captions), padding="max_length", truncation=True, max_length=TEXT_LENGTH, return_tensors="pt"
        )
        seen = self.vision(clip_input(pictures, self.image_size).to(device)).last_hidden_state
        states = self.text(
            input_ids=words["input_ids"].to(device),
            attention_mask=words["attention_mask"].to(device),
            encoder_hidden_states=seen,
        ).last_hidden_state
        rewards: Tensor = (self.head(states[:, 0].float()) - MEAN) / DEVIATION
        return rewards.cpu()


def load_image_reward(
    path: Path, *, vision: BlipVisionConfig | None = None, text: BlipTextConfig | None = None
) -> ImageReward:
    """The model of a checkpoint, its tokenizer beside it; `vision`, `text`: its sizes (default those of v1).

    Frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; no tokenizer beside it.
    """
    from transformers import BlipTextConfig, BlipVisionConfig

    tensors, tokenizer = load_tensors(path), _tokenizer(path.parent)
    seeing, reading = vision or BlipVisionConfig(**VISION), text or BlipTextConfig(**TEXT)
    if len(tokenizer) > reading.vocab_size:
        raise WeightsError(
            f"{path.parent}: a tokenizer of {len(tokenizer)} words, but the model knows {reading.vocab_size}; give "
            "BERT's, uncased"
        )
    model = skip_init(lambda: ImageReward(seeing, reading, tokenizer))
    load_weights(model, tensors, TABLE, where=path)
    return model.eval().requires_grad_(False)


def _tokenizer(folder: Path) -> BertTokenizer:
    from transformers import BertTokenizer

    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise WeightsError(f"{folder}: no tokenizer in it; copy vocab.txt or tokenizer.json of bert-base-uncased there")
    try:
        tokenizer: BertTokenizer = BertTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise WeightsError(f"{folder}: its tokenizer cannot be read ({error}); download it again") from error
    return tokenizer


def _load_score(subject: ScoreContext) -> Scorer:
    if KEY not in subject.weights:
        raise MetricUnavailable(f"no weights are given for it: metrics.{KEY}, the file ImageReward.pt")
    path = Path(subject.weights[KEY]).expanduser()
    model = load_image_reward(path).to(subject.device)

    def read(images: Tensor, captions: Sequence[str], features: Tensor | None) -> Tensor:
        return model.rewards(squares(images, None), captions)

    return Scorer(f"image-reward@{combined_hash([path])}", read)


def _compute(evidence: MetricInputs) -> Estimate:
    return grouped_mean(evidence.column("score.image_reward"), evidence.column("caption_id"))


SCORERS = (ScorerFactory(name="image_reward", load=_load_score, takes=(KEY,)),)
METRICS = (
    Metric(
        name="image_reward",
        direction="maximize",
        unit="deviations",
        about="ImageReward v1: how people would judge an image for its caption, in deviations from their mean",
        needs=("score.image_reward",),
        compute=_compute,
    ),
)
