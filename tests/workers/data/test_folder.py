"""Image files of a user become tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from workers.data.reference import load_images

RED, BLUE = (220, 30, 30), (30, 30, 220)


def test_images_are_centre_squares(tmp_path: Path) -> None:
    wide = Image.new("RGB", (40, 10), BLUE)
    wide.paste(RED, (15, 0, 25, 10))
    wide.save(tmp_path / "wide.png")
    images = load_images([tmp_path / "wide.png"], 8)
    assert images.shape == (1, 3, 8, 8)
    assert images.dtype == torch.uint8
    assert images[0, :, 4, 4].tolist() == list(RED)
    assert images[0, :, 0, 0].tolist() == list(RED)


def test_a_file_that_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"x\.png: not a readable image"):
        load_images([tmp_path / "x.png"], 8)
