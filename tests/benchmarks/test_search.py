"""Replayed searches, on tables with a known front."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.atlas_table import RUNGS, Atlas, Floats, StepCost
from benchmarks.racing_strategies import scores_of
from benchmarks.search import Outcome, images_needed, replay_seed
from benchmarks.search_problem import BudgetSpent, Problem, Purchases
from benchmarks.strategies import STRATEGIES, Encoding, conditional, epsilon_net, flat
from orchestrator.front.compare import hypervolume
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tables import different_settings, make_table
from workers.replay.prediction import MEASURES

SETTINGS = 40
FRONT = [0, 5, 9, 20]  # of the table without noise
CHAIN = {"tree": {"policy": "chain", "length": 5}}
MODEL_FIRST = "replay sampler, its model after 4 trials, stops dominated trials"
CHEAP = ["random", "NSGA-II", "MO-ASHA", "racing", "random order, stops dominated trials"]


def values() -> tuple[Floats, Floats]:
    """Accepted lengths and fids: four settings on the front, all others worse than one of them in
    both.
    """
    rng = np.random.default_rng(0)
    length, fid = rng.uniform(1.05, 2.5, SETTINGS), rng.uniform(4.0, 6.0, SETTINGS)
    for row, speed, quality in zip(FRONT, (1.0, 2.6, 3.0, 3.5), (2.0, 2.2, 2.6, 3.5), strict=True):
        length[row], fid[row] = speed, quality
    return length, fid


@pytest.fixture(scope="module")
def table() -> Atlas:
    length, fid = values()
    predictions = dict.fromkeys(MEASURES, fid - fid.min()) | {"mean_accepted_length": length}
    made = make_table(different_settings(SETTINGS), length, fid, noise=0.0, shared=0.3)
    return replace(made, predictions=predictions)


@pytest.fixture(scope="module")
def problem(table: Atlas) -> Problem:
    return Problem.of(table, 0)


def run(strategy: str, problem: Problem, seed: int = 0, limit: float = math.inf) -> Purchases:
    purchases = Purchases(problem, limit)
    with pytest.raises(BudgetSpent):
        STRATEGIES[strategy](purchases, seed)
    return purchases


def test_a_table_without_noise_has_its_front_at_every_rung(problem: Problem) -> None:
    for level in range(len(RUNGS)):
        assert np.flatnonzero(problem.believed(np.full(SETTINGS, level))).tolist() == FRONT
    assert problem.exhaustive == pytest.approx(
        hypervolume(problem.judged, problem.reference, ["maximize", "minimize"])
    )


@pytest.mark.parametrize("name", CHEAP)
def test_a_strategy_buys_the_whole_table_once_and_has_its_hypervolume_then(
    name: str, problem: Problem
) -> None:
    purchases = run(name, problem)
    assert purchases.images == problem.images == SETTINGS * RUNGS[-1]
    assert (purchases.rung == len(RUNGS) - 1).all()
    images, hypervolumes = zip(*purchases.curve, strict=True)
    assert list(images) == sorted(set(images)), "every purchase costs something"
    assert hypervolumes[-1] == pytest.approx(problem.exhaustive)


@pytest.mark.parametrize("name", ["predicted order", "predicted order, stops dominated trials"])
def test_the_predicted_order_pays_for_its_recordings_and_depends_on_no_seed(
    name: str, table: Atlas
) -> None:
    """Without a model it buys the front before most of the rest. Recorded images are no part of the
    table: it buys that as well.
    """
    problem = Problem.of(replace(table, recorded=50), 0)
    purchases = run(name, problem)
    assert purchases.images == problem.images + 50
    assert (purchases.rung == len(RUNGS) - 1).all()
    assert purchases.curve[0][0] == RUNGS[-1], "vanilla"
    assert purchases.curve[1][0] >= RUNGS[-1] + 50
    assert run(name, problem, seed=1).curve == purchases.curve
    early = run(name, problem, limit=16 * RUNGS[-1])
    assert early.images < 17 * RUNGS[-1]
    assert (early.rung[FRONT] == len(RUNGS) - 1).all()


@pytest.mark.parametrize("name", CHEAP)
def test_a_strategy_depends_on_its_seed_alone(name: str, problem: Problem) -> None:
    limit = problem.images / 2
    first, second, other = (run(name, problem, seed, limit).curve for seed in (3, 3, 4))
    assert first == second
    assert first != other


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", ["TPE", "Optuna's GP", MODEL_FIRST])
def test_samplers_that_fit_models_are_deterministic_too(name: str, problem: Problem) -> None:
    limit = 6 * RUNGS[-1]
    first, second = (run(name, problem, limit=limit) for _ in range(2))
    assert first.curve == second.curve
    assert first.images >= limit


def test_images_are_paid_once(problem: Problem) -> None:
    purchases = Purchases(problem)
    assert purchases.images == RUNGS[-1], "vanilla is measured on all captions first"
    for level in (0, 0, 2, 1):
        purchases.measure(7, level)
    assert purchases.images == 2 * RUNGS[-1]
    assert purchases.measure(8, 1) is not None
    assert purchases.images == 2 * RUNGS[-1] + RUNGS[1]


def test_a_front_compares_settings_at_the_same_captions(table: Atlas) -> None:
    """fid falls with the number of images: a setting on 24 captions is beaten only by settings on
    24 captions.
    """
    problem = Problem.of(table, 0)
    rung = np.full(SETTINGS, -1)
    rung[FRONT] = [2, 0, 1, 2]
    assert np.flatnonzero(problem.believed(rung)).tolist() == FRONT
    worse = next(row for row in range(SETTINGS) if row not in FRONT)
    rung[worse] = 2  # beaten by a setting that was measured on fewer captions only
    rung[[9, 20]] = 0
    assert problem.believed(rung)[worse]


def test_a_lucky_setting_gains_nothing(table: Atlas) -> None:
    """The front that a strategy believes in is judged by captions that it did not see."""
    lucky = 3
    assert lucky not in FRONT
    quality = {name: entries.copy() for name, entries in table.quality.items()}
    quality["fid"][lucky, :3] = 0.1  # on the captions of the first half only
    problem = Problem.of(replace(table, quality=quality), 0)
    rung = np.full(SETTINGS, -1)
    rung[[0, lucky]] = 2
    assert problem.believed(rung)[lucky]
    true = Problem.of(table, 0).judged[[0, lucky]]
    assert problem.quality(rung) == pytest.approx(
        hypervolume(true, problem.reference, ["maximize", "minimize"])
    )


def test_a_race_has_looked_at_all_settings_for_half_of_the_images(problem: Problem) -> None:
    """Without noise of their own, settings that others beat stop at once, and no member of the
    front does.
    """
    purchases = run("racing", problem, limit=0.5 * problem.images)
    assert len(purchases.unmeasured) == 0
    assert (purchases.rung[FRONT] == len(RUNGS) - 1).all()


def test_the_replay_sampler_finds_first_what_is_predicted_to_be_good(problem: Problem) -> None:
    purchases = run("replay sampler", problem, limit=12 * RUNGS[-1])
    assert (purchases.rung[FRONT] == len(RUNGS) - 1).all()


def test_images_needed_is_the_last_time_that_the_curve_rises_to_the_level() -> None:
    curve = [(96, 0.2), (192, 0.96), (288, 0.94), (384, 0.95), (480, 0.99)]
    assert images_needed(curve, 0.95) == 384
    assert images_needed(curve, 0.1) == 96
    assert images_needed(curve, 1.0) == math.inf


def test_lossless_settings_have_one_fid(table: Atlas) -> None:
    """A search sees vanilla's, or with `own` each one's; it is judged by their mean either way."""
    exact = [row for row, config in enumerate(table.configs) if config.is_lossless(Sampling())]
    assert exact[0] == 0
    others = [row for row in range(SETTINGS) if row not in exact]
    chain = DecodingConfig.from_mapping({"drafter": "jacobi"} | CHAIN).with_sampling(Sampling())
    costs = {**table.costs, chain.shape.key: StepCost(0.0, 0.01, 0.0)}
    changed = replace(table, configs=(*table.configs[:-1], chain), costs=costs)
    last = SETTINGS - 1
    known, own = Problem.of(changed, 0), Problem.of(changed, 0, own=True)
    assert set(known.group) == {*exact, last}
    assert not len(own.group)
    assert (known.seen[:, known.group, 1] == known.seen[:, :1, 1]).all()
    assert (own.seen[:, last, 1] != own.seen[:, 0, 1]).any()
    assert (known.seen[:, :, 0] == own.seen[:, :, 0]).all()
    kept = [row for row in others if row != last]
    assert (known.seen[:, kept] == own.seen[:, kept]).all()
    for problem in (known, own):
        assert len(set(problem.judged[known.group, 1].tolist())) == 1
        assert (problem.judged == known.judged).all()
    assert scores_of(known, last, 0).known == {1: "lossless"}
    assert not scores_of(own, last, 0).known


def test_a_strategy_that_knows_the_front_needs_its_images_only(problem: Problem) -> None:
    def oracle(purchases: Purchases, seed: int) -> None:
        for row in FRONT[1:]:
            purchases.measure(row)

    outcome = Outcome.of([replay_seed(oracle, [problem], seed) for seed in range(2)])
    assert outcome.images[0.95].tolist() == [len(FRONT) * RUNGS[-1]] * 2


@pytest.mark.parametrize("encode", [conditional, flat])
def test_a_proposal_of_a_row_s_own_parameters_is_that_row(
    encode: Callable[..., Encoding], table: Atlas
) -> None:
    encoding = encode(table.configs)
    rows = np.arange(1, SETTINGS)
    assert [encoding.nearest(encoding.params[row], rows) for row in rows.tolist()] == rows.tolist()
    without = rows[rows != 7]
    assert encoding.nearest(encoding.params[7], without) != 7


def test_an_epsilon_net_spreads_over_the_front_first() -> None:
    """Three points of the front of (maximise, minimise), then the next front; the second choice is
    the farthest.
    """
    points = np.array([[1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [1.0, 5.0]])
    for seed in range(5):
        order = epsilon_net(points, 4, np.random.default_rng(seed)).tolist()
        assert order[3] == 3
        assert order[1] == (2 if order[0] != 2 else 0)
    assert len(epsilon_net(points, 2, np.random.default_rng(0))) == 2
