"""A Triton kernel of the random bits that `workers.decoding.rng` defines. `TRITON_INTERPRET=1` runs
it on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,import-untyped,misc"

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _mix(z):
    """SplitMix64's finaliser, on unsigned integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def bits(
    keys, positions, slots, result, layers, size, blocks, key_strides, position_strides, slot_strides,
    PURPOSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result [n, columns, layers] of three inputs with these strides. Each row of `size` numbers
    has `blocks` programs, so that indices in a row are of 32 bits: GPUs have no instruction that
    divides 64.
    """
    row = (tl.program_id(0) // blocks).to(tl.int64)
    within = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = within < size
    column = (within // layers).to(tl.int64)
    layer = (within % layers).to(tl.int64)
    index = row * size + within
    key = tl.load(
        keys + row * key_strides[0] + column * key_strides[1] + layer * key_strides[2], mask=inside
    )
    place = row * position_strides[0] + column * position_strides[1] + layer * position_strides[2]
    position = tl.load(positions + place, mask=inside)
    slot = tl.load(
        slots + row * slot_strides[0] + column * slot_strides[1] + layer * slot_strides[2],
        mask=inside,
    )
    hashed = _mix(key.to(tl.uint64) + position.to(tl.uint64) * 0x9E3779B97F4A7C15 + PURPOSE)
    mixed = _mix(hashed + slot.to(tl.uint64) * 0xBF58476D1CE4E5B9)
    tl.store(result + index, mixed.to(tl.int64), mask=inside)
