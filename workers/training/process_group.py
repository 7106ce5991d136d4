"""Data-parallel training: each process takes its share of every batch, and gradients are averaged over all processes.

This module starts no process: the launcher (Ray Train, torchrun) sets up `torch.distributed`. In a single process every
operation here does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """`rank` of `size` processes. The main process (rank 0) writes files and logs."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> ProcessGroup:
        """The group that torch.distributed has set up, or a single process."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """This process's part of a batch.

        Raises:
            ValueError: the batch is not a multiple of `size`, so the mean over shares would differ from the batch's.
        """
        if batch % self.size:
            raise ValueError(f"a batch of {batch} cannot be shared evenly by {self.size} workers; make it a multiple")
        own = batch // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its mean over all processes; one transfer for all tensors of a dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for members in by_dtype.values():
            flat: Tensor = _flatten_dense_tensors(members)  # type: ignore[no-untyped-call]
            dist.all_reduce(flat)
            flat.div_(self.size)
            means = _unflatten_dense_tensors(flat, members)  # type: ignore[no-untyped-call]
            torch._foreach_copy_(members, list(means))

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()


def common_dtype(dtype: torch.dtype, reason: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of all processes: replicas that compute in different ones would drift apart."""
    share = torch.tensor([float(dtype == torch.bfloat16)], device=device)
    ProcessGroup.current().average([share])
    if dtype == torch.bfloat16 and float(share) < 1:
        return torch.float32, "another process cannot compute in bfloat16"
    return dtype, reason
