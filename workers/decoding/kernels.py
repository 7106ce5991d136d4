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

_KINDS = ("none", "tvd", "jsd", "multiplicative")  # in the kernel's order
_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_Unsigned = np.ndarray[Any, np.dtype[np.uint64]]
_MAX_ROW = (1 << 31) - (1 << 16)  # numbers; the last block reaches beyond
_CHUNK = 1 << 14  # numbers that NumPy mixes at once: they and a copy fit a core's cache


@dataclass(frozen=True, slots=True)
class FusedRule:
    """An acceptance rule as the kernel takes it. kind: of neighbourhood. bound: of the neighbours'
    mass.

    has_paper_residual: a rejection takes the neighbours' mass away. has_exact_residual: it leaves
    what the exact rule leaves.
    """

    kind: int
    k: int
    bound: float
    has_paper_residual: bool
    has_exact_residual: bool

    @classmethod
    def of(cls, rule: AcceptanceRule, *, sampled: bool) -> FusedRule | None:
        """None: the kernel does not know the rule. sampled: children are sampled, not chosen."""
        neighbourhood, paper = rule.neighbourhood, rule.resampling == "paper"
        exact_residual = rule.schedule.at_least_one
        if neighbourhood.exact:
            none = _KINDS.index("none")
            return (
                cls(none, 1, 0.0, False, exact_residual) if neighbourhood.never_stricter else None
            )
        if sampled and not (paper or exact_residual):
            return None  # the residual would need the mass of every token
        fused = neighbourhood.fused if "fused" in vars(type(neighbourhood)) else None
        return fused and cls(_KINDS.index(fused.test), fused.k, fused.bound, paper, exact_residual)


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
    return "triton" if is_available(device_type) else "torch"


@torch.library.custom_op("specfrontier::random_bits", mutates_args=())
def random_bits(keys: Tensor, positions: Tensor, purpose: int, slots: Tensor) -> Tensor:
    """See `rng.bits`. The arguments broadcast to at most three dimensions, the last two of fewer
    than 2^31 numbers.
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
    key, place, slot = (part.numpy().view(np.uint64) for part in (keys, positions, slots))
    mixed = np.asarray(_mix(np.asarray(key + place * _GOLDEN + np.uint64(purpose))) + slot * _MIX_1)
    return torch.from_numpy(_mix(mixed).view(np.int64))


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
    bound: float,
    paper: bool,
    exact_residual: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The path [B, L + 1], its length [B] and the residual [B, V], which is not normalised.

    probs [B, S, V]: the target's after every slot. tree: children [B|1, S, C], tokens [B, S],
    eligible [B, S]. tests: uniforms [B, L, C], omegas [B, L + 1]. proposals: [B, M, V] and the row
    of each slot's children [B|1, S]; empty for chosen children. neighbours [V, >= k] int32 or
    int64. The rest: see `FusedRule`.
    """
    from workers.decoding import accept_kernel

    (batch, slots, vocabulary), (children, tokens, eligible), (uniforms, omegas) = (
        probs.shape,
        tree,
        tests,
    )
    path, num_accepted, residual = _outputs(probs, uniforms)
    residuals = probs.new_empty(batch, 2, vocabulary)
    inputs = [probs, *proposals, tokens, eligible, omegas]
    assert all(tensor.is_contiguous() for tensor in inputs), "the kernel computes addresses itself"
    source, rows = proposals if proposals else (probs, children)
    remaining = probs.new_empty(batch, vocabulary) if proposals else probs
    with torch.cuda.device_of(probs):  # type: ignore[no-untyped-call]
        accept_kernel.accept_path[(batch,)](
            probs,
            source,
            rows,
            children,
            tokens,
            eligible.view(torch.uint8),
            uniforms,
            omegas,
            children if neighbours is None else neighbours,
            residuals,
            remaining,
            residual,
            path,
            num_accepted,
            k,
            bound,
            slots,
            children.shape[2],
            uniforms.stride(1),
            uniforms.shape[1],
            vocabulary,
            0 if neighbours is None else neighbours.stride(0),
            source.shape[1],
            children.stride(0) if children.shape[0] > 1 else 0,
            children.stride(1),
            slots if rows.shape[0] > 1 else 0,
            KIND=kind,
            PAPER=paper,
            EXACT_RESIDUAL=exact_residual,
            SAMPLED=bool(proposals),
            BLOCK=accept_kernel.BLOCK,
            CHUNK=accept_kernel.CHUNK,
            num_warps=accept_kernel.NUM_WARPS,
        )
    return path, num_accepted, residual


@accept_tree.register_fake
def _(
    probs: Tensor, tree: Sequence[Tensor], tests: Sequence[Tensor], *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(probs, tests[0])


def _outputs(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Path, number of accepted drafts, and the residual."""
    batch, _, vocabulary = probs.shape
    path = torch.empty(batch, uniforms.shape[1] + 1, dtype=torch.int64, device=probs.device)
    return path, path.new_empty(batch), probs.new_empty(batch, vocabulary)
