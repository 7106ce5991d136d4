"""Random cases for the acceptance rules: probs, neighbour tables, codebooks, the rule and its
oracle.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import (
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.rules.grouped import Grouped
from search_spaces.rules.typical import Typical
from search_spaces.schedules import Constant, Exponential, Linear, Schedule
from tests.oracles import rules

UNIT = 64
KINDS = ("none", "tvd", "jsd", "multiplicative", "grouped", "typical", "fuzzy")
DIVERGENCES = ("tvd", "kl", "reverse_kl", "jsd")
SCHEDULES: tuple[Schedule, ...] = (
    Constant(1.0),
    Constant(1.5),
    Constant(0.75),
    Linear(1.25, 0.25),
    Exponential(1.25, 0.5),
)


@dataclass(frozen=True)
class Case:
    """Probs of target and drafter, and one rule; ``plain`` is the oracle's description of
    ``neighbourhood``.
    """

    r: list[float]
    p: list[float]
    plain: rules.Rule
    neighbourhood: Neighbourhood
    schedule: Schedule
    levels: int
    depth: int

    def rule(self, resampling: str) -> AcceptanceRule:
        assert resampling in ("paper", "optimal")
        return AcceptanceRule(
            self.neighbourhood, self.schedule, "paper" if resampling == "paper" else "optimal"
        )

    def tables(self, dtype: torch.dtype) -> NeighbourTables:
        return NeighbourTables(
            neighbours=torch.tensor(self.plain.order) if self.plain.order else None,
            codebook=torch.tensor(self.plain.codebook, dtype=dtype)
            if self.plain.codebook
            else None,
        )


def to_neighbourhood(plain: rules.Rule) -> Neighbourhood:
    """The production object for a reference rule."""
    if plain.kind == "none":
        return NoNeighbourhood()
    if plain.kind == "tvd":
        return Additive(k=plain.k, delta=plain.delta, divergence="tvd")
    if plain.kind == "jsd":
        return Additive(k=plain.k, delta=plain.delta, divergence="jsd")
    if plain.kind == "multiplicative":
        return Multiplicative(k=plain.k, lam=plain.lam)
    if plain.kind == "typical":
        return Typical(plain.epsilon, plain.alpha)
    if plain.kind == "fuzzy":
        return Fuzzy.from_mapping({"distance": plain.threshold, "divergence": plain.divergence})
    return Grouped(plain.below, plain.above, plain.tolerance, plain.radius)


@st.composite
def dyadic_probs(draw: st.DrawFn, codes: int) -> list[float]:
    """A distribution whose masses are multiples of 1/64; zeros and ties are common."""
    cuts = sorted(draw(st.lists(st.integers(0, UNIT), min_size=codes - 1, max_size=codes - 1)))
    return [(b - a) / UNIT for a, b in zip([0, *cuts], [*cuts, UNIT], strict=True)]


def _order(rng: np.random.Generator, codes: int) -> list[list[int]]:
    """Every code's neighbours, itself first."""
    return [[x, *(int(y) for y in rng.permutation(codes) if y != x)] for x in range(codes)]


@st.composite
def dyadic_case(draw: st.DrawFn, kind: str) -> Case:
    codes = draw(st.integers(2, 6))
    r = draw(dyadic_probs(codes))
    p = draw(st.one_of(dyadic_probs(codes), st.just(r)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    plain = rules.Rule(
        kind=kind,
        k=draw(st.integers(1, codes)),
        delta=draw(st.integers(0, UNIT)) / UNIT,
        lam=draw(st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0, 8.0])),
        order=_order(rng, codes),
        below=draw(st.integers(0, 3)),
        above=draw(st.integers(0, 3)),
        tolerance=draw(st.integers(0, 24)) / UNIT,
        radius=float(draw(st.integers(0, 9))),
        codebook=rng.integers(0, 4, size=(codes, 2)).astype(float).tolist(),
        epsilon=draw(st.integers(1, UNIT)) / UNIT,
        alpha=draw(st.integers(1, UNIT)) / UNIT,
        threshold=draw(st.integers(0, UNIT)) / UNIT,
        divergence=draw(st.sampled_from(DIVERGENCES)),
    )
    levels = draw(st.integers(1, 5))
    schedule = draw(st.sampled_from(SCHEDULES))
    return Case(
        r, p, plain, to_neighbourhood(plain), schedule, levels, draw(st.integers(0, levels - 1))
    )


@st.composite
def generic_case(draw: st.DrawFn, kind: str) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes = int(rng.integers(3, 14))

    def probs() -> list[float]:
        masses = rng.dirichlet(np.full(codes, rng.choice([0.1, 0.5, 2.0])))
        masses[rng.random(codes) < rng.choice([0.0, 0.4])] = 0.0
        masses = masses if masses.sum() > 1e-3 else np.ones(codes)
        return [float(m) for m in masses / masses.sum()]

    order = _order(rng, codes)
    plain = rules.Rule(
        kind=kind,
        k=int(rng.integers(1, codes + 1)),
        delta=float(rng.random()),
        lam=1 + float(rng.exponential(2)),
        order=order,
        below=int(rng.integers(0, 8)),
        above=int(rng.integers(0, 8)),
        tolerance=float(rng.random() * 0.3),
        radius=float(rng.random() * 4),
        codebook=[
            [float(c) for c in row] for row in rng.normal(size=(codes, 3)).astype(np.float32)
        ],
        epsilon=float(rng.uniform(0.01, 1)),
        alpha=float(rng.uniform(0.01, 1)),
        threshold=float(rng.exponential(0.5)),
        divergence=str(rng.choice(DIVERGENCES)),
    )
    levels = int(rng.integers(1, 7))
    schedule = SCHEDULES[int(rng.integers(len(SCHEDULES)))]
    return Case(
        probs(),
        probs(),
        plain,
        to_neighbourhood(plain),
        schedule,
        levels,
        int(rng.integers(levels)),
    )


def margin(plain: rules.Rule, r: Sequence[float], p: Sequence[float]) -> float:
    """How far the nearest comparison with a bound is from an equality: what fp32 must not be asked
    to decide.
    """
    if plain.kind == "typical":
        return min(abs(mass - rules.typical_threshold(plain, r)) for mass in r)
    if plain.kind == "fuzzy":
        return abs(rules.distance(plain, r, p) - plain.threshold)
    gaps = [1.0]
    for x in range(len(r)):
        running = 0.0
        for y in plain.order[x][1 : plain.k]:
            running += r[y]
            if plain.kind == "tvd":
                gaps.append(abs(running - plain.delta))
            elif plain.kind == "multiplicative":
                gaps.append(abs(r[x] + running - plain.lam * r[x]) if r[x] or running else 1.0)
            elif plain.kind == "jsd" and plain.delta > 0:
                gaps.append(abs(rules.jsd_of_move(r[x], running) - plain.delta))
        if plain.kind == "grouped":
            gaps.extend(abs(abs(r[y] - r[x]) - plain.tolerance) for y in range(len(r)) if y != x)
    return min(gaps)
