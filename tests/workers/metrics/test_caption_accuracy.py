"""Caption accuracy: which attributes count, exact values with known predictions, and the built-in
extractor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes import metric_inputs
from workers.metrics.caption_accuracy import applicable, caption_accuracy_relation, image_accuracies
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.extractors import unavailable_metrics
from workers.metrics.features import FeatureConfig, SceneFeatures, load_features
from workers.metrics.metric import MetricInputs, Rows
from workers.metrics.registry import compute_metrics
from workers.models.families.scenes import BUILTIN
from workers.scenes.captions import SLOT_INDEX, SLOTS, caption, parse
from workers.scenes.images import render, sample_attributes

KINDS = tuple(f"caption_accuracy_{kind}" for kind in ("count", "colour", "relation"))
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
    single, pair = (
        {name for name, counts in zip(slots, row, strict=True) if counts} for row in counted
    )
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
    assert image_accuracies(net, features, captions).tolist() == pytest.approx(
        [7 / 8, 10 / 11, 1.0]
    )


def test_the_built_in_extractor_on_right_and_wrong_captions() -> None:
    rows = sample_attributes(1, range(200))
    net = load_features()
    features = net.extract(render(rows, 1, range(200)))
    captions = [caption(row) for row in rows.tolist()]
    right = image_accuracies(net, features, captions)
    wrong = image_accuracies(net, features, captions[1:] + captions[:1])
    assert right.mean() > 0.93
    assert wrong.mean() < 0.5


def test_kinds_by_hand() -> None:
    """Each kind counts its own attributes, and its replicates leave out the captions of a block."""
    captions = [SINGLE, PAIR, PAIR, SINGLE]
    rows = torch.tensor([parse(text) for text in captions])
    read, index = rows.clone(), SLOT_INDEX
    read[0, index["first_colour"]] += 1
    read[1, index["relation"]] = 2  # two objects, at other places
    read[2, index["second_colour"]] += 1
    read[3, index["relation"]] = 1  # two objects instead of one
    keys = metric_inputs.keys(4)
    inputs = MetricInputs(
        images=Rows(keys | {"features": torch.zeros(4, 4)}),
        classifier=FixedPredictions(read),
        captions=captions,
    )
    found, skipped = compute_metrics(inputs, KINDS)
    values = {name: estimate.value for name, estimate in found.items()}
    assert (values, skipped) == (
        {KINDS[0]: 3 / 4, KINDS[1]: pytest.approx(4 / 6), KINDS[2]: 1 / 2},
        {},
    )
    assert found[KINDS[1]].replicates == pytest.approx([4 / 5, 2 / 4, 3 / 4, 3 / 5])
    singles = replace(
        inputs,
        images=Rows({name: column[[0, 3]] for name, column in inputs.images.items()}),
        _cache={},
    )
    with pytest.raises(MetricUnavailable, match="two objects"):
        caption_accuracy_relation(replace(singles, classifier=FixedPredictions(read[[0, 3]])))


def test_kinds_need_the_extractor_of_scenes() -> None:
    inputs = replace(metric_inputs.trial_inputs(), captions=[SINGLE] * 60)
    assert compute_metrics(inputs, KINDS)[1].keys() == set(KINDS)
    options: dict[str, Any] = {"image_size": 48, "weights": None, "reference": False}
    assert unavailable_metrics(KINDS, BUILTIN, captions=[SINGLE], **options) == {}
    assert unavailable_metrics(KINDS, BUILTIN, captions=["a dog"], **options).keys() == set(KINDS)


def test_wrong_input_is_refused() -> None:
    net = FixedPredictions(torch.zeros(2, len(SLOTS), dtype=torch.int64))
    with pytest.raises(ValueError, match="zebra"):
        image_accuracies(net, torch.zeros(2, 4), [SINGLE, "a red zebra"])
