"""Every tensor function of a rule on no rows: an empty result of the shape and dtype that it has
for two.

Replay tests children only where they exist and may be rejected, so there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule, Resampling
from search_spaces.neighbourhoods import (
    NEIGHBOURHOODS,
    Additive,
    Multiplicative,
    Neighbourhood,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.rules.grouped import Grouped
from search_spaces.rules.typical import Typical
from search_spaces.schedules import Constant, Exponential, Schedule

CODES = 6
TABLES = NeighbourTables(
    (torch.arange(CODES)[:, None] + torch.arange(CODES)) % CODES,
    torch.linspace(0, 1, CODES)[:, None],
)
RANKED = NeighbourTables(TABLES.neighbours, TABLES.codebook, torch.arange(CODES).expand(2, -1))
RULES: list[Neighbourhood] = [
    NoNeighbourhood(),
    Additive(4, 0.3),
    Additive(1, 0.3),
    Additive(4, 1.0, "jsd"),
    Multiplicative(4, 2.0),
    Grouped(),
    Grouped(below=0, above=9, tolerance=1.0, radius=9.0),
    Typical(),
    Fuzzy(0.3),
]
SCHEDULES: list[Schedule] = [Constant(), Constant(0.5), Exponential(1.1, 0.5)]


def tensors(found: object) -> Iterable[Tensor]:
    """The tensors in a result."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple):
        for part in found:
            yield from tensors(part)


def empty_as(function: Callable[[int], object]) -> None:
    """`function` of a number of rows gives the same for none as for two, but for the rows."""
    two, none = list(tensors(function(2))), list(tensors(function(0)))
    assert [(x.shape[0], x.shape[1:], x.dtype) for x in none] == [
        (0, x.shape[1:], x.dtype) for x in two
    ]
    assert two


def test_every_neighbourhood_is_tested() -> None:
    own = {
        entry for entry in NEIGHBOURHOODS.values() if entry.__module__.startswith("search_spaces.")
    }
    assert {type(rule) for rule in RULES} == own


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("tables", [TABLES, RANKED], ids=["tables", "ranked"])
@pytest.mark.parametrize("neighbourhood", RULES, ids=repr)
def test_masses_of_no_rows(
    neighbourhood: Neighbourhood, tables: NeighbourTables, is_sampled: bool
) -> None:
    r = torch.rand(2, CODES).softmax(1)
    p = r.flip(1) if is_sampled or neighbourhood.needs_sampled else None
    x = torch.tensor([1, 4])

    def first(rows: int) -> tuple[Tensor, Tensor | None, NeighbourTables]:
        ranking = None if tables.ranking is None else tables.ranking[:rows]
        own = NeighbourTables(tables.neighbours, tables.codebook, ranking)
        return r[:rows], None if p is None else p[:rows], own

    def mass(rows: int) -> object:
        r, p, own = first(rows)
        return tuple(neighbourhood.mass(r, p, x[:rows], own))

    def all_masses(rows: int) -> object:
        return neighbourhood.all_masses(*first(rows))

    empty_as(mass)
    empty_as(all_masses)


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("resampling", ["paper", "optimal"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("neighbourhood", RULES, ids=repr)
def test_rules_on_no_rows(
    neighbourhood: Neighbourhood, schedule: Schedule, resampling: Resampling, is_sampled: bool
) -> None:
    rule = AcceptanceRule(neighbourhood, schedule, resampling)
    probs = torch.rand(2, CODES).softmax(1)

    def outcome(rows: int) -> object:
        r, x, omega = probs[:rows], torch.tensor([1, 4])[:rows], torch.tensor([1.1, 0.5])[:rows]
        p = r.flip(1) if is_sampled or neighbourhood.needs_sampled else None
        mass = neighbourhood.mass(r, p, x, TABLES)
        residual = rule.residual(r, p, x, omega, mass, TABLES)
        stripped = mass.without_neighbours(r)
        return (
            rule.acceptance_prob(mass, omega),
            residual,
            stripped,
            rule.greedy(r, x, omega, TABLES),
        )

    empty_as(outcome)
