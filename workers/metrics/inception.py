"""The standard FID network: Inception-v3 as TensorFlow's release of 2015-12-05 has it, without torchvision.

Read is `pt_inception-2015-12-05-6726825d.pth`, the port that pytorch-fid, torchmetrics and clean-fid share. It differs
from torchvision's Inception: average pooling leaves padding out, the last block pools by the maximum (sic), and there
are 1008 classes. Features are the 2048 after the global average; the classes are read from them without the bias, as
the Inception score's own code does (Salimans et al. 2016).

Both ways of resizing start from 256-pixel squares (Lanczos, 8 bits), and each is a metric of its own:
    inception       bicubic with antialiasing in floats, clean-fid's "clean" (Parmar et al. 2022): that of the papers
    inception_tf    TensorFlow 1's bilinear, without antialiasing: the original FID's and torch-fidelity's
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

from workers.metrics.extractor import ExtractorFactory, ExtractorInfo
from workers.metrics.pixels import SIDE, clean, squares, stacked, tensorflow_bilinear
from workers.models.checkpoint_files import content_hash, load_tensors
from workers.models.weights import KeyMapping, load_weights, skip_init

FEATURES, CLASSES, INPUT = 2048, 1008, 299
NAMES = {"clean": "inception-clean256", "tensorflow": "inception-tf256"}
# Both sets of names: of the file itself, and with the counter that newer versions of torch save beside it.
TABLE = (KeyMapping("{...}.num_batches_tracked", None), KeyMapping("{...}", "{...}"))

Resize = Literal["clean", "tensorflow"]
Pool = Literal["average", "maximum", "stride"]
Kernel = int | tuple[int, int]


class Step(NamedTuple):
    """One convolution of a branch: its name in the file, its channels and kernel.

    fork: name and kernel of a second one of the same input, whose channels are appended; it ends the branch.
    """

    name: str
    channels: int
    kernel: Kernel = 1
    stride: int = 1
    padded: bool = True
    fork: tuple[str, Kernel] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A mixed block: its branches in the order of their channels, then what is pooled.

    pooled: channels of the convolution behind the pooling; 0 with "stride", which pools alone.
    """

    branches: tuple[tuple[Step, ...], ...]
    pool: Pool
    pooled: int = 0


def _block_a(pooled: int) -> Plan:
    five = (Step("branch5x5_1", 48), Step("branch5x5_2", 64, 5))
    three = (Step("branch3x3dbl_1", 64), Step("branch3x3dbl_2", 96, 3), Step("branch3x3dbl_3", 96, 3))
    return Plan(((Step("branch1x1", 64),), five, three), "average", pooled)


def _block_b() -> Plan:
    last = Step("branch3x3dbl_3", 96, 3, stride=2, padded=False)
    double = (Step("branch3x3dbl_1", 64), Step("branch3x3dbl_2", 96, 3), last)
    return Plan(((Step("branch3x3", 384, 3, stride=2, padded=False),), double), "stride")


def _block_c(inner: int) -> Plan:
    seven = (Step("branch7x7_1", inner), Step("branch7x7_2", inner, (1, 7)), Step("branch7x7_3", 192, (7, 1)))
    double = (
        Step("branch7x7dbl_1", inner),
        Step("branch7x7dbl_2", inner, (7, 1)),
        Step("branch7x7dbl_3", inner, (1, 7)),
        Step("branch7x7dbl_4", inner, (7, 1)),
        Step("branch7x7dbl_5", 192, (1, 7)),
    )
    return Plan(((Step("branch1x1", 192),), seven, double), "average", 192)


def _block_d() -> Plan:
    three = (Step("branch3x3_1", 192), Step("branch3x3_2", 320, 3, stride=2, padded=False))
    seven = (
        Step("branch7x7x3_1", 192),
        Step("branch7x7x3_2", 192, (1, 7)),
        Step("branch7x7x3_3", 192, (7, 1)),
        Step("branch7x7x3_4", 192, 3, stride=2, padded=False),
    )
    return Plan((three, seven), "stride")


def _block_e(pool: Pool) -> Plan:
    three = (Step("branch3x3_1", 384), Step("branch3x3_2a", 384, (1, 3), fork=("branch3x3_2b", (3, 1))))
    double = (
        Step("branch3x3dbl_1", 448),
        Step("branch3x3dbl_2", 384, 3),
        Step("branch3x3dbl_3a", 384, (1, 3), fork=("branch3x3dbl_3b", (3, 1))),
    )
    return Plan(((Step("branch1x1", 320),), three, double), pool, 192)


STEM = (
    Step("Conv2d_1a_3x3", 32, 3, stride=2, padded=False),
    Step("Conv2d_2a_3x3", 32, 3, padded=False),
    Step("Conv2d_2b_3x3", 64, 3),
    Step("Conv2d_3b_1x1", 80),
    Step("Conv2d_4a_3x3", 192, 3, padded=False),
)
POOLED = ("Conv2d_2b_3x3", "Conv2d_4a_3x3")  # a 3 x 3 maximum of stride 2 follows
MIXED = {
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

    def __init__(self, inputs: int, step: Step, kernel: Kernel) -> None:
        super().__init__()
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if step.padded else (0, 0)
        self.conv = nn.Conv2d(inputs, step.channels, (high, wide), step.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(step.channels, eps=0.001)
        self.bn.register_buffer("num_batches_tracked", None)  # the file has no such counter

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class _Mixed(nn.Module):
    """A block of parallel branches, their outputs side by side."""

    def __init__(self, inputs: int, plan: Plan) -> None:
        super().__init__()
        self.plan, self.channels = plan, 0
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
            self.add_module("branch_pool", _Convolution(inputs, Step("branch_pool", plan.pooled), 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self._branch(x, steps) for steps in self.plan.branches]
        return torch.cat([*outputs, self._pool(x)], dim=1)

    def _branch(self, x: Tensor, steps: Sequence[Step]) -> Tensor:
        for step in steps:
            both = [step.name, step.fork[0]] if step.fork else [step.name]
            x = torch.cat([self.get_submodule(name)(x) for name in both], dim=1)
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


class InceptionFeatures(nn.Module):
    """2048 features of an image, and the logits of 1008 classes that are read from them."""

    name, width, side = "inception", FEATURES, SIDE

    def __init__(self, resize: Resize = "clean", weights: str = "untrained") -> None:
        """`weights`: hash of the file that fills the net."""
        super().__init__()
        self.resize = resize
        self.identity = f"{NAMES[resize]}@{weights}"
        channels = 3
        for step in STEM:
            self.add_module(step.name, _Convolution(channels, step, step.kernel))
            channels = step.channels
        for name, plan in MIXED.items():
            block = _Mixed(channels, plan)
            self.add_module(name, block)
            channels = block.channels
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, 2048] of images [n, 3, 299, 299] with values in 0..255."""
        x = (pixels - 128) / 128
        for step in STEM:
            x = self.get_submodule(step.name)(x)
            if step.name in POOLED:
                x = F.max_pool2d(x, 3, stride=2)
        for name in MIXED:
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))

    def prepare(self, images: Tensor) -> Tensor:
        """Images [n, 3, H, W] in [0, 1] as `forward` takes them, by this net's resizing."""
        pictures = squares(images)
        if self.resize == "clean":
            return clean(pictures, INPUT)
        return tensorflow_bilinear(stacked(pictures), INPUT)

    @torch.no_grad()
    def extract(self, images: Tensor, batch: int = 64) -> Tensor:
        """Features [n, 2048] of any number of images [n, 3, H, W] in [0, 1], float32 on the CPU."""
        device = self.fc.weight.device
        return torch.cat([self(self.prepare(part).to(device)).cpu() for part in torch.split(images, batch)])

    @torch.no_grad()
    def class_logits(self, features: Tensor) -> Tensor:
        """Logits [n, 1008] without the bias, float64 on the CPU, of features [n, 2048]."""
        weight = self.fc.weight
        return (features.to(weight.device, weight.dtype) @ weight.T).double().cpu()


def load_inception(path: Path, resize: Resize = "clean") -> InceptionFeatures:
    """The net of a weight file in the standard layout; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or another net's; it is named.
    """
    net = skip_init(lambda: InceptionFeatures(resize, content_hash(path)))
    load_weights(net, load_tensors(path), TABLE, where=path)
    return net.eval().requires_grad_(False)


def announce_inception(path: Path, resize: Resize = "clean") -> ExtractorInfo:
    """What a net of this file will call itself. Raises WeightsError when nothing is there."""
    return ExtractorInfo(f"{NAMES[resize]}@{content_hash(path)}", FEATURES, None)


def _entry(key: str, resize: Resize) -> ExtractorFactory:
    announce, load = partial(announce_inception, resize=resize), partial(load_inception, resize=resize)
    return ExtractorFactory(key, "features", announce, load)


EXTRACTORS = (_entry("inception", "clean"), _entry("inception_tf", "tensorflow"))
