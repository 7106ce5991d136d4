"""Faults that decoded images have, put into real scenes: softness, noise and wobbly outlines, by known amounts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

NOISE = 0.08  # standard deviation of the noise at amount 1, in units of the [0, 1] range
WOBBLE = 1.0  # standard deviation of the displacement at amount 1, in pixels
CELL = 4  # pixels between displacement knots: the tokenizer's patch


def amounts(n: int, generator: Generator) -> Tensor:
    """Random amounts [n, 3] of blur, noise and wobble in [0, 1]; each is 0 for 60% of the images."""
    drawn = torch.rand(2, n, 3, generator=generator)
    return drawn[0] * (drawn[1] < 0.4)


def corrupt(images: Tensor, amount: Tensor, generator: Generator) -> Tensor:
    """Images [n, 3, H, W] in [0, 1] with `amount` [n, 3] of blur, noise and wobble; 0 leaves pixels as they are."""
    blur, noise, wobble = (column.view(-1, 1, 1, 1) for column in amount.unbind(1))
    moved = amount[:, 2] > 0
    if bool(moved.any()):
        images = images.clone()
        images[moved] = _displace(images[moved], wobble[moved], generator)
    images = torch.lerp(images, _soften(images), blur)
    grain = torch.randn(images.shape, generator=generator)
    return (images + NOISE * noise * grain).clamp(0, 1)


def _soften(images: Tensor) -> Tensor:
    """A 5 x 5 binomial filter (standard deviation 1 pixel), edges repeated."""
    taps = torch.tensor([1.0, 4, 6, 4, 1]) / 16
    kernel = torch.outer(taps, taps).expand(3, 1, 5, 5)
    return F.conv2d(F.pad(images, (2, 2, 2, 2), mode="replicate"), kernel, groups=3)


def _displace(images: Tensor, amount: Tensor, generator: Generator) -> Tensor:
    """Moves pixels by a field that is random at knots CELL pixels apart and linear between them."""
    n, _, height, width = images.shape
    knots = torch.randn(n, 2, height // CELL + 1, width // CELL + 1, generator=generator) * WOBBLE * amount
    field = F.interpolate(knots, (height, width), mode="bilinear", align_corners=True)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    where = torch.stack([(x + field[:, 0]) * 2 / width - 1, (y + field[:, 1]) * 2 / height - 1], dim=3)
    return F.grid_sample(images, where, padding_mode="border", align_corners=False)
