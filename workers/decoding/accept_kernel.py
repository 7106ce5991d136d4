"""A Triton kernel for the accepted path of a draft tree in one launch: `Acceptor._accept` defines
what it computes.

A program decides one row. It tests children in order, each against the residual of the target's
probs after the rejections before it, and stops at the first level without an accepted child.
Distributions are read in blocks; residuals are kept with their mass and not normalised. A level
without a rejection copies nothing, its first rejection makes one pass over the vocabulary, and
another one of a chosen child changes single entries. Outcomes can differ from the definition's
where rounding decides. `TRITON_INTERPRET=1`, set before the first import, runs it on a CPU.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,import-untyped,misc"

from __future__ import annotations

import triton
import triton.language as tl

# Entries of a distribution that are read at once, by so many warps: one row must keep a
# multiprocessor busy.
BLOCK = 4096
NUM_WARPS = 16
CHUNK = 128  # neighbours that are read at once


@triton.jit
def _log1p(x):
    """log(1 + x) to full precision for small x (Kahan)."""
    total = 1.0 + x
    return tl.where(total == 1.0, x, tl.log(total) * (x / tl.where(total == 1.0, 1.0, total - 1.0)))


@triton.jit
def _jensen_shannon(moved, own):
    """The distance of `search_spaces.neighbourhoods`, before it is made monotone."""
    tiny = 7.52316384526264e-37  # 2^-120
    half = moved / 2
    outward = own * _log1p(half / tl.maximum(own, tiny))
    inward = (own + moved) * _log1p(half / tl.maximum(own + half, tiny))
    return (moved * 0.6931471805599453 - outward + inward) / 2


@triton.jit
def _kl(a, b):
    """The terms of KL(a || b) in nats."""
    return tl.where(a == 0, 0.0, a * (tl.log(a) - tl.log(b)))


@triton.jit
def _negative_entropy(source, vocabulary, BLOCK: tl.constexpr):
    """Minus the entropy in nats, as `search_spaces.rules.typical` computes it."""
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        values = tl.load(source + index, mask=index < vocabulary, other=0.0)
        total += tl.sum(values * tl.log(values + 1e-5), 0)
    return total


@triton.jit
def _distance(source, mass, proposal, share, vocabulary, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The distance of `search_spaces.rules.fuzzy` between residual and proposal."""
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < vocabulary
        r = tl.load(source + index, mask=inside, other=0.0) / mass
        p = tl.load(proposal + index, mask=inside, other=0.0) / share
        if KIND == 5:
            terms = tl.abs(r - p) / 2
        elif KIND == 6:
            terms = _kl(r, p)
        elif KIND == 7:
            terms = _kl(p, r)
        else:
            terms = (_kl(r, (r + p) / 2) + _kl(p, (r + p) / 2)) / 2
        total += tl.sum(terms, 0)
    return total


@triton.jit
def _copy(source, destination, vocabulary, BLOCK: tl.constexpr):
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        tl.store(
            destination + index,
            tl.load(source + index, mask=index < vocabulary),
            mask=index < vocabulary,
        )
    tl.debug_barrier()


@triton.jit
def _sum(values, vocabulary, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(values + index, mask=index < vocabulary, other=0.0), 0)
    return total


@triton.jit
def _reject(
    source, proposal, result, remaining, scale, cap, x, drawn, at_x, vocabulary,
    SAMPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store what is left after the rejection of x in `result`, and return its sum.

    For sampled children it is [source - min(scale * proposal, cap * source)]_+, and `remaining`
    becomes the proposal without x. `proposal` and `remaining` may be one buffer, from which an
    earlier call has taken x, so the proposal at x is given as `drawn`. For chosen children it is
    the source, with `at_x` at x.
    """
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < vocabulary
        values = tl.load(source + index, mask=inside, other=0.0)
        if SAMPLED:
            proposed = tl.where(
                index == x, drawn, tl.load(proposal + index, mask=inside, other=0.0)
            )
            tl.store(remaining + index, tl.where(index == x, 0.0, proposed), mask=inside)
            values = tl.maximum(values - tl.minimum(scale * proposed, cap * values), 0.0)
        else:
            values = tl.where(index == x, at_x, values)
        tl.store(result + index, values, mask=inside)
        total += tl.sum(values, 0)
    tl.debug_barrier()
    return total


@triton.jit
def _count(
    source, x, own, mass, neighbours, k, bound, table_width, KIND: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The mass that counts for x, and how many of its neighbours, the nearest ones, are admitted.

    KIND is 0 for no neighbours, 1 for additive by tvd, 2 for additive by jsd, 3 for multiplicative.
    All of them admit neighbours as long as a sum of masses is below a bound. Of the threshold
    tests, 4 is typical, and 5 to 8 are fuzzy by tvd, kl, reverse kl and jsd.
    """
    counted, admitted = own, x.to(tl.int32) * 0
    if KIND > 0 and KIND < 4:
        running, first, counting = 0.0, 1, k > 1
        while counting:
            ordinal = first + tl.arange(0, CHUNK)
            listed = ordinal < k
            members = tl.load(neighbours + x * table_width + ordinal, mask=listed, other=0).to(
                tl.int64
            )
            masses = tl.load(source + members, mask=listed, other=0.0) / mass
            sums = running + tl.cumsum(masses, 0)
            if KIND == 1:
                within = sums < bound
            elif KIND == 2:
                within = _jensen_shannon(sums, own) < bound
            else:
                within = sums < bound * own
            # rounding may lower a sum or a distance: nothing that follows one beyond the bound is
            # admitted
            within = listed & (tl.cumsum((listed & ~within).to(tl.int32), 0) == 0)
            counted = tl.maximum(counted, own + tl.max(tl.where(within, sums, 0.0), 0))
            admitted += tl.sum(within.to(tl.int32), 0)
            running, first = running + tl.sum(masses, 0), first + CHUNK
            counting = (admitted + 1 == first) & (first < k)
    return counted, admitted


@triton.jit
def _clear_neighbours(values, x, neighbours, table_width, admitted, CHUNK: tl.constexpr):
    """Set the admitted neighbours of x to 0."""
    for first in range(1, admitted + 1, CHUNK):
        ordinal = first + tl.arange(0, CHUNK)
        listed = ordinal <= admitted
        members = tl.load(neighbours + x * table_width + ordinal, mask=listed, other=0).to(tl.int64)
        tl.store(values + members, 0.0, mask=listed)
    tl.debug_barrier()


@triton.jit
def _reject_child(
    source, other, proposal, remaining, neighbours, table_width, admitted, x, drawn, at_x, omega, scale, vocabulary,
    PAPER: tl.constexpr, EXACT_RESIDUAL: tl.constexpr, SAMPLED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the residual after the rejection of x in `other`, and return its mass; `source` has the
    residual before it.
    """
    if PAPER:
        _copy(source, other, vocabulary, BLOCK)
        _clear_neighbours(other, x, neighbours, table_width, admitted, CHUNK)
        tl.store(other + x, at_x)
        tl.debug_barrier()
        left = _reject(
            other, proposal, other, remaining, scale, 3e38, x, drawn, 0.0, vocabulary, SAMPLED, BLOCK,
        )  # fmt: skip
        if left <= 0:  # all mass was the neighbours': the exact rule's residual
            left = _reject(
                source, proposal, other, remaining, scale, 3e38, x, drawn, 0.0, vocabulary, SAMPLED, BLOCK,
            )  # fmt: skip
    elif EXACT_RESIDUAL:
        left = _reject(
            source, proposal, other, remaining, scale, 3e38, x, drawn, 0.0, vocabulary, SAMPLED, BLOCK,
        )  # fmt: skip
    else:
        left = _reject(
            source, proposal, other, remaining, scale, omega, x, drawn, at_x, vocabulary, SAMPLED, BLOCK,
        )  # fmt: skip
    return left


@triton.jit
def _verify_children(
    source, proposal, children, tokens, eligible, uniforms, omega, factor, neighbours, residuals, side, remaining,
    k, bound, scale, width, vocabulary, table_width,
    KIND: tl.constexpr, PAPER: tl.constexpr, EXACT_RESIDUAL: tl.constexpr, SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The accepted child of a node (0 if there is none), the residual after the rejections before
    it, and which half of `residuals` to write next.

    `source` has the target's probs after the node, and `proposal` the drafter's. `factor` is the
    modulation's.
    """
    # the sums of the residual and of the proposal, and what they were when their entries were last
    # added up
    mass, summed = 1.0, 0.0
    share, share_summed = 1.0, 1.0
    accepted, rank, testing = side * 0, side * 0, width > 0
    if KIND == 4:  # no rejection changes it
        threshold = scale * tl.exp(_negative_entropy(source, vocabulary, BLOCK))
        bound = tl.minimum(bound, threshold) / factor
    else:
        bound *= factor
    while testing:
        child = tl.load(children + rank).to(tl.int32)
        if tl.load(eligible + child) != 0:
            x = tl.load(tokens + child)
            own = tl.load(source + x) / mass
            drawn = 1.0  # p_x before it is normalised
            p_x = 1.0
            if SAMPLED:
                drawn = tl.load(proposal + x)
                p_x = drawn / share
            counted, admitted = _count(
                source, x, own, mass, neighbours, k, bound, table_width, KIND, CHUNK
            )
            if KIND == 4:
                counted = tl.where(own > bound, p_x, 0.0)
            elif KIND > 4:
                distance = _distance(source, mass, proposal, share, vocabulary, KIND, BLOCK)
                counted = tl.where(distance <= bound, p_x, 0.0)
            # f may exceed 1; if it is not a number, the child is not accepted
            f = tl.where(p_x > 0, omega * counted / p_x, 0.0)
            if tl.load(uniforms + rank) < f:
                accepted = child
            elif KIND != 4:
                tl.debug_barrier()  # all threads have read what is overwritten now
                at_x, taken = 0.0, own * mass
                if PAPER:
                    at_x, taken = (counted * mass if SAMPLED else 0.0), counted * mass
                elif not EXACT_RESIDUAL:
                    at_x = tl.maximum(own - tl.minimum(f, 1.0), 0.0) * mass
                    taken -= at_x
                # the residual is in a buffer, and accurate
                if (not SAMPLED) and (mass - taken > summed / 8) & (summed > 0):
                    if PAPER:
                        _clear_neighbours(source, x, neighbours, table_width, admitted, CHUNK)
                    tl.store(source + x, at_x)
                    tl.debug_barrier()
                    mass -= taken
                else:
                    other = residuals + side * vocabulary
                    drawn_mass = mass / share
                    if KIND > 4:  # a threshold test leaves the residual as it is
                        drawn_mass = 0.0
                    left = _reject_child(
                        source, other, proposal, remaining, neighbours, table_width, admitted, x, drawn, at_x, omega,
                        drawn_mass, vocabulary, PAPER, EXACT_RESIDUAL, SAMPLED, BLOCK, CHUNK,
                    )  # fmt: skip
                    if left > 0:  # otherwise the residual stays as it is
                        mass, summed, source, side = left, left, other, 1 - side
                if SAMPLED:
                    proposal, share = remaining, share * (1 - p_x)
                    if share < share_summed / 8:
                        share = tl.maximum(
                            _sum(proposal, vocabulary, BLOCK), 1.1754943508222875e-38
                        )
                        share_summed = share
        rank += 1
        testing = (accepted == 0) & (rank < width)
    return accepted, source, side


@triton.jit
def _repeat_last(path, node, depth, levels):
    for level in range(levels):
        if level >= depth:
            tl.store(path + level + 1, node.to(tl.int64))


# Triton would compile the kernel anew where one of these is 1, or divisible by 16, in one setting
# and not in another.
@triton.jit(
    do_not_specialize=[
        "k", "slots", "width", "ranks", "levels", "table_width", "proposal_count", "children_stride", "node_stride",
        "rows_stride",
    ]
)  # fmt: skip
def accept_path(
    probs, proposals, proposal_rows, children, tokens, eligible, uniforms, omegas, factors, neighbours,
    residuals, remaining, result, path, num_accepted,
    k, bound, scale, slots, width, ranks, levels, vocabulary, table_width, proposal_count, children_stride,
    node_stride, rows_stride,
    KIND: tl.constexpr, PAPER: tl.constexpr, EXACT_RESIDUAL: tl.constexpr, SAMPLED: tl.constexpr,
    MODULATED: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """See `kernels.accept_tree`. The two halves of `residuals` [B, 2, V] are written in turn;
    `uniforms` has `ranks` numbers for each level. Budgets are by depth, or by slot if MODULATED.
    """
    row = tl.program_id(0).to(tl.int64)
    probs = probs + row * slots * vocabulary
    residuals = residuals + row * 2 * vocabulary
    remaining = remaining + row * vocabulary
    proposals = proposals + row * proposal_count * vocabulary
    proposal_rows = proposal_rows + row * rows_stride
    tokens = tokens + row * slots
    eligible = eligible + row * slots
    children = children + row * children_stride
    uniforms = uniforms + row * levels * ranks
    if MODULATED:
        omegas = omegas + row * slots
        factors = factors + row * slots
    else:
        omegas = omegas + row * (levels + 1)
    path = path + row * (levels + 1)
    node, depth, side = tl.program_id(0) * 0, tl.program_id(0) * 0, tl.program_id(0) * 0
    source, accepting = probs, depth == 0
    tl.store(path, 0)
    while accepting:
        tl.debug_barrier()  # all threads have read what is overwritten now
        source, proposal = probs + node.to(tl.int64) * vocabulary, proposals
        if SAMPLED:
            proposal = proposals + tl.load(proposal_rows + node) * vocabulary
        accepted = node * 0
        if depth < levels:
            factor = 1.0
            if MODULATED:
                omega = tl.load(omegas + node)
                factor = tl.load(factors + node)
            else:
                omega = tl.load(omegas + depth + 1)
            accepted, source, side = _verify_children(
                source, proposal, children + node * node_stride, tokens, eligible, uniforms + depth * ranks,
                omega, factor, neighbours, residuals, side, remaining,
                k, bound, scale, width, vocabulary, table_width, KIND, PAPER, EXACT_RESIDUAL, SAMPLED, BLOCK, CHUNK,
            )  # fmt: skip
        accepting = accepted > 0
        if accepting:
            node, depth = accepted, depth + 1
            tl.store(path + depth, node.to(tl.int64))
    tl.store(num_accepted + row, depth.to(tl.int64))
    _repeat_last(path, node, depth, levels)
    _copy(source, result + row * vocabulary, vocabulary, BLOCK)
