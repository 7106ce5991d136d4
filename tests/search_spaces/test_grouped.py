"""GSD's groups by hand: seven codes on a line, ranked by their mass."""

from __future__ import annotations

import pytest
import torch

from search_spaces.neighbourhoods import NeighbourhoodMass, NeighbourTables
from search_spaces.rules.grouped import Grouped

#       code 0     1     2     3     4     5     6     ranks, least likely first: 3 1 6 4 0 5 2
R = [0.14, 0.05, 0.40, 0.02, 0.12, 0.19, 0.08]
P = [0.10, 0.20, 0.10, 0.10, 0.30, 0.20, 0.00]
LINE = NeighbourTables(codebook=torch.arange(7)[:, None].double())


def mass(
    group: Grouped, x: int, p: list[float] | None = P, r: list[float] = R
) -> NeighbourhoodMass:
    probs = None if p is None else torch.tensor([p], dtype=torch.float64)
    return group.mass(torch.tensor([r], dtype=torch.float64), probs, torch.tensor([x]), LINE)


def sums(group: Grouped, x: int, p: list[float] | None = P) -> tuple[float, float]:
    found = mass(group, x, p)
    assert found.members is None
    return float(found.target), float(found.proposal)


def total(probs: list[float], codes: set[int]) -> float:
    return sum(probs[code] for code in codes)


@pytest.mark.parametrize(
    ("group", "x", "codes"),
    [
        (Grouped(2, 1, 1.0, 100.0), 4, {1, 6, 4, 0}),  # two ranks under 4, one over
        (Grouped(1, 2, 1.0, 100.0), 4, {6, 4, 0, 5}),
        (Grouped(1, 6, 1.0, 100.0), 5, {0, 5, 2}),  # cut at the upper end
        (Grouped(1, 0, 1.0, 100.0), 2, {5, 2}),  # the likeliest token
        # two ranks lie under 6, not three: off the lower end, x alone
        (Grouped(3, 3, 1.0, 100.0), 6, {6}),
        (Grouped(2, 3, 1.0, 100.0), 6, {3, 1, 6, 4, 0, 5}),
        # |r(y) - .08| < .05: .05 and .12; .02 and .14 are .06 away
        (Grouped(2, 3, 0.05, 100.0), 6, {1, 6, 4}),
        (Grouped(2, 3, 1.0, 4.1), 6, {6, 4, 5}),  # squared distance below 4.1: codes 4 and 5
        (Grouped(2, 3, 1.0, 4.0), 6, {6, 5}),  # strictly
        (Grouped(2, 3, 0.05, 4.1), 6, {6, 4}),
    ],
    ids=str,
)
def test_who_is_in_the_group(group: Grouped, x: int, codes: set[int]) -> None:
    expected = 0.0 if P[x] == 0 else total(P, codes)
    assert sums(group, x) == pytest.approx((total(R, codes), expected))
    assert sums(group, x, None) == pytest.approx((total(R, codes), 1))


def test_equal_masses_rank_by_index() -> None:
    flat = [0.2, 0.1, 0.2, 0.1, 0.2, 0.1, 0.1]  # ranks: 1 3 5 6 0 2 4
    found = mass(Grouped(1, 1, 1.0, 100.0), 0, P, flat)
    assert float(found.proposal) == pytest.approx(P[6] + P[0] + P[2])


def test_a_group_may_accept_less_than_the_exact_rule() -> None:
    heavy = mass(Grouped(1, 1, 1.0, 100.0), 0)  # 4, 0, 5
    assert float(heavy.target / heavy.proposal) == pytest.approx(0.45 / 0.60)
    assert R[0] / P[0] > 1
    assert not Grouped().never_stricter
