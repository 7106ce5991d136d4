"""Counter-based random numbers: each number is a pure function of its key.

A number is keyed by (sweep seed, caption id, sample index, token position, purpose, slot) through
SplitMix64's finaliser (Steele, Lea & Flood 2014), computed in wrapping int64 on the tensors' own
device. There is no generator state, so an image does not depend on its batch, on the worker or on a
restart, and all configs share a caption's numbers (common random numbers).

One number per position is enough for any number of passes: a position is decided in exactly one
pass, and all earlier decisions used only the numbers of earlier positions. Where the drafts of a
chain are verified together, decisions use the drafts of later positions too; the numbers of those
are then keyed by the distance to the root as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from workers.decoding.constants import arange
from workers.decoding.kernels import (
    bits_by_numpy,
    bits_of_arrays,
    is_available,
    random_bits,
)
from workers.decoding.operators import cpu_operator
from workers.decoding.sampling import sample_with_exponentials
from workers.models.cache import moved_rows

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15, the 64-bit golden ratio, as a signed integer
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_NUMPY_NUMBERS = 512  # NumPy mixes so many numbers, or more, faster than torch
# With so many codes, or more, a CPU makes the numbers of the tokens that have mass alone.
_MANY_CODES = 1 << 13


class Purpose(IntEnum):
    """What a number is used for. Streams of different purposes are independent."""

    TARGET = 1  # a token sampled from the target's probs, or from their residual after a rejection
    DRAFT = 2  # a drafted token
    ACCEPT = 3  # the acceptance test of a drafted token; slot = its rank among its siblings
    WINDOW = 4  # a token of a Jacobi window
    SHAPE = 5  # the size of an adjacency tree under random initialisation
    NEIGHBOURS = 6  # the order of a random neighbour table
    RECORD = 7  # whether a pass is recorded for replay
    PATH = 8  # which path of a tree is emitted unverified


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser. torch's int64 shift is arithmetic; the masks remove the copied sign
    bits.
    """
    z = (z >> 30).bitwise_and_(0x3FFFFFFFF).bitwise_xor_(z).mul_(_MIX_1)
    z ^= (z >> 27).bitwise_and_(0x1FFFFFFFFF)
    z *= _MIX_2
    z ^= (z >> 31).bitwise_and_(0x1FFFFFFFF)
    return z


def _signed(values: Sequence[int]) -> Tensor:
    """The lowest 64 bits of each value, as int64."""
    return torch.from_numpy(
        np.array([value & _MASK for value in values], dtype=np.uint64).view(np.int64)
    )


def image_keys(
    seed: int, captions: Sequence[int], samples: Sequence[int], device: torch.device | str = "cpu"
) -> Tensor:
    """Keys [B] of images, one per (caption id, sample index), under a sweep's seed."""
    caption = _signed(captions).to(device)
    sample = _signed(samples).to(device)
    root = _mix(_signed([seed]).to(device) + _GOLDEN)
    return _mix(_mix((root ^ caption) + _GOLDEN) ^ (sample * _GOLDEN + 1))


def bits(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """64 random bits (int64) for each image key, token position and slot. The arguments
    broadcast.
    """
    if keys.is_cpu:
        if max(positions.numel(), slots.numel()) >= _NUMPY_NUMBERS:
            return bits_by_numpy(keys, positions, int(purpose), slots)
    elif is_available(keys.device.type):
        result: Tensor = random_bits(keys, positions, int(purpose), slots)
        return result
    hashed = _mix(keys + positions * _GOLDEN + purpose)
    return _mix(hashed + slots * _MIX_1)


def uniform(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Uniform fp32 numbers in [0, 1), multiples of 2^-24. Never 1, so that an acceptance
    probability of 1 always accepts.
    """
    return (
        (bits(keys, positions, purpose, slots) >> 40).bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)
    )


def uniform_double(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Uniform fp64 numbers in [0, 1), multiples of 2^-53."""
    return (
        (bits(keys, positions, purpose, slots) >> 11)
        .bitwise_and_((1 << 53) - 1)
        .double()
        .mul_(2.0**-53)
    )


def exponential(keys: Tensor, positions: Tensor, purpose: Purpose, slots: Tensor) -> Tensor:
    """Standard exponential fp32 numbers, finite and positive. They are finest near 0, where the
    argmax is decided.
    """
    return _exponentials(bits(keys, positions, purpose, slots))


def _exponentials(random_bits: Tensor) -> Tensor:
    fraction = (random_bits >> 33).bitwise_and_(0x7FFFFFFF).float().add_(0.5)
    return fraction.mul_(-(2.0**-31) * (1 - 2.0**-23)).log1p_().neg_()


@cpu_operator("sample_by_mass(Tensor probs, Tensor keys, Tensor positions, int purpose) -> Tensor")
def _sample_by_mass(probs: Tensor, keys: Tensor, positions: Tensor, purpose: int) -> Tensor:
    """`CounterRNG.sample` of a token [B] from each of probs [B, V], which makes the numbers of
    tokens with mass alone. Without any it is token 0.
    """
    rows = probs.numpy()
    key = keys.numpy()
    position = positions.numpy()
    sampled = np.zeros(len(rows), np.int64)
    for row, entries in enumerate(rows):
        tokens = np.flatnonzero(entries != 0)
        if len(tokens):
            found = bits_of_arrays(key[row : row + 1], position[row : row + 1], purpose, tokens)
            noise = _exponentials(torch.from_numpy(found)).numpy()
            sampled[row] = tokens[np.argmax(entries[tokens] / noise)]
    return torch.from_numpy(sampled)


Generate = Callable[[Tensor, Tensor, Purpose, Tensor], Tensor]  # `bits`, or numbers made of them
# The function, the purpose, the number of slots, and the first slot.
_TableKey = tuple[Generate, Purpose, int, int]

# Most entries of a table that is kept: 128 MiB of fp32 numbers, twice as much of fp64.
_MAX_TABLE_ENTRIES = 1 << 25
# Most numbers that `by_slot` looks up in a table, of which it uses the diagonal only; instead of
# more, it computes the diagonal anew, which is faster.
_MAX_GATHERED = 1 << 13
_CPU_CHUNK_ENTRIES = 1 << 17  # numbers computed at once on a CPU: a copy fits its cache
_GPU_CHUNK_ENTRIES = 1 << 23  # numbers computed at once elsewhere, in a few times 64 MiB


def _chunk_entries(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_CHUNK_ENTRIES
    return _GPU_CHUNK_ENTRIES


class CounterRNG:
    """The random numbers of B images, by token position.

    The numbers of a drafted position are needed in several passes. So tables of moderate size are
    computed at their first use and then looked up; a table does not change the numbers. Positions
    past the end of the image, whose tokens are never kept, share the numbers of the last position.
    """

    def __init__(self, keys: Tensor, positions: int) -> None:
        self.keys = keys
        self.positions = positions
        self._tables: dict[_TableKey, Tensor] = {}
        self._first_rows = torch.arange(
            0, keys.shape[0] * positions, positions, device=keys.device
        )[:, None]

    def exponential_noise(self, purpose: Purpose, positions: Tensor, vocab_size: int) -> Tensor:
        """Standard exponential numbers [B, n, vocab_size] for positions [B, n]."""
        return self._numbers(exponential, purpose, positions, vocab_size)

    def sample(self, purpose: Purpose, probs: Tensor, positions: Tensor) -> Tensor:
        """Tokens [B, n] for positions [B, n], each from its probs [B, n, V], by
        `sample_with_exponentials`.
        """
        size, count, vocab_size = probs.shape
        at_once = max(1, _GPU_CHUNK_ENTRIES // (size * vocab_size))  # positions
        if count <= at_once:
            return sample_with_exponentials(
                probs, self.exponential_noise(purpose, positions, vocab_size)
            )
        parts = zip(torch.split(probs, at_once, 1), torch.split(positions, at_once, 1), strict=True)
        return torch.cat([self.sample(purpose, *part) for part in parts], dim=1)

    def sample_without_table(self, purpose: Purpose, probs: Tensor, positions: Tensor) -> Tensor:
        """The tokens [B] of `sample` for positions [B], each from its probs [B, V]. No other pass
        reads their numbers, so a table of them would save nothing.
        """
        if not probs.is_cpu or probs.shape[1] < _MANY_CODES:
            return self.sample(purpose, probs[:, None], positions[:, None])[:, 0]
        clamped = positions.clamp(max=self.positions - 1)
        tokens: Tensor = _sample_by_mass(probs, self.keys, clamped, int(purpose))
        return tokens

    def uniforms(self, positions: Tensor, ranks: int) -> Tensor:
        """Uniform numbers [B, n, ranks] for the acceptance tests at positions [B, n]."""
        # adjacency trees have varying widths: table widths are powers of two, so that a few tables
        # suffice
        return self._numbers(uniform, Purpose.ACCEPT, positions, 1 << (ranks - 1).bit_length())[
            ..., :ranks
        ]

    def by_slot(
        self, generate: Generate, purpose: Purpose, positions: Tensor, first: int
    ) -> Tensor:
        """Numbers [B, n] for positions [B, n], of slots from `first` on, a slot for each column."""
        slots = positions.shape[1]
        if self.keys.is_cpu and positions.numel() * slots <= _MAX_GATHERED:
            return self._numbers(generate, purpose, positions, slots, first).diagonal(0, 1, 2)
        order = arange(first, first + slots, 1, positions.device)
        return generate(self.keys[:, None], positions.clamp(max=self.positions - 1), purpose, order)

    def admit(self, indices: Tensor, keys: Tensor) -> None:
        """Put new images with these keys [n] at batch indices [n]."""
        self.keys = self.keys.index_copy(0, indices, keys)
        for (generate, purpose, slots, first), table in self._tables.items():
            new = self._table(generate, purpose, keys, slots, first)
            table.view(-1, self.positions, slots).index_copy_(
                0, indices, new.view(-1, self.positions, slots)
            )

    def keep(self, indices: Tensor) -> None:
        """Move the tables' entries of the images at batch indices [n] to the front, as `keys` are
        moved.
        """
        targets, sources = moved_rows(indices)
        for table in self._tables.values():
            by_image = table.view(-1, self.positions, table.shape[1])
            by_image.index_copy_(0, targets, by_image.index_select(0, sources))

    def _numbers(
        self, generate: Generate, purpose: Purpose, positions: Tensor, slots: int, first: int = 0
    ) -> Tensor:
        """Numbers [B, n, slots] for positions [B, n], of slots from `first` on."""
        clamped = positions.clamp(max=self.positions - 1)
        name = (generate, purpose, slots, first)
        if len(self._first_rows) * self.positions * slots > _MAX_TABLE_ENTRIES:
            order = arange(first, first + slots, 1, positions.device)
            return generate(self.keys[:, None, None], clamped[..., None], purpose, order)
        if name not in self._tables:
            table = self._table(generate, purpose, self.keys, slots, first)
            # a batch that has shrunk leaves rows empty
            if missing := (len(self._first_rows) - len(self.keys)) * self.positions:
                table = pad(table, (0, 0, 0, missing))
            self._tables[name] = table
        rows = clamped.add_(self._first_rows[: len(clamped)])
        return embedding(rows, self._tables[name])

    def _table(
        self, generate: Generate, purpose: Purpose, keys: Tensor, slots: int, first: int = 0
    ) -> Tensor:
        """All numbers [n * positions, slots] of images with keys [n], of slots from `first` on.

        They are computed in chunks. On a CPU a chunk fits its cache; on an accelerator, where every
        chunk is a kernel launch, chunks only bound the memory.
        """
        key = keys.repeat_interleave(self.positions)[:, None]
        position = torch.arange(self.positions, device=keys.device).repeat(len(keys))[:, None]
        slot_range = arange(first, first + slots, 1, keys.device)
        chunk = max(1, _chunk_entries(keys.device) // slots)
        chunks = zip(torch.split(key, chunk), torch.split(position, chunk), strict=True)
        return torch.cat([generate(k, p, purpose, slot_range) for k, p in chunks])
