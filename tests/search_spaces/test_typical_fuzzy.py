"""Medusa's typical acceptance and FSD by hand: the tests, what follows a rejection, and what is
refused.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Neighbourhood, NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.presets import preset
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.rules.typical import Typical
from search_spaces.trial import DecodingConfig, Sampling

NO_TABLES = NeighbourTables()
R = [0.5, 0.25, 0.125, 0.125]
P = [0.25, 0.25, 0.5, 0.0]
CHAIN = {"policy": "chain", "length": 3}


def accepted(rule: Neighbourhood, p: list[float] | None = P, r: list[float] = R) -> list[float]:
    """The probability of accepting each token, at a budget of 1."""
    x = torch.arange(len(r))
    rows = torch.tensor(r, dtype=torch.float64).expand(len(r), -1)
    probs = None if p is None else torch.tensor(p, dtype=torch.float64).expand(len(r), -1)
    mass = rule.mass(rows, probs, x, NO_TABLES)
    found: list[float] = AcceptanceRule(rule).acceptance_prob(mass, torch.ones(len(r))).tolist()
    return found


@pytest.mark.parametrize(
    ("epsilon", "delta", "kept"),
    [
        (0.2, 1.0, {0, 1}),  # exp(-H) = 2^-1.75 = 0.297: epsilon decides
        (0.9, 1.0, {0}),  # exp(-H) decides
        (0.9, 0.5, {0, 1}),  # half of it, 0.149
        (0.09, 0.3, {0, 1, 2, 3}),
        (0.125, 1.0, {0, 1}),  # strictly
    ],
)
def test_typical_tokens_by_hand(epsilon: float, delta: float, kept: set[int]) -> None:
    rule = Typical(epsilon, delta)
    assert accepted(rule, None) == [float(code in kept) for code in range(4)]
    drawn = [float(code in kept and P[code] > 0) for code in range(4)]
    assert accepted(rule) == drawn, "whatever the drafter's probs"


@pytest.mark.parametrize(
    ("divergence", "distance"),
    [
        ("tvd", 0.375),
        ("kl", math.inf),  # the drafter lacks the last code
        ("reverse_kl", 0.75 * math.log(2) * 1),
        ("jsd", None),
    ],
)
def test_fuzzy_distances_by_hand(divergence: Any, distance: float | None) -> None:
    if divergence == "reverse_kl":  # .25 ln(1/2) + .25 ln 1 + .5 ln 4
        distance = -0.25 * math.log(2) + math.log(2)
    if divergence == "jsd":
        middle = [(a + b) / 2 for a, b in zip(R, P, strict=True)]
        distance = math.fsum(
            a * math.log(a / m) / 2
            for probs in (R, P)
            for a, m in zip(probs, middle, strict=True)
            if a
        )
    assert distance is not None
    everything, nothing = [1.0, 1.0, 1.0, 0.0], [0.0] * 4
    if math.isfinite(distance):
        assert accepted(Fuzzy(distance + 1e-9, divergence)) == everything
        assert accepted(Fuzzy(distance - 1e-9, divergence)) == nothing
    else:
        assert accepted(Fuzzy(1e9, divergence)) == nothing
    assert accepted(Fuzzy(0.0, divergence), R) == [1.0] * 4, "equal distributions"


@pytest.mark.parametrize("rule", [Typical(), Fuzzy(0.3)])
def test_a_rejection_is_followed_by_a_sample_of_the_target(rule: Neighbourhood) -> None:
    r, p = (torch.tensor([probs], dtype=torch.float64) for probs in (R, P))
    x, one = torch.tensor([2]), torch.ones(1)
    mass = rule.mass(r, p, x, NO_TABLES)
    left = AcceptanceRule(rule).residual(r, p, x, one, mass, NO_TABLES)
    torch.testing.assert_close(left, r)


@pytest.mark.parametrize("rule", [Typical(), Fuzzy(0.3)])
def test_the_least_biased_replacement_is_another(rule: Neighbourhood) -> None:
    """[r - p f]_+ with f of 0 or 1."""
    r, p = (torch.tensor([probs], dtype=torch.float64) for probs in (R, P))
    x, one = torch.tensor([2]), torch.ones(1)
    chosen = AcceptanceRule(rule, resampling="optimal")
    mass = rule.mass(r, p, x, NO_TABLES)
    left = chosen.residual(r, p, x, one, mass, NO_TABLES)
    f = torch.tensor([accepted(rule)], dtype=torch.float64)
    want = (r - p * f).clamp_min(0)
    torch.testing.assert_close(left, want / want.sum())


def test_neither_is_lossless_but_typical_acceptance_at_temperature_0() -> None:
    plain, greedy = Sampling(), Sampling(temperature=0.0)
    for name in ("typical", "fsd"):
        assert not preset(name).with_sampling(plain).is_lossless(plain)
        assert preset(name).with_sampling(greedy).is_lossless(greedy)


@pytest.mark.parametrize(
    ("tree", "is_fine"),
    [
        (CHAIN, True),
        ({"policy": "window", "length": 3}, True),
        ({**CHAIN, "children": "top"}, False),
        ({"policy": "dynamic", "depth": 3, "width": 2, "nodes": 6}, False),
    ],
)
def test_fuzzy_needs_sampled_drafts(tree: dict[str, Any], is_fine: bool) -> None:
    plain = {
        "drafter": "eagle",
        "tree": tree,
        "acceptance": {"neighbourhood": "fuzzy", "distance": 0.3},
    }
    if is_fine:
        assert DecodingConfig.from_mapping(plain).acceptance.neighbourhood == Fuzzy(0.3)
        return
    with pytest.raises(ConfigError, match=r"acceptance\.neighbourhood.*children: sampled"):
        DecodingConfig.from_mapping(plain)


@pytest.mark.parametrize(
    "keys",
    [
        {"neighbourhood": "typical", "epsilon": 0},
        {"neighbourhood": "typical", "delta": 1.5},
        {"neighbourhood": "fuzzy"},
        {"neighbourhood": "fuzzy", "distance": -0.1},
        {"neighbourhood": "fuzzy", "distance": 1, "divergence": "js"},
    ],
)
def test_other_values_are_refused(keys: dict[str, Any]) -> None:
    plain = {"drafter": "eagle", "tree": CHAIN, "acceptance": keys}
    with pytest.raises(ConfigError, match="acceptance"):
        DecodingConfig.from_mapping(plain)
