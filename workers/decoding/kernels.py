"""What one Triton kernel does on an accelerator: random bits, and acceptance along a draft tree.

On a CPU NumPy makes the bits. Elsewhere, and for rules that the kernel does not know, the plain
code runs: `rng.bits` and `Acceptor._accept`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule
from workers.decoding.operators import cpu_operator

_THRESHOLD_TESTS = ("typical", "fuzzy_tvd", "fuzzy_kl", "fuzzy_reverse_kl", "fuzzy_jsd")
# in the kernel's order
_KINDS = ("none", "tvd", "jsd", "multiplicative", *_THRESHOLD_TESTS)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_Unsigned = np.ndarray[Any, np.dtype[np.uint64]]
_Signed = np.ndarray[Any, np.dtype[np.int64]]
_MAX_ROW = (1 << 31) - (1 << 16)  # most numbers of a row; its last block reaches beyond them
_CHUNK = 1 << 14  # numbers that NumPy mixes at once: they and a copy fit a core's cache


@dataclass(frozen=True, slots=True)
class FusedRule:
    """An acceptance rule as the kernel takes it."""

    kind: int  # the neighbourhood's index in `_KINDS`
    k: int  # the neighbourhood's size, the token itself included
    bounds: tuple[float, float]  # bound and scale of `FusedBound`
    has_paper_residual: bool  # whether a rejection takes the neighbours' mass away
    has_exact_residual: bool  # whether a rejection leaves what the exact rule leaves

    @classmethod
    def of(cls, rule: AcceptanceRule, *, sampled: bool) -> FusedRule | None:
        """The rule for trees whose children are `sampled` and not chosen, or for the others; None
        if the kernel does not know it.
        """
        neighbourhood = rule.neighbourhood
        paper = rule.resampling == "paper"
        exact_residual = rule.schedule.at_least_one
        if neighbourhood.exact:
            if not neighbourhood.never_stricter:
                return None
            return cls(_KINDS.index("none"), 1, (0.0, 0.0), False, exact_residual)
        if sampled and not (paper or exact_residual):
            return None  # the residual would need the mass of every token
        if "fused" not in vars(type(neighbourhood)) or neighbourhood.fused is None:
            return None
        fused = neighbourhood.fused
        if fused.test in _THRESHOLD_TESTS:
            # the kernel takes nothing away after a rejection, as in their paper residual
            if not paper or (neighbourhood.needs_sampled and not sampled):
                return None
            paper = exact_residual = False
        bounds = fused.bound, fused.scale
        return cls(_KINDS.index(fused.test), fused.k, bounds, paper, exact_residual)


@cache
def is_available(device_type: str) -> bool:
    """Whether the kernels run there; the first call tries one. The meta device stands for an
    accelerator that has Triton.
    """
    if device_type != "cuda" or find_spec("triton") is None:
        return device_type == "meta"
    try:
        zero = torch.zeros(1, dtype=torch.int64, device=device_type)
        random_bits(zero, zero, 1, zero)
    except Exception as error:  # no compiler, no driver, an old GPU: Triton raises many types
        logging.getLogger(__name__).warning(
            "Triton's kernels do not run here, so trees take longer: %s", error
        )
        return False
    return True


def implementation(device_type: str) -> str:
    """What accepts drafts and makes random bits there: "triton", or "torch" for the plain code."""
    if is_available(device_type):
        return "triton"
    return "torch"


@torch.library.custom_op("specfrontier::random_bits", mutates_args=())
def random_bits(keys: Tensor, positions: Tensor, purpose: int, slots: Tensor) -> Tensor:
    """See `rng.bits`. The arguments broadcast to at most three dimensions, of which the last two
    have fewer than 2^31 numbers.
    """
    import triton  # type: ignore[import-untyped]

    from workers.decoding import rng_kernel

    broadcast = _broadcast(keys, positions, slots)
    shape = (1,) * (3 - len(broadcast)) + broadcast
    inputs = [part.expand(shape) for part in (keys, positions, slots)]
    result = torch.empty(shape, dtype=torch.int64, device=keys.device)
    size = shape[1] * shape[2]
    assert size <= _MAX_ROW, "the kernel's indices in a row have 32 bits"
    blocks = triton.cdiv(size, rng_kernel.BLOCK)
    with torch.cuda.device_of(result):  # type: ignore[no-untyped-call]
        rng_kernel.bits[(shape[0] * blocks,)](
            *inputs, result, shape[2], size, blocks, *[tuple(part.stride()) for part in inputs],
            PURPOSE=purpose, BLOCK=rng_kernel.BLOCK,
        )  # fmt: skip
    return result.view(broadcast)


@cpu_operator("bits_by_numpy(Tensor keys, Tensor positions, int purpose, Tensor slots) -> Tensor")
def bits_by_numpy(keys: Tensor, positions: Tensor, purpose: int, slots: Tensor) -> Tensor:
    """`rng.bits` in half the time of torch, whose shifts are signed and whose copies leave the
    cache.
    """
    return torch.from_numpy(bits_of_arrays(keys.numpy(), positions.numpy(), purpose, slots.numpy()))


def bits_of_arrays(keys: _Signed, positions: _Signed, purpose: int, slots: _Signed) -> _Signed:
    """`rng.bits` of arrays, without the dispatch of an operator."""
    key, place, slot = (part.view(np.uint64) for part in (keys, positions, slots))
    mixed = np.asarray(_mix(np.asarray(key + place * _GOLDEN + np.uint64(purpose))) + slot * _MIX_1)
    return _mix(mixed).view(np.int64)


def _mix(z: _Unsigned) -> _Unsigned:
    """SplitMix64's finaliser, in place."""
    flat = z.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        part ^= (copy := part >> np.uint64(30))
        part *= _MIX_1
        part ^= np.right_shift(part, np.uint64(27), out=copy)
        part *= _MIX_2
        part ^= np.right_shift(part, np.uint64(31), out=copy)
    return z


@random_bits.register_fake
def _(keys: Tensor, positions: Tensor, purpose: int, slots: Tensor) -> Tensor:
    return torch.empty(_broadcast(keys, positions, slots), dtype=torch.int64, device=keys.device)


def _broadcast(*tensors: Tensor) -> torch.Size:
    shape: torch.Size = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
    return shape


@torch.library.custom_op("specfrontier::accept_tree", mutates_args=())
def accept_tree(
    probs: Tensor,
    tree: Sequence[Tensor],
    tests: Sequence[Tensor],
    proposals: Sequence[Tensor],
    neighbours: Tensor | None,
    kind: int,
    k: int,
    bounds: Sequence[float],
    paper: bool,
    exact_residual: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The path [B, L + 1], its length [B] and the residual [B, V], which is not normalised.

    Args:
        probs: [B, S, V] the target's probs after every slot.
        tree: children [B|1, S, C], tokens [B, S] and eligible [B, S] (see `Acceptor`).
        tests: the uniform numbers [B, L, C] and the relaxation budgets [B, L + 1] by depth; or
            these numbers, and the budgets and a modulation's factors [B, S] of each slot's
            children.
        proposals: the drafter's probs [B, M, V], and the row that each slot's children were
            sampled from [B|1, S]; empty for chosen children.
        neighbours: [V, >= k] int32 or int64, or None.
        kind, k, bounds, paper, exact_residual: the fields of `FusedRule`.
    """
    from workers.decoding import accept_kernel

    batch, slots, vocabulary = probs.shape
    children, tokens, eligible = tree
    uniforms, omegas, *factors = tests
    path, num_accepted, residual = _outputs(probs, uniforms)
    residuals = probs.new_empty(batch, 2, vocabulary)
    inputs = [probs, *proposals, tokens, eligible, omegas, *factors]
    assert all(tensor.is_contiguous() for tensor in inputs), "the kernel computes addresses itself"
    # without proposals these are never read
    source, rows, remaining = probs, children, probs
    if proposals:
        source, rows = proposals
        remaining = probs.new_empty(batch, vocabulary)
    with torch.cuda.device_of(probs):  # type: ignore[no-untyped-call]
        accept_kernel.accept_path[(batch,)](
            probs, source, rows, children, tokens, eligible.view(torch.uint8), uniforms, omegas,
            factors[0] if factors else omegas, children if neighbours is None else neighbours,
            residuals, remaining, residual, path, num_accepted,
            k, *bounds, slots, children.shape[2], uniforms.stride(1), uniforms.shape[1],
            vocabulary, 0 if neighbours is None else neighbours.stride(0), source.shape[1],
            children.stride(0) if children.shape[0] > 1 else 0, children.stride(1),
            slots if rows.shape[0] > 1 else 0,
            KIND=kind, PAPER=paper, EXACT_RESIDUAL=exact_residual, SAMPLED=bool(proposals),
            MODULATED=bool(factors), BLOCK=accept_kernel.BLOCK, CHUNK=accept_kernel.CHUNK,
            num_warps=accept_kernel.NUM_WARPS,
        )  # fmt: skip
    return path, num_accepted, residual


@accept_tree.register_fake
def _(
    probs: Tensor, tree: Sequence[Tensor], tests: Sequence[Tensor], *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(probs, tests[0])


def _outputs(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the path, the number of accepted drafts and the residual."""
    batch, _, vocabulary = probs.shape
    path = torch.empty(batch, uniforms.shape[1] + 1, dtype=torch.int64, device=probs.device)
    return path, path.new_empty(batch), probs.new_empty(batch, vocabulary)
