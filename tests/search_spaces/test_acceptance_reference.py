"""The acceptance rules against a slow reference written from the formulas (tests/oracles/rules.py).

Two kinds of cases. *Dyadic*: masses, bounds and budgets are multiples of 1/64 or 1/4, so every sum
and comparison is exact in fp32 and ties and equalities with a bound are decided by the rule, not by
rounding. *Generic*: random probs away from every bound, in fp32 and float64. Each example checks
every token of the codebook, sampled and deterministic, under both resamplings. Residuals are
compared to `1e-6 / mass` (fp32), where mass is what they were normalised by.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces import neighbourhoods
from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import (
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Exponential, Linear
from tests.fakes.cases import KINDS, UNIT, Case, dyadic_case, generic_case, margin
from tests.oracles import rules

few = settings(derandomize=True, deadline=None, max_examples=100, report_multiple_bugs=False)


def assert_agrees(case: Case, dtype: torch.dtype, precision: float) -> None:
    """Every token of the case, drawn and deterministic, paper and optimal, against the
    reference.
    """
    codes = len(case.r)
    omegas = case.schedule.omegas(case.levels)
    omega = omegas[case.depth]
    tables = case.tables(dtype)
    x = torch.arange(codes)
    level = torch.full((codes,), omega, dtype=dtype)
    r = torch.tensor(case.r, dtype=dtype).expand(codes, -1)
    proposals = [case.p] if case.neighbourhood.needs_sampled else [case.p, None]
    for p_list in proposals:
        p = None if p_list is None else torch.tensor(p_list, dtype=dtype).expand(codes, -1)
        mass = case.neighbourhood.mass(r, p, x, tables)
        assert_masses_agree(case, p_list, mass, precision)
        everywhere = case.neighbourhood.all_masses(r[:1], None if p is None else p[:1], tables)
        torch.testing.assert_close(everywhere[0][0], mass.target, rtol=0, atol=precision)
        drawable = torch.ones(codes, dtype=torch.bool) if p is None else p[0] > 0
        torch.testing.assert_close(
            everywhere[1][0][drawable], mass.proposal[drawable], rtol=0, atol=precision
        )
        chance = case.rule("paper").acceptance_prob(mass, level)
        for y, got in enumerate(chance.tolist()):
            # f = omega S / p: an error of S weighs 1 / p
            weight = 1.0 if p_list is None or p_list[y] == 0 else 1 / p_list[y]
            assert (
                abs(got - rules.acceptance_prob(case.plain, case.r, p_list, y, omega))
                <= 4 * precision * weight
            )
        best = [] if p_list is None else rules.optimal_mass(case.plain, case.r, p_list, 0, omega)
        for resampling in ("paper", "optimal"):
            residuals = case.rule(resampling).residual(r, p, x, level, mass, tables)
            for y, probs in enumerate(residuals.tolist()):
                if resampling == "paper":
                    paper = rules.paper_mass(case.plain, case.r, p_list, y, omega)
                    attempts = [paper, rules.exact_mass(case.r, p_list, y)]
                else:
                    attempts = [best or rules.optimal_mass(case.plain, case.r, None, y, omega)]
                    chance_of_y = rules.acceptance_prob(case.plain, case.r, p_list, y, omega)
                    if chance_of_y == 1 and not any(attempts[0]):
                        continue  # never rejected: what would follow is rounding
                assert_probs_agree(
                    case, probs, attempts, precision, carried=y if resampling == "paper" else None
                )


def assert_masses_agree(
    case: Case, p: list[float] | None, mass: NeighbourhoodMass, precision: float
) -> None:
    for x in range(len(case.r)):
        target, proposal = rules.neighbourhood_mass(case.plain, case.r, p, x)
        assert abs(float(mass.target[x]) - target) <= precision
        if p is None or p[x] > 0:
            assert abs(float(mass.proposal[x]) - proposal) <= precision
        else:
            assert float(mass.proposal[x]) == 0  # it could not have been drawn
        if mass.members is not None:
            assert mass.admitted is not None
            admitted = mass.members[x][mass.admitted[x]].tolist()
            assert admitted == rules.members(case.plain, case.r, x)


def assert_probs_agree(
    case: Case,
    probs: list[float],
    attempts: list[rules.Probs],
    precision: float,
    carried: int | None,
) -> None:
    """``probs`` is the first of ``attempts`` that has mass, or else r itself.

    ``carried``: where LANTERN's own residual puts its neighbours' mass, which the target alone may
    not allow.
    """
    assert abs(sum(probs) - 1) <= 1e-5
    assert all(mass >= 0 for mass in probs)
    outside = [y for y in range(len(probs)) if case.r[y] == 0 and y != carried]
    assert all(probs[y] == 0 for y in outside), "left the target's support"
    masses = [sum(attempt) for attempt in attempts if sum(attempt) > 0]
    if masses and min(masses) < 1e3 * precision:
        # all but empty: normalised rounding, and (optimal) drawn from with a probability as small
        return
    want = next((rules.normalised(attempt) for attempt in attempts if sum(attempt) > 0), case.r)
    bound = 4 * precision / (masses[0] if masses else 1)
    assert all(abs(a - b) <= bound for a, b in zip(probs, want, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_dyadic_cases_agree_with_the_reference(kind: str) -> None:
    @few
    @given(dyadic_case(kind))
    def assert_case(case: Case) -> None:
        if kind in ("jsd", "typical", "fuzzy"):
            # what is compared is irrational: only its bound is dyadic
            assume(margin(case.plain, case.r, case.p) > 1e-6)
        assert_agrees(case, torch.float32, 2.5e-7)

    assert_case()


@pytest.mark.parametrize("kind", KINDS)
def test_generic_cases_agree_with_the_reference(kind: str) -> None:
    @few
    @given(generic_case(kind))
    def assert_case(case: Case) -> None:
        assume(margin(case.plain, case.r, case.p) > 2e-6)
        assert_agrees(case, torch.float32, 2.5e-7)
        assert_agrees(case, torch.float64, 1e-12)

    assert_case()


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_agrees_with_the_reference(kind: str) -> None:
    @few
    @given(dyadic_case(kind))
    def assert_case(case: Case) -> None:
        if kind == "jsd":
            assume(margin(case.plain, case.r, case.p) > 1e-6)
        codes, rule = len(case.r), case.rule("paper")
        omega = case.schedule.omegas(case.levels)[case.depth]
        # budgets that are no dyadic numbers may turn an equality either way
        gaps = [
            abs(
                omega * sum(case.r[z] for z in [x, *rules.members(case.plain, case.r, x)])
                - case.r[y]
            )
            for x in range(codes)
            for y in range(codes)
        ]
        assume(not isinstance(case.schedule, Exponential) or all(gap > 1e-6 for gap in gaps))
        q = torch.tensor(case.r).expand(codes, -1)
        got = rule.greedy(
            q, torch.arange(codes), torch.full((codes,), omega), case.tables(torch.float32)
        ).tolist()
        # the argmax alone, also among equals
        if rule.neighbourhood.at_temperature_zero.exact and rule.schedule.exact:
            want = [x == case.r.index(max(case.r)) for x in range(codes)]
        else:
            want = [rules.greedy(case.plain, case.r, x, omega) for x in range(codes)]
        assert got == want

    assert_case()


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.integers(1, 12), st.floats(0.3, 4), st.floats(0, 1), st.floats(0, 3))
def test_schedules_agree_with_the_reference(
    levels: int, budget: float, fraction: float, nu: float
) -> None:
    slope = fraction * 1.9 * budget / max(1, levels - 1)
    assert Constant(budget).omegas(levels) == pytest.approx(rules.constant(levels, budget))
    assert Linear(budget, slope).omegas(levels) == pytest.approx(
        rules.linear(levels, budget, slope)
    )
    assert Exponential(budget, nu).omegas(levels) == pytest.approx(
        rules.exponential(levels, budget, nu)
    )
    for omegas in (
        schedule.omegas(levels) for schedule in (Linear(budget, slope), Exponential(budget, nu))
    ):
        assert sum(omegas) / levels == pytest.approx(budget)
        assert all(omega > 0 for omega in omegas)
        assert list(omegas) == sorted(omegas, reverse=True)


@few
@given(st.sampled_from(["tvd", "jsd", "multiplicative"]).flatmap(dyadic_case))
def test_limits_are_the_exact_rule_to_the_last_bit(case: Case) -> None:
    codes = len(case.r)
    r, p = (torch.tensor(probs).expand(codes, -1) for probs in (case.r, case.p))
    x, one, tables = torch.arange(codes), torch.ones(codes), case.tables(torch.float32)
    k, delta = max(2, case.plain.k), max(1 / UNIT, case.plain.delta)
    exact = AcceptanceRule(NoNeighbourhood(), Constant(1.0), "optimal")
    limits: list[Neighbourhood] = [
        Additive(k, 0.0),
        Additive(k, 0.0, divergence="jsd"),
        Additive(1, delta),
        Additive(k, 1e-9),  # below the smallest mass: only massless neighbours fit
        Multiplicative(k, 1.0),
        Multiplicative(1, 3.0),
        Multiplicative(k, 1 + 1e-6),
        Grouped(tolerance=0.0),
        Grouped(below=0, above=0),
    ]
    for neighbourhood in limits:
        for proposal in (p, None):
            mass = neighbourhood.mass(r, proposal, x, tables)
            plain = exact.neighbourhood.mass(r, proposal, x, tables)
            chance = exact.acceptance_prob(plain, one)
            assert torch.equal(AcceptanceRule(neighbourhood).acceptance_prob(mass, one), chance)
            for resampling in ("paper", "optimal"):
                rule = AcceptanceRule(
                    neighbourhood, Constant(1.0), "paper" if resampling == "paper" else "optimal"
                )
                probs = rule.residual(r, proposal, x, one, mass, tables)
                want = exact.residual(r, proposal, x, one, plain, tables)
                # Grouped's paper formula names [r - p]_+ itself: with a deterministic child, x
                # alone is zeroed
                reachable = chance < 1
                torch.testing.assert_close(probs[reachable], want[reachable], rtol=0, atol=1e-6)


@few
@given(st.sampled_from(["tvd", "jsd", "multiplicative"]).flatmap(dyadic_case))
def test_acceptance_grows_with_every_knob(case: Case) -> None:
    codes = len(case.r)
    x, tables = torch.arange(codes), case.tables(torch.float32)
    r, p = (torch.tensor(probs).expand(codes, -1) for probs in (case.r, case.p))
    ladders: list[list[Neighbourhood]] = [
        [Additive(k, case.plain.delta) for k in range(1, codes + 1)],
        [Additive(codes, delta / 8) for delta in range(9)],
        [Additive(codes, delta / 8, divergence="jsd") for delta in range(9)],
        [Multiplicative(k, case.plain.lam) for k in range(1, codes + 1)],
        [Multiplicative(codes, lam) for lam in (1.0, 1.5, 2.0, 5.0, 50.0)],
    ]
    budgets = [torch.full((codes,), omega) for omega in (0.5, 1.0, 1.1, 2.0)]
    for proposal in (p, None):
        for ladder in ladders:
            masses = [neighbourhood.mass(r, proposal, x, tables) for neighbourhood in ladder]
            probs = torch.stack(
                [AcceptanceRule().acceptance_prob(mass, budgets[1]) for mass in masses]
            )
            assert (probs.diff(dim=0) >= -1e-6).all()
            by_budget = torch.stack(
                [AcceptanceRule().acceptance_prob(masses[-1], budget) for budget in budgets]
            )
            assert (by_budget.diff(dim=0) >= 0).all()


def test_multiplicative_is_bounded_by_lambda_and_additive_by_delta() -> None:
    generator = torch.Generator().manual_seed(5)
    r = torch.rand(200, 16, generator=generator).pow(4)
    r = r / r.sum(1, keepdim=True)
    distance = torch.rand(16, 16, generator=generator).fill_diagonal_(-1)
    tables = NeighbourTables(neighbours=distance.argsort(1))
    x = torch.randint(16, (200,), generator=generator)
    own = r.gather(1, x[:, None])[:, 0]
    assert (Multiplicative(16, 2.5).mass(r, None, x, tables).target <= 2.5 * own * (1 + 1e-6)).all()
    assert (Additive(16, 0.3).mass(r, None, x, tables).target - own < 0.3 + 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_vocabulary_in_small_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbourhoods, "CHUNK", 7)

    @settings(derandomize=True, deadline=None, max_examples=30)
    @given(generic_case(kind))
    def assert_case(case: Case) -> None:
        tables = case.tables(torch.float64)
        r, p = (torch.tensor([probs], dtype=torch.float64) for probs in (case.r, case.p))
        target, proposal = case.neighbourhood.all_masses(r, p, tables)
        for x in range(len(case.r)):
            want = rules.neighbourhood_mass(case.plain, case.r, case.p, x)
            if case.p[x] > 0:
                assert (float(target[0, x]), float(proposal[0, x])) == pytest.approx(
                    want, abs=1e-12
                )

    assert_case()
