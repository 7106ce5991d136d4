"""Acceptance rules by hand: small probs whose masses, chances and residuals can be checked with a
pencil.

The codebook is the line 0..5, so that the neighbours of x are the numbers next to it, the smaller
first on a tie.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.neighbourhoods import (
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Linear

R = [0.30, 0.10, 0.20, 0.05, 0.15, 0.20]
P = [0.10, 0.50, 0.10, 0.10, 0.20, 0.00]


def line(size: int = 6) -> NeighbourTables:
    """Neighbours on the line, and the line itself as a codebook."""
    places = torch.arange(size)
    order = ((places - places[:, None]).abs() * 2 + (places > places[:, None])).argsort(1)
    return NeighbourTables(neighbours=order, codebook=places[:, None].float())


LINE = line()


def rows(*probs: list[float]) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64)


def mass_of(
    neighbourhood: Neighbourhood, x: int, p: list[float] | None = None, r: list[float] = R
) -> NeighbourhoodMass:
    return neighbourhood.mass(rows(r), None if p is None else rows(p), torch.tensor([x]), LINE)


def chance_of(
    rule: AcceptanceRule, x: int, p: list[float] | None, omega: float = 1.0, r: list[float] = R
) -> float:
    return float(rule.acceptance_prob(mass_of(rule.neighbourhood, x, p, r), rows([omega])[0]))


def residual_of(
    rule: AcceptanceRule, x: int, p: list[float] | None, omega: float = 1.0, r: list[float] = R
) -> list[float]:
    probs = None if p is None else rows(p)
    mass = mass_of(rule.neighbourhood, x, p, r)
    residual: list[float] = rule.residual(
        rows(r), probs, torch.tensor([x]), rows([omega])[0], mass, LINE
    )[0].tolist()
    return residual


def normalised(probs: list[float]) -> object:
    return pytest.approx([mass / sum(probs) for mass in probs], abs=1e-12)


def members(mass: NeighbourhoodMass) -> list[int]:
    assert mass.members is not None
    assert mass.admitted is not None
    found: list[int] = mass.members[0][mass.admitted[0]].tolist()
    return found


# --- credit -----------------------------------------------------------------------------------------------------------


def test_without_neighbours_a_token_counts_for_itself() -> None:
    mass = mass_of(NoNeighbourhood(), 1, P)
    assert (float(mass.target), float(mass.proposal)) == (0.10, 0.50)
    assert mass.members is None
    assert float(mass_of(NoNeighbourhood(), 1).proposal) == 1


@pytest.mark.parametrize(
    ("k", "delta", "added", "who"),
    [
        # x = 1: neighbours 0 (.30), 2 (.20), 3 (.05), ...: .30 < .30 fails, and 0 closes the set
        (6, 0.30, 0.0, []),
        (6, 0.31, 0.30, [0]),
        (6, 0.52, 0.50, [0, 2]),
        (6, 0.56, 0.55, [0, 2, 3]),
        (3, 0.56, 0.50, [0, 2]),  # k = 3 looks at x and two others
        (2, 1.00, 0.30, [0]),
    ],
)
def test_additive_takes_the_longest_admissible_prefix(
    k: int, delta: float, added: float, who: list[int]
) -> None:
    mass = mass_of(Additive(k=k, delta=delta), 1)
    assert members(mass) == who
    assert float(mass.target) == pytest.approx(0.10 + added)


def test_a_large_neighbour_closes_the_set_even_if_later_ones_would_fit() -> None:
    assert members(mass_of(Additive(k=6, delta=0.1), 1)) == []  # 3 has .05 but comes after 0 and 2
    assert members(mass_of(Additive(k=6, delta=0.11), 2)) == [1]  # 1 (.10), then 3 (.05) overflows


def jensen_shannon(before: list[float], after: list[float]) -> float:
    def relative(a: float, b: float) -> float:
        return a * math.log(a / ((a + b) / 2)) if a > 0 else 0.0

    return sum(relative(a, b) + relative(b, a) for a, b in zip(before, after, strict=True)) / 2


@pytest.mark.parametrize(
    "probs", [R, [0.0, 0.0, 0.6, 0.1, 0.0, 0.3], [0.5, 1e-9, 0.5, 0.0, 0.0, 0.0]]
)
@pytest.mark.parametrize("x", [0, 1, 3, 5])
def test_jensen_shannon_bound_is_the_divergence_of_the_moved_law(
    probs: list[float], x: int
) -> None:
    order = LINE.neighbours[x].tolist()  # type: ignore[index]
    for size in range(1, 6):
        moved = list(probs)
        for y in order[1 : size + 1]:
            moved[x] += moved[y]
            moved[y] = 0.0
        divergence = jensen_shannon(probs, moved)
        if not 1e-6 < divergence < 0.999:
            continue
        just_over = Additive(k=size + 1, delta=divergence * (1 + 1e-9), divergence="jsd")
        just_under = Additive(k=size + 1, delta=divergence * (1 - 1e-9), divergence="jsd")
        assert len(members(mass_of(just_over, x, r=probs))) == size
        assert len(members(mass_of(just_under, x, r=probs))) < size


def test_jensen_shannon_of_nothing_is_finite() -> None:
    mass = mass_of(Additive(k=4, delta=0.1, divergence="jsd"), 5, r=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert float(mass.target) == 0
    assert members(mass) == [4, 3, 2]  # massless, so they move nothing


@pytest.mark.parametrize(
    ("lam", "who"),
    [
        (3.9, []),  # x = 1 has .10 and its first neighbour .30: C < 2.9 * .10 fails
        (4.1, [0]),
        (5.9, [0]),
        (6.1, [0, 2]),
    ],
)
def test_multiplicative_bounds_the_set_by_the_token(lam: float, who: list[int]) -> None:
    mass = mass_of(Multiplicative(k=6, lam=lam), 1)
    assert members(mass) == who
    assert float(mass.target) <= lam * 0.10


def test_bounds_are_strict() -> None:
    probs = [0.25, 0.125, 0.5, 0.125, 0.0, 0.0]
    assert members(mass_of(Multiplicative(k=6, lam=3.0), 1, r=probs)) == []  # .25 < 2 * .125 fails
    assert members(mass_of(Additive(k=6, delta=0.25), 1, r=probs)) == []
    assert members(mass_of(Additive(k=6, delta=0.75), 1, r=probs)) == [0]


def test_multiplicative_credits_nothing_to_a_token_without_mass() -> None:
    probs = [0.5, 0.0, 0.5, 0.0, 0.0, 0.0]
    assert float(mass_of(Multiplicative(k=6, lam=20.0), 1, r=probs).target) == 0


# --- chance -----------------------------------------------------------------------------------------------------------


def test_chance_is_the_credit_over_the_proposal() -> None:
    assert chance_of(EXACT, 1, P) == pytest.approx(0.10 / 0.50)
    assert chance_of(EXACT, 0, P) == 1
    assert chance_of(EXACT, 1, None) == pytest.approx(0.10)
    assert chance_of(EXACT, 1, P, omega=1.5) == pytest.approx(0.30)
    assert chance_of(EXACT, 0, P, omega=0.25) == pytest.approx(0.75)
    assert chance_of(AcceptanceRule(Additive(k=2, delta=0.5)), 1, P) == pytest.approx(0.80)


def test_what_the_drafter_could_not_propose_is_never_accepted() -> None:
    for neighbourhood in (
        NoNeighbourhood(),
        Additive(k=6, delta=1.0),
        Multiplicative(k=6, lam=9.0),
        Grouped(),
    ):
        assert chance_of(AcceptanceRule(neighbourhood), 5, P) == 0
    assert chance_of(EXACT, 1, [1.0, 0, 0, 0, 0, 0], r=[1.0, 0, 0, 0, 0, 0]) == 0  # 0 / 0


# --- residual ---------------------------------------------------------------------------------------------------------


def test_exact_residual() -> None:
    assert residual_of(EXACT, 1, P) == normalised([0.20, 0.0, 0.10, 0.0, 0.0, 0.20])
    assert residual_of(EXACT, 1, None) == normalised([0.30, 0.0, 0.20, 0.05, 0.15, 0.20])


def test_a_budget_below_one_leaves_the_mass_that_it_declined() -> None:
    rule = AcceptanceRule(schedule=Constant(0.5))
    left = [0.30 - 0.10, 0.10 - 0.05, 0.20 - 0.10, 0.05 - 0.025, 0.15 - 0.075, 0.20]
    assert residual_of(rule, 1, P, omega=0.5) == normalised(left)
    assert residual_of(rule, 1, None, omega=0.5) == normalised([0.30, 0.05, 0.20, 0.05, 0.15, 0.20])


def test_without_neighbours_both_resamplings_are_one_rule() -> None:
    budget = Constant(1.5)
    for alone in (NoNeighbourhood(), Additive(k=1, delta=0.3), Multiplicative(k=4, lam=1.0)):
        assert AcceptanceRule(alone, budget, "optimal") == AcceptanceRule(alone, budget, "paper")
    # GSD's own residual is not the least biased one under a budget below 1
    grouped = AcceptanceRule(Grouped(tolerance=0.0), Constant(0.6), "optimal")
    assert grouped.resampling == "optimal"


def test_optimal_resampling_zeroes_the_rejected_token_only() -> None:
    rule = AcceptanceRule(Additive(k=3, delta=0.6), resampling="optimal")
    assert residual_of(rule, 1, None) == residual_of(EXACT, 1, None)
    assert residual_of(rule, 1, P) == residual_of(EXACT, 1, P)


def test_paper_resampling_moves_the_neighbours_mass() -> None:
    rule = AcceptanceRule(Additive(k=3, delta=0.6))  # x = 3 masses 2 (.20) and 4 (.15)
    assert residual_of(rule, 3, None) == normalised([0.30, 0.10, 0.0, 0.0, 0.0, 0.20])
    assert residual_of(rule, 3, P) == normalised([0.20, 0.0, 0.0, 0.40 - 0.10, 0.0, 0.20])


def test_optimal_resampling_under_annealing_counts_every_tokens_neighbours() -> None:
    rule = AcceptanceRule(Multiplicative(k=2, lam=10.0), Linear(1.0, 0.1), "optimal")
    nearest = [1, 0, 1, 2, 3, 4]
    sums = [R[x] + R[nearest[x]] for x in range(6)]
    left = [max(0.0, r - min(p, 0.5 * s)) for r, p, s in zip(R, P, sums, strict=True)]
    assert residual_of(rule, 1, P, omega=0.5) == normalised(left)


def test_retreats_of_an_empty_residual() -> None:
    everything = AcceptanceRule(Additive(k=6, delta=1.0), Constant(0.5))
    probs = [0.2, 0.3, 0.5, 0.0, 0.0, 0.0]
    # the paper zeroes x and both others; the exact rule's probs, that stands in for it, zeroes x
    # alone
    assert residual_of(everything, 0, None, omega=0.5, r=[0.6, 0.3, 0.1, 0, 0, 0]) == normalised(
        [0, 0.3, 0.1, 0, 0, 0]
    )
    # 1 gathers all that there is, no more than p(1) takes away
    drawn = [0.0, 0.9, 0.1, 0.0, 0.0, 0.0]
    crowded = residual_of(everything, 1, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0], omega=0.5, r=drawn)
    assert crowded == normalised([0, 0, 0.1, 0, 0, 0])
    assert residual_of(everything, 1, None, omega=0.5, r=probs) == normalised(
        [0.2, 0.0, 0.5, 0, 0, 0]
    )
    certain = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    for resampling in ("paper", "optimal"):
        for neighbourhood in (
            NoNeighbourhood(),
            Additive(k=2, delta=0.2),
            Multiplicative(k=2, lam=2.0),
            Grouped(1, 1),
        ):
            rule = AcceptanceRule(neighbourhood, resampling=resampling)
            # r = p leaves nothing: r itself
            assert residual_of(rule, 1, certain, r=certain) == certain
            assert residual_of(rule, 1, None, r=certain) == certain


# --- greedy -----------------------------------------------------------------------------------------------------------


def greedy_of(rule: AcceptanceRule, x: int, q: list[float], omega: float = 1.0) -> bool:
    return bool(rule.greedy(rows(q), torch.tensor([x]), rows([omega])[0], LINE))


def test_greedy_by_hand() -> None:
    assert [greedy_of(EXACT, x, R) for x in range(6)] == [True, False, False, False, False, False]
    tied = [0.1, 0.4, 0.1, 0.4, 0.0, 0.0]
    assert [greedy_of(EXACT, x, tied) for x in range(6)] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    uniform = AcceptanceRule(schedule=Constant(1.5))
    assert [greedy_of(uniform, x, R, 1.5) for x in range(6)] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    near = AcceptanceRule(Additive(k=2, delta=0.31))
    # S: 0 -> .40; 1 -> .40 with 0 inside A; 2 -> .30 with 1; 3 -> .25 against .30; 4 -> .20; 5 ->
    # .35 with 4
    assert [greedy_of(near, x, R) for x in range(6)] == [True, True, True, False, False, True]
    whole = AcceptanceRule(Additive(k=6, delta=1.0))
    probs = [0.5, 0.25, 0.25, 0.0, 0.0, 0.0]  # x = 3 masses .5; C < 1 leaves out 0, the only rival
    assert greedy_of(whole, 3, probs)
    assert not greedy_of(whole, 3, probs, omega=0.99)


def test_groups_are_not_for_greedy_decoding() -> None:
    assert [greedy_of(AcceptanceRule(Grouped()), x, R) for x in range(6)] == [
        greedy_of(EXACT, x, R) for x in range(6)
    ]
    loosened = AcceptanceRule(Grouped(), Constant(1.5))
    plain = AcceptanceRule(schedule=Constant(1.5))
    assert [greedy_of(loosened, x, R, 1.5) for x in range(6)] == [
        greedy_of(plain, x, R, 1.5) for x in range(6)
    ]


def test_table_key_names_the_neighbour_table() -> None:
    assert EXACT.neighbourhood.table_key is None
    assert Grouped().table_key is None
    assert Additive(7, 0.1, proximity="cosine").table_key == ("cosine", 7)
    assert Multiplicative(9, 2.0, proximity="random").table_key == ("random", 9)
