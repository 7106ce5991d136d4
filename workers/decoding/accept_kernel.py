"""A Triton kernel for the accepted path of a draft tree in one launch: `Acceptor._accept` defines what it computes.

A program decides one row. It tests children in order, each against the residual of the target's probs after the
rejections before it, and stops at the first level without an accepted child. Distributions are read in blocks;
residuals are kept with their mass and not normalised. Outcomes can differ from the definition's where rounding decides.
`TRITON_INTERPRET=1`, set before the first import, runs it on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,import-untyped,misc"

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 2048  # entries of a distribution that are read at once


@triton.jit
def _log1p(x):
    """log(1 + x) to full precision for small x (Kahan)."""
    total = 1.0 + x
    return tl.where(total == 1.0, x, tl.log(total) * (x / tl.where(total == 1.0, 1.0, total - 1.0)))


@triton.jit
def _jensen_shannon(moved, own):
    """The distance of `search_spaces.neighbourhoods`, before it is made monotone."""
    tiny, half = 7.52316384526264e-37, moved / 2  # 2^-120
    outward = own * _log1p(half / tl.maximum(own, tiny))
    inward = (own + moved) * _log1p(half / tl.maximum(own + half, tiny))
    return (moved * 0.6931471805599453 - outward + inward) / 2


@triton.jit
def _copy(source, destination, vocabulary, BLOCK: tl.constexpr):
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        tl.store(destination + index, tl.load(source + index, mask=index < vocabulary), mask=index < vocabulary)
    tl.debug_barrier()


@triton.jit
def _reject(source, proposal, result, scale, cap, x, at_x, vocabulary, SAMPLED: tl.constexpr, BLOCK: tl.constexpr):
    """Store what is left after a rejection, and return its sum.

    Sampled children: [source - min(scale * proposal, cap * source)]_+. Chosen ones: source, with `at_x` at x.
    """
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < vocabulary
        values = tl.load(source + index, mask=inside, other=0.0)
        if SAMPLED:
            taken = scale * tl.load(proposal + index, mask=inside, other=0.0)
            values = tl.maximum(values - tl.minimum(taken, cap * values), 0.0)
        else:
            values = tl.where(index == x, at_x, values)
        tl.store(result + index, values, mask=inside)
        total += tl.sum(values, 0)
    tl.debug_barrier()
    return total


@triton.jit
def _remove(proposal, x, vocabulary, BLOCK: tl.constexpr):
    """Set the proposal to 0 at x, and return the sum of the rest."""
    tl.store(proposal + x, 0.0)
    tl.debug_barrier()
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(proposal + index, mask=index < vocabulary, other=0.0), 0)
    return total


@triton.jit
def _count(
    source, x, own, mass, neighbours, bound, table_width,
    KIND: tl.constexpr, K: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """The mass that counts for x, its neighbours [MEMBERS], and which of them are admitted.

    KIND: 0 no neighbours, 1 additive by tvd, 2 additive by jsd, 3 multiplicative. MEMBERS: K - 1 neighbours, rounded up
    to a power of two.
    """
    ordinal = tl.arange(0, MEMBERS)
    listed = ordinal < K - 1
    if KIND == 0:
        return own, ordinal.to(tl.int64), listed
    members = tl.load(neighbours + x * table_width + 1 + ordinal, mask=listed, other=0).to(tl.int64)
    running = tl.cumsum(tl.load(source + members, mask=listed, other=0.0) / mass, 0)
    if KIND == 1:
        admitted = listed & (running < bound)
    elif KIND == 2:
        # a distance that rounding lowers does not admit what follows one that exceeded the bound
        beyond = (_jensen_shannon(running, own) >= bound).to(tl.int32)
        admitted = listed & (tl.cumsum(beyond, 0) == 0)
    else:
        admitted = listed & (running < bound * own)
    return own + tl.max(tl.where(admitted, running, 0.0), 0), members, admitted


@triton.jit
def _without_neighbours(source, result, members, admitted, x, at_x, vocabulary, BLOCK: tl.constexpr):
    """Store the source with 0 at the admitted neighbours of x, and `at_x` at x."""
    _copy(source, result, vocabulary, BLOCK)
    tl.store(result + members, 0.0, mask=admitted)
    tl.debug_barrier()
    tl.store(result + x, at_x)
    tl.debug_barrier()


@triton.jit
def _reject_child(
    source, other, remaining, members, admitted, x, own, counted, f, omega, mass, scale, vocabulary,
    PAPER: tl.constexpr, EXACT_RESIDUAL: tl.constexpr, SAMPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the residual after the rejection of x in `other`, and return its mass; `source` has the one before it."""
    if PAPER:
        at_x = counted * mass if SAMPLED else 0.0
        _without_neighbours(source, other, members, admitted, x, at_x, vocabulary, BLOCK)
        left = _reject(other, remaining, other, scale, 3e38, x, 0.0, vocabulary, SAMPLED, BLOCK)
        if left <= 0:  # all mass was the neighbours': the exact rule's residual
            left = _reject(source, remaining, other, scale, 3e38, x, 0.0, vocabulary, SAMPLED, BLOCK)
    elif EXACT_RESIDUAL:
        left = _reject(source, remaining, other, scale, 3e38, x, 0.0, vocabulary, SAMPLED, BLOCK)
    else:
        at_x = tl.maximum(own - tl.minimum(f, 1.0), 0.0) * mass
        left = _reject(source, remaining, other, scale, omega, x, at_x, vocabulary, SAMPLED, BLOCK)
    return left


@triton.jit
def _repeat_last(path, node, depth, levels):
    for level in range(levels):
        if level >= depth:
            tl.store(path + level + 1, node.to(tl.int64))


@triton.jit
def accept_path(
    probs, proposals, proposal_rows, children, tokens, eligible, uniforms, omegas, neighbours,
    residuals, remaining, path, num_accepted,
    bound, slots, width, ranks, levels, vocabulary, table_width, proposal_count, children_stride, node_stride,
    rows_stride,
    KIND: tl.constexpr, K: tl.constexpr, MEMBERS: tl.constexpr, PAPER: tl.constexpr, EXACT_RESIDUAL: tl.constexpr,
    SAMPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """See `kernels.accept_tree`. residuals [B, 2, V]: the first is the result. ranks: of the uniforms."""
    row = tl.program_id(0).to(tl.int64)
    probs, residuals = probs + row * slots * vocabulary, residuals + row * 2 * vocabulary
    remaining, proposals = remaining + row * vocabulary, proposals + row * proposal_count * vocabulary
    proposal_rows = proposal_rows + row * rows_stride
    tokens, eligible, children = tokens + row * slots, eligible + row * slots, children + row * children_stride
    uniforms, omegas, path = uniforms + row * levels * ranks, omegas + row * (levels + 1), path + row * (levels + 1)
    node, depth, side = tl.program_id(0) * 0, tl.program_id(0) * 0, tl.program_id(0) * 0
    accepting = depth == 0
    tl.store(path, 0)
    while accepting:
        tl.debug_barrier()  # all threads have read what is overwritten now
        _copy(probs + node.to(tl.int64) * vocabulary, residuals + side * vocabulary, vocabulary, BLOCK)
        mass, share = 1.0, 1.0  # of the residual; of the proposal that remains
        if SAMPLED:
            _copy(proposals + tl.load(proposal_rows + node) * vocabulary, remaining, vocabulary, BLOCK)
        accepted, rank = node * 0, node * 0
        testing = depth < levels
        while testing:
            child = tl.load(children + node * node_stride + rank).to(tl.int32)
            if tl.load(eligible + child) != 0:
                x = tl.load(tokens + child)
                source, other = residuals + side * vocabulary, residuals + (1 - side) * vocabulary
                own, p_x = tl.load(source + x) / mass, 1.0
                if SAMPLED:
                    p_x = tl.load(remaining + x) / share
                counted, members, admitted = _count(
                    source, x, own, mass, neighbours, bound, table_width, KIND, K, MEMBERS
                )
                omega, scale = tl.load(omegas + depth + 1), mass / share
                f = tl.where(p_x > 0, omega * counted / p_x, 0.0)  # may exceed 1; never accepts if it is not a number
                if tl.load(uniforms + depth * ranks + rank) < f:
                    accepted = child
                else:
                    left = _reject_child(
                        source, other, remaining, members, admitted, x, own, counted, f, omega, mass, scale, vocabulary,
                        PAPER, EXACT_RESIDUAL, SAMPLED, BLOCK,
                    )  # fmt: skip
                    if left > 0:  # otherwise the residual stays as it is
                        mass, side = left, 1 - side
                    if SAMPLED:
                        share = tl.maximum(_remove(remaining, x, vocabulary, BLOCK), 1.1754943508222875e-38)
            rank += 1
            testing = (accepted == 0) & (rank < width)
        accepting = accepted > 0
        if accepting:
            node, depth = accepted, depth + 1
            tl.store(path + depth, node.to(tl.int64))
    tl.store(num_accepted + row, depth.to(tl.int64))
    _repeat_last(path, node, depth, levels)
    if side == 1:
        _copy(residuals + vocabulary, residuals, vocabulary, BLOCK)
