"""The meter: bytes of tensors from their allocation to their release, and work that repeated calls
count again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.loading.dry_run import Meter, Work


def test_a_meter_follows_tensors_to_their_end() -> None:
    before = torch.zeros(500, 2, device="meta")
    with Meter() as meter:
        assert before.t().shape == (2, 500)
        assert meter.live == meter.take_work().kernels == 0, (
            "a view of what was there is nothing new"
        )
        a = torch.zeros(1000, device="meta")
        b = a.view(10, 100)[2:].t()
        assert meter.live == 4000
        c = a + 1
        assert meter.live == 8000
        del a
        assert meter.live == 8000, "a view keeps its storage"
        del b, c
        assert meter.live == 0
        assert meter.peak == 8000


def test_repeated_calls_count_as_the_first() -> None:
    """Their meta kernels do not run again, but the memory and the work are the same."""
    a, b = torch.zeros(8, 16, device="meta"), torch.zeros(16, 4, device="meta")

    def step() -> Tensor:
        mixed = (a @ b).softmax(1) * 2 + torch.tensor(1.0)
        return mixed.to(torch.bfloat16).contiguous()  # the second returns its argument

    with Meter() as meter:
        found: list[tuple[Work, int]] = []
        for _ in range(3):
            result = step()
            found.append((meter.take_work(), meter.live))
            assert (result.shape, result.stride(), result.dtype) == (
                torch.Size([8, 4]),
                (4, 1),
                torch.bfloat16,
            )
            del result
            assert meter.live == 0
    assert found[0] == found[1] == found[2]
    assert found[0][0].flops == 2 * 8 * 16 * 4
    assert found[0][1] == 8 * 4 * 2


def test_a_call_on_other_shapes_is_another_call() -> None:
    with Meter():
        for rows, dtype in ((2, torch.float32), (3, torch.float32), (3, torch.float64)):
            wide = torch.zeros(rows, 5, dtype=dtype, device="meta")
            assert (wide * wide).shape == (rows, 5)
            assert (wide + 1).dtype == dtype
            assert (wide.t() + wide.t()).stride() == (1, 5), "as the kernel's own result"


def test_a_repeated_call_in_place_returns_its_tensor() -> None:
    """In place, and into a tensor of the caller: the result is that tensor, and it keeps the
    kernel's own shape.
    """
    with Meter() as meter:
        for _ in range(3):
            a, b = (
                torch.zeros(4, 6, device="meta"),
                torch.zeros(4, 6, device="meta", dtype=torch.int64),
            )
            meter.take_work()
            assert a.add_(1.0) is a
            assert a.masked_fill_(b > 0, 2.0).scatter_(1, b, a) is a
            assert torch.mul(a, a, out=a) is a
            assert meter.take_work().kernels == 5
            assert a.t_().shape == (6, 4)
            assert a.resize_(3).shape == (3,), "a change of shape is made each time"
            assert meter.live == 4 * 24 + 8 * 24
