"""Work in chunks: halved where memory runs out, and every item done once and in order."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from workers.runtime.memory import RESERVED_BYTES, OutOfMemory, in_chunks, limit_memory


class Device:
    """Holds `limit` items at a time, and notes how many it was given."""

    def __init__(self, limit: int, error: BaseException) -> None:
        self.limit, self.error = limit, error
        self.sizes: list[int] = []

    def work(self, some: Sequence[int]) -> list[int]:
        self.sizes.append(len(some))
        if len(some) > self.limit:
            raise self.error
        return [10 * item for item in some]


SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore words")


@pytest.mark.parametrize(
    "error", [SHORT, MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_halved_from_then_on(error: BaseException) -> None:
    device = Device(4, error)
    made = in_chunks(device.work, range(19), 8)
    assert [item for part in made for item in part] == [10 * item for item in range(19)]
    assert device.sizes == [8, 4, 4, 4, 4, 3]


def test_a_short_last_chunk_is_halved_by_its_own_size() -> None:
    device = Device(3, SHORT)
    assert in_chunks(device.work, range(5), 64) == [[0, 10], [20, 30], [40]]
    assert device.sizes == [5, 2, 2, 1]


def test_halved_until_it_fits() -> None:
    device = Device(1, SHORT)
    assert in_chunks(device.work, range(6), 6) == [[0], [10], [20], [30], [40], [50]]
    assert device.sizes == [6, 3, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("items", "sizes"), [(16, [8, 4, 2, 1]), (1, [1])])
def test_one_item_that_does_not_fit(items: int, sizes: list[int]) -> None:
    device = Device(0, SHORT)
    with pytest.raises(OutOfMemory, match=r"^out of memory at 1 images: CUDA out of memory[^\n]*$"):
        in_chunks(device.work, range(items), 8)
    assert device.sizes == sizes


def test_other_errors_are_left_alone() -> None:
    device = Device(0, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        in_chunks(device.work, range(4), 8)
    assert device.sizes == [4]


def test_nothing_to_do() -> None:
    assert in_chunks(Device(0, SHORT).work, range(0), 8) == []


@pytest.mark.parametrize(("share", "limited"), [(1.0, False), (0.5, True), (0.25, True)])
def test_a_worker_takes_its_share_of_a_gpu(
    share: float, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, fractions = 80 << 30, list[tuple[float, int | None]]()
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=total)
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, index: fractions.append((fraction, index)),
    )
    available = limit_memory(torch.device("cuda"), share)
    assert available == total * share - RESERVED_BYTES
    assert fractions == ([(available / total, None)] if limited else [])


def test_a_cpu_has_no_share() -> None:
    assert limit_memory(torch.device("cpu"), 0.5) is None
