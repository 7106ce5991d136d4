"""Which rules are lossless, by enumeration: one node's tokens for each rule, and whole rounds from
the formulas.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import RULES, AcceptanceRule
from search_spaces.drafters import Eagle, Jacobi, JacobiRows, Rows, Vertical
from search_spaces.neighbourhoods import (
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Exponential, Linear, Schedule
from search_spaces.trees import Branching, Chain, NoTree
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import BlockVerification, JointVerification, UniformSkipping
from tests.oracles.rounds import (
    Shape,
    Table,
    completed,
    likeliest,
    round_distribution,
    target_distribution,
    total_variation,
)
from tests.oracles.rules import Rule

CODES, LEVELS = 5, 3
NEIGHBOURHOODS: list[Neighbourhood] = [
    NoNeighbourhood(),
    Additive(k=1, delta=0.5),
    Additive(k=4, delta=0.0),
    Multiplicative(k=4, lam=1.0),
    Grouped(tolerance=0.0),
    Additive(k=3, delta=0.4),
]
SCHEDULES: list[Schedule] = [
    Constant(1.0),
    Constant(0.6),
    Constant(1.2),
    Linear(0.8, 0.1),
    Linear(0.8, 0.3),
    Exponential(0.5, 0.4),
    Exponential(0.9, 1.0),
]


def distance_at_a_node(rule: AcceptanceRule, omega: float, *, chosen: bool, seed: int) -> float:
    """The total variation of a node's token from the target's, over all drafts of one child."""
    generator = torch.Generator().manual_seed(seed)
    r, p = torch.rand(2, 1, CODES, generator=generator, dtype=torch.float64) ** 2
    r, p = (probs / probs.sum() for probs in (r, p))
    codebook = torch.randn(CODES, 2, generator=generator, dtype=torch.float64)
    tables = NeighbourTables(torch.cdist(codebook, codebook).argsort(1), codebook)
    drafts = torch.full((1, CODES), 1 / CODES, dtype=torch.float64) if chosen else p
    proposal = None if chosen else p
    worst, emitted = 0.0, torch.zeros(CODES, dtype=torch.float64)
    for x in range(CODES):
        token = torch.tensor([x])
        budget = torch.tensor([omega], dtype=torch.float64)
        mass = rule.neighbourhood.mass(r, proposal, token, tables)
        keep = float(rule.acceptance_prob(mass, budget))
        after: Tensor = (1 - keep) * rule.residual(r, proposal, token, budget, mass, tables)[0]
        after[x] += keep
        worst = max(worst, float((after - r[0]).abs().sum()) / 2)
        emitted += float(drafts[0, x]) * after
    return worst if chosen else float((emitted - r[0]).abs().sum()) / 2


@pytest.mark.parametrize("resampling", ["paper", "optimal"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS, ids=repr)
def test_a_rule_is_lossless_if_and_only_if_its_tokens_are_the_targets(
    neighbourhood: Neighbourhood, schedule: Schedule, resampling: Any
) -> None:
    """Sampled and chosen drafts, at every level of a tree of three."""
    rule = AcceptanceRule(neighbourhood, schedule, resampling)
    distances = [
        max(distance_at_a_node(rule, omega, chosen=chosen, seed=seed) for seed in range(5))
        for omega in schedule.omegas(LEVELS)
        for chosen in (False, True)
    ]
    assert rule.is_lossless(1.0, LEVELS) == (max(distances) < 1e-12)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("tree", [((((),),),), (((), ()), ((),), ())], ids=["chain", "bushy"])
@pytest.mark.parametrize(
    "schedule", [Constant(0.6), Linear(0.8, 0.1), Exponential(0.5, 0.4)], ids=repr
)
def test_rounds_that_accept_less_often_are_the_targets(
    schedule: Schedule, tree: Shape, chosen: bool
) -> None:
    generator, length = np.random.default_rng(1), LEVELS + 1
    contexts = [c for n in range(length) for c in itertools.product(range(3), repeat=n)]
    q: Table = {c: generator.dirichlet(np.full(3, 0.7)).tolist() for c in contexts}
    p: Table = {c: generator.dirichlet(np.full(3, 0.7)).tolist() for c in contexts}
    assert AcceptanceRule(schedule=schedule).is_lossless(1.0, LEVELS)
    drawn = likeliest(p, tree) if chosen else tree
    found = round_distribution(Rule(), q, p, drawn, schedule.omegas(LEVELS))
    assert total_variation(completed(found, q, length), target_distribution(q, length)) < 1e-12


SAMPLING, GREEDY = Sampling(cfg=3.0), Sampling(temperature=0.0, cfg=3.0)
STRICT, JOINT = (
    AcceptanceRule(schedule=Constant(0.7)),
    AcceptanceRule(verification=JointVerification()),
)
BLOCK = AcceptanceRule(verification=BlockVerification())
PUBLISHED = Jacobi("random", "reuse", probs="published")
CONFIGS: dict[str, tuple[DecodingConfig, bool, bool]] = {
    # whether it is lossless when sampled, and at temperature 0, for images of 8 columns
    "stricter": (DecodingConfig(Eagle(), Chain(4), STRICT), True, True),
    "stricter by rounding alone": (
        DecodingConfig(Eagle(), Chain(4), AcceptanceRule(schedule=Constant(1 - 1e-9))),
        True,
        False,
    ),
    "falling below 1": (
        DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Linear(0.8, 0.1))),
        True,
        True,
    ),
    "falling from above 1": (
        DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Linear(0.95, 0.1))),
        False,
        False,
    ),
    "stricter groups": (
        DecodingConfig(Eagle(), Chain(3), AcceptanceRule(Grouped(tolerance=0.0), Constant(0.7))),
        False,
        True,
    ),
    "stricter neighbours": (
        DecodingConfig(Eagle(), Chain(3), replace(RULES["lantern"], schedule=Constant(0.7))),
        False,
        False,
    ),
    "one level of a slope": (
        DecodingConfig(Eagle(), Chain(1), AcceptanceRule(schedule=Linear(1.0, 0.3))),
        True,
        False,
    ),
    "joint": (DecodingConfig(Eagle(), Chain(2), JOINT), False, True),
    "joint, one draft": (DecodingConfig(Eagle(), Chain(1), JOINT), True, True),
    "block, one draft": (DecodingConfig(Eagle(), Chain(1), BLOCK), True, True),
    "unverified, one draft": (
        DecodingConfig(Eagle(), Chain(1), AcceptanceRule(verification=UniformSkipping())),
        False,
        False,
    ),
    "published window": (DecodingConfig(PUBLISHED, Chain(2)), False, True),
    "published window of one": (DecodingConfig(PUBLISHED, Chain(1)), True, True),
    "published window of one level": (DecodingConfig(PUBLISHED, Branching(1, 3, 1)), True, True),
    "rows": (DecodingConfig(Rows(7), NoTree()), False, False),
    "diagonals": (DecodingConfig(Vertical()), False, False),
    "rows one after the other": (DecodingConfig(Rows(8), NoTree()), True, True),
    "rows of windows": (DecodingConfig(JacobiRows(lag=7), Chain(3)), False, False),
    "rows of windows one after the other": (
        DecodingConfig(JacobiRows(lag=9), Chain(3)),
        True,
        True,
    ),
    "rows of published windows one after the other": (
        DecodingConfig(
            JacobiRows("random", "reuse", probs="published", lag=8, lower="redrawn"), Chain(3)
        ),
        False,
        True,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_which_settings_are_lossless(name: str) -> None:
    config, sampled, greedy = CONFIGS[name]
    for sampling, lossless in ((SAMPLING, sampled), (GREEDY, greedy)):
        made = config.with_sampling(sampling)
        assert made.is_lossless(sampling, 8) is lossless
        assert made.is_lossless(sampling) is (lossless and made.drafter.row_lag is None)
