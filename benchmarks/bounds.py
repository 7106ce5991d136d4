"""What an acceptance rule costs and gains on a chain of drafts: Cool-SD's Theorem 2 for any rule.

A chain has L drafts. At depth i the drafter's distribution is p_i, the target's q_i (both given the
drafts before it); the rule accepts with f_i(x) = min(1, omega_i S(x) / p_i(x)) (S: neighbourhood
mass, see `search_spaces.neighbourhoods`), and after a rejection, whose probability is R_i = 1 -
sum_x p_i f_i, it resamples from G_i.

Accepted length (T2-a). The chain gets past depth i with probability prod_{j<=i} p_j f_j, summed
over its tokens:

    E[N] = sum_i E_{x_1..x_i ~ p} [ prod_{j<=i} f_j ]

Distance to the target (T2-b). Let Phat be the distribution emitted by a round that is extended to L
+ 1 tokens by sampling from the target, and Q the target's own. Replacing the target's factors by
accepted drafts one depth at a time telescopes Phat - Q into one-step errors; the triangle
inequality then gives

    TV(Phat, Q) <= B = sum_i E_{x_<i ~ p} [ prod_{j<i} f_j * 1/2 || q_i - p_i f_i - R_i G_i ||_1 ]

that is, the probability that the round gets that far, times the distance between what the step
emits and what it should emit. If G depends on the rejected token (the papers' own resampling), R_i
G_i is its average, sum_x p_i(x) (1 - f_i(x)) G_{i,x}. The smallest bound that any G attains (T2-c),
which `resampling: optimal` attains, is

    B* = sum_i E_{x_<i ~ p} [ prod_{j<i} f_j * sum_x (p_i(x) f_i(x) - q_i(x))_+ ]

B is 0 for the exact rule, an equality for L = 1, and may exceed 1 (then it bounds nothing). Drafts
that are chosen deterministically are chains too: p_i is a point mass on the draft. A modulation
changes omega_i and S from one context to another; f_i depends on the context anyway.

`python -m benchmarks.theory` records these distributions while the engine draws, and compares both
sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule, Relaxation
from search_spaces.modulations import Nodes
from search_spaces.neighbourhoods import NeighbourTables

_CHUNK = 1 << 23  # entries of a [rows, V] tensor held at once


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error (0 where the value is exact, infinite from a single independent
    sample).
    """

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """What Theorem 2 predicts for a rule: accepted drafts per round, and bounds on the distance to
    the target.
    """

    accepted: Estimate
    """E[N], in drafts (T2-a); tokens per target pass are one more."""
    bound: Estimate
    """B with the rule's own resampling (T2-b)."""
    optimal_bound: Estimate
    """B* with the best resampling there is (T2-c); never above ``bound``."""


class _Step(NamedTuple):
    """One depth, for each of M rows of (p, q)."""

    accepted_mass: Tensor  # [M, V] p f: the mass of each token that is proposed and accepted
    distance: Tensor  # [M] 1/2 || q - p f - R G ||_1
    excess: Tensor  # [M] sum_x (p f - q)_+


def estimate_bounds(
    rule: AcceptanceRule,
    q: Tensor,
    p: Tensor | None,
    tokens: Tensor,
    tables: NeighbourTables,
    groups: Tensor | None = None,
    image_rows: Tensor | None = None,
) -> Bounds:
    """Estimate E[N], B and B* from distributions recorded along M drafted chains.

    The chains must be drafts as they were sampled (tokens[m, i] ~ p[m, i], accepted or not), or the
    expectation is not over p. Each depth sums over its own token exactly and only samples the
    tokens before it: depth 1 adds no noise.

    Args:
        q: [M, L, V] the target's processed probs at each draft's position.
        p: [M, L, V] the drafter's, or None when drafts are deterministic (a point mass on
            ``tokens``).
        tokens: [M, L] int64, the drafts.
        tables: neighbours and codebook that the rule reads.
        groups: [M] int64, chains with the same number are dependent (rounds of one image); the
            standard errors then count groups, not chains.
        image_rows: [M, L] the rows of the drafts (see `Nodes`), for modulations that read them.

    Raises:
        ValueError: when the shapes disagree.
    """
    chains, depth, codes = q.shape
    if tokens.shape != (chains, depth) or (p is not None and p.shape != q.shape) or not chains:
        raise ValueError(
            f"recorded probs q {tuple(q.shape)} and p {None if p is None else tuple(p.shape)}, "
            f"tokens {tuple(tokens.shape)}: expected [M, L, V], [M, L, V] or None, and [M, L], "
            "with at least one chain"
        )
    reach = q.new_ones(chains)
    totals = q.new_zeros(3, chains)
    rows = max(1, _CHUNK // codes)
    for i, omega in enumerate(rule.schedule.omegas(depth)):
        ratio = q.new_empty(chains)
        for start in range(0, chains, rows):
            part = slice(start, start + rows)
            x = tokens[part, i]
            probs = None if p is None else p[part, i]
            row = None if image_rows is None else image_rows[part, i]
            step = _one_step(rule, q[part, i], probs, x, omega, tables, row)
            totals[:, part] += reach[part] * torch.stack(
                [step.accepted_mass.sum(-1), step.distance, step.excess]
            )
            proposed = 1.0 if probs is None else _at(probs, x)
            # f(x); p(x) > 0 for a token that was sampled
            ratio[part] = _at(step.accepted_mass, x) / proposed
        reach = reach * ratio
    accepted, bound, best = (_estimate(total.double(), groups) for total in totals)
    return Bounds(accepted, bound, best)


def exact_bounds(
    rule: AcceptanceRule,
    q: Sequence[Tensor],
    p: Sequence[Tensor],
    tables: NeighbourTables,
    image_rows: Sequence[float] | None = None,
) -> Bounds:
    """E[N], B and B* exactly, from the probs after every context; for small codebooks and depths.

    ``q[i]`` and ``p[i]`` are [V**i, V]: row c holds the probs at depth i + 1 after the i drafts
    whose base-V number is c, first draft most significant. ``image_rows`` has the row of each
    depth's draft (see `Nodes`), by default the first.
    """
    image_rows = image_rows or (0.0,) * len(p)
    omegas = rule.schedule.omegas(len(p))
    codes = p[0].shape[-1]
    reach = q[0].new_ones(1)
    totals = q[0].new_zeros(3)
    for target, drafter, omega, image_row in zip(q, p, omegas, image_rows, strict=True):
        assert target.shape == drafter.shape == (len(reach), codes), (target.shape, drafter.shape)
        row = target.new_full((len(target),), image_row)
        step = _one_step(rule, target, drafter, drafter.argmax(-1), omega, tables, row)
        totals += (
            reach * torch.stack([step.accepted_mass.sum(-1), step.distance, step.excess])
        ).sum(-1)
        reach = (reach[:, None] * step.accepted_mass).flatten()
    accepted, bound, best = (Estimate(float(total)) for total in totals)
    return Bounds(accepted, bound, best)


def _one_step(
    rule: AcceptanceRule,
    q: Tensor,
    p: Tensor | None,
    x: Tensor,
    omega: float,
    tables: NeighbourTables,
    row: Tensor | None,
) -> _Step:
    """What one acceptance test emits under target probs q [M, V], in image rows [M], by default the
    first; x [M] is read only where p is None (a point mass).
    """
    nodes = Nodes(q, q.new_zeros(len(q)) if row is None else row)
    omegas, tables = rule.relaxation(q.new_full((len(q),), omega), nodes, tables)
    if p is None:
        mass = rule.neighbourhood.mass(q, None, x, tables)
        prob = rule.acceptance_prob(mass, omegas)
        accepted_mass = torch.zeros_like(q).scatter(-1, x[:, None], prob[:, None])
        resampled = (1 - prob)[:, None] * rule.residual(q, None, x, omegas, mass, tables)
    else:
        target, proposal = rule.neighbourhood.all_masses(q, p, tables)
        prob = torch.where(p > 0, (omegas[:, None] * target / proposal).clamp(max=1), 0.0)
        accepted_mass = p * prob
        resampled = _resampled(rule, q, p, p - accepted_mass, omegas, tables)
    distance = (q - accepted_mass - resampled).abs().sum(-1) / 2
    return _Step(accepted_mass, distance, (accepted_mass - q).clamp(min=0).sum(-1))


def _resampled(
    rule: AcceptanceRule,
    q: Tensor,
    p: Tensor,
    rejected: Tensor,
    omega: Tensor,
    tables: NeighbourTables,
) -> Tensor:
    """R G [M, V]: the residual averaged over the rejected token, whose mass is ``rejected`` [M, V]
    = p (1 - f).
    """

    relaxation = Relaxation(omega, tables)

    def residual(row: Tensor, x: Tensor) -> Tensor:
        omegas, own = relaxation.select(row)
        mass = rule.neighbourhood.mass(q[row], p[row], x, own)
        return rule.residual(q[row], p[row], x, omegas, mass, own)

    # the same probs whichever token was rejected
    if rule.resampling == "optimal" or rule.neighbourhood.exact:
        every = torch.arange(len(q), device=q.device)
        return rejected.sum(-1, keepdim=True) * residual(every, p.argmax(-1))
    average = torch.zeros_like(q)
    pairs = (rejected > 0).nonzero()
    size = max(1, _CHUNK // q.shape[-1])
    for start in range(0, len(pairs), size):
        row, x = pairs[start : start + size].unbind(-1)
        average.index_add_(0, row, rejected[row, x, None] * residual(row, x))
    return average


def _at(values: Tensor, x: Tensor) -> Tensor:
    return values.gather(-1, x[:, None])[:, 0]


def _estimate(samples: Tensor, groups: Tensor | None) -> Estimate:
    """Mean of ``samples`` [M] and its standard error, by groups where some are given (linearised
    ratio of sums).
    """
    mean = samples.mean()
    deviations = samples - mean
    if groups is not None:
        _, index = torch.unique(groups, return_inverse=True)
        deviations = deviations.new_zeros(int(index.max()) + 1).index_add_(0, index, deviations)
    count = len(deviations)
    if count < 2:
        return Estimate(float(mean), float("inf"))
    spread = (deviations.square().sum() * count / (count - 1)).sqrt()
    return Estimate(float(mean), float(spread / len(samples)))
