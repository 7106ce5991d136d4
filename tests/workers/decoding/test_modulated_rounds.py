"""Rounds whose relaxation is modulated, against a plain enumeration of all their outcomes, as in
test_accept_distribution.py: a test fails at p < 1e-5, and the seed is fixed.

Each token of these images is a row of its own, so that a round reaches several rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import Eagle
from search_spaces.modulations import Modulation
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.schedules import Constant
from search_spaces.trees import Chain, Static
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, toy_drafter, toy_target
from tests.oracles import modulations, rounds, rules, tabular
from tests.workers.decoding.test_accept_distribution import (
    CODES,
    LEVELS,
    LOOKUP,
    PATHS,
    RULES,
    SHAPE,
    all_probs,
    cell,
    count_rounds,
    probs_after,
    tables,
)
from tests.workers.replay.test_outcomes import by_first
from workers.data.grid import Grid
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.replay.outcomes import step_outcomes
from workers.replay.recording import StepRecorder

ROWS = LEVELS + 2
GRID = Grid(ROWS, 1)
CHAIN: rounds.Shape = ((((),),),)
BY: dict[str, tuple[Modulation, Callable[[Any, int], float]]] = {
    "flat": (
        EntropyModulation(2.0, 1.0, 3.0),
        lambda q, place: modulations.entropy(q, 2.0, 1.0, 3.0),
    ),
    "peaked": (
        EntropyModulation(-1.0, 1.0, 2.0),
        lambda q, place: modulations.entropy(q, -1.0, 1.0, 2.0),
    ),
    "margin": (
        MarginModulation(1.5, 0.3),
        lambda q, place: modulations.margin(q, 1.5, 0.3, 4.0),
    ),
    "row": (RowModulation(0.0, 3.0), lambda q, place: modulations.row(place, 1, ROWS, 0.0, 3.0)),
}
CASES = [
    ("flat", "cool", "tree", "sampled"),
    ("flat", "lantern jsd", "tree", "top"),
    ("peaked", "lantern", "tree", "sampled"),
    ("margin", "annealed lantern++", "tree", "sampled"),
    ("margin", "typical", "chain", "sampled"),
    ("row", "uniform", "chain", "sampled"),
    ("row", "grouped", "tree", "top"),
    ("peaked", "cool linear", "chain", "top"),  # with budgets above and below 1
]


def modulated(by: str, name: str) -> tuple[AcceptanceRule, rules.Rule]:
    fast, plain = RULES[name]
    fast = replace(fast, resampling="optimal", modulation=BY[by][0])
    return fast, replace(plain, resampling="optimal")


def enumerated(
    by: str,
    name: str,
    shape: rounds.Shape,
    children: str,
    first: int,
) -> dict[rounds.Context, float]:
    """What a round emits after the image's first token, with probabilities."""
    fast, plain = modulated(by, name)
    q, p = probs_after(first, Sampling())
    tree = shape if children == "sampled" else rounds.likeliest(p, shape)

    def at(context: rounds.Context, rule: rules.Rule, omega: float) -> tuple[rules.Rule, float]:
        return modulations.relaxed(rule, omega, BY[by][1](q[context], 1 + len(context)))

    omegas = fast.schedule.omegas(LEVELS)
    return rounds.round_distribution(plain, q, p, tree, omegas, modulate=at)


def engine_of(
    by: str, name: str, shape: str, children: Literal["sampled", "top"]
) -> tabular.TabularEngine:
    policy: Chain | Static = Chain(LEVELS, children=children)
    if shape == "tree":
        policy = Static(paths=PATHS, children=children)
    config = DecodingConfig(Eagle(), policy, modulated(by, name)[0], Sampling())
    return tabular.TabularEngine(config, *tables(), ROWS, lookup=LOOKUP, grid=GRID)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "name", "shape", "children"), CASES)
def test_a_round_emits_the_enumerated_distribution(
    by: str, name: str, shape: str, children: Literal["sampled", "top"]
) -> None:
    counts = count_rounds(engine_of(by, name, shape, children))
    first_probs = all_probs(tables()[0], Sampling())[0]
    expected = np.zeros_like(counts)
    for first in range(CODES):
        found = enumerated(by, name, SHAPE if shape == "tree" else CHAIN, children, first)
        for tokens, weight in found.items():
            expected[cell((first, *tokens))] += first_probs[first] * weight
    assert expected.sum() == pytest.approx(1)
    assert tabular.p_value(counts, expected) > 1e-5


@pytest.mark.parametrize(("by", "name", "shape", "children"), CASES)
def test_replay_expects_what_is_enumerated(
    by: str, name: str, shape: str, children: Literal["sampled", "top"]
) -> None:
    """Of chosen children to rounding, of sampled ones within 5 standard errors."""
    draws = 8000 if children == "sampled" else 100
    engine = engine_of("flat", "uniform", shape, children)  # any rule: replay applies another
    recorder = StepRecorder(Sampling(), LOOKUP.codebook)  # type: ignore[arg-type]
    engine.observer = recorder
    with torch.inference_mode():
        batch = engine.open(draws, 0)
        first = batch.root.clone()
        engine.step(batch)
    outcomes = step_outcomes(recorder.steps(), modulated(by, name)[0], LOOKUP, GRID)
    for token in set(first.tolist()):
        found = enumerated(by, name, SHAPE if shape == "tree" else CHAIN, children, token)
        expected = sum(len(tokens) * weight for tokens, weight in found.items())
        mean, error = by_first(outcomes, first, token)
        assert mean == pytest.approx(expected, abs=1e-5 if children == "top" else 5 * error + 1e-6)


def test_a_factor_of_1_changes_no_token_and_0_gives_the_exact_rules() -> None:
    target = toy_target()
    captions = [Request(n, caption) for n, caption in enumerate(["abc", "de", "fghij"])]

    def tokens(rule: AcceptanceRule) -> list[list[int]]:
        config = DecodingConfig(Eagle(), Chain(3), rule, target.sampling)
        results = Engine(target, config, toy_drafter("eagle", target), batch_size=2).run(captions)
        found = sorted(results, key=lambda result: result.request.caption_id)
        return [result.tokens.tolist() for result in found]

    cool = replace(RULES["cool"][0], resampling="optimal")
    assert tokens(replace(cool, modulation=RowModulation(1.0, 1.0))) == tokens(cool)
    uniform = RULES["uniform"][0]
    exact = tokens(AcceptanceRule())
    assert tokens(replace(uniform, modulation=RowModulation(0.0, 0.0))) == exact
    assert tokens(uniform) != exact


def test_a_greedy_draft_is_relaxed_by_its_own_row() -> None:
    """At temperature 0, with an exact first row and a second one in which all drafts are
    accepted.
    """
    target = toy_target(config=replace(BASE, rows=2))
    captions = [Request(n, "abcdefgh"[: n + 1]) for n in range(8)]

    def tokens(rule: AcceptanceRule) -> list[list[int]]:
        config = DecodingConfig(Eagle(), Chain(3), rule, Sampling(temperature=0.0))
        results = Engine(target, config, toy_drafter("eagle", target), batch_size=8).run(captions)
        found = sorted(results, key=lambda result: result.request.caption_id)
        return [result.tokens.tolist() for result in found]

    loose = AcceptanceRule(schedule=Constant(1e6), modulation=RowModulation(0.0, 1.0))
    relaxed, exact = tokens(loose), tokens(AcceptanceRule())
    cols = target.grid.cols
    pairs = list(zip(relaxed, exact, strict=True))
    assert all(one[:cols] == other[:cols] for one, other in pairs)
    assert any(one[cols] != other[cols] for one, other in pairs)
