"""VGG-16's second fully connected layer, on which Kynkaanniemi et al. (2019) measure precision and recall.

The weight file is torchvision's for ImageNet (`vgg16-397923af.pth`: features.{0..28}, classifier.{0, 3, 6}), read
without torchvision. Features are the 4096 of classifier.3 before its ReLU, as in the published evaluation scripts;
images are resized to 224 x 224 (here from 256-pixel squares) and normalised by ImageNet's mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.networks import Extractor, load_frozen, register_extractor
from workers.metrics.pixels import SIDE, squares, squashed_input
from workers.models.weights import KeyMapping

_WIDTH, _INPUT_SIZE = 4096, 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # 2 x 2 max pooling after each
_TABLE = (KeyMapping("classifier.6.{...}", None), KeyMapping("{...}", "{...}"))  # class logits are not needed


class VggFeatures(Extractor):
    """4096 features of an image."""

    side = SIDE

    def __init__(self, stages: Sequence[Sequence[int]] = _STAGES, width: int = _WIDTH) -> None:
        """`stages`: channels of the convolutions; `width`: number of features."""
        super().__init__()
        self.width = width
        layers: list[nn.Module] = []
        channels = 3
        for stage in stages:
            for out_channels in stage:
                layers += [nn.Conv2d(channels, out_channels, 3, padding=1), nn.ReLU(inplace=True)]
                channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        cells = (_INPUT_SIZE // 2 ** len(stages)) ** 2
        self.classifier = nn.ModuleDict({"0": nn.Linear(channels * cells, width), "3": nn.Linear(width, width)})

    def forward(self, x: Tensor) -> Tensor:
        """Features [n, 4096] of normalised images [n, 3, 224, 224]."""
        hidden = F.relu(self.classifier["0"](self.features(x).flatten(1)), inplace=True)
        features: Tensor = self.classifier["3"](hidden)
        return features

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return squashed_input(squares(images), _INPUT_SIZE, mean=_MEAN, std=_STD)


def load_vgg(path: Path, *, stages: Sequence[Sequence[int]] = _STAGES, width: int = _WIDTH) -> VggFeatures:
    """The network of a weight file in torchvision's layout. Raises WeightsError (see `load_frozen`)."""
    return load_frozen(lambda: VggFeatures(stages, width), path, _TABLE)


register_extractor("vgg", role="manifold", architecture="vgg16-fc2", load=load_vgg)
