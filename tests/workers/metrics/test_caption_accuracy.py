"""Caption accuracy: which attributes count, exact counts with a planted reader, and the built-in net on real scenes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.metrics.caption_accuracy import applicable, caption_accuracy, image_accuracies
from workers.metrics.features import FeatureConfig, SceneFeatures, load_features
from workers.scenes.captions import SLOTS, caption, parse
from workers.scenes.images import render, sample_attributes

LONE = "a small red ring at the top on a striped blue background"
PAIR = "a large red circle left of a small blue striped square on a cloudy green background"


class PlantedReader(SceneFeatures):
    """Reads the rows that it is given, whatever the features."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(FeatureConfig(channels=(2, 2, 2, 2), squeeze=1, dim=4, hidden=4))
        self.rows = rows

    def read(self, features: Tensor) -> Tensor:
        return self.rows


def test_applicable_attributes() -> None:
    rows = torch.tensor([parse(LONE), parse(PAIR)])
    slots = [name for name, _ in SLOTS]
    counted = applicable(rows).tolist()
    lone, pair = ({name for name, counts in zip(slots, row, strict=True) if counts} for row in counted)
    assert lone == {name for name in slots if not name.startswith("second_")}
    assert pair == set(slots) - {"position"}


def test_counts_are_exact() -> None:
    rows = torch.tensor([parse(LONE), parse(PAIR), parse(PAIR)])
    read = rows.clone()
    index = {name: i for i, (name, _) in enumerate(SLOTS)}
    read[0, index["first_shape"]] = 0
    read[0, index["second_shape"]] = 3  # does not count for a lone object
    read[1, index["second_colour"]] = 1
    read[1, index["position"]] = 2  # does not count for a pair
    captions = [LONE, PAIR, PAIR]
    net, features = PlantedReader(read), torch.zeros(3, 4)
    assert image_accuracies(net, features, captions).tolist() == pytest.approx([7 / 8, 10 / 11, 1.0])
    estimate = caption_accuracy(net, features, captions)
    scores = torch.tensor([7 / 8, 10 / 11, 1.0])
    assert estimate.value == pytest.approx(scores.mean().item())
    assert estimate.error == pytest.approx(scores.std().item() / 3**0.5)
    assert estimate.n == 3


def test_builtin_net_on_real_scenes_and_on_wrong_captions() -> None:
    rows = sample_attributes(1, range(200))
    net = load_features()
    features = net.extract(render(rows, 1, range(200)))
    captions = [caption(row) for row in rows.tolist()]
    right = caption_accuracy(net, features, captions)
    wrong = caption_accuracy(net, features, captions[1:] + captions[:1])
    assert right.value > 0.93
    assert wrong.value < 0.5
    assert 0 < right.error < 0.01


def test_mistakes_are_told() -> None:
    net = PlantedReader(torch.zeros(2, len(SLOTS), dtype=torch.int64))
    with pytest.raises(ValueError, match="one caption per image"):
        caption_accuracy(net, torch.zeros(2, 4), [LONE])
    with pytest.raises(ValueError, match="zebra"):
        caption_accuracy(net, torch.zeros(2, 4), [LONE, "a red zebra"])
