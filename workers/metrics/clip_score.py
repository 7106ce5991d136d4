"""CLIP score: how well images fit their captions, as a mean cosine; of a CLIP that the user gives, or of the tiny one.

With `metrics.clip`, the folder of a CLIP (the papers': OpenAI's ViT-B/32), captions begin with "A photo depicts ",
are cut off after 77 tokens, and images are brought to 256 pixels before CLIP's own resizing; the cosine is neither
scaled nor clamped. The built-in one is transformers' CLIPModel of a small config, with a word-level tokenizer over the
scenes' vocabulary. Cosines of the two say nothing about each other: `identity` stands beside every number. They are
taken here, because torchmetrics' CLIPScore reads the towers' outputs as tensors, which those of transformers 5 are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.clip_files import folder_identity, load_clip_folder
from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean, mean_estimate
from workers.metrics.metric import Metric, MetricInputs, ScoreContext, Scorer, ScorerFactory
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors
from workers.models.own_files import read_config
from workers.models.weights import KeyMapping, load_weights, skip_init
from workers.scenes.captions import SLOTS, caption, parse
from workers.scenes.images import IMAGE_SIZE

if TYPE_CHECKING:  # imported where it is used: it takes seconds, and not every process loads one
    from transformers import CLIPConfig

NAME, KEY, PREFIX = "scenes-clip", "clip", "A photo depicts "
BUILTIN = Path(__file__).parents[1] / "models" / "builtin" / "scenes" / "clip.safetensors"
PAD, START, STOP = 0, 1, 3  # 2 as the id of STOP would make transformers fall back to CLIP's old, wrong pooling
_GLUE = ("a", "at", "background", "of", "on", "the")
_SLOT_WORDS = {word for _, values in SLOTS for value in values for word in value.split()} - {"none", "alone"}
WORDS = ("<pad>", "<start>", "<unused>", "<stop>", *sorted(_SLOT_WORDS.union(_GLUE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Sizes of both towers. `words` is the vocabulary, in the order of the ids."""

    dim: int = 96
    heads: int = 3
    ffn_dim: int = 256
    vision_layers: int = 4
    text_layers: int = 2
    patch: int = 8
    projection: int = 64
    text_len: int = 20
    image_size: int = IMAGE_SIZE
    words: tuple[str, ...] = WORDS

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> ClipConfig:
        """Raises WeightsError when the fields are not this config's, or its vocabulary is not that of the scenes."""
        given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
        try:
            config = cls(**given)
        except TypeError as error:
            raise WeightsError(f"not the config of a scenes CLIP: {error}") from None
        if config.words != WORDS:
            raise WeightsError("a CLIP for another vocabulary than the scenes': train it again")
        return config

    def transformers_config(self) -> CLIPConfig:
        """The same sizes in transformers' words."""
        from transformers import CLIPConfig

        shared = {
            "hidden_size": self.dim,
            "intermediate_size": self.ffn_dim,
            "num_attention_heads": self.heads,
            "projection_dim": self.projection,
        }
        text = shared | {
            "num_hidden_layers": self.text_layers,
            "vocab_size": len(self.words),
            "max_position_embeddings": self.text_len,
            "pad_token_id": PAD,
            "bos_token_id": START,
            "eos_token_id": STOP,
        }
        vision = shared | {
            "num_hidden_layers": self.vision_layers,
            "image_size": self.image_size,
            "patch_size": self.patch,
        }
        return CLIPConfig(text_config=text, vision_config=vision, projection_dim=self.projection)


class SceneClip(nn.Module):
    """A CLIPModel and its words. Embeddings have length 1."""

    def __init__(self, config: ClipConfig, weights: str = "untrained") -> None:
        """`weights`: hash of the file that fills the model."""
        from transformers import CLIPModel

        super().__init__()
        self.config = config
        self.identity = f"{NAME}@{weights}"
        self.clip = CLIPModel(config.transformers_config())
        self._ids = {word: number for number, word in enumerate(config.words)}

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Word ids [n, text_len] and which of them exist (1 or 0), from captions in their canonical wording.

        Raises:
            ValueError: a caption that is no scene's.
        """
        ids = torch.full((len(captions), self.config.text_len), PAD)
        for row, text in enumerate(captions):
            words = [START, *(self._ids[word] for word in caption(parse(text)).split()), STOP]
            ids[row, : len(words)] = torch.tensor(words)
        return ids, (ids != PAD).long()

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Embeddings [n, projection] of captions."""
        return self.embed_tokens(*self.tokens(captions))

    def embed_tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Embeddings [n, projection] of word ids and their mask, both [n, text_len]."""
        device = self.clip.logit_scale.device
        out = self.clip.get_text_features(input_ids=ids.to(device), attention_mask=mask.to(device)).pooler_output
        return F.normalize(out.float(), dim=1)

    def embed_images(self, images: Tensor) -> Tensor:
        """Embeddings [n, projection] of images [n, 3, H, W] in [0, 1]."""
        size = self.config.image_size
        if images.dim() != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"the scenes CLIP takes images [n, 3, {size}, {size}] in [0, 1], got {tuple(images.shape)}"
            )
        device = self.clip.logit_scale.device
        out = self.clip.get_image_features(pixel_values=images.to(device) * 4 - 2).pooler_output
        return F.normalize(out.float(), dim=1)

    @torch.no_grad()
    def cosines(self, images: Tensor, captions: Sequence[str], batch: int = 256) -> Tensor:
        """Cosine [n] of each image [n, 3, H, W] with its own caption, float32 on the CPU."""
        if len(images) != len(captions):
            raise ValueError(f"{len(images)} images and {len(captions)} captions: give one caption per image")
        parts = []
        for start in range(0, len(captions), batch):
            seen = self.embed_images(images[start : start + batch])
            parts.append((seen * self.embed_captions(captions[start : start + batch])).sum(1).cpu())
        return torch.cat(parts)


def clip_score(model: SceneClip, images: Tensor, captions: Sequence[str]) -> Estimate:
    """Mean cosine of images and their captions, with its standard error over images."""
    return mean_estimate(model.cosines(images, captions))


def load_clip(path: Path = BUILTIN) -> SceneClip:
    """The CLIP of a weight file whose header holds its config; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another family.
    """
    config = ClipConfig.from_mapping(read_config(path))
    model = skip_init(lambda: SceneClip(config, content_hash(path)))
    load_weights(model, load_tensors(path), [KeyMapping("{...}", "{...}")], where=path)
    return model.eval().requires_grad_(False)


def _load_score(subject: ScoreContext) -> Scorer:
    if KEY in subject.weights:
        return _load_given(Path(subject.weights[KEY]).expanduser(), subject.device)
    own = subject.folder / BUILTIN.name
    model = load_clip(own if own.is_file() else BUILTIN).to(subject.device)
    if subject.image_size != model.config.image_size:
        size = model.config.image_size
        raise MetricUnavailable(f"the scenes CLIP reads {size}-pixel images, the target draws {subject.image_size}")
    try:
        for text in subject.captions:
            parse(text)
    except ValueError as error:
        raise MetricUnavailable(f"the scenes CLIP reads captions of scenes only: {error}") from None
    return Scorer(model.identity, lambda images, captions, _: model.cosines(images, captions))


def _load_given(folder: Path, device: torch.device) -> Scorer:
    model = load_clip_folder(folder).to(device)

    def read(images: Tensor, captions: Sequence[str], features: Tensor | None) -> Tensor:
        return model.cosines(squares(images), [PREFIX + text for text in captions])

    return Scorer(folder_identity("clip-photo256", folder), read)


def _compute(evidence: MetricInputs) -> Estimate:
    return grouped_mean(evidence.column("score.clip_score"), evidence.column("caption_id"))


SCORERS = (ScorerFactory(name="clip_score", load=_load_score, takes=(KEY,)),)
METRICS = (
    Metric(
        name="clip_score",
        direction="maximize",
        unit="cosine",
        about="how well images fit their captions: mean cosine of the CLIP that the score names",
        needs=("score.clip_score",),
        compute=_compute,
    ),
)
