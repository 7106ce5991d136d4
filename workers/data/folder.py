"""Image files of a user: which endings are read, and how their pixels become tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from workers.data.pictures import centre_square
from workers.data.text_files import collect_errors

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")


def load_images(paths: Sequence[Path], size: int) -> Tensor:
    """The centre squares of images, resized: uint8 [n, 3, size, size].

    Grey and palette images become RGB. The alpha channel is removed without blending, as in clean-fid.

    Raises:
        ValueError: a file that is not a readable image, or has more than 8 bits per channel.
    """
    images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for i, path in enumerate(paths):
        with _open_image(path) as opened:
            picture = centre_square(opened.convert("RGB"), size)
        images[i] = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return images


def check_images(paths: Iterable[Path]) -> None:
    """Checks the headers of images without reading their pixels.

    Raises:
        ValueError: a file that is not an image or has more than 8 bits per channel, and how many more are wrong.
    """
    with collect_errors("image") as collect:
        for path in paths:
            with collect(), _open_image(path):
                pass


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """An image whose header is read. ValueError for more than 8 bits per channel, which Pillow would clip at 255."""
    try:
        with Image.open(path) as opened:
            if opened.mode.startswith(("I", "F")):
                raise ValueError(
                    f"{path}: its pixels have more than 8 bits (mode {opened.mode}); save it with 8 bits per channel"
                )
            yield opened
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not a readable image ({error}); correct or remove it") from error
