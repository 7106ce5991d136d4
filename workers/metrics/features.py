"""The built-in feature net for scenes: 64-d features for Frechet distances, and heads that read a scene's attributes.

A feature extractor is part of a result: distances on these features say nothing about Inception's. So `identity`
("scenes-features@<hash of the weight file>") stands beside every number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.extractor import ExtractorInfo
from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors
from workers.models.own_files import read_config
from workers.models.weights import KeyMapping, load_weights, skip_init
from workers.scenes.captions import SLOT_INDEX, SLOTS
from workers.scenes.images import IMAGE_SIZE

NAME, COLUMN = "scenes-features", "scenes"
BUILTIN = Path(__file__).parents[1] / "models" / "builtin" / "scenes" / "features.safetensors"
SLOT_SIZES = tuple(len(values) for _, values in SLOTS)
CORRUPTIONS = ("blur", "noise", "wobble")
CLASS_HEADS = ("first_shape", "first_colour")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureConfig:
    """Sizes. `channels`: of the first layer, and at half, quarter and eighth of the image's side.

    `slots`: number of values of each attribute slot.
    """

    channels: tuple[int, int, int, int] = (32, 48, 80, 72)
    squeeze: int = 24
    dim: int = 64
    hidden: int = 128
    image_size: int = IMAGE_SIZE
    slots: tuple[int, ...] = SLOT_SIZES

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> FeatureConfig:
        """Raises WeightsError when the fields are not this config's, or its slots are not those of the scenes."""
        given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
        try:
            config = cls(**given)
        except TypeError as error:
            raise WeightsError(f"not the config of a scenes feature net: {error}") from None
        if config.slots != SLOT_SIZES:
            raise WeightsError(
                f"a feature net for slots of {config.slots} values, but scenes have {SLOT_SIZES}: train it again"
            )
        return config


class SceneFeatures(nn.Module):
    """Seven convolutions, a spatial flatten (places matter to relations), and features of variance 1 over its scenes.

    The heads are read from the features, so what they tell apart, a Frechet distance on the features can see. `quality`
    is a linear read-out of how blurred, noisy and wobbly a scene was made: without it, a net for attributes learns to
    look past exactly those faults.
    """

    name = COLUMN

    def __init__(self, config: FeatureConfig, weights: str = "untrained") -> None:
        """`weights`: hash of the file that fills the net."""
        super().__init__()
        self.config = config
        self.identity = f"{NAME}@{weights}"
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
            nn.Linear(config.dim, config.hidden), nn.ReLU(), nn.Linear(config.hidden, sum(config.slots))
        )
        self.quality = nn.Linear(config.dim, len(CORRUPTIONS))

    @property
    def num_features(self) -> int:
        """Width of the features (the name torchmetrics asks for)."""
        return self.config.dim

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.config.dim

    @property
    def side(self) -> int:
        """Pixels of the images that it takes."""
        return self.config.image_size

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, d] of images [n, 3, H, W] in [0, 1]."""
        size = self.config.image_size
        if images.dim() != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"the scenes feature net takes images [n, 3, {size}, {size}] in [0, 1], got {tuple(images.shape)}"
            )
        maps = self.convolutions(images * 2 - 1)
        features: Tensor = self.standardise(self.project(maps.flatten(1)))
        return features

    def attribute_logits(self, features: Tensor) -> tuple[Tensor, ...]:
        """Logits [n, values] of every attribute slot, from features [n, d]."""
        logits: Tensor = self.heads(features)
        return torch.split(logits, list(self.config.slots), dim=1)

    def read(self, features: Tensor) -> Tensor:
        """The likeliest attribute rows, int64 [n, slots], from features [n, d]."""
        return torch.stack([logits.argmax(1) for logits in self.attribute_logits(features)], dim=1)

    @torch.no_grad()
    def class_logits(self, features: Tensor) -> Tensor:
        """Log-probabilities [n, shapes * colours] of the first object's shape and colour, from features [n, d].

        The product of the two heads, which are independent given the features: 48 classes; float64 on the CPU.
        """
        every = self.attribute_logits(features.to(self.project.weight.device, self.project.weight.dtype))
        shape, colour = (every[SLOT_INDEX[name]].double().cpu().log_softmax(1) for name in CLASS_HEADS)
        return (shape[:, :, None] + colour[:, None, :]).flatten(1)

    @torch.no_grad()
    def extract(self, images: Tensor, batch: int = 256) -> Tensor:
        """Features [n, d] of any number of images, `batch` at a time on the net's device; float32 on the CPU."""
        weight = self.project.weight
        parts = [self(part.to(weight.device, weight.dtype)).float().cpu() for part in torch.split(images, batch)]
        return torch.cat(parts)


def _block(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    padding = (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def identity_of(path: Path) -> str:
    """What a net of this weight file calls itself.

    Raises:
        WeightsError: nothing is there.
    """
    return f"{NAME}@{content_hash(path)}"


def announce_features(path: Path) -> ExtractorInfo:
    """What a net of this weight file will call itself and take, from its header.

    Raises:
        WeightsError: the file is missing, damaged, or of another family.
    """
    config = FeatureConfig.from_mapping(read_config(path))
    return ExtractorInfo(identity_of(path), config.dim, config.image_size)


def load_features(path: Path = BUILTIN) -> SceneFeatures:
    """The feature net of a weight file whose header holds its config; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another family.
    """
    config = FeatureConfig.from_mapping(read_config(path))
    net = skip_init(lambda: SceneFeatures(config, content_hash(path)))
    load_weights(net, load_tensors(path), [KeyMapping("{...}", "{...}")], where=path)
    return net.eval().requires_grad_(False)


def attribute_loss(logits: tuple[Tensor, ...], rows: Tensor) -> Tensor:
    """Mean cross-entropy in nats over images and slots; rows [n, slots]."""
    return torch.stack([F.cross_entropy(part, rows[:, i]) for i, part in enumerate(logits)]).mean()
