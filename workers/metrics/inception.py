"""The standard FID network: Inception-v3 as TensorFlow's release of 2015-12-05 has it, without
torchvision.

The weight file is `pt_inception-2015-12-05-6726825d.pth`, the port that pytorch-fid, torchmetrics
and clean-fid share. It differs from torchvision's Inception: average pooling does not count the
padding, the last block uses max pooling (an error of the original that every port keeps), and there
are 1008 classes. Features are the 2048 after the global average; class logits omit the bias, as in
the Inception score's own code (Salimans et al. 2016).

Both ways of resizing start from 256-pixel squares (Lanczos, 8 bits); each has its own key and
identity:

    inception       bicubic with antialiasing in floats, clean-fid's "clean" (Parmar et al. 2022),
                    as in the papers
    inception_tf    TensorFlow 1's bilinear without antialiasing, as in the original FID and
                    torch-fidelity

The Inception score asks whether objects are clear and diverse: exp of the mean divergence KL(p(y |
image) || p(y)) (Salimans et al. 2016). With Inception, y is one of 1008 classes; with the scenes'
extractor, it is the shape and the colour of the first object, 48 classes. One split over all
images; biased in n, so compare at equal n. It ranges from 1 to the number of classes. The tests
compare it with torchmetrics, which is not used here: it shuffles images with the global random
generator and has no jackknife over captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.definition import CLASSIFIER, FEATURES
from workers.metrics.estimate import Estimate, block_sizes, with_left_out
from workers.metrics.metric import MetricInputs, register_metric
from workers.metrics.networks import Extractor, load_frozen, register_extractor
from workers.metrics.pixels import SIDE, clean, squares, stacked, tensorflow_bilinear
from workers.models.weights import KeyMapping

_WIDTH = 2048
_CLASSES = 1008
_INPUT_SIZE = 299
# Names in the file and here are the same. Files saved by a newer torch also have batch counters,
# which are not loaded.
_KEY_MAPPINGS = (KeyMapping("{...}.num_batches_tracked", None), KeyMapping("{...}", "{...}"))

_Resize = Literal["clean", "tensorflow"]
_Pool = Literal["average", "maximum", "stride"]
_Kernel = int | tuple[int, int]


class _Conv(NamedTuple):
    """One convolution of a branch."""

    name: str  # its name in the weight file
    channels: int
    kernel: _Kernel = 1
    stride: int = 1
    padded: bool = True
    # Name and kernel of a second convolution on the same input, whose channels are appended; it
    # ends the branch.
    fork: tuple[str, _Kernel] | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """A "mixed" block of parallel branches, whose channels are concatenated in this order; the
    pooling branch is last.
    """

    branches: tuple[tuple[_Conv, ...], ...]
    pool: _Pool  # kind of the pooling; "stride" is max pooling with stride 2
    pooled: int = 0  # channels of the convolution after the pooling; "stride" has none


# Blocks A to E, as the Inception-v3 paper and torchvision name them; the convolutions have their
# names in the file.
def _block_a(pooled: int) -> _Plan:
    five = (_Conv("branch5x5_1", 48), _Conv("branch5x5_2", 64, 5))
    three = (
        _Conv("branch3x3dbl_1", 64),
        _Conv("branch3x3dbl_2", 96, 3),
        _Conv("branch3x3dbl_3", 96, 3),
    )
    return _Plan(((_Conv("branch1x1", 64),), five, three), "average", pooled)


def _block_b() -> _Plan:
    last = _Conv("branch3x3dbl_3", 96, 3, stride=2, padded=False)
    double = (_Conv("branch3x3dbl_1", 64), _Conv("branch3x3dbl_2", 96, 3), last)
    return _Plan(((_Conv("branch3x3", 384, 3, stride=2, padded=False),), double), "stride")


def _block_c(inner: int) -> _Plan:
    seven = (
        _Conv("branch7x7_1", inner),
        _Conv("branch7x7_2", inner, (1, 7)),
        _Conv("branch7x7_3", 192, (7, 1)),
    )
    double = (
        _Conv("branch7x7dbl_1", inner),
        _Conv("branch7x7dbl_2", inner, (7, 1)),
        _Conv("branch7x7dbl_3", inner, (1, 7)),
        _Conv("branch7x7dbl_4", inner, (7, 1)),
        _Conv("branch7x7dbl_5", 192, (1, 7)),
    )
    return _Plan(((_Conv("branch1x1", 192),), seven, double), "average", 192)


def _block_d() -> _Plan:
    three = (_Conv("branch3x3_1", 192), _Conv("branch3x3_2", 320, 3, stride=2, padded=False))
    seven = (
        _Conv("branch7x7x3_1", 192),
        _Conv("branch7x7x3_2", 192, (1, 7)),
        _Conv("branch7x7x3_3", 192, (7, 1)),
        _Conv("branch7x7x3_4", 192, 3, stride=2, padded=False),
    )
    return _Plan((three, seven), "stride")


def _block_e(pool: _Pool) -> _Plan:
    three = (
        _Conv("branch3x3_1", 384),
        _Conv("branch3x3_2a", 384, (1, 3), fork=("branch3x3_2b", (3, 1))),
    )
    double = (
        _Conv("branch3x3dbl_1", 448),
        _Conv("branch3x3dbl_2", 384, 3),
        _Conv("branch3x3dbl_3a", 384, (1, 3), fork=("branch3x3dbl_3b", (3, 1))),
    )
    return _Plan(((_Conv("branch1x1", 320),), three, double), pool, 192)


_STEM = (
    _Conv("Conv2d_1a_3x3", 32, 3, stride=2, padded=False),
    _Conv("Conv2d_2a_3x3", 32, 3, padded=False),
    _Conv("Conv2d_2b_3x3", 64, 3),
    _Conv("Conv2d_3b_1x1", 80),
    _Conv("Conv2d_4a_3x3", 192, 3, padded=False),
)
_POOLED = ("Conv2d_2b_3x3", "Conv2d_4a_3x3")  # followed by 3 x 3 max pooling with stride 2
_MIXED = {
    "Mixed_5b": _block_a(32),
    "Mixed_5c": _block_a(64),
    "Mixed_5d": _block_a(64),
    "Mixed_6a": _block_b(),
    "Mixed_6b": _block_c(128),
    "Mixed_6c": _block_c(160),
    "Mixed_6d": _block_c(160),
    "Mixed_6e": _block_c(192),
    "Mixed_7a": _block_d(),
    "Mixed_7b": _block_e("average"),
    "Mixed_7c": _block_e("maximum"),
}


class _Convolution(nn.Module):
    """Convolution without bias, batch normalisation (eps 0.001), ReLU."""

    def __init__(self, inputs: int, step: _Conv, kernel: _Kernel) -> None:
        super().__init__()
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if step.padded else (0, 0)
        self.conv = nn.Conv2d(inputs, step.channels, (high, wide), step.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(step.channels, eps=0.001)
        self.bn.register_buffer("num_batches_tracked", None)  # the file does not have this counter

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class _Mixed(nn.Module):
    """A block of parallel branches whose outputs are concatenated."""

    def __init__(self, inputs: int, plan: _Plan) -> None:
        super().__init__()
        self.plan = plan
        self.channels = 0
        for steps in plan.branches:
            width = inputs
            for step in steps:
                self.add_module(step.name, _Convolution(width, step, step.kernel))
                if step.fork:
                    self.add_module(step.fork[0], _Convolution(width, step, step.fork[1]))
                width = step.channels * (2 if step.fork else 1)
            self.channels += width
        self.channels += plan.pooled or inputs
        if plan.pooled:
            self.add_module(
                "branch_pool", _Convolution(inputs, _Conv("branch_pool", plan.pooled), 1)
            )

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self._branch(x, steps) for steps in self.plan.branches]
        return torch.cat([*outputs, self._pool(x)], dim=1)

    def _branch(self, x: Tensor, steps: Sequence[_Conv]) -> Tensor:
        for step in steps:
            names = [step.name, step.fork[0]] if step.fork else [step.name]
            x = torch.cat([self.get_submodule(name)(x) for name in names], dim=1)
        return x

    def _pool(self, x: Tensor) -> Tensor:
        if self.plan.pool == "stride":
            return F.max_pool2d(x, 3, stride=2)
        if self.plan.pool == "maximum":
            pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        else:
            pooled = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        out: Tensor = self.get_submodule("branch_pool")(pooled)
        return out


class InceptionFeatures(Extractor):
    """2048 features of an image, and the logits of 1008 classes from them."""

    width = _WIDTH
    side = SIDE

    def __init__(self, resize: _Resize = "clean") -> None:
        super().__init__()
        self.resize = resize
        channels = 3
        for step in _STEM:
            self.add_module(step.name, _Convolution(channels, step, step.kernel))
            channels = step.channels
        for name, plan in _MIXED.items():
            block = _Mixed(channels, plan)
            self.add_module(name, block)
            channels = block.channels
        self.fc = nn.Linear(channels, _CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, 2048] of images [n, 3, 299, 299] with values in 0..255."""
        x = (pixels - 128) / 128
        for step in _STEM:
            x = self.get_submodule(step.name)(x)
            if step.name in _POOLED:
                x = F.max_pool2d(x, 3, stride=2)
        for name in _MIXED:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        pictures = squares(images)
        if self.resize == "clean":
            return clean(pictures, _INPUT_SIZE)
        return tensorflow_bilinear(stacked(pictures), _INPUT_SIZE)

    @torch.no_grad()
    def class_logits(self, features: Tensor) -> Tensor:
        """Logits [n, 1008] without the bias, float64 on the CPU, of features [n, 2048]."""
        weight = self.fc.weight
        return (features.to(weight.device, weight.dtype) @ weight.T).double().cpu()


def load_inception(path: Path, resize: _Resize = "clean") -> InceptionFeatures:
    """The network of a weight file in the standard layout. Raises WeightsError (see
    `load_frozen`).
    """
    return load_frozen(lambda: InceptionFeatures(resize), path, _KEY_MAPPINGS)


register_extractor(
    "inception", role="features", architecture="inception-clean256", load=load_inception
)
register_extractor(
    "inception_tf",
    role="features",
    architecture="inception-tf256",
    load=partial(load_inception, resize="tensorflow"),
)


def inception_score(logits: Tensor, blocks: Tensor) -> Estimate:
    """The score of class logits [n, classes], with the jackknife over blocks [n] of captions.

    Raises:
        MetricUnavailable: there are fewer than two blocks.
    """
    sizes = block_sizes(blocks)
    log_p = logits.double().log_softmax(1)
    p = log_p.exp()
    sums = torch.zeros(sizes.numel(), p.shape[1], dtype=torch.float64).index_add_(0, blocks, p)
    negentropy = torch.zeros(sizes.numel(), dtype=torch.float64).index_add_(
        0, blocks, torch.special.xlogy(p, p).sum(1)
    )
    count = with_left_out(sizes.double())
    mean = with_left_out(sums) / count[:, None]
    scores = (with_left_out(negentropy) / count - torch.special.xlogy(mean, mean).sum(1)).exp()
    return Estimate.from_replicates(scores, logits.shape[0])


@register_metric(
    "inception_score", direction="maximize", unit="classes", needs=(FEATURES, CLASSIFIER)
)
def _inception_score(inputs: MetricInputs) -> Estimate:
    """Inception score on the extractor's classes: Inception's 1008, or an object's shape and colour
    (48).
    """
    return inception_score(inputs.class_logits(), inputs.blocks)
