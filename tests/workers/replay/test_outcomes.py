"""The outcomes of recorded steps are the expectations of the round: against a plain enumeration of
all of its outcomes.

tests/oracles/rounds.py enumerates what a round emits from the formulas. Where children are chosen,
a step's expectation is the enumerated one to rounding. Where they are sampled, the mean over 20,000
recorded drafts is, within 5 standard errors: one false alarm in 1.7 million comparisons, of which
there are a few hundred, and the seed is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Literal

import pytest
import torch

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.drafters import Eagle
from search_spaces.schedules import Constant
from search_spaces.trees import Static
from search_spaces.trial import DecodingConfig, Sampling
from tests.oracles import rounds, rules, tabular
from tests.workers.decoding.test_accept_distribution import (
    BOOK,
    CASES,
    CODES,
    LEVELS,
    LOOKUP,
    OF_SAMPLES,
    PATHS,
    RULES,
    SETTINGS,
    SHAPE,
    all_probs,
    probs_after,
    tables,
)  # fmt: skip
from workers.data.grid import Grid
from workers.replay.outcomes import StepOutcomes, step_outcomes
from workers.replay.recording import RecordedSteps, StepRecorder

Children = Literal["sampled", "top"]
Resampling = Literal["paper", "optimal"]
CODEBOOK = torch.tensor(BOOK)
DRAWS = 20_000
GRID = Grid(LEVELS + 2, 1)


@cache
@torch.inference_mode()
def record(
    children: Children, sampling: Sampling, draws: int, share: float = 1.0
) -> tuple[RecordedSteps, torch.Tensor]:
    """One exact round of every image, and the images' first tokens."""
    target, draft = tables()
    config = DecodingConfig(Eagle(), Static(paths=PATHS, children=children), EXACT, sampling)
    engine = tabular.TabularEngine(config, target, draft, LEVELS + 2, lookup=LOOKUP)
    engine.observer = recorder = StepRecorder(sampling, CODEBOOK, share)
    batch = engine.open(draws, 0)
    first = batch.root.clone()
    engine.step(batch)
    return recorder.steps(), first


def enumerate_rounds(
    rule: AcceptanceRule, plain: rules.Rule, children: Children, sampling: Sampling, first: int
) -> Mapping[tuple[int, ...], float]:
    """What a round emits after the token `first`, with probabilities."""
    q, p = probs_after(first, sampling)
    tree = SHAPE if children == "sampled" else rounds.likeliest(p, SHAPE)
    return rounds.round_distribution(plain, q, p, tree, rule.schedule.omegas(LEVELS))


def with_resampling(name: str, resampling: Resampling) -> tuple[AcceptanceRule, rules.Rule]:
    fast, plain = (RULES | OF_SAMPLES)[name]
    return replace(fast, resampling=resampling), replace(plain, resampling=resampling)


def by_first(outcomes: StepOutcomes, first: torch.Tensor, token: int) -> tuple[float, float]:
    """Mean emitted tokens of the steps after a token, and its standard error."""
    emitted = outcomes.emitted[first == token].double()
    return emitted.mean().item(), (emitted.std() / len(emitted) ** 0.5).item()


@pytest.mark.parametrize(("name", "resampling", "children"), CASES)
def test_the_emitted_tokens_are_the_enumerated_ones(
    name: str, resampling: Resampling, children: Children
) -> None:
    fast, plain = with_resampling(name, resampling)
    sampling = Sampling(top_k=3) if name in ("uniform", "lantern++") else Sampling()
    steps, first = record(children, sampling, DRAWS if children == "sampled" else 100)
    outcomes = step_outcomes(steps, fast, LOOKUP, GRID)
    for token in set(first.tolist()):
        rounds_after = enumerate_rounds(fast, plain, children, sampling, token)
        expected = sum(len(tokens) * weight for tokens, weight in rounds_after.items())
        mean, error = by_first(outcomes, first, token)
        assert mean == pytest.approx(expected, abs=1e-5 if children == "top" else 5 * error + 1e-6)


@pytest.mark.parametrize("children", ["sampled", "top"])
@pytest.mark.parametrize(("name", "resampling"), SETTINGS)
def test_a_kept_ranking_changes_nothing_and_lengths_need_no_costs(
    name: str, resampling: Resampling, children: Children
) -> None:
    fast, _ = with_resampling(name, resampling)
    steps, _ = record(children, Sampling(), 200)
    outcomes, ranked = (
        step_outcomes(steps, fast, LOOKUP, GRID),
        step_outcomes(steps.ranked(), fast, LOOKUP, GRID),
    )
    for field in fields(StepOutcomes):
        torch.testing.assert_close(getattr(ranked, field.name), getattr(outcomes, field.name))
    assert torch.equal(
        step_outcomes(steps, fast, LOOKUP, GRID, costs=False).at_least, outcomes.at_least
    )


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("name", "resampling", "children"), CASES)
def test_total_variation_of_the_first_token(
    name: str, resampling: Resampling, children: Children, count: int
) -> None:
    """Equal for chosen children, and in the mean for a sampled one with optimal resampling; a bound
    otherwise.
    """
    fast, plain = with_resampling(name, resampling)
    steps, first = record(children, Sampling(), DRAWS if children == "sampled" else 100)
    kept = (steps.depth == 1) & (torch.arange(steps.depth.shape[1]) < count)
    outcomes = step_outcomes(steps, fast, LOOKUP, GRID, kept=kept)
    omega = fast.schedule.omegas(LEVELS)[0]
    for token in set(first.tolist()):
        q, p = (probs[()] for probs in probs_after(token, Sampling()))
        drawn = count if children == "sampled" else rounds.top(p, count)
        emitted = rounds.node(plain, q, p, drawn, omega).probs()
        expected = sum(abs(a - b) for a, b in zip(emitted, q, strict=True)) / 2
        found = outcomes.total_variation[first == token].double()
        error = (found.std() / len(found) ** 0.5).item()
        if children == "top":
            assert found.mean().item() == pytest.approx(expected, abs=1e-5)
        elif count == 1 and (resampling == "optimal" or fast.neighbourhood.exact):
            assert found.mean().item() == pytest.approx(expected, abs=5 * error + 1e-6)
        else:
            assert found.mean().item() > expected - 5 * error - 1e-6


def test_total_variation_counts_every_reached_slot() -> None:
    """The chain's sum over its slots of the chance to get there times the slot's own distance."""
    fast, plain = with_resampling("uniform", "optimal")
    steps, first = record("top", Sampling(), 100)
    path = [0]  # the root's first child, that one's first child, ...
    while (inner := (steps.inner[0] == path[-1] + 1).nonzero()).numel() and int(
        steps.children[0, inner[0, 0], 0]
    ) >= 0:
        path.append(int(steps.children[0, inner[0, 0], 0]))
    kept = torch.zeros_like(steps.depth, dtype=torch.bool)
    kept[:, path] = True
    outcomes = step_outcomes(steps, fast, LOOKUP, GRID, kept=kept)
    omegas = fast.schedule.omegas(LEVELS)
    for token in set(first.tolist()):
        q, p = probs_after(token, Sampling())
        expected, reach = 0.0, 1.0
        context: rounds.Context = ()
        for level in range(len(path)):
            (x,) = rounds.top(p[context], 1)
            outcome = rounds.node(plain, q[context], p[context], [x], omegas[level])
            expected += (
                reach
                * sum(abs(a - b) for a, b in zip(outcome.probs(), q[context], strict=True))
                / 2
            )
            reach *= outcome.accepted[0, x]
            context = (*context, x)
        assert outcomes.total_variation[first == token].mean().item() == pytest.approx(
            expected, abs=1e-5
        )


def test_measures_are_means_over_the_targets_tokens() -> None:
    """Of the root's first child: squared distance and difference of log probs to a token of the
    target's.
    """
    steps, first = record("sampled", Sampling(), 50)
    target, _ = tables()
    q = all_probs(target, Sampling())
    for step, token in enumerate(first.tolist()):
        probs, x = q[1 + token], int(steps.tokens[step, 0])
        distance = sum(probs[y] * (BOOK[x][0] - BOOK[y][0]) ** 2 for y in range(CODES))
        surprise = sum(probs[y] * (math.log(probs[y]) - math.log(probs[x])) for y in range(CODES))
        assert steps.code_distance[step, 0].item() == pytest.approx(distance, abs=1e-5)
        assert steps.surprise[step, 0].item() == pytest.approx(surprise, abs=1e-5)


def test_a_share_of_the_steps_can_be_kept() -> None:
    """About a third of 3,000 steps: within 5 standard deviations (129), the same ones at each
    run.
    """
    kept = [record("top", Sampling(), 3000, share=1 / 3)[0] for _ in range(2)]
    assert abs(len(kept[0]) - 1000) < 129
    assert torch.equal(kept[0].image, kept[1].image)


@pytest.mark.parametrize("children", ["sampled", "top"])
@pytest.mark.parametrize(("name", "resampling"), SETTINGS)
def test_first_children_that_are_all_certain(
    name: str, resampling: Resampling, children: Children
) -> None:
    """Nothing may be rejected, so the tests of the other children, and the residuals, have no
    rows.
    """
    fast, _ = with_resampling(name, resampling)
    if children == "top":  # a budget below 1 may reject them
        fast = replace(fast, schedule=Constant(1.6))
    steps, _ = record(children, Sampling(), 20)
    x = steps.tokens.gather(1, steps.children[..., 0])
    proposal = None if steps.proposal is None else torch.full_like(steps.proposal, 1 / CODES)
    target = torch.zeros_like(steps.target).scatter_(2, x[..., None], 1.0)
    outcomes = step_outcomes(replace(steps, target=target, proposal=proposal), fast, LOOKUP, GRID)
    assert torch.equal(outcomes.at_least, torch.ones(20, LEVELS + 1))
    assert torch.equal(outcomes.total_variation, torch.zeros(20))


@pytest.mark.parametrize("children", ["sampled", "top"])
@pytest.mark.parametrize(("name", "resampling"), SETTINGS)
def test_no_steps_have_no_outcomes(name: str, resampling: Resampling, children: Children) -> None:
    fast, _ = with_resampling(name, resampling)
    steps, _ = record(children, Sampling(), 20)
    some, none = (
        step_outcomes(steps.select(torch.arange(count)), fast, LOOKUP, GRID) for count in (20, 0)
    )
    for field in fields(StepOutcomes):
        expected, found = getattr(some, field.name), getattr(none, field.name)
        assert (found.shape[0], found.dtype, found.dim()) == (0, expected.dtype, expected.dim())


@pytest.mark.parametrize("children", ["sampled", "top"])
@pytest.mark.parametrize("missing", [1, 2])
def test_children_after_a_missing_one_are_tested(children: Children, missing: int) -> None:
    """Without the first children of a node, the next ones are tried as if they were the first: in
    every row alike.
    """
    steps, _ = record(children, Sampling(), 200)
    root = steps.children[:, 0]
    order = torch.cat([root[:, missing:], torch.full_like(root[:, :missing], -1)], dim=1)
    shifted = steps.children.clone()
    shifted[:, 0] = order
    holes = steps.children.clone()
    holes[:, 0, :missing] = -1
    rule, _ = with_resampling("cool", "optimal")
    expected, found = (
        step_outcomes(replace(steps, children=c), rule, LOOKUP, GRID) for c in (shifted, holes)
    )
    assert bool((expected.at_least[:, 1] > 0).any())
    for field in fields(StepOutcomes):
        torch.testing.assert_close(getattr(found, field.name), getattr(expected, field.name))
