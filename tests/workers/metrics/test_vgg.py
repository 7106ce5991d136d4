"""VGG-16's features: equal to plain functions on the official layout, and used by precision and
recall alone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tests.fakes import metric_inputs
from workers.metrics.definition import FEATURES, MANIFOLD
from workers.metrics.metric import MetricInputs, ReferenceFeatures, Rows
from workers.metrics.pixels import squares
from workers.metrics.precision_recall import VggFeatures, load_vgg
from workers.metrics.registry import compute_metrics
from workers.models.checkpoint_files import WeightsError
from workers.scenes.images import render, sample_attributes

STAGES, WIDTH = ((4, 4), (6, 6), (8, 8, 8), (8, 8, 8), (8, 8, 8)), 16
# of the convolutions in the official file
LAYERS = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
load_small = partial(load_vgg, stages=STAGES, width=WIDTH)


def official_weights() -> dict[str, Tensor]:
    """Random tensors under torchvision's names, with fewer channels, including the class layer."""
    generator, weights, before = torch.Generator().manual_seed(0), dict[str, Tensor](), 3
    for layers, stage in zip(LAYERS, STAGES, strict=True):
        for layer, channels in zip(layers, stage, strict=True):
            weights[f"features.{layer}.weight"] = (
                torch.randn(channels, before, 3, 3, generator=generator) * (2 / before / 9) ** 0.5
            )
            weights[f"features.{layer}.bias"] = 0.1 * torch.randn(channels, generator=generator)
            before = channels
    for layer, rows, columns in ((0, WIDTH, before * 49), (3, WIDTH, WIDTH), (6, 1000, WIDTH)):
        weights[f"classifier.{layer}.weight"] = (
            torch.randn(rows, columns, generator=generator) / columns**0.5
        )
        weights[f"classifier.{layer}.bias"] = 0.1 * torch.randn(rows, generator=generator)
    return weights


def plain_features(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    x = pixels
    for layers in LAYERS:
        for layer in layers:
            x = F.conv2d(
                x, weights[f"features.{layer}.weight"], weights[f"features.{layer}.bias"], padding=1
            ).relu()
        x = F.max_pool2d(x, 2, 2)
    x = (x.flatten(1) @ weights["classifier.0.weight"].T + weights["classifier.0.bias"]).relu()
    return x @ weights["classifier.3.weight"].T + weights["classifier.3.bias"]


def test_features_equal_plain_functions(tmp_path: Path) -> None:
    weights, images = official_weights(), render(sample_attributes(2, range(3)), 2, range(3))
    torch.save(weights, tmp_path / "vgg16.pth")
    net = load_small(tmp_path / "vgg16.pth")
    pictures = [
        picture.resize((224, 224), Image.Resampling.BILINEAR) for picture in squares(images)
    ]
    raw = (
        torch.stack(
            [torch.tensor(list(picture.tobytes())).view(224, 224, 3) for picture in pictures]
        )
        / 255
    )
    normalised = (raw - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    expected = plain_features(weights, normalised.permute(0, 3, 1, 2))
    assert expected.std(0).mean() > 0.01
    assert (expected < 0).any(), "before the ReLU"
    torch.testing.assert_close(net.extract(images), expected, rtol=1e-4, atol=1e-5)


def test_the_default_has_the_official_size() -> None:
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in VggFeatures().state_dict().items()}
    convolutions = [
        f"features.{layer}.{kind}"
        for layers in LAYERS
        for layer in layers
        for kind in ("weight", "bias")
    ]
    linear = [f"classifier.{layer}.{kind}" for layer in (0, 3) for kind in ("weight", "bias")]
    assert list(shapes) == [*convolutions, *linear]
    assert shapes["features.28.weight"] == [512, 512, 3, 3]
    assert shapes["classifier.0.weight"] == [4096, 25088]
    assert shapes["classifier.3.weight"] == [4096, 4096]


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    weights, path = official_weights(), tmp_path / "vgg16.pth"
    torch.save(weights, path)
    with pytest.raises(
        WeightsError, match=r"vgg16\.pth: features\.0\.weight has shape .*a VGG network"
    ):
        load_vgg(path)
    del weights["classifier.3.bias"]
    torch.save(weights, path)
    with pytest.raises(WeightsError, match=r"missing weights \(1\): classifier\.3\.bias"):
        load_small(path)
    with pytest.raises(WeightsError, match="no such file"):
        load_small(tmp_path / "none.pth")


def test_only_precision_and_recall_use_it() -> None:
    """With manifold features, precision and recall read those; fid and kid stay on the sweep's own
    features.
    """
    generator = torch.Generator().manual_seed(0)
    keys = metric_inputs.keys(30)
    features, manifold = (
        torch.randn(30, 4, generator=generator),
        torch.randn(30, 5, generator=generator),
    )
    real, far = (
        torch.randn(40, 4, generator=generator),
        torch.randn(40, 5, generator=generator) + 50,
    )
    rows = Rows(keys | {FEATURES: features, MANIFOLD: manifold})

    def values(**more: Tensor) -> dict[str, float]:
        references = {name: ReferenceFeatures(x) for name, x in {FEATURES: real, **more}.items()}
        inputs = MetricInputs(images=rows, references=references)
        estimates, _ = compute_metrics(inputs, ["precision", "recall", "fid", "kid"])
        return {name: estimate.value for name, estimate in estimates.items()}

    without, with_manifold = values(), values(manifold=far)
    assert without["precision"] > 0.5
    assert without["recall"] > 0.3
    assert (with_manifold["precision"], with_manifold["recall"]) == (0.0, 0.0)
    assert (with_manifold["fid"], with_manifold["kid"]) == (without["fid"], without["kid"])
