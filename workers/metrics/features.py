"""The built-in feature extractor for scenes: 64 features for Frechet distances, and heads for a
scene's attributes.

Distances on these features are not comparable with those on Inception's, so every number is stored
with the extractor's `identity` ("scenes-features@<hash of the weight file>").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.params import as_tuples
from workers.metrics.networks import Extractor, ExtractorFactory
from workers.models.checkpoint_files import WeightsError, content_hash
from workers.models.own_files import read_module
from workers.scenes.captions import SLOT_INDEX, SLOTS
from workers.scenes.images import IMAGE_SIZE

_ARCHITECTURE = "scenes-features"
BUILTIN = Path(__file__).parents[1] / "models" / "builtin" / "scenes" / "features.safetensors"
SLOT_SIZES = tuple(len(values) for _, values in SLOTS)
_CORRUPTIONS = ("blur", "noise", "wobble")
_CLASS_HEADS = ("first_shape", "first_colour")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureConfig:
    """Sizes of the feature net."""

    # Channels of the convolutions: at the image's side, and at half, quarter and eighth of it.
    channels: tuple[int, int, int, int] = (32, 48, 80, 72)
    squeeze: int = 24  # channels of the last convolution
    dim: int = 64  # number of features
    hidden: int = 128  # width of the heads
    image_size: int = IMAGE_SIZE
    slots: tuple[int, ...] = SLOT_SIZES  # number of values of each attribute slot

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> FeatureConfig:
        """Raises WeightsError when the slots are not those of the scenes, TypeError for fields of
        another config.
        """
        config = cls(**{key: as_tuples(value) for key, value in fields.items()})
        if config.slots != SLOT_SIZES:
            raise WeightsError(
                f"the extractor's attribute slots have {config.slots} values, the scenes' "
                f"{SLOT_SIZES}: train it again"
            )
        return config


class SceneFeatures(Extractor):
    """Seven convolutions, a spatial flatten (relations depend on positions), and features of
    variance 1 over scenes.

    The heads read the features, so a Frechet distance on the features is sensitive to every
    attribute. `quality` is a linear read-out of how much blur, noise and wobble (a random
    displacement of pixels) an image has: a network trained on attributes alone learns to ignore
    exactly those faults.
    """

    name = "scenes"
    batch = 256

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.dim
        self.side = self.image_size = config.image_size
        half, detail, quarter, eighth = config.channels
        self.convolutions = nn.Sequential(
            _block(3, half, kernel=4, stride=2),
            _block(half, detail),
            _block(detail, quarter, stride=2),
            _block(quarter, quarter),
            _block(quarter, eighth, stride=2),
            _block(eighth, eighth),
            _block(eighth, config.squeeze, kernel=1),
        )
        side = config.image_size // 8
        self.project = nn.Linear(config.squeeze * side * side, config.dim, bias=False)
        self.standardise = nn.BatchNorm1d(config.dim, affine=False)
        self.heads = nn.Sequential(
            nn.Linear(config.dim, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, sum(config.slots)),
        )
        self.quality = nn.Linear(config.dim, len(_CORRUPTIONS))

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, d] of images [n, 3, H, W] in [0, 1]."""
        size = self.config.image_size
        if images.dim() != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"the scenes feature extractor takes images [n, 3, {size}, {size}] in [0, 1], got "
                f"{tuple(images.shape)}"
            )
        maps = self.convolutions(images * 2 - 1)
        features: Tensor = self.standardise(self.project(maps.flatten(1)))
        return features

    def attribute_logits(self, features: Tensor) -> tuple[Tensor, ...]:
        """Logits [n, values] of every attribute slot, from features [n, d]."""
        logits: Tensor = self.heads(features)
        return torch.split(logits, list(self.config.slots), dim=1)

    def read(self, features: Tensor) -> Tensor:
        """The most likely attributes, int64 [n, slots], from features [n, d]."""
        return torch.stack([logits.argmax(1) for logits in self.attribute_logits(features)], dim=1)

    @torch.no_grad()
    def class_logits(self, features: Tensor) -> Tensor:
        """Log-probabilities [n, shapes * colours] of the first object's shape and colour, from
        features [n, d].

        The product of the two heads, which are independent given the features: 48 classes; float64
        on the CPU.
        """
        logits = self.attribute_logits(
            features.to(self.project.weight.device, self.project.weight.dtype)
        )
        shape, colour = (
            logits[SLOT_INDEX[name]].double().cpu().log_softmax(1) for name in _CLASS_HEADS
        )
        return (shape[:, :, None] + colour[:, None, :]).flatten(1)


def _block(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    padding = (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def load_features(path: Path = BUILTIN) -> SceneFeatures:
    """The extractor of a weight file whose header has its config; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another model.
    """

    def build(fields: Mapping[str, Any]) -> SceneFeatures:
        return SceneFeatures(FeatureConfig.from_mapping(fields))

    extractor, _ = read_module(path, "the scenes' feature extractor", build)
    extractor.identity = f"{_ARCHITECTURE}@{content_hash(path)}"
    return extractor.requires_grad_(False)


SCENES = ExtractorFactory(
    key=SceneFeatures.name, role="features", architecture=_ARCHITECTURE, load=load_features
)
