"""The neighbour table: right for every k, computed once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from workers.decoding import neighbours
from workers.decoding.neighbours import neighbour_table


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_KNOWN", {})


@pytest.mark.parametrize("proximity", ["l2", "cosine", "random"])
def test_one_computation_serves_every_k(proximity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    book = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    whole = neighbours._compute(book, proximity, 40)
    plain, runs = neighbours._compute, []

    def noted(codebook: Tensor, how: str, k: int) -> Tensor:
        runs.append(k)
        return plain(codebook, how, k)

    monkeypatch.setattr(neighbours, "_compute", noted)
    for k in (5, 40, 1, 12):
        table = neighbour_table(book, proximity, k)
        assert table.dtype == torch.int64
        assert torch.equal(table, whole[:, :k])
    assert len(runs) == 1
    assert not torch.equal(neighbour_table(book.flip(0), proximity, 40), whole) or proximity == "random"


def test_a_large_table_is_kept_on_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_WORTH_KEEPING", 100)
    monkeypatch.setattr(neighbours, "_WIDTH", 8)
    book = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    small, large = neighbour_table(book, "l2", 3, tmp_path), neighbour_table(book, "l2", 15, tmp_path)
    assert sorted(path.name.split("-")[-1] for path in tmp_path.iterdir()) == ["15.safetensors", "8.safetensors"]
    assert torch.equal(small, large[:, :3])
    neighbours._KNOWN.clear()
    monkeypatch.delattr(neighbours, "_compute")
    assert torch.equal(neighbour_table(book, "l2", 7, tmp_path), large[:, :7])


def test_the_process_keeps_a_few_tables_only() -> None:
    for seed in range(9):
        neighbour_table(torch.randn(10, 2, generator=torch.Generator().manual_seed(seed)), "l2", 4)
    assert len(neighbours._KNOWN) == neighbours._KNOWN_TABLES


def test_what_cannot_be_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="codebook of 6 codes"):
        neighbour_table(torch.zeros(6, 2), "l2", 7)
    with pytest.raises(ValueError, match="unknown proximity 'near'"):
        neighbour_table(torch.zeros(6, 2), "near", 2)
