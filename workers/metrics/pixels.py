"""Preprocessing of published networks: 8-bit pictures from images in [0, 1], resized by Pillow as
their authors did.

Resizing changes every metric (Parmar et al. 2022 for FID), so it is part of a network's identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from workers.data.pictures import centre_square, to_pictures

# Pixels to which generated and real images are first resized by Lanczos, as in the papers' scripts.
SIDE = 256
BICUBIC = Image.Resampling.BICUBIC
BILINEAR = Image.Resampling.BILINEAR
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation by channel
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def squares(images: Tensor, side: int | None = SIDE) -> list[Image.Image]:
    """8-bit pictures of images [n, 3, H, W] in [0, 1]: their centre squares by Pillow's Lanczos
    filter, `side` wide.

    A square of that size is not resized. None: neither cut nor resized.

    Raises:
        ValueError: the images have another shape.
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must have shape [n, 3, H, W], got {tuple(images.shape)}")
    pictures = to_pictures(images)
    if side is None:
        return pictures
    return [centre_square(picture, side) for picture in pictures]


def stacked(pictures: Sequence[Image.Image]) -> Tensor:
    """Pictures of one size as float32 [n, 3, H, W] in 0..255."""
    return (
        torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures])
        .permute(0, 3, 1, 2)
        .float()
    )


def clean(pictures: Sequence[Image.Image], side: int) -> Tensor:
    """[n, 3, side, side] in 0..255, not rounded: each channel by Pillow's bicubic filter in floats
    ("clean" resizing).

    Antialiased when it shrinks (Parmar et al. 2022); overshoot is clipped, as in clean-fid.
    """
    resized = np.empty((len(pictures), 3, side, side), dtype=np.float32)
    for index, picture in enumerate(pictures):
        for channel, band in enumerate(picture.split()):
            resized[index, channel] = np.asarray(band.convert("F").resize((side, side), BICUBIC))
    return torch.from_numpy(resized.clip(0, 255))


def tensorflow_bilinear(pixels: Tensor, side: int) -> Tensor:
    """Images [n, c, H, W] resized to [n, c, side, side] by TensorFlow 1's resize_bilinear: pixel i
    of the result is at i * H / side of the source, without half-pixel centres and without
    antialiasing.
    """
    for dim in (2, 3):
        size = pixels.shape[dim]
        position = torch.arange(side, dtype=pixels.dtype, device=pixels.device) * (size / side)
        floor = position.floor()
        weight = (position - floor).view((-1, 1) if dim == 2 else (-1,))
        low = floor.long()
        left, right = (
            pixels.index_select(dim, index) for index in (low, (low + 1).clamp_max(size - 1))
        )
        pixels = left + (right - left) * weight
    return pixels


def clip_input(
    pictures: Sequence[Image.Image],
    side: int,
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
) -> Tensor:
    """CLIP's input [n, 3, side, side]: the shorter side resized in 8 bits (bicubic), the centre cut
    out, normalised.
    """
    return _normalise(stacked([_resize_and_crop(picture, side) for picture in pictures]), mean, std)


def squashed_input(
    pictures: Sequence[Image.Image],
    side: int,
    mean: Sequence[float],
    std: Sequence[float],
    resample: Image.Resampling = BILINEAR,
) -> Tensor:
    """[n, 3, side, side]: resized in 8 bits without keeping the aspect ratio (antialiased),
    normalised.
    """
    return _normalise(
        stacked([picture.resize((side, side), resample) for picture in pictures]), mean, std
    )


def _resize_and_crop(picture: Image.Image, side: int) -> Image.Image:
    width, height = picture.size
    short = min(width, height)
    if short != side:
        picture = picture.resize((side * width // short, side * height // short), BICUBIC)
    left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
    return picture.crop((left, top, left + side, top + side))


def _normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std by channel."""
    return (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
