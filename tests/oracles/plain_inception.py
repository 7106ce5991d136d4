"""FID's Inception-v3, layer by layer with plain functions, as its port of the TensorFlow graph is
documented.

Independent of `workers.metrics.inception`: no tables, no modules, float64. Random weights are
created when a layer is first reached, under the names and with the shapes of the standard file.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainInception:
    """Calls on images [n, 3, 299, 299] in 0..255 give features [n, 2048]; `weights` has the weights
    of all layers.
    """

    def __init__(self, seed: int = 0) -> None:
        self.weights: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, pixels: Tensor) -> Tensor:
        x = (pixels.double() - 128) / 128
        x = self.conv(x, "Conv2d_1a_3x3", 32, 3, 3, stride=2)
        x = self.conv(x, "Conv2d_2a_3x3", 32, 3, 3)
        x = self.conv(x, "Conv2d_2b_3x3", 64, 3, 3, pad=(1, 1))
        x = F.max_pool2d(x, 3, 2)
        x = self.conv(x, "Conv2d_3b_1x1", 80, 1, 1)
        x = self.conv(x, "Conv2d_4a_3x3", 192, 3, 3)
        x = F.max_pool2d(x, 3, 2)
        assert x.shape[1:] == (192, 35, 35)
        for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
            x = self.block_a(x, name, pooled)
        x = self.block_b(x, "Mixed_6a")
        assert x.shape[1:] == (768, 17, 17)
        for name, inner in (
            ("Mixed_6b", 128),
            ("Mixed_6c", 160),
            ("Mixed_6d", 160),
            ("Mixed_6e", 192),
        ):
            x = self.block_c(x, name, inner)
        x = self.block_d(x, "Mixed_7a")
        assert x.shape[1:] == (1280, 8, 8)
        x = self.block_e(x, "Mixed_7b", mean_without_padding(x))
        x = self.block_e(x, "Mixed_7c", F.max_pool2d(x, 3, 1, 1))
        self.draw("fc.weight", (1008, 2048), 0.05)
        self.draw("fc.bias", (1008,), 1.0)
        return x.flatten(2).mean(2)

    def block_a(self, x: Tensor, at: str, pooled: int) -> Tensor:
        one = self.conv(x, f"{at}.branch1x1", 64, 1, 1)
        five = self.conv(x, f"{at}.branch5x5_1", 48, 1, 1)
        five = self.conv(five, f"{at}.branch5x5_2", 64, 5, 5, pad=(2, 2))
        three = self.conv(x, f"{at}.branch3x3dbl_1", 64, 1, 1)
        three = self.conv(three, f"{at}.branch3x3dbl_2", 96, 3, 3, pad=(1, 1))
        three = self.conv(three, f"{at}.branch3x3dbl_3", 96, 3, 3, pad=(1, 1))
        pool = self.conv(mean_without_padding(x), f"{at}.branch_pool", pooled, 1, 1)
        return torch.cat([one, five, three, pool], 1)

    def block_b(self, x: Tensor, at: str) -> Tensor:
        three = self.conv(x, f"{at}.branch3x3", 384, 3, 3, stride=2)
        double = self.conv(x, f"{at}.branch3x3dbl_1", 64, 1, 1)
        double = self.conv(double, f"{at}.branch3x3dbl_2", 96, 3, 3, pad=(1, 1))
        double = self.conv(double, f"{at}.branch3x3dbl_3", 96, 3, 3, stride=2)
        return torch.cat([three, double, F.max_pool2d(x, 3, 2)], 1)

    def block_c(self, x: Tensor, at: str, inner: int) -> Tensor:
        one = self.conv(x, f"{at}.branch1x1", 192, 1, 1)
        seven = self.conv(x, f"{at}.branch7x7_1", inner, 1, 1)
        seven = self.conv(seven, f"{at}.branch7x7_2", inner, 1, 7, pad=(0, 3))
        seven = self.conv(seven, f"{at}.branch7x7_3", 192, 7, 1, pad=(3, 0))
        double = self.conv(x, f"{at}.branch7x7dbl_1", inner, 1, 1)
        double = self.conv(double, f"{at}.branch7x7dbl_2", inner, 7, 1, pad=(3, 0))
        double = self.conv(double, f"{at}.branch7x7dbl_3", inner, 1, 7, pad=(0, 3))
        double = self.conv(double, f"{at}.branch7x7dbl_4", inner, 7, 1, pad=(3, 0))
        double = self.conv(double, f"{at}.branch7x7dbl_5", 192, 1, 7, pad=(0, 3))
        pool = self.conv(mean_without_padding(x), f"{at}.branch_pool", 192, 1, 1)
        return torch.cat([one, seven, double, pool], 1)

    def block_d(self, x: Tensor, at: str) -> Tensor:
        three = self.conv(x, f"{at}.branch3x3_1", 192, 1, 1)
        three = self.conv(three, f"{at}.branch3x3_2", 320, 3, 3, stride=2)
        seven = self.conv(x, f"{at}.branch7x7x3_1", 192, 1, 1)
        seven = self.conv(seven, f"{at}.branch7x7x3_2", 192, 1, 7, pad=(0, 3))
        seven = self.conv(seven, f"{at}.branch7x7x3_3", 192, 7, 1, pad=(3, 0))
        seven = self.conv(seven, f"{at}.branch7x7x3_4", 192, 3, 3, stride=2)
        return torch.cat([three, seven, F.max_pool2d(x, 3, 2)], 1)

    def block_e(self, x: Tensor, at: str, pooled: Tensor) -> Tensor:
        one = self.conv(x, f"{at}.branch1x1", 320, 1, 1)
        three = self.conv(x, f"{at}.branch3x3_1", 384, 1, 1)
        three_a = self.conv(three, f"{at}.branch3x3_2a", 384, 1, 3, pad=(0, 1))
        three_b = self.conv(three, f"{at}.branch3x3_2b", 384, 3, 1, pad=(1, 0))
        double = self.conv(x, f"{at}.branch3x3dbl_1", 448, 1, 1)
        double = self.conv(double, f"{at}.branch3x3dbl_2", 384, 3, 3, pad=(1, 1))
        double_a = self.conv(double, f"{at}.branch3x3dbl_3a", 384, 1, 3, pad=(0, 1))
        double_b = self.conv(double, f"{at}.branch3x3dbl_3b", 384, 3, 1, pad=(1, 0))
        pool = self.conv(pooled, f"{at}.branch_pool", 192, 1, 1)
        return torch.cat([one, three_a, three_b, double_a, double_b, pool], 1)

    def conv(
        self,
        x: Tensor,
        at: str,
        channels: int,
        high: int,
        wide: int,
        stride: int = 1,
        pad: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """Convolution, normalisation by stored statistics, ReLU."""
        fan = x.shape[1] * high * wide
        kernel = self.draw(
            f"{at}.conv.weight", (channels, x.shape[1], high, wide), math.sqrt(2 / fan)
        )
        scale = self.draw(f"{at}.bn.weight", (channels,), 0.1, around=1.0)
        shift = self.draw(f"{at}.bn.bias", (channels,), 0.1)
        y = F.conv2d(x, kernel.double(), stride=stride, padding=pad)
        # near those of the first images, as after training
        if f"{at}.bn.running_mean" not in self.weights:
            spread, middle = torch.var_mean(y.float(), dim=(0, 2, 3))
            noise = torch.randn(2, channels, generator=self.generator)
            self.weights[f"{at}.bn.running_mean"] = middle + 0.1 * noise[0] * spread.sqrt()
            self.weights[f"{at}.bn.running_var"] = spread * (1 + 0.2 * noise[1]).abs() + 1e-4
        mean, variance = (self.weights[f"{at}.bn.running_{name}"] for name in ("mean", "var"))
        scale, shift, mean, variance = (
            v.double()[:, None, None] for v in (scale, shift, mean, variance)
        )
        return ((y - mean) / (variance + 0.001).sqrt() * scale + shift).clamp_min(0)

    def draw(self, name: str, shape: tuple[int, ...], spread: float, around: float = 0.0) -> Tensor:
        if name not in self.weights:
            self.weights[name] = torch.randn(shape, generator=self.generator) * spread + around
        return self.weights[name]


def mean_without_padding(x: Tensor) -> Tensor:
    """Mean over each 3 x 3 neighbourhood, without the padding."""
    ones = torch.ones_like(x[:1, :1])
    kernel = torch.ones(1, 1, 3, 3, dtype=x.dtype)
    sums = F.conv2d(x.flatten(0, 1)[:, None], kernel, padding=1).view_as(x)
    return sums / F.conv2d(ones, kernel, padding=1)
