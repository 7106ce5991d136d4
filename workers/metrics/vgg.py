"""VGG-16's second fully connected layer, on which Kynkaanniemi et al. (2019) measure precision and recall.

Read is torchvision's file for ImageNet (`vgg16-397923af.pth`: features.{0..28}, classifier.{0, 3, 6}), without
torchvision. Features are the 4096 of classifier.3 before its ReLU, as the published evaluation scripts take them;
images are squashed to 224 x 224 (from 256-pixel squares here) and scaled by ImageNet's mean and deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.extractor import ExtractorFactory, ExtractorInfo
from workers.metrics.pixels import SIDE, squares, squashed_input
from workers.models.checkpoint_files import content_hash, load_tensors
from workers.models.weights import KeyMapping, load_weights, skip_init

NAME, FEATURES, INPUT = "vgg16-fc2", 4096, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # a maximum of 2 x 2 after each
TABLE = (KeyMapping("classifier.6.{...}", None), KeyMapping("{...}", "{...}"))  # the classes are not needed


class VggFeatures(nn.Module):
    """4096 features of an image."""

    name, side = "vgg", SIDE

    def __init__(
        self, weights: str = "untrained", *, stages: Sequence[Sequence[int]] = STAGES, width: int = FEATURES
    ) -> None:
        """`weights`: hash of the file that fills the net; `stages`, `width`: channels of the convolutions, features."""
        super().__init__()
        self.identity, self.width = f"{NAME}@{weights}", width
        layers: list[nn.Module] = []
        channels = 3
        for stage in stages:
            for wide in stage:
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(inplace=True)]
                channels = wide
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        cells = (INPUT // 2 ** len(stages)) ** 2
        self.classifier = nn.ModuleDict({"0": nn.Linear(channels * cells, width), "3": nn.Linear(width, width)})

    def forward(self, x: Tensor) -> Tensor:
        """Features [n, 4096] of scaled images [n, 3, 224, 224]."""
        hidden = F.relu(self.classifier["0"](self.features(x).flatten(1)), inplace=True)
        features: Tensor = self.classifier["3"](hidden)
        return features

    @torch.no_grad()
    def extract(self, images: Tensor, batch: int = 64) -> Tensor:
        """Features [n, 4096] of any number of images [n, 3, H, W] in [0, 1], float32 on the CPU."""
        device = next(self.parameters()).device
        parts = [squashed_input(squares(part), INPUT, mean=MEAN, std=STD) for part in torch.split(images, batch)]
        return torch.cat([self(part.to(device)).cpu() for part in parts])


def load_vgg(path: Path, *, stages: Sequence[Sequence[int]] = STAGES, width: int = FEATURES) -> VggFeatures:
    """The net of a weight file in torchvision's layout; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or another net's; it is named.
    """
    net = skip_init(lambda: VggFeatures(content_hash(path), stages=stages, width=width))
    load_weights(net, load_tensors(path), TABLE, where=path)
    return net.eval().requires_grad_(False)


def announce_vgg(path: Path) -> ExtractorInfo:
    """What a net of this file will call itself. Raises WeightsError when nothing is there."""
    return ExtractorInfo(f"{NAME}@{content_hash(path)}", FEATURES, None)


EXTRACTORS = (ExtractorFactory("vgg", "manifold", announce_vgg, load_vgg),)
