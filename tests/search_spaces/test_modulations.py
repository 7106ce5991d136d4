"""Modulations by hand, what they leave alone, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from search_spaces.acceptance import RULES, AcceptanceRule
from search_spaces.drafters import Eagle
from search_spaces.modulations import Modulation, Nodes
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.schedules import Constant
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.cases import KINDS, Case, dyadic_case, margin
from tests.oracles import modulations, rules

ALL: tuple[Modulation, ...] = (
    EntropyModulation(),
    EntropyModulation(-2.0),
    MarginModulation(),
    RowModulation(),
)
CHAIN = {"policy": "chain", "length": 3}


def nodes(probs: list[list[float]], row: list[float] | None = None) -> Nodes:
    places = [0.0] * len(probs) if row is None else row
    return Nodes(torch.tensor(probs).double(), torch.tensor(places).double())


FLAT, SURE, TWO = [0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("modulation", "expected"),
    [
        (EntropyModulation(1.0, math.log(2)), [2.0, 0.0, 1.0]),
        (EntropyModulation(-1.0, math.log(2)), [0.5, 4.0, 1.0]),
        (EntropyModulation(2.0, math.log(2), limit=3.0), [3.0, 0.0, 1.0]),
        (EntropyModulation(0.0), [1.0, 1.0, 1.0]),
        (MarginModulation(1.0, 0.0), [1.0, 0.0, 1.0]),
        (MarginModulation(1.0, 0.5), [2.0, 0.0, 2.0]),
        (MarginModulation(-1.0, 0.5), [0.5, 4.0, 0.5]),
    ],
)
def test_factors_by_hand(modulation: Modulation, expected: list[float]) -> None:
    found = modulation.factor(nodes([FLAT, SURE, TWO]))
    assert found.tolist() == pytest.approx(expected)


def test_rows_are_a_straight_line() -> None:
    found = RowModulation(0.5, 2.0).factor(nodes([FLAT] * 3, [0.0, 0.5, 1.0]))
    assert found.tolist() == [0.5, 1.25, 2.0]


@pytest.mark.parametrize("made", [EntropyModulation, MarginModulation])
@pytest.mark.parametrize("gamma", [-8.0, 8.0])
def test_the_largest_powers_stay_finite(made: type[Any], gamma: float) -> None:
    """At both ends of the reference."""
    probs = [[1.0, 0.0], [1 - 1e-7, 1e-7], [0.5, 0.5], [1e-30, 1.0]]
    ends = made.fields()["reference"].range
    for reference in (ends.low, ends.high):
        modulation = made(gamma, reference, limit=1000.0)
        factor = modulation.factor(Nodes(torch.tensor(probs), torch.zeros(4)))
        assert factor.isfinite().all()
        assert (factor >= 0).all()
        assert (factor <= 1000).all()


def test_probs_that_are_no_numbers_are_not_hidden() -> None:
    lost = Nodes(torch.full((1, 4), math.nan), torch.zeros(1))
    for modulation in ALL[:3]:
        assert modulation.factor(lost).isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_factors_scale_a_rule_as_its_formula_says(kind: str, data: st.DataObject) -> None:
    """Of every kind of neighbourhood: acceptance by the scaled bound and budget in two rows with
    factors of their own, in float64. Cases that a comparison of equal numbers would decide are left
    out.
    """
    case: Case = data.draw(dyadic_case(kind))
    # Factors that keep the cases' numbers exact.
    factors = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])) for _ in range(2)]
    omega = case.schedule.omegas(case.levels)[case.depth]
    scaled = [modulations.relaxed(case.plain, omega, m) for m in factors]
    if kind in ("jsd", "typical", "fuzzy"):
        assume(all(margin(plain, case.r, case.p) > 1e-9 for plain, _ in scaled))
    r, p = (torch.tensor([probs] * 2, dtype=torch.float64) for probs in (case.r, case.p))
    rule = replace(case.rule("optimal"), modulation=RowModulation(*factors))
    place = Nodes(r, torch.tensor([0.0, 1.0], dtype=torch.float64))
    start = torch.full((2,), omega, dtype=torch.float64)
    budgets, tables = rule.relaxation(start, place, case.tables(torch.float64))
    assert budgets.tolist() == pytest.approx([budget for _, budget in scaled], rel=1e-12)
    everywhere = rule.neighbourhood.all_masses(r, p, tables)
    for x in range(len(case.r)):
        token = torch.full((2,), x)
        mass = rule.neighbourhood.mass(r, p, token, tables)
        expected = [
            rules.acceptance_prob(plain, case.r, case.p, x, budget) for plain, budget in scaled
        ]
        assert rule.acceptance_prob(mass, budgets).tolist() == pytest.approx(expected, abs=1e-9)
        for part, whole in zip(mass[:2], everywhere, strict=True):
            torch.testing.assert_close(part, whole[:, x])


@pytest.mark.parametrize("modulation", ALL, ids=repr)
def test_exact_rules_and_budgets_below_1_stay_as_they_are(modulation: Modulation) -> None:
    probs = nodes([FLAT, SURE, TWO], [0.0, 0.5, 1.0])
    for budget in (1.0, 0.7):
        rule = AcceptanceRule(schedule=Constant(budget), modulation=modulation)
        omega = torch.full((3,), budget, dtype=torch.float64)
        assert torch.equal(rule.relaxation(omega, probs, NeighbourTables()).omega, omega)
        assert rule.is_lossless(1.0, 3)
        assert rule.is_exact(1.0) == (budget == 1)
    relaxed = AcceptanceRule(schedule=Constant(1.2), modulation=modulation)
    assert not relaxed.is_lossless(1.0, 3)
    for neighbourhood in (RULES["lantern"].neighbourhood, RULES["grouped"].neighbourhood):
        assert not AcceptanceRule(neighbourhood, modulation=modulation).is_lossless(1.0, 3)


def test_the_default_is_in_no_mapping_and_a_modulation_costs_time_by_its_kind() -> None:
    plain = DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Constant(1.2)))
    assert "modulation" not in plain.to_mapping()["acceptance"]
    by = [
        replace(plain, acceptance=replace(plain.acceptance, modulation=modulation))
        for modulation in (EntropyModulation(), EntropyModulation(-1.0), RowModulation())
    ]
    assert DecodingConfig.from_mapping(by[1].to_mapping()) == by[1]
    assert by[1].flat()["acceptance.gamma"] == -1.0
    assert len({config.digest() for config in (plain, *by)}) == 4
    assert len({config.shape.key for config in (plain, *by)}) == 3


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"modulation": "entropi"}, "acceptance.modulation"),
        ({"modulation": "entropy", "gamma": 400.0}, "acceptance.gamma"),
        ({"modulation": "entropy", "gamma": math.nan}, "acceptance.gamma"),
        ({"modulation": "entropy", "reference": 0.0}, "acceptance.reference"),
        ({"modulation": "entropy", "limit": math.inf}, "acceptance.limit"),
        ({"modulation": "margin", "reference": 1.0}, "acceptance.reference"),
        ({"modulation": "row", "first": -1.0}, "acceptance.first"),
        ({"gamma": 1.0}, "acceptance.gamma"),
    ],
)
def test_other_values_are_refused_by_their_key(keys: dict[str, Any], path: str) -> None:
    acceptance = {"schedule": "constant", "budget": 1.2, **keys}
    with pytest.raises(ConfigError) as caught:
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": CHAIN, "acceptance": acceptance})
    assert ".".join(caught.value.path) == path


@pytest.mark.parametrize("modulation", ALL, ids=repr)
def test_what_reads_probs_needs_a_temperature(modulation: Modulation) -> None:
    rule = AcceptanceRule(schedule=Constant(1.2), modulation=modulation)
    config = DecodingConfig(Eagle(), Chain(3), rule)
    if not modulation.reads_probs:
        assert config.with_sampling(Sampling(temperature=0.0)).acceptance == rule
        return
    with pytest.raises(ConfigError) as caught:
        config.with_sampling(Sampling(temperature=0.0))
    assert caught.value.path == ("acceptance", "modulation")


@pytest.mark.parametrize(
    ("keys", "length", "temperature"),
    [
        ({}, 3, 1.0),
        ({"schedule": "constant", "budget": 1.0}, 3, 1.0),
        ({"schedule": "constant", "budget": 0.7}, 3, 1.0),
        ({"schedule": "exponential", "budget": 0.9, "nu": 0.5}, 1, 1.0),  # one level: 0.9
        ({"neighbourhood": "additive", "k": 1, "delta": 0.3}, 3, 1.0),
        ({"verification": "block"}, 3, 1.0),
        ({"neighbourhood": "typical"}, 3, 0.0),
        ({"neighbourhood": "grouped", "schedule": "constant", "budget": 0.7}, 3, 0.0),
    ],
)
def test_it_is_refused_where_nothing_is_relaxed(
    keys: dict[str, Any], length: int, temperature: float
) -> None:
    """Else one setting would have two names."""
    mapping = {
        "drafter": "eagle",
        "tree": {"policy": "chain", "length": length},
        "acceptance": {"modulation": "row", **keys},
    }
    with pytest.raises(ConfigError) as caught:
        DecodingConfig.from_mapping(mapping, Sampling()).with_sampling(Sampling(temperature))
    assert caught.value.path == ("acceptance", "modulation")


@pytest.mark.parametrize(
    "keys",
    [
        {"schedule": "exponential", "budget": 0.9, "nu": 0.5},  # 1.37, 0.83, 0.5
        {"neighbourhood": "fuzzy", "distance": 0.3},
        {"neighbourhood": "grouped", "schedule": "constant", "budget": 0.7},
    ],
)
def test_it_goes_with_whatever_is_relaxed_somewhere(keys: dict[str, Any]) -> None:
    mapping = {"drafter": "eagle", "tree": CHAIN, "acceptance": {"modulation": "row", **keys}}
    assert DecodingConfig.from_mapping(mapping).acceptance.modulation == RowModulation()


def test_rows_need_more_than_one() -> None:
    rule = AcceptanceRule(schedule=Constant(1.2), modulation=RowModulation())
    config = DecodingConfig(Eagle(), Chain(3), rule)
    config.check_model(64, image_rows=2)
    with pytest.raises(ConfigError) as caught:
        config.check_model(64, image_rows=1)
    assert caught.value.path == ("acceptance", "modulation")
