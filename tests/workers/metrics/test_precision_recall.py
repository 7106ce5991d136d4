"""Precision and recall: against prdc, against plain Python, and their errors against leaving blocks out."""

from __future__ import annotations

import math

import pytest
import torch
from prdc import compute_prdc

from workers.metrics import precision_recall
from workers.metrics.estimate import MetricUnavailable, jackknife_error
from workers.metrics.precision_recall import inside, precision, radii, recall


def sets(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 0.9 * torch.randn(n, 3, generator=generator) + 0.5, torch.randn(m, 3, generator=generator)


@pytest.mark.parametrize(("n", "m"), [(80, 80), (50, 200)])
def test_equal_prdc(n: int, m: int) -> None:
    x, y = sets(n, m)
    expected = compute_prdc(y.double().numpy(), x.double().numpy(), nearest_k=3)
    assert precision(x, torch.arange(n), y, radii(y)).value == pytest.approx(expected["precision"], abs=1e-12)
    assert recall(x, torch.arange(n) // 5, y).value == pytest.approx(expected["recall"], abs=1e-12)


def test_equal_all_pairs_in_plain_python() -> None:
    x, y = (part.tolist() for part in sets(20, 25, seed=1))

    def covered(points: list[list[float]], centres: list[list[float]]) -> float:
        reach = [sorted(math.dist(c, o) for j, o in enumerate(centres) if j != i)[2] for i, c in enumerate(centres)]
        balls = list(zip(centres, reach, strict=True))
        return sum(any(math.dist(point, c) <= r for c, r in balls) for point in points) / len(points)

    a, b = torch.tensor(x), torch.tensor(y)
    assert precision(a, torch.arange(20), b, radii(b)).value == pytest.approx(covered(x, y))
    assert recall(a, torch.arange(20), b).value == pytest.approx(covered(y, x))


def test_errors() -> None:
    x, y = sets(60, 90, seed=2)
    groups = torch.arange(60) // 6
    less = [recall(x[groups != g], torch.arange(54), y).value for g in range(10)]
    error = jackknife_error(torch.tensor(less, dtype=torch.float64)).item()
    assert recall(x, groups, y).error == pytest.approx(error, rel=1e-9)
    assert error > 0
    real = inside(x, y, radii(y)[:, None])[:, 0].double()
    assert precision(x, torch.arange(60), y, radii(y)).error == pytest.approx(
        (real.double().std() / len(real) ** 0.5).item(), rel=1e-6
    )


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = sets(60, 90, seed=3)
    whole = precision(x, torch.arange(60), y, radii(y)), recall(x, torch.arange(60) // 3, y)
    monkeypatch.setattr(precision_recall, "_DISTANCES_PER_CHUNK", 200)
    assert (precision(x, torch.arange(60), y, radii(y)), recall(x, torch.arange(60) // 3, y)) == whole


def test_equal_images_have_radius_zero_and_contain_themselves() -> None:
    x = torch.ones(12, 2)
    y = torch.cat([torch.ones(6, 2), torch.zeros(6, 2)])
    assert radii(x).tolist() == [0.0] * 12
    assert recall(x, torch.arange(12), y).value == 0.5


def test_too_few() -> None:
    x, y = sets(5, 3)
    with pytest.raises(MetricUnavailable, match="too few"):
        radii(y)
    with pytest.raises(MetricUnavailable, match="too few"):
        recall(x[:4], torch.arange(4), y)
    with pytest.raises(MetricUnavailable, match="at least 2 independent"):
        recall(x, torch.zeros(5, dtype=torch.int64), y)
