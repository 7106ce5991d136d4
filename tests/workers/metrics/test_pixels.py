"""The ways to resize: each against its own definition in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from workers.metrics.pixels import clean, clip_input, squares, squashed_input, tensorflow_bilinear


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(drawn)


def bicubic_matrix(size: int, side: int) -> np.ndarray:
    """Weights [side, size] of the antialiased cubic filter, a = -0.5, its support widened where it
    shrinks.
    """
    scale = size / side
    wide = max(scale, 1.0)
    centres = (np.arange(side) + 0.5) * scale
    x = np.abs((np.arange(size) + 0.5 - centres[:, None]) / wide)
    inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, inner, np.where(x < 2, outer, 0))
    found: np.ndarray = weights / weights.sum(1, keepdims=True)
    return found


@pytest.mark.parametrize(("size", "side"), [(37, 16), (20, 33)])
def test_clean_is_the_antialiased_cubic_filter_in_floats(size: int, side: int) -> None:
    picture = noise(size, size)
    pixels = np.asarray(picture, dtype=np.float64)
    matrix = bicubic_matrix(size, side)
    expected = np.einsum("ih,hwc,jw->cij", matrix, pixels, matrix).clip(0, 255)
    made = clean([picture, picture], side)
    np.testing.assert_allclose(made[0].numpy(), expected, atol=2e-3)
    assert torch.equal(made[0], made[1])
    assert (made != made.round()).any(), "not rounded to whole numbers"


@pytest.mark.parametrize("side", [7, 12, 31])
def test_tensorflow_bilinear_by_hand(side: int) -> None:
    pixels = torch.rand(2, 3, 12, 9, generator=torch.Generator().manual_seed(1)) * 255
    made = tensorflow_bilinear(pixels, side)
    assert made.shape == (2, 3, side, side)
    source = pixels.double()

    def value(row: int, column: int) -> Tensor:
        y, x = row * 12 / side, column * 9 / side
        top, left = int(y), int(x)
        bottom, right = min(top + 1, 11), min(left + 1, 8)
        upper = source[:, :, top, left] * (1 - x + left) + source[:, :, top, right] * (x - left)
        lower = source[:, :, bottom, left] * (1 - x + left) + source[:, :, bottom, right] * (
            x - left
        )
        return upper * (1 - y + top) + lower * (y - top)

    for row in range(side):
        for column in range(side):
            torch.testing.assert_close(
                made[:, :, row, column].double(), value(row, column), rtol=1e-4, atol=1e-3
            )


def test_squares_are_cut_and_resized_in_8_bits() -> None:
    picture = noise(40, 60)
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 255
    expected = picture.crop((10, 0, 50, 40)).resize((16, 16), Image.Resampling.LANCZOS)
    assert squares(image, 16)[0].tobytes() == expected.tobytes()
    assert squares(image, None)[0].tobytes() == picture.tobytes()
    assert squares(image[..., :40], 40)[0].tobytes() == picture.crop((0, 0, 40, 40)).tobytes()
    with pytest.raises(ValueError, match=r"\[n, 3, H, W\]"):
        squares(image[0])


def test_clip_input_equals_transformers_on_pictures_of_any_shape() -> None:
    pictures = [noise(40, 61, seed=1), noise(70, 40, seed=2), noise(32, 32, seed=3)]
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    made = clip_input(pictures, 32)
    for picture, image in zip(pictures, made, strict=True):
        expected = processor([picture], return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(image, expected, rtol=1e-4, atol=1e-4)


def test_squashed_input_is_scaled() -> None:
    picture = noise(30, 50)
    made = squashed_input([picture], 20, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    pixels = np.asarray(picture.resize((20, 20), Image.Resampling.BILINEAR), dtype=np.float64) / 255
    expected = (pixels - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0]
    np.testing.assert_allclose(made[0].permute(1, 2, 0).numpy(), expected, atol=1e-6)
