"""A process on its own is a group of one. tests/integration/test_training.py trains in a group of
two.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from workers.training.loop import ProcessGroup


def test_alone_there_is_nothing_to_average() -> None:
    group, tensor = ProcessGroup.current(), torch.ones(3)
    group.average([tensor])
    group.barrier()
    assert group == ProcessGroup()
    assert (group.is_main, group.share(5), tensor.tolist()) == (True, slice(0, 5), [1, 1, 1])


def test_a_group_averages_in_one_transfer_per_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[torch.dtype] = []

    def sum_with_a_process_of_zeros(flat: Tensor) -> None:
        transfers.append(flat.dtype)

    monkeypatch.setattr(dist, "all_reduce", sum_with_a_process_of_zeros)
    tensors = [torch.full((2, 3), 4.0), torch.ones(2, dtype=torch.bfloat16), torch.tensor(6.0)]
    ProcessGroup(0, 2).average(tensors)
    assert [tensor.flatten().tolist() for tensor in tensors] == [[2.0] * 6, [0.5] * 2, [3.0]]
    assert transfers == [torch.float32, torch.bfloat16]
