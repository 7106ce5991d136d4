"""CMMD: equal to its formula in numpy, its error by leaving out each block, and its embeddings
equal to transformers'.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tests.fakes import tiny_clip
from workers.metrics.cmmd import load_embeddings
from workers.metrics.estimate import BLOCKS, jackknife_error
from workers.metrics.metric import MetricInputs, ReferenceFeatures, Rows
from workers.metrics.pixels import CLIP_MEAN, CLIP_STD, squares
from workers.metrics.registry import compute_metrics
from workers.scenes.images import render, sample_attributes

COUNT = 3 * BLOCKS


def formula(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """1000 (mean k(x, x) + mean k(y, y) - 2 mean k(x, y)), k = exp(-|a - b|^2 / 200)."""

    def mean(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        distances = ((a[:, None] - b[None]) ** 2).sum(-1)
        return float(np.exp(-distances / 200).mean())

    return 1000 * (mean(x, x) + mean(y, y) - 2 * mean(x, y))


def sets() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, COUNT, 5, generator=generator)
    return torch.nn.functional.normalize(x + 1, dim=1), torch.nn.functional.normalize(y, dim=1)


def test_it_is_the_formula_and_its_error_the_jackknifes() -> None:
    x, y = sets()
    place = torch.arange(COUNT)
    rows = Rows(
        {
            "caption_id": place,
            "sample": torch.zeros_like(place),
            "position": place,
            "clip_l336": x,
        }
    )
    inputs = MetricInputs(images=rows, references={"clip_l336": ReferenceFeatures(y)})
    found, skipped = compute_metrics(inputs, ["cmmd"])
    assert not skipped
    value = found["cmmd"]
    a, b = x.double().numpy(), y.double().numpy()
    assert value.value == pytest.approx(formula(a, b), rel=1e-9)
    blocks = (place % BLOCKS).numpy()
    left_out = [formula(a[blocks != block], b) for block in range(BLOCKS)]
    assert value.replicates == pytest.approx(left_out, rel=1e-9)
    assert value.error == pytest.approx(
        float(jackknife_error(torch.tensor(left_out, dtype=torch.float64))), rel=1e-6
    )


def test_embeddings_equal_transformers_by_hand(tmp_path: Path) -> None:
    model = tiny_clip.write_clip(tmp_path)
    images = render(sample_attributes(2, range(3)), 2, range(3))
    size = tiny_clip.IMAGE
    pictures = [
        picture.resize((256, 256), Image.Resampling.LANCZOS) for picture in squares(images, None)
    ]
    pixels = np.stack(
        [np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC)) for picture in pictures]
    )
    inputs = (pixels / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    with torch.no_grad():
        expected = model.get_image_features(
            pixel_values=torch.from_numpy(inputs).permute(0, 3, 1, 2).float()
        ).pooler_output
    found = load_embeddings(tmp_path).extract(images)
    torch.testing.assert_close(
        found, torch.nn.functional.normalize(expected, dim=1), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
