"""The kernel distance: equal to torchmetrics, and its jackknife equal to recomputing without each
block.
"""

from __future__ import annotations

import pytest
import torch
from torchmetrics.image.kid import KernelInceptionDistance, poly_mmd

from workers.metrics import discrepancy
from workers.metrics.estimate import MetricUnavailable, jackknife_error
from workers.metrics.kid import kernel_distance, mean_kernel

GROUPS = torch.arange(60) // 6


def sets(m: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 8, generator=generator) + 0.3, torch.randn(m, 8, generator=generator)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torchmetrics: its buffer
def test_equals_torchmetrics_on_all_images() -> None:
    x, y = sets()
    expected = poly_mmd(y.double(), x.double())
    assert kernel_distance(x, y, GROUPS).value == pytest.approx(expected.item(), rel=1e-9)
    net = torch.nn.Flatten()
    net.num_features = 8  # type: ignore[assignment]
    metric = KernelInceptionDistance(feature=net, subsets=1, subset_size=60)
    metric.update(x[:, :, None, None], real=False)
    metric.update(y[:, :, None, None], real=True)
    assert kernel_distance(x, y, GROUPS).value == pytest.approx(
        metric.compute()[0].item(), rel=1e-4
    )


def test_blocks_equal_leaving_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = sets(45)
    whole = kernel_distance(x, y, GROUPS)
    less = [kernel_distance(x[g != GROUPS], y, torch.arange(54) // 6).value for g in range(10)]
    assert whole.error == pytest.approx(
        jackknife_error(torch.tensor(less, dtype=torch.float64)).item(), rel=1e-6
    )
    monkeypatch.setattr(discrepancy, "_ROWS_PER_CHUNK", 7)
    chunked = kernel_distance(x, y, GROUPS, within=mean_kernel(y))
    assert (chunked.value, chunked.error) == pytest.approx((whole.value, whole.error), rel=1e-9)


def test_unbiased_on_two_samples_of_one_distribution() -> None:
    generator = torch.Generator().manual_seed(1)
    values = []
    for _ in range(200):
        x, y = torch.randn(2, 40, 4, generator=generator)
        values.append(kernel_distance(x, y, torch.arange(40)).value)
    spread = torch.tensor(values)
    assert abs(spread.mean()) < 3 * spread.std() / 200**0.5
    assert spread.min() < 0 < spread.max()


def test_too_few() -> None:
    x, y = sets()
    with pytest.raises(MetricUnavailable, match="at least 2 independent"):
        kernel_distance(x, y, torch.zeros(60, dtype=torch.int64))
    with pytest.raises(MetricUnavailable, match="too few"):
        kernel_distance(x, y[:1], GROUPS)
