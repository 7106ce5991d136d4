"""Processes that train one model together: each takes its share of every batch, and their gradients are averaged.

Nothing here starts processes: whoever does (Ray Train, torchrun) has set up `torch.distributed`. One process alone is a
team of one, for which all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@dataclass(frozen=True, slots=True)
class Team:
    """`rank` of `size` processes. The first writes files and reports."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_this_process(cls) -> Team:
        """The team that torch.distributed has set up; alone where it has not."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """This process's part of a batch.

        Raises:
            ValueError: the batch cannot be shared evenly, and means over shares would not be means over the batch.
        """
        if batch % self.size:
            raise ValueError(f"a batch of {batch} cannot be shared evenly by {self.size} workers; make it a multiple")
        own = batch // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """The mean over all processes, in place; one transfer for all tensors of a dtype."""
        if self.size == 1:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for members in kinds.values():
            flat: Tensor = _flatten_dense_tensors(members)  # type: ignore[no-untyped-call]
            dist.all_reduce(flat)
            flat.div_(self.size)
            means = _unflatten_dense_tensors(flat, members)  # type: ignore[no-untyped-call]
            for tensor, mean in zip(members, means, strict=True):
                tensor.copy_(mean)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


ALONE = Team()
