"""VGG-16's features: against plain functions on the official layout, and what is measured on them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from workers.metrics.metric import MANIFOLD, MetricInputs, Reference, Rows
from workers.metrics.pixels import squares
from workers.metrics.registry import measure
from workers.metrics.vgg import VggFeatures, load_vgg
from workers.models.checkpoint_files import WeightsError
from workers.scenes.images import render, sample_attributes

STAGES, WIDTH = ((4, 4), (6, 6), (8, 8, 8), (8, 8, 8), (8, 8, 8)), 16
PLACES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))  # of the convolutions in the official file
small = partial(load_vgg, stages=STAGES, width=WIDTH)


def official_weights() -> dict[str, Tensor]:
    """Random tensors under torchvision's names, of fewer channels; the classes as well."""
    generator, found, before = torch.Generator().manual_seed(0), dict[str, Tensor](), 3
    for places, stage in zip(PLACES, STAGES, strict=True):
        for place, wide in zip(places, stage, strict=True):
            found[f"features.{place}.weight"] = (
                torch.randn(wide, before, 3, 3, generator=generator) * (2 / before / 9) ** 0.5
            )
            found[f"features.{place}.bias"] = 0.1 * torch.randn(wide, generator=generator)
            before = wide
    for place, rows, columns in ((0, WIDTH, before * 49), (3, WIDTH, WIDTH), (6, 1000, WIDTH)):
        found[f"classifier.{place}.weight"] = torch.randn(rows, columns, generator=generator) / columns**0.5
        found[f"classifier.{place}.bias"] = 0.1 * torch.randn(rows, generator=generator)
    return found


def plain_features(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    x = pixels
    for places in PLACES:
        for place in places:
            x = F.conv2d(x, weights[f"features.{place}.weight"], weights[f"features.{place}.bias"], padding=1).relu()
        x = F.max_pool2d(x, 2, 2)
    x = (x.flatten(1) @ weights["classifier.0.weight"].T + weights["classifier.0.bias"]).relu()
    return x @ weights["classifier.3.weight"].T + weights["classifier.3.bias"]


def test_features_equal_plain_functions(tmp_path: Path) -> None:
    weights, images = official_weights(), render(sample_attributes(2, range(3)), 2, range(3))
    torch.save(weights, tmp_path / "vgg16.pth")
    net = small(tmp_path / "vgg16.pth")
    pictures = [picture.resize((224, 224), Image.Resampling.BILINEAR) for picture in squares(images)]
    raw = torch.stack([torch.tensor(list(picture.tobytes())).view(224, 224, 3) for picture in pictures]) / 255
    scaled = (raw - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    expected = plain_features(weights, scaled.permute(0, 3, 1, 2))
    assert expected.std(0).mean() > 0.01
    assert (expected < 0).any(), "before the last ReLU"
    torch.testing.assert_close(net.extract(images, batch=2), expected, rtol=1e-4, atol=1e-5)
    assert net.identity.startswith("vgg16-fc2@")


def test_it_is_the_official_size() -> None:
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in VggFeatures().state_dict().items()}
    convolutions = [f"features.{place}.{kind}" for places in PLACES for place in places for kind in ("weight", "bias")]
    linear = [f"classifier.{place}.{kind}" for place in (0, 3) for kind in ("weight", "bias")]
    assert list(shapes) == [*convolutions, *linear]
    assert shapes["features.28.weight"] == [512, 512, 3, 3]
    assert shapes["classifier.0.weight"] == [4096, 25088]
    assert shapes["classifier.3.weight"] == [4096, 4096]


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    weights, path = official_weights(), tmp_path / "vgg16.pth"
    torch.save(weights, path)
    with pytest.raises(WeightsError, match=r"vgg16\.pth: features\.0\.weight has shape .*a VGG network"):
        load_vgg(path)
    del weights["classifier.3.bias"]
    torch.save(weights, path)
    with pytest.raises(WeightsError, match=r"missing weights \(1\): classifier\.3\.bias"):
        small(path)
    with pytest.raises(WeightsError, match="no such file"):
        small(tmp_path / "none.pth")


def test_precision_and_recall_are_read_from_it_alone() -> None:
    """Where there are manifold features, they decide; fid and the others stay on the sweep's own."""
    generator = torch.Generator().manual_seed(0)
    keys = {"caption_id": torch.arange(30), "sample": torch.zeros(30).long()}
    own, wide = torch.randn(30, 4, generator=generator), torch.randn(30, 5, generator=generator)
    real, far = torch.randn(40, 4, generator=generator), torch.randn(40, 5, generator=generator) + 50
    names = ["precision", "recall", "fid", "kid"]

    def found(manifold: Reference | None) -> dict[str, float]:
        rows = Rows(keys | {"features": own, MANIFOLD: wide})
        estimates, _ = measure(MetricInputs(images=rows, reference=Reference(real), manifold=manifold), names)
        return {name: estimate.value for name, estimate in estimates.items()}

    alone, beside = found(None), found(Reference(far))
    assert alone["precision"] > 0.5
    assert alone["recall"] > 0.3
    assert (beside["precision"], beside["recall"]) == (0.0, 0.0)
    assert (beside["fid"], beside["kid"]) == (alone["fid"], alone["kid"])
