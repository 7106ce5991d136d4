"""Precision and recall: against prdc, against plain Python, and their errors against leaving blocks
out.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from prdc import compute_prdc
from torch.utils._python_dispatch import TorchDispatchMode

from workers.metrics import precision_recall
from workers.metrics.estimate import MetricUnavailable, jackknife_error
from workers.metrics.precision_recall import inside, precision, radii, recall


def sets(n: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 0.9 * torch.randn(n, 3, generator=generator) + 0.5, torch.randn(
        m, 3, generator=generator
    )


@pytest.mark.parametrize(("n", "m"), [(80, 80), (50, 200)])
def test_equal_prdc(n: int, m: int) -> None:
    x, y = sets(n, m)
    expected = compute_prdc(y.double().numpy(), x.double().numpy(), nearest_k=3)
    assert precision(x, torch.arange(n), y, radii(y)).value == pytest.approx(
        expected["precision"], abs=1e-12
    )
    assert recall(x, torch.arange(n) // 5, y).value == pytest.approx(expected["recall"], abs=1e-12)


def test_equal_all_pairs_in_plain_python() -> None:
    x, y = (part.tolist() for part in sets(20, 25, seed=1))

    def covered(points: list[list[float]], centres: list[list[float]]) -> float:
        reach = [
            sorted(math.dist(c, o) for j, o in enumerate(centres) if j != i)[2]
            for i, c in enumerate(centres)
        ]
        balls = list(zip(centres, reach, strict=True))
        return sum(any(math.dist(point, c) <= r for c, r in balls) for point in points) / len(
            points
        )

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


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(
        self, function: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, torch.Tensor):
                self.elements = max(self.elements, part.numel())
        return result


def all_at_once(x: torch.Tensor, blocks: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Recall of all blocks and without each, from all pairs of images."""
    own = precision_recall._distances(x.double(), x).fill_diagonal_(torch.inf)
    columns = []
    for block in (-1, *range(int(blocks.max()) + 1)):
        kept = own.masked_fill((blocks == block)[None], torch.inf).sort(dim=1).values[:, 2]
        columns.append(torch.where(blocks == block, -1.0, kept))
    shares: list[float] = (
        inside(y, x.double(), torch.stack(columns, dim=1)).double().mean(0).tolist()
    )
    return shares


@pytest.mark.parametrize(
    "blocks", [torch.arange(240) // 60, torch.arange(240) % 7, (torch.arange(240) > 200).long()]
)
def test_memory_does_not_grow_with_images_times_neighbours(
    blocks: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the values are those of all pairs, to the digit; also with ties, and with blocks of
    unequal size.
    """
    x, y = sets(240, 50, seed=4)
    x[7:90:3] = x[5]
    monkeypatch.setattr(precision_recall, "_DISTANCES_PER_CHUNK", 960)
    with LargestResult() as largest:  # type: ignore[no-untyped-call]
        found = recall(x, blocks, y)
    assert [found.value, *found.replicates] == all_at_once(x, blocks, y)
    images_by_blocks = 240 * (2 + int(blocks.max()))
    assert largest.elements <= max(images_by_blocks, 960)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = sets(60, 90, seed=3)
    whole = precision(x, torch.arange(60), y, radii(y)), recall(x, torch.arange(60) // 3, y)
    monkeypatch.setattr(precision_recall, "_DISTANCES_PER_CHUNK", 200)
    assert (
        precision(x, torch.arange(60), y, radii(y)),
        recall(x, torch.arange(60) // 3, y),
    ) == whole


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
