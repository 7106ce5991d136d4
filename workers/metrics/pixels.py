"""From images in [0, 1] to what published nets were given: 8-bit pictures, resized by Pillow as their authors did.

Resizing moves every metric (Parmar et al. 2022 for FID), so each net's own way belongs to its identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from workers.data.pictures import centre_square, to_pictures

SIDE = 256  # both sides of a comparison are brought to it by Lanczos first, as the papers' scripts do
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def squares(images: Tensor, side: int | None = SIDE) -> list[Image.Image]:
    """8-bit pictures of images [n, 3, H, W] in [0, 1]: their centre squares by Pillow's Lanczos filter, `side` wide.

    A square of that side is left alone. None: the pictures as they are.

    Raises:
        ValueError: the images have another shape.
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must have shape [n, 3, H, W], got {tuple(images.shape)}")
    pictures = to_pictures(images)
    return pictures if side is None else [centre_square(picture, side) for picture in pictures]


def stacked(pictures: Sequence[Image.Image]) -> Tensor:
    """Pictures of one size as float32 [n, 3, H, W] in 0..255."""
    return torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures]).permute(0, 3, 1, 2).float()


def clean(pictures: Sequence[Image.Image], side: int) -> Tensor:
    """[n, 3, side, side] in 0..255, not rounded: each channel by Pillow's bicubic filter in floats ("clean" resizing).

    Antialiased where it shrinks (Parmar et al. 2022); what the filter overshoots is cut off, as clean-fid does.
    """
    made = np.empty((len(pictures), 3, side, side), dtype=np.float32)
    for place, picture in enumerate(pictures):
        for channel, band in enumerate(picture.split()):
            made[place, channel] = np.asarray(band.convert("F").resize((side, side), BICUBIC))
    return torch.from_numpy(made.clip(0, 255))


def tensorflow_bilinear(pixels: Tensor, side: int) -> Tensor:
    """Images [n, c, H, W] at [n, c, side, side] as TensorFlow 1's resize_bilinear did it: pixel i of the result lies at
    i * H / side of the source, without half pixels and without antialiasing.
    """
    for dim in (2, 3):
        size = pixels.shape[dim]
        at = torch.arange(side, dtype=pixels.dtype, device=pixels.device) * (size / side)
        low = at.floor()
        share = (at - low).view((-1, 1) if dim == 2 else (-1,))
        first = low.long()
        here, there = (pixels.index_select(dim, index) for index in (first, (first + 1).clamp_max(size - 1)))
        pixels = here + (there - here) * share
    return pixels


def clip_input(
    pictures: Sequence[Image.Image],
    side: int,
    *,
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
    resample: Image.Resampling = BICUBIC,
) -> Tensor:
    """What CLIP takes, [n, 3, side, side]: the shorter side resized in 8 bits, the centre cut out, scaled."""
    return _scaled(stacked([_shorter_side(picture, side, resample) for picture in pictures]), mean, std)


def squashed_input(
    pictures: Sequence[Image.Image], side: int, *, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """[n, 3, side, side]: resized in 8 bits whatever the shape (bilinear, antialiased), and scaled."""
    return _scaled(stacked([picture.resize((side, side), BILINEAR) for picture in pictures]), mean, std)


def _shorter_side(picture: Image.Image, side: int, resample: Image.Resampling) -> Image.Image:
    width, height = picture.size
    short = min(width, height)
    if short != side:
        picture = picture.resize((side * width // short, side * height // short), resample)
    left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
    return picture.crop((left, top, left + side, top + side))


def _scaled(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std by channel."""
    return (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
