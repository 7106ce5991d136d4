"""Rendered scenes in memory for training the nets of the metrics, and random corruptions of them.

The corruptions are those that decoded images have: blur, noise and wobbly outlines, by known
amounts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from workers.scenes.images import render, sample_attributes

_NOISE_STD = 0.08  # standard deviation of the noise at amount 1, images lie in [0, 1]
_WOBBLE_STD = 1.0  # standard deviation of the displacement at amount 1, in pixels
_KNOT_SPACING = 4  # pixels between displacement knots: the tokenizer's patch


@dataclass(frozen=True, slots=True, eq=False)
class SceneSet:
    """Images uint8 [n, 3, 48, 48] and their attribute rows int64 [n, 12]."""

    images: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def floats(self, chosen: Tensor | slice) -> Tensor:
        """The chosen images as float32 in [0, 1]."""
        return self.images[chosen].float() / 255


def scene_set(
    seed: int, scenes: int, *, chunk: int = 250, log: Callable[[str], None] = lambda line: None
) -> SceneSet:
    """The first `scenes` scenes of a seed."""
    rows = sample_attributes(seed, range(scenes))
    parts: list[Tensor] = []
    for start in range(0, scenes, chunk):
        indices = range(start, min(start + chunk, scenes))
        parts.append((render(rows[start : start + chunk], seed, indices) * 255).round().byte())
        if len(parts) % 20 == 0:
            log(f"rendered {indices.stop} of {scenes} scenes")
    return SceneSet(torch.cat(parts), rows)


def amounts(n: int, generator: Generator) -> Tensor:
    """Random amounts [n, 3] of blur, noise and wobble in [0, 1]; each is 0 for 60% of the
    images.
    """
    drawn = torch.rand(2, n, 3, generator=generator)
    return drawn[0] * (drawn[1] < 0.4)


def corrupt(images: Tensor, amount: Tensor, generator: Generator) -> Tensor:
    """Images [n, 3, H, W] in [0, 1] with `amount` [n, 3] of blur, noise and wobble; 0 leaves pixels
    as they are.
    """
    blur, noise, wobble = (column.view(-1, 1, 1, 1) for column in amount.unbind(1))
    moved = amount[:, 2] > 0
    if bool(moved.any()):
        images = images.clone()
        images[moved] = _displace(images[moved], wobble[moved], generator)
    images = torch.lerp(images, _soften(images), blur)
    grain = torch.randn(images.shape, generator=generator)
    return (images + _NOISE_STD * noise * grain).clamp(0, 1)


def _soften(images: Tensor) -> Tensor:
    """A 5 x 5 binomial filter (standard deviation 1 pixel), edges repeated."""
    taps = torch.tensor([1.0, 4, 6, 4, 1]) / 16
    kernel = torch.outer(taps, taps).expand(3, 1, 5, 5)
    return F.conv2d(F.pad(images, (2, 2, 2, 2), mode="replicate"), kernel, groups=3)


def _displace(images: Tensor, amount: Tensor, generator: Generator) -> Tensor:
    """Moves pixels by a field that is random at knots _KNOT_SPACING pixels apart and linear between
    them.
    """
    n, _, height, width = images.shape
    knots = (
        torch.randn(
            n, 2, height // _KNOT_SPACING + 1, width // _KNOT_SPACING + 1, generator=generator
        )
        * _WOBBLE_STD
        * amount
    )
    field = F.interpolate(knots, (height, width), mode="bilinear", align_corners=True)
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    where = torch.stack(
        [(x + field[:, 0]) * 2 / width - 1, (y + field[:, 1]) * 2 / height - 1], dim=3
    )
    return F.grid_sample(images, where, padding_mode="border", align_corners=False)
