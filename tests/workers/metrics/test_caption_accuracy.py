"""Caption accuracy: which attributes count, exact values with known predictions, and the built-in extractor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.metrics.caption_accuracy import applicable, image_accuracies
from workers.metrics.features import FeatureConfig, SceneFeatures, load_features
from workers.scenes.captions import SLOTS, caption, parse
from workers.scenes.images import render, sample_attributes

SINGLE = "a small red ring at the top on a striped blue background"
PAIR = "a large red circle left of a small blue striped square on a cloudy green background"


class FixedPredictions(SceneFeatures):
    """Predicts the given rows for any features."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(FeatureConfig(channels=(2, 2, 2, 2), squeeze=1, dim=4, hidden=4))
        self.rows = rows

    def read(self, features: Tensor) -> Tensor:
        return self.rows


def test_applicable_attributes() -> None:
    rows = torch.tensor([parse(SINGLE), parse(PAIR)])
    slots = [name for name, _ in SLOTS]
    counted = applicable(rows).tolist()
    single, pair = ({name for name, counts in zip(slots, row, strict=True) if counts} for row in counted)
    assert single == {name for name in slots if not name.startswith("second_")}
    assert pair == set(slots) - {"position"}


def test_exact_values() -> None:
    rows = torch.tensor([parse(SINGLE), parse(PAIR), parse(PAIR)])
    read = rows.clone()
    index = {name: i for i, (name, _) in enumerate(SLOTS)}
    read[0, index["first_shape"]] = 0
    read[0, index["second_shape"]] = 3  # does not count for a single object
    read[1, index["second_colour"]] = 1
    read[1, index["position"]] = 2  # does not count for a pair
    captions = [SINGLE, PAIR, PAIR]
    net, features = FixedPredictions(read), torch.zeros(3, 4)
    assert image_accuracies(net, features, captions).tolist() == pytest.approx([7 / 8, 10 / 11, 1.0])


def test_the_built_in_extractor_on_right_and_wrong_captions() -> None:
    rows = sample_attributes(1, range(200))
    net = load_features()
    features = net.extract(render(rows, 1, range(200)))
    captions = [caption(row) for row in rows.tolist()]
    right = image_accuracies(net, features, captions)
    wrong = image_accuracies(net, features, captions[1:] + captions[:1])
    assert right.mean() > 0.93
    assert wrong.mean() < 0.5


def test_wrong_input_is_refused() -> None:
    net = FixedPredictions(torch.zeros(2, len(SLOTS), dtype=torch.int64))
    with pytest.raises(ValueError, match="zebra"):
        image_accuracies(net, torch.zeros(2, 4), [SINGLE, "a red zebra"])
