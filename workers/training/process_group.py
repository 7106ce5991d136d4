"""Data-parallel training: each process takes its share of every batch, and gradients are averaged over all processes.

This module starts no process: the launcher (Ray Train, torchrun) sets up `torch.distributed`. In a single process every
operation here does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


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
        """Replaces each tensor by its mean over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor.div_(self.size)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()


SINGLE_PROCESS = ProcessGroup()
