"""A process on its own is a group of one. tests/integration/test_training.py trains in a group of two."""

from __future__ import annotations

import torch

from workers.training.process_group import ProcessGroup


def test_alone_there_is_nothing_to_average() -> None:
    group, tensor = ProcessGroup.current(), torch.ones(3)
    group.average([tensor])
    group.barrier()
    assert group == ProcessGroup()
    assert (group.is_main, group.share(5), tensor.tolist()) == (True, slice(0, 5), [1, 1, 1])
