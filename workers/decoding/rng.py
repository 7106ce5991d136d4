"""Counter-based randomness: every number is a pure function of what it is for.

A draw is keyed by (sweep seed, caption id, sample index, token position, purpose, slot) through SplitMix64's finaliser
(Steele, Lea & Flood 2014), computed in wrapping int64 on the tensors' own device. There is no generator state, so an
image does not depend on its batch, on the worker, or on a restart; and all settings share one caption's numbers.

Why one number per position is enough, whatever the number of rounds: a position is decided in exactly one round, and
what was decided before it looked only at numbers of earlier positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn.functional import embedding

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
    NEIGHBOURS = 6  # the order of a random neighbour table


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser. Shifts are logical: torch's int64 shift is arithmetic, so the copied sign bits are
    cut.
    """
    z = (z >> 30).bitwise_and_(0x3FFFFFFFF).bitwise_xor_(z).mul_(_MIX_1)
    z ^= (z >> 27).bitwise_and_(0x1FFFFFFFFF)
    z *= _MIX_2
    z ^= (z >> 31).bitwise_and_(0x1FFFFFFFF)
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
    return (bits(keys, positions, purpose, slots) >> 40).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)


def exponential(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Standard exponential fp32 numbers, finite and positive, fine-grained near 0 where a race is decided."""
    fraction = (bits(keys, positions, purpose, slots) >> 33).bitwise_and_(0x7FFFFFFF).float().add_(0.5)
    return fraction.mul_(-(2.0**-31) * (1 - 2.0**-23)).log1p_().neg_()


_TABLE_ENTRIES = 1 << 25  # the largest table of numbers kept, 128 MiB
_CACHE_ENTRIES = 1 << 15  # of which a processor's cache holds a few copies
_PART_ENTRIES = 1 << 23  # made at once elsewhere: what they pass through takes up a few times 64 MiB


class CounterRNG:
    """The random numbers of B images, by token position.

    Every position's numbers are asked for at least once, and drafted ones in several rounds. So a caption's numbers are
    made when it is first asked for them and looked up from then on, as long as the table is of moderate size; the
    numbers are the same either way. Positions past the image's end, which no kept token has, share the last one's.
    """

    def __init__(self, keys: Tensor, positions: int) -> None:
        self.keys, self.positions = keys, positions
        self._tables: dict[tuple[Purpose, int], Tensor] = {}
        self._slots: dict[int, Tensor] = {}
        self._rows = torch.arange(0, keys.shape[0] * positions, positions, device=keys.device)[:, None]

    def exponential_noise(self, purpose: Purpose, positions: Tensor, vocabulary: int) -> Tensor:
        """Standard exponential numbers [B, n, vocabulary] for positions [B, n]."""
        return self._numbers(exponential, purpose, positions, vocabulary)

    def uniforms(self, positions: Tensor, ranks: int) -> Tensor:
        """Uniform numbers [B, n, ranks] of the acceptance tests at positions [B, n]."""
        # adjacency trees come in every width: a table for each power of two serves them all
        return self._numbers(uniform, Purpose.ACCEPT, positions, 1 << (ranks - 1).bit_length())[..., :ranks]

    def admit(self, captions: Tensor, keys: Tensor) -> None:
        """New images at indices [n], with these keys [n]."""
        self.keys = self.keys.index_copy(0, captions, keys)
        for (purpose, count), table in self._tables.items():
            make = uniform if purpose == Purpose.ACCEPT else exponential
            fresh = self._table(make, purpose, keys, count)
            table.view(-1, self.positions, count).index_copy_(0, captions, fresh.view(-1, self.positions, count))

    def keep(self, captions: Tensor) -> None:
        """Keep only images [n] (indices), in that order."""
        self.keys = self.keys[captions]
        self._rows = self._rows[: len(captions)]
        for (purpose, count), table in self._tables.items():
            self._tables[purpose, count] = table.view(-1, self.positions, count)[captions].flatten(0, 1)

    def _numbers(self, make: Callable[..., Tensor], purpose: Purpose, positions: Tensor, count: int) -> Tensor:
        inside = positions.clamp(max=self.positions - 1)
        if self.keys.shape[0] * self.positions * count > _TABLE_ENTRIES:
            return make(self.keys[:, None, None], inside[..., None], purpose, self._slots_up_to(count))
        if (purpose, count) not in self._tables:
            self._tables[purpose, count] = self._table(make, purpose, self.keys, count)
        return embedding(inside.add_(self._rows), self._tables[purpose, count])

    def _table(self, make: Callable[..., Tensor], purpose: Purpose, keys: Tensor, count: int) -> Tensor:
        """All numbers [n * positions, count] of images with keys [n], made in parts that fit a processor's cache; on
        other devices, where every part is a launch, in parts of bounded memory.
        """
        key = keys.repeat_interleave(self.positions)[:, None]
        place = torch.arange(self.positions, device=keys.device).repeat(len(keys))[:, None]
        entries = _CACHE_ENTRIES if keys.device.type == "cpu" else _PART_ENTRIES
        slots, at_once = self._slots_up_to(count), max(1, entries // count)
        parts = zip(torch.split(key, at_once), torch.split(place, at_once), strict=True)
        return torch.cat([make(some, where, purpose, slots) for some, where in parts])

    def _slots_up_to(self, count: int) -> Tensor:
        if count not in self._slots:
            self._slots[count] = torch.arange(count, device=self.keys.device)
        return self._slots[count]
