"""Acceptance rules over whole tables of random probs: limits, growth, chunking, and that probs stay
probs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor

from search_spaces import neighbourhoods
from search_spaces.acceptance import RULES, AcceptanceRule
from search_spaces.neighbourhoods import (
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules import grouped
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Exponential, Schedule

ROWS = 40


def random_probs(seed: int, codes: int = 24) -> tuple[Tensor, Tensor, Tensor, NeighbourTables]:
    generator = torch.Generator().manual_seed(seed)
    r, p = (torch.rand(ROWS, codes, generator=generator).pow(4) for _ in range(2))
    p = p * (torch.rand(ROWS, codes, generator=generator) > 0.2)
    r = r * (torch.rand(ROWS, codes, generator=generator) > 0.2)
    x = (p + 1e-9).multinomial(1, generator=generator)[:, 0]
    codebook = torch.randn(codes, 3, generator=generator)
    return (
        r / r.sum(1, keepdim=True),
        p / p.sum(1, keepdim=True),
        x,
        NeighbourTables(torch.cdist(codebook, codebook).argsort(1), codebook),
    )


EXACT_LIMITS: list[Neighbourhood] = [
    Additive(k=1, delta=1.0),
    Additive(k=20, delta=0.0),
    Additive(k=20, delta=0.0, divergence="jsd"),
    Multiplicative(k=1, lam=9.0),
    Multiplicative(k=20, lam=1.0),
    Grouped(below=0, above=0),
    Grouped(tolerance=0.0),
    Grouped(radius=0.0),
]


@pytest.mark.parametrize("resampling", ["paper", "optimal"])
@pytest.mark.parametrize("schedule", [Constant(1.0), Constant(1.4), Exponential(1.1, 0.3)], ids=str)
@pytest.mark.parametrize("neighbourhood", EXACT_LIMITS, ids=str)
def test_every_rule_is_exact_at_its_limits(
    neighbourhood: Neighbourhood, schedule: Schedule, resampling: Literal["paper", "optimal"]
) -> None:
    r, probs, x, tables = random_probs(0)
    omega = torch.full((ROWS,), schedule.omegas(5)[-1])
    plain, limit = (
        AcceptanceRule(n, schedule, resampling) for n in (NoNeighbourhood(), neighbourhood)
    )
    assert neighbourhood.exact
    assert limit.neighbourhood.table_key is None
    assert limit.is_relaxed == (schedule != Constant(1.0))
    for p in (probs, None):
        masses = [rule.neighbourhood.mass(r, p, x, tables) for rule in (plain, limit)]
        torch.testing.assert_close(masses[1].target, masses[0].target, rtol=0, atol=0)
        torch.testing.assert_close(masses[1].proposal, masses[0].proposal, rtol=0, atol=0)
        chances = [
            rule.acceptance_prob(c, omega) for rule, c in zip((plain, limit), masses, strict=True)
        ]
        assert torch.equal(*chances)
        if (
            isinstance(neighbourhood, Grouped)
            and resampling == "paper"
            and schedule != Constant(1.0)
        ):
            continue  # GSD's paper resamples from [r - p]_+ whatever the budget
        residuals = [
            rule.residual(r, p, x, omega, c, tables)
            for rule, c in zip((plain, limit), masses, strict=True)
        ]
        torch.testing.assert_close(residuals[1], residuals[0], rtol=0, atol=1e-7)
    assert torch.equal(*(rule.greedy(r, x, omega, tables) for rule in (plain, limit)))


def test_acceptance_grows_with_every_knob() -> None:
    r, probs, x, tables = random_probs(1)
    ladders: list[list[AcceptanceRule]] = [
        [AcceptanceRule(Additive(k=12, delta=delta)) for delta in (0, 0.05, 0.1, 0.2, 0.4, 1.0)],
        [
            AcceptanceRule(Additive(k=12, delta=delta, divergence="jsd"))
            for delta in (0, 0.05, 0.1, 0.2, 0.4, 1.0)
        ],
        [AcceptanceRule(Additive(k=k, delta=0.3)) for k in (1, 2, 4, 8, 24)],
        [AcceptanceRule(Multiplicative(k=12, lam=lam)) for lam in (1, 1.5, 2, 5, 20)],
        [AcceptanceRule(Multiplicative(k=k, lam=3.0)) for k in (1, 2, 4, 8, 24)],
        [AcceptanceRule(schedule=Constant(budget)) for budget in (0.5, 1.0, 1.1, 2.0, 5.0)],
    ]
    for ladder in ladders:
        for p in (probs, None):
            chances = [
                rule.acceptance_prob(
                    rule.neighbourhood.mass(r, p, x, tables),
                    torch.full((ROWS,), rule.schedule.omegas(1)[0]),
                )
                for rule in ladder
            ]
            for lower, higher in pairwise(chances):
                assert bool((higher >= lower).all())
            assert bool((chances[-1] > chances[0]).any())


@pytest.mark.parametrize("resampling", ["paper", "optimal"])
@pytest.mark.parametrize("schedule", [Constant(1.0), Constant(0.6), Exponential(1.2, 0.4)], ids=str)
@pytest.mark.parametrize(
    "neighbourhood",
    [
        NoNeighbourhood(),
        Additive(8, 0.2),
        Additive(8, 0.2, "jsd"),
        Multiplicative(8, 3.0),
        Grouped(5, 4, 0.2, 2.0),
    ],
    ids=str,
)
def test_laws_stay_laws(
    neighbourhood: Neighbourhood, schedule: Schedule, resampling: Literal["paper", "optimal"]
) -> None:
    r, probs, x, tables = random_probs(2)
    rule = AcceptanceRule(neighbourhood, schedule, resampling)
    for omega in (torch.full((ROWS,), value) for value in schedule.omegas(3)):
        for p in (probs, None):
            mass = neighbourhood.mass(r, p, x, tables)
            chance = rule.acceptance_prob(mass, omega)
            assert bool(((chance >= 0) & (chance <= 1)).all())
            left = rule.residual(r, p, x, omega, mass, tables)
            torch.testing.assert_close(left.sum(1), torch.ones(ROWS), rtol=0, atol=1e-5)
            assert bool((left >= 0).all())
            off_x = torch.ones_like(r, dtype=torch.bool).scatter(
                1, x[:, None], resampling == "optimal"
            )
            assert not bool((left[(r == 0) & off_x] > 0).any())


@pytest.mark.parametrize("chunk", [1, 37, 1 << 22])
def test_mass_of_all_tokens_is_the_mass_of_each(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # groups look up distances where the table of all is at most a chunk
    for module in (neighbourhoods, grouped):
        monkeypatch.setattr(module, "CHUNK", chunk)
    r, probs, _, tables = random_probs(3)
    tables = replace(
        tables, ranking=r.sort(dim=1, stable=True).indices.int() if chunk == 37 else None
    )
    for neighbourhood in (
        NoNeighbourhood(), Additive(8, 0.2), Additive(8, 0.2, "jsd"), Multiplicative(8, 3.0), Grouped(5, 4, 0.2, 2.0)
    ):  # fmt: skip
        for p in (probs, None):
            target, proposal = neighbourhood.all_masses(r, p, tables)
            for token in range(r.shape[1]):
                mass = neighbourhood.mass(r, p, torch.full((ROWS,), token), tables)
                torch.testing.assert_close(target[:, token], mass.target, rtol=0, atol=2e-7)
                torch.testing.assert_close(proposal[:, token], mass.proposal, rtol=0, atol=2e-7)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_row_does_not_depend_on_its_batch(rule: AcceptanceRule) -> None:
    r, probs, x, tables = random_probs(4)
    omega = torch.full((ROWS,), 1.1)
    rule = AcceptanceRule(
        (
            Additive(k=20, delta=0.1)
            if isinstance(rule.neighbourhood, Additive)
            else rule.neighbourhood
        ),
        rule.schedule,
    )
    mass = rule.neighbourhood.mass(r, probs, x, tables)
    whole = rule.residual(r, probs, x, omega, mass, tables)
    for b in range(0, ROWS, 7):
        row = slice(b, b + 1)
        alone = rule.neighbourhood.mass(r[row], probs[row], x[row], tables)
        assert torch.equal(alone.target, mass.target[row])
        assert torch.equal(
            rule.residual(r[row], probs[row], x[row], omega[row], alone, tables), whole[row]
        )
