"""Theorem 2 as code against full enumeration: codebooks of 4, chains of 2, the distribution of all
64 next triples.

The enumeration (tests/oracles) shares nothing with the code under test. Everything exact is
float64; the recorded form is compared within 4.5 of its own standard errors (false alarms: 1 in
150,000 per number), with fixed seeds.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from benchmarks.bounds import Estimate, estimate_bounds, exact_bounds
from search_spaces.acceptance import AcceptanceRule
from search_spaces.modulations import NO_MODULATION
from search_spaces.neighbourhoods import Additive, Multiplicative, NeighbourTables, NoNeighbourhood
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.rules.grouped import Grouped
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.rules.typical import Typical
from search_spaces.schedules import Constant, Exponential, Linear
from tests.oracles import modulations, rounds, rules

CODES, DEPTH, TABLES = 4, 2, 70
CHAIN: rounds.Shape = (((),),)
ORDER = [[0, 1, 2, 3], [1, 3, 0, 2], [2, 0, 3, 1], [3, 2, 1, 0]]
BOOK = [[0.0], [0.5], [0.6], [1.2]]
LOOKUP = NeighbourTables(torch.tensor(ORDER), torch.tensor(BOOK, dtype=torch.float64))
GROUP = Grouped(below=1, above=1, tolerance=0.3, radius=0.3)

RULES = {
    "exact": AcceptanceRule(),
    "uniform 1.1": AcceptanceRule(schedule=Constant(1.1)),
    "uniform 2": AcceptanceRule(schedule=Constant(2.0)),
    "under 0.7": AcceptanceRule(schedule=Constant(0.7)),
    "cool": AcceptanceRule(schedule=Exponential(1.1, 0.5)),
    "cool linear": AcceptanceRule(schedule=Linear(1.1, 0.4)),
    "lantern": AcceptanceRule(Additive(3, 0.3), Constant(1.0), "paper"),
    "lantern optimal": AcceptanceRule(Additive(3, 0.3), Constant(1.0), "optimal"),
    "lantern jsd": AcceptanceRule(Additive(4, 0.2, "jsd"), Constant(1.0), "paper"),
    "lantern++": AcceptanceRule(Multiplicative(4, 2.5), Constant(1.0), "paper"),
    "lantern++ annealed": AcceptanceRule(Multiplicative(4, 2.5), Exponential(1.0, 0.6), "optimal"),
    "grouped": AcceptanceRule(GROUP, Constant(1.0), "paper"),
    "grouped optimal": AcceptanceRule(GROUP, Constant(1.2), "optimal"),
    "typical": AcceptanceRule(Typical(0.3, 0.9)),
    "fuzzy": AcceptanceRule(Fuzzy(0.3)),
    "cool by entropy": AcceptanceRule(
        schedule=Exponential(1.5, 0.5), modulation=EntropyModulation(2.0, 1.0, 3.0)
    ),
    "lantern by margin": AcceptanceRule(Additive(3, 0.3), modulation=MarginModulation(-1.5, 0.3)),
    "typical by entropy": AcceptanceRule(
        Typical(0.3, 0.9), resampling="optimal", modulation=EntropyModulation(-1.0, 1.0)
    ),
    "uniform by row": AcceptanceRule(schedule=Constant(1.5), modulation=RowModulation(0.5, 3.0)),
}


def plain(rule: AcceptanceRule) -> rules.Rule:
    """The reference's description of a rule."""
    n = rule.neighbourhood
    if isinstance(n, Additive):
        kind = "tvd" if n.divergence == "tvd" else "jsd"
        return rules.Rule(kind, rule.resampling, n.k, delta=n.delta, order=ORDER)
    if isinstance(n, Multiplicative):
        return rules.Rule("multiplicative", rule.resampling, n.k, lam=n.lam, order=ORDER)
    if isinstance(n, Grouped):
        return rules.Rule(
            "grouped", rule.resampling,
            below=n.below, above=n.above, tolerance=n.tolerance, radius=n.radius, codebook=BOOK,
        )  # fmt: skip
    if isinstance(n, Typical):
        return rules.Rule("typical", rule.resampling, epsilon=n.epsilon, alpha=n.delta)
    if isinstance(n, Fuzzy):
        return rules.Rule("fuzzy", rule.resampling, threshold=n.distance)
    assert isinstance(n, NoNeighbourhood)
    return rules.Rule()


def image_rows(depth: int) -> list[float]:
    """Each draft is in a row of its own."""
    return [place / max(1, depth - 1) for place in range(depth)]


def modulated(rule: AcceptanceRule, q: rounds.Table, depth: int) -> rounds.Modulate:
    """The reference's rule and budget after each context."""
    by = rule.modulation

    def factor(context: rounds.Context) -> float:
        if isinstance(by, EntropyModulation):
            return modulations.entropy(q[context], by.gamma, by.reference, by.limit)
        if isinstance(by, MarginModulation):
            return modulations.margin(q[context], by.gamma, by.reference, by.limit)
        if isinstance(by, RowModulation):
            return modulations.row(len(context), 1, max(2, depth), by.first, by.last)
        assert by == NO_MODULATION
        return 1.0

    return lambda context, own, omega: modulations.relaxed(own, omega, factor(context))


def random_tables(seed: int, depth: int) -> list[Tensor]:
    """Random distributions after every context of 0 .. depth drafts: [V**i, V] each, some of them
    with zeros.
    """
    generator = torch.Generator().manual_seed(seed)
    all_probs = []
    for i in range(depth + 1):
        masses = torch.rand(CODES**i, CODES, generator=generator, dtype=torch.float64).pow(2)
        masses = masses * (torch.rand(CODES**i, CODES, generator=generator) > 0.15)
        masses[masses.sum(-1) == 0] = 1.0
        all_probs.append(masses / masses.sum(-1, keepdim=True))
    return all_probs


def by_context(all_probs: list[Tensor]) -> dict[rounds.Context, list[float]]:
    return {
        context: all_probs[i][row].tolist()
        for i in range(len(all_probs))
        for row, context in enumerate(itertools.product(range(CODES), repeat=i))
    }


def near(q: list[Tensor], p: list[Tensor], weight: float) -> list[Tensor]:
    """Drafter distributions between p and q: at weight 0 p, at 1 q."""
    return [weight * a + (1 - weight) * b for a, b in zip(q, p, strict=True)]


@pytest.mark.parametrize("name", RULES)
def test_bound_dominates_and_accepted_length_is_exact(name: str) -> None:
    rule = RULES[name]
    reference, omegas = plain(rule), rule.schedule.omegas(DEPTH)
    for seed in range(TABLES):
        q, p = random_tables(2 * seed, DEPTH), random_tables(2 * seed + 1, DEPTH)
        p = near(q, p, 0.7 if seed % 3 == 1 else 0.0)[:DEPTH]
        theory = exact_bounds(rule, q[:DEPTH], p, LOOKUP, image_rows(DEPTH))
        q_table = by_context(q)
        probs = rounds.round_distribution(
            reference,
            q_table,
            by_context(p),
            CHAIN,
            omegas,
            modulate=modulated(rule, q_table, DEPTH),
        )
        distance = rounds.total_variation(
            rounds.completed(probs, q_table, DEPTH + 1),
            rounds.target_distribution(q_table, DEPTH + 1),
        )
        assert distance <= theory.bound.value + 1e-12
        assert theory.accepted.value == pytest.approx(rounds.expected_accepted(probs), abs=1e-12)
        assert theory.optimal_bound.value <= theory.bound.value + 1e-12
        if rule.resampling == "optimal" or isinstance(rule.neighbourhood, NoNeighbourhood):
            assert theory.optimal_bound.value == pytest.approx(theory.bound.value, abs=1e-12)
        if name in ("exact", "under 0.7"):  # under-acceptance costs speed, never quality
            assert theory.bound.value < 1e-12
            assert distance < 1e-12


@pytest.mark.parametrize("name", RULES)
def test_bound_is_an_equality_for_one_draft(name: str) -> None:
    rule = RULES[name]
    for seed in range(20):
        q, p = random_tables(3 * seed, 1), random_tables(3 * seed + 1, 0)
        theory = exact_bounds(rule, q[:1], p, LOOKUP)
        q_table = by_context(q)
        probs = rounds.round_distribution(
            plain(rule),
            q_table,
            by_context(p),
            ((),),
            rule.schedule.omegas(1),
            modulate=modulated(rule, q_table, 1),
        )
        distance = rounds.total_variation(
            rounds.completed(probs, q_table, 2), rounds.target_distribution(q_table, 2)
        )
        assert theory.bound.value == pytest.approx(distance, abs=1e-12)


@pytest.mark.parametrize(
    "name", ["uniform 2", "cool", "lantern", "lantern++ annealed", "grouped optimal"]
)
def test_no_resampling_beats_the_optimal_one(name: str) -> None:
    rule = RULES[name]
    for seed in range(24):
        q, p = random_tables(5 * seed, 0), random_tables(5 * seed + 1, 0)
        best = exact_bounds(rule, q, p, LOOKUP).optimal_bound.value
        for other in range(10):
            guess = random_tables(1000 * seed + other, 0)[0][0].tolist()
            probs = rounds.node(
                plain(rule), q[0][0].tolist(), p[0][0].tolist(), 1, rule.schedule.omegas(1)[0],
                redraw=lambda *_, guess=guess: guess,
            ).probs()  # fmt: skip
            assert (
                sum(abs(a - b) for a, b in zip(probs, q[0][0].tolist(), strict=True)) / 2
                >= best - 1e-12
            )


def draw_chains(p: list[Tensor], count: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Drafts [M, L] drawn from p, and the row of each depth's tables that they lead to."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.zeros(count, dtype=torch.int64)
    drafts, rows = [], []
    for probs in p:
        rows.append(row)
        x = torch.multinomial(probs[row], 1, generator=generator)[:, 0]
        drafts.append(x)
        row = row * CODES + x
    return torch.stack(drafts, 1), rows


def assert_covers(got: Estimate, want: Estimate) -> None:
    assert abs(got.value - want.value) <= 4.5 * got.error + 1e-9


@pytest.mark.parametrize("name", RULES)
def test_estimates_agree_with_the_exact_bounds(name: str) -> None:
    rule, depth, chains = RULES[name], 3, 4000
    for seed in range(2):
        q, p = random_tables(7 * seed, depth - 1), random_tables(7 * seed + 1, depth - 1)
        exact = exact_bounds(rule, q, p, LOOKUP, image_rows(depth))
        drafts, rows = draw_chains(p, chains, seed)
        places = torch.tensor(image_rows(depth), dtype=torch.float64).expand(chains, -1)
        q_rows = torch.stack([probs[row] for probs, row in zip(q, rows, strict=True)], 1)
        p_rows = torch.stack([probs[row] for probs, row in zip(p, rows, strict=True)], 1)
        theory = estimate_bounds(rule, q_rows, p_rows, drafts, LOOKUP, image_rows=places)
        for got, want in (
            (theory.accepted, exact.accepted),
            (theory.bound, exact.bound),
            (theory.optimal_bound, exact.optimal_bound),
        ):
            assert_covers(got, want)
            assert got.error < 0.02  # the estimate is informative
        narrow = NeighbourTables(LOOKUP.neighbours, torch.tensor(BOOK))
        single = estimate_bounds(
            rule, q_rows[:500].float(), p_rows[:500].float(), drafts[:500], narrow
        )
        double = estimate_bounds(rule, q_rows[:500], p_rows[:500], drafts[:500], LOOKUP)
        assert single.bound.value == pytest.approx(double.bound.value, abs=1e-5)
        assert single.accepted.value == pytest.approx(double.accepted.value, abs=1e-5)


def test_the_first_draft_is_summed_not_sampled() -> None:
    q, p = random_tables(1, 0), random_tables(2, 0)
    exact = exact_bounds(RULES["lantern"], q, p, LOOKUP)
    drafts = torch.multinomial(
        p[0][0], 50, replacement=True, generator=torch.Generator().manual_seed(0)
    )[:, None]
    theory = estimate_bounds(
        RULES["lantern"], q[0].expand(50, 1, CODES), p[0].expand(50, 1, CODES), drafts, LOOKUP
    )
    assert theory.bound.value == pytest.approx(exact.bound.value, abs=1e-12)
    assert theory.bound.error < 1e-12


@pytest.mark.parametrize(
    "name", [name for name, rule in RULES.items() if not rule.neighbourhood.needs_sampled]
)
def test_deterministic_drafts_are_chains_too(name: str) -> None:
    rule = RULES[name]
    for seed in range(15):
        q, p = random_tables(11 * seed, DEPTH), random_tables(11 * seed + 1, DEPTH)
        tree = rounds.likeliest(by_context(p), CHAIN)
        first = next(iter(tree))
        second = next(iter(tree[first]))
        drafts = torch.tensor([[first, second]])
        theory = estimate_bounds(
            rule,
            torch.stack([q[0][0], q[1][first]])[None],
            None,
            drafts,
            LOOKUP,
            image_rows=torch.tensor([image_rows(DEPTH)], dtype=torch.float64),
        )
        q_table = by_context(q)
        probs = rounds.round_distribution(
            plain(rule),
            q_table,
            {},
            tree,
            rule.schedule.omegas(DEPTH),
            modulate=modulated(rule, q_table, DEPTH),
        )
        distance = rounds.total_variation(
            rounds.completed(probs, q_table, 3), rounds.target_distribution(q_table, 3)
        )
        assert theory.accepted.value == pytest.approx(rounds.expected_accepted(probs), abs=1e-12)
        assert distance <= theory.bound.value + 1e-12
        assert theory.accepted.error == math.inf  # one chain: the error is unknown


def test_groups_count_as_one_sample() -> None:
    q, p = random_tables(21, 1), random_tables(22, 1)
    drafts, rows = draw_chains(p, 300, 3)
    q_rows = torch.stack([probs[row] for probs, row in zip(q, rows, strict=True)], 1)
    p_rows = torch.stack([probs[row] for probs, row in zip(p, rows, strict=True)], 1)
    rule = RULES["uniform 2"]
    once = estimate_bounds(rule, q_rows, p_rows, drafts, LOOKUP)
    # repeating every chain four times adds no information
    again = estimate_bounds(
        rule,
        q_rows.repeat(4, 1, 1),
        p_rows.repeat(4, 1, 1),
        drafts.repeat(4, 1),
        LOOKUP,
        torch.arange(300).repeat(4),
    )
    assert again.bound.value == pytest.approx(once.bound.value)
    assert again.bound.error == pytest.approx(once.bound.error)
    assert again.accepted.error == pytest.approx(once.accepted.error)


def test_mismatched_shapes_are_refused() -> None:
    q = torch.full((3, 2, CODES), 0.25)
    with pytest.raises(ValueError, match="expected"):
        estimate_bounds(AcceptanceRule(), q, q[:2], torch.zeros(3, 2, dtype=torch.int64), LOOKUP)
    with pytest.raises(ValueError, match="expected"):
        estimate_bounds(AcceptanceRule(), q, q, torch.zeros(3, 1, dtype=torch.int64), LOOKUP)
