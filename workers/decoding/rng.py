"""Counter-based randomness: every number is a pure function of what it is for.

A draw is keyed by (sweep seed, caption id, sample index, token position, purpose, slot) through SplitMix64's finaliser
(Steele, Lea & Flood 2014), computed in wrapping int64 on the tensors' own device. There is no generator state, so an
image does not depend on its batch, on the worker, or on a restart; and all settings share one caption's numbers.

Why one number per position is enough, whatever the number of rounds: a position is decided in exactly one round, and
what was decided before it looked only at numbers of earlier positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, the 64-bit golden ratio, as a signed integer
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a number is for. Streams of different purposes are independent."""

    TARGET = 1  # a token drawn from the target's law, or from what is left of it after a rejection
    DRAFT = 2  # a drafted token
    ACCEPT = 3  # the acceptance test of a drafted token; slot = its rank among its siblings
    WINDOW = 4  # a token of a Jacobi window
    SHAPE = 5  # the shape of an adjacency tree under random initialisation


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser. Shifts are logical: torch's int64 shift is arithmetic, so the copied sign bits are
    cut.
    """
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z ^= (z >> 27) & 0x1FFFFFFFFF
    z *= _MIX_2
    z ^= (z >> 31) & 0x1FFFFFFFF
    return z


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value & _SIGN else value


def image_keys(
    seed: int, captions: Sequence[int], samples: Sequence[int], device: torch.device | str = "cpu"
) -> Tensor:
    """Keys [B] of images, one per (caption id, sample index), under a sweep's seed."""
    caption = torch.tensor([_signed(c) for c in captions], dtype=torch.int64, device=device)
    sample = torch.tensor([_signed(s) for s in samples], dtype=torch.int64, device=device)
    root = _mix(torch.tensor([_signed(seed)], dtype=torch.int64, device=device) + _GOLDEN)
    return _mix(_mix((root ^ caption) + _GOLDEN) ^ (sample * _GOLDEN + 1))


def bits(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """64 random bits (int64) for each image key, token position and slot. All arguments broadcast against each
    other.
    """
    place = _mix(keys + positions * _GOLDEN + purpose)
    return _mix(place + slots * _MIX_1)


def uniform(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Uniform fp32 numbers in [0, 1), multiples of 2^-24. 1 is never drawn: an acceptance chance of 1 always
    accepts.
    """
    return ((bits(keys, positions, purpose, slots) >> 40) & 0xFFFFFF).float().mul_(2.0**-24)


def exponential(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Standard exponential fp32 numbers, finite and positive, fine-grained near 0 where a race is decided."""
    fraction = ((bits(keys, positions, purpose, slots) >> 33) & 0x7FFFFFFF).float().add_(0.5)
    return fraction.mul_(-(2.0**-31) * (1 - 2.0**-23)).log1p_().neg_()
