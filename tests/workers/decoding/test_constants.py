"""Constants are made once for each device, and those of dry runs can be dropped."""

from __future__ import annotations

import torch

from workers.decoding.constants import arange, forget_meta_constants, identity

CPU, META = torch.device("cpu"), torch.device("meta")


def test_they_are_made_once_for_each_size_and_device() -> None:
    assert arange(1, 9, 2, CPU).tolist() == [1, 3, 5, 7]
    assert arange(1, 9, 2, CPU) is arange(1, 9, 2, CPU)
    assert arange(1, 9, 3, CPU).tolist() == [1, 4, 7]
    assert arange(1, 9, 2, META).is_meta
    assert torch.equal(identity(3, CPU), torch.eye(3).bool())


def test_a_dry_run_drops_those_on_the_meta_device_alone() -> None:
    """CUDA graphs of the process read the others by their addresses."""
    kept, dropped = (identity(7, device) for device in (CPU, META))
    forget_meta_constants()
    assert identity(7, CPU) is kept
    assert identity(7, META) is not dropped
