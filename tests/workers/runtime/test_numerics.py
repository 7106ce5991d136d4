"""A worker's numbers: the same for the same weights, apart by what changed, and sensitive to every
part that draws.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.fakes.toys import toy_target
from workers.metrics.extractors import Extractors
from workers.models.target import Target
from workers.runtime.numerics import max_difference, measure_numerics

CAPTIONS = ["a red circle", "a blue square", "never encoded"]


def measure(
    change: Callable[[Target], object] = lambda target: None, scale: float = 1.0
) -> dict[str, Any]:
    """Of a target that was changed, with an extractor whose features are scaled pixels."""
    target = toy_target()
    with torch.no_grad():
        change(target)

    def extract(images: Tensor) -> Tensor:
        return images.flatten(1) * scale

    extractors = SimpleNamespace(by_role={"features": SimpleNamespace(extract=extract)})
    return measure_numerics(target, cast("Extractors", extractors), CAPTIONS)


def scale_head(factor: float) -> Callable[[Target], object]:
    return lambda target: cast("nn.Linear", target.head).weight.mul_(factor)


def test_the_same_weights_give_the_same_numbers() -> None:
    first = measure()
    assert first == measure()
    assert max_difference(first, measure()) == 0
    assert any(first["logits"])
    assert any(first["features"])


@pytest.mark.parametrize("factor", [1 + 1e-6, 1 + 1e-3])
def test_the_difference_is_relative_to_the_largest_number(factor: float) -> None:
    assert max_difference(measure(), measure(scale_head(factor))) == pytest.approx(
        factor - 1, rel=0.2
    )
    assert max_difference(measure(), measure(scale=factor)) == pytest.approx(factor - 1, rel=0.2)


def test_the_pass_reads_what_the_prefill_left() -> None:
    """A prompt that was encoded a little differently shows in the logits of the pass after it."""
    changed = measure(lambda target: cast("Any", target.conditioner).table.weight.mul_(1.01))
    assert max_difference(measure(), changed) > 1e-4


def test_rounded_weights_differ_by_more_than_float32_may() -> None:
    def round_weights(target: Target) -> None:
        for parameter in target.transformer.parameters():
            parameter.copy_(parameter.bfloat16().float())

    assert max_difference(measure(), measure(round_weights)) > 1e-4


def test_numbers_that_are_not_finite_are_plain_data() -> None:
    found = measure(scale_head(float("nan")))
    assert found["logits"] == [0.0] * len(found["logits"])
    assert found["digest"] != measure()["digest"]
