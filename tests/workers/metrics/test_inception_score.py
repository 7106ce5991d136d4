"""The Inception score: against torchmetrics and by hand, and that clear and varied objects score
more.
"""

from __future__ import annotations

import pytest
import torch
from torchmetrics.image.inception import InceptionScore

from workers.metrics.estimate import MetricUnavailable, jackknife_error
from workers.metrics.features import load_features
from workers.metrics.inception import inception_score
from workers.scenes.images import render, sample_attributes


# of torchmetrics: its buffer, and the spread of one split
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_equals_torchmetrics_with_one_split() -> None:
    logits = 2 * torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Flatten()
    net.num_features = 12  # type: ignore[assignment]
    metric = InceptionScore(feature=net, splits=1)
    metric.update(logits[:, :, None, None])
    groups = torch.arange(50) // 5
    score = inception_score(logits, groups)
    assert score.value == pytest.approx(metric.compute()[0].item(), rel=1e-5)
    less = [inception_score(logits[groups != g], torch.arange(45) // 5).value for g in range(10)]
    assert score.error == pytest.approx(
        jackknife_error(torch.tensor(less, dtype=torch.float64)).item(), rel=1e-6
    )


def test_bounds_by_hand() -> None:
    certain = torch.where(torch.eye(6, dtype=torch.bool), 0.0, -1e4)
    assert inception_score(certain, torch.arange(6)).value == pytest.approx(6)
    assert inception_score(torch.zeros(6, 6), torch.arange(6)).value == pytest.approx(1)


def test_built_in_heads_see_clear_objects() -> None:
    net, indices = load_features(), range(120)
    images = render(sample_attributes(1, indices), 1, indices)
    smeared = torch.nn.functional.avg_pool2d(images, 9, stride=1, padding=4)
    groups = torch.arange(120)
    clear, unclear = (
        inception_score(net.class_logits(net.extract(x)), groups) for x in (images, smeared)
    )
    assert clear.value > unclear.value + 3 * (clear.error + unclear.error)
    assert clear.value <= 48


def test_one_caption_is_too_few() -> None:
    with pytest.raises(MetricUnavailable, match="at least 2 independent"):
        inception_score(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
