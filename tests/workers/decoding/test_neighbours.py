"""The neighbour table: right for every k, computed once."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from workers.decoding import neighbours, rng
from workers.decoding.neighbours import neighbour_table


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_tables", {})


def far(x: list[float], y: list[float], proximity: str) -> Fraction:
    """How far code y is from code x, exactly: l2 squared, or the negative squared cosine (with the
    cosine's sign).
    """
    if proximity == "l2":
        return sum((Fraction(a - b) ** 2 for a, b in zip(x, y, strict=True)), Fraction(0))
    inner = sum((Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True)), Fraction(0))
    return -inner * abs(inner) / sum(Fraction(a) ** 2 for a in x) / sum(Fraction(b) ** 2 for b in y)


@pytest.mark.parametrize("proximity", ["l2", "cosine"])
def test_the_nearest_come_first(proximity: str) -> None:
    """Codes on a small lattice, of all lengths, so that l2 and cosine differ and equal distances
    abound; one code is there twice.
    """
    random_numbers = random.Random(1)
    book = [
        [float(random_numbers.choice([v for v in range(-9, 10) if v])) for _ in range(2)]
        for _ in range(29)
    ]
    book.append(book[4])
    table = neighbour_table(torch.tensor(book), proximity, 30).tolist()
    for x, row in enumerate(table):
        assert row[0] == x
        assert sorted(row) == list(range(30))
        distances = [far(book[x], book[y], proximity) for y in row[1:]]
        assert distances == sorted(distances)
        if proximity == "l2":  # exact in fp32, as equal cosines are not
            assert row[1:] == sorted(row[1:], key=lambda y, x=x: (far(book[x], book[y], "l2"), y))  # type: ignore[misc]
    assert (
        table
        != neighbour_table(torch.tensor(book), "cosine" if proximity == "l2" else "l2", 30).tolist()
    )


@pytest.mark.parametrize("proximity", ["l2", "cosine", "random"])
@pytest.mark.parametrize("k", [1, 7, 65, 129, 130])  # torch selects in two ways, depending on k
def test_the_table_is_a_stable_sort_of_every_row(
    proximity: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes on a lattice of 25 points, so that most distances tie and most codes are there several
    times.
    """
    # rows in 19 chunks, the last one smaller
    monkeypatch.setattr(neighbours, "_CHUNK_ENTRIES", 130 * 7)
    book = torch.randint(-2, 3, (130, 2), generator=torch.Generator().manual_seed(0)).float()
    codes = torch.arange(130)
    if proximity == "random":
        distance = rng.bits(codes[:, None], codes.new_zeros(1), rng.Purpose.NEIGHBOURS, codes)
        distance.fill_diagonal_(torch.iinfo(torch.int64).min)
    else:
        vectors = torch.nn.functional.normalize(book) if proximity == "cosine" else book
        distance = torch.cdist(
            vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist"
        ).fill_diagonal_(-1.0)
        assert (distance.sort().values.diff() == 0).float().mean() > 0.8  # ties
    expected = distance.sort(dim=1, stable=True).indices[:, :k]
    assert torch.equal(neighbours.compute_table(book, proximity, k).long(), expected)


def test_random_neighbours_are_a_fixed_order_of_all_codes() -> None:
    book = torch.randn(30, 3, generator=torch.Generator().manual_seed(2))
    table = neighbour_table(book, "random", 30).tolist()
    assert [row[0] for row in table] == list(range(30))
    assert all(sorted(row) == list(range(30)) for row in table)
    # no two codes share an order
    assert len({tuple(code for code in row if code > 1) for row in table}) == 30
    neighbours._tables.clear()
    assert neighbour_table(book.flip(0), "random", 30).tolist() == table  # whatever the codes are


def test_a_table_depends_on_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file in a shared folder would decide what is accepted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = torch.randn(2100, 2, generator=torch.Generator().manual_seed(1))
    table = neighbour_table(book, "l2", 5)
    assert list(tmp_path.iterdir()) == []
    assert table.shape == (2100, 5)
    assert table[:, 0].tolist() == list(range(2100))


@pytest.mark.parametrize("proximity", ["l2", "cosine", "random"])
def test_one_computation_serves_every_k(proximity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    book = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    whole = neighbours.compute_table(book, proximity, 40)
    plain, runs = neighbours.compute_table, []

    def noted(codebook: Tensor, how: str, k: int) -> Tensor:
        runs.append(k)
        return plain(codebook, how, k)

    monkeypatch.setattr(neighbours, "compute_table", noted)
    for k in (5, 40, 1, 12):
        table = neighbour_table(book, proximity, k)
        assert table.dtype == torch.int32
        assert table.tolist() == whole[:, :k].tolist()
    assert len(runs) == 1


def test_the_process_keeps_a_few_tables_only() -> None:
    for seed in range(9):
        neighbour_table(torch.randn(10, 2, generator=torch.Generator().manual_seed(seed)), "l2", 4)
    assert len(neighbours._tables) == neighbours._MAX_TABLES


def test_invalid_arguments_are_errors() -> None:
    with pytest.raises(ValueError, match="codebook of 6 codes"):
        neighbour_table(torch.zeros(6, 2), "l2", 7)
    with pytest.raises(ValueError, match="unknown proximity 'near'"):
        neighbour_table(torch.zeros(6, 2), "near", 2)
