"""The rule by which a candidate stops: exact on small cases, and its error rate over simulated
searches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from orchestrator.front.joint import JointErrors
from orchestrator.run.race import Race, Scores, Stop
from orchestrator.run.racing import EarlyStopping, at_full_size, front_probabilities
from orchestrator.store.records import EarlyStop, State, TrialRecord, may_compare_speeds
from search_spaces.sweep import SweepConfig
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import Estimate

RACE = Race(("minimize", "minimize"), 0.05, 3)
G = 24
AXES = (Metric("speedup", "maximize"), Metric("fid", "minimize"))


def scores(*columns: ArrayLike, noise: ArrayLike = (0.0, 0.0), source: str | None = None) -> Scores:
    return Scores(
        np.stack([np.asarray(column, dtype=float) for column in columns], axis=1),
        np.array(noise),
        source,
    )


def shifted(own: Scores, *by: float) -> Scores:
    """A rival that is better by `by` standard errors in each objective."""
    rng = np.random.default_rng(0)
    error = rng.standard_normal(own.blocks.shape)
    error -= error.mean(axis=0)
    standard_error = error.std(axis=0, ddof=1) / np.sqrt(len(error))
    return Scores(own.blocks + error - np.array(by) * standard_error, own.noise, own.source)


@pytest.fixture
def own() -> Scores:
    return scores(*np.random.default_rng(1).standard_normal((2, G)))


def test_one_objectives_p_value_is_students_on_the_paired_differences() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 12, 1)) + np.array([0.9, 0.0])[:, None, None]
    race = Race(("minimize",), 0.05, 1)
    (p,) = race.p_values(Scores(a), [Scores(b)])
    assert p == pytest.approx(
        stats.ttest_rel(a[:, 0], b[:, 0], alternative="greater").pvalue, rel=1e-9
    )
    (p,) = Race(("maximize",), 0.05, 1).p_values(Scores(-a), [Scores(-b)])
    assert p == pytest.approx(
        stats.ttest_rel(a[:, 0], b[:, 0], alternative="greater").pvalue, rel=1e-9
    )


def test_all_objectives_must_be_better(own: Scores) -> None:
    p = RACE.p_values(
        own, [shifted(own, 5, 9), shifted(own, 9, 5), shifted(own, 9, 0), shifted(own, 9, -9)]
    )
    assert p[:2] == pytest.approx(stats.t.sf(5, G - 1))
    assert p[2] == pytest.approx(0.5)
    assert p[3] == pytest.approx(1)


def test_a_candidate_stops_exactly_at_its_share_of_the_error_rate(own: Scores) -> None:
    level, eligible, candidate = RACE.level(7), 11, 7
    threshold = stats.t.isf(level / RACE.rungs / eligible, G - 1)
    rivals = {4: shifted(own, threshold - 0.01, 99), 9: shifted(own, 99, 1)}
    assert RACE.decide(candidate, own, rivals, eligible) is None
    stop = RACE.decide(candidate, own, {**rivals, 5: shifted(own, threshold + 0.01, 99)}, eligible)
    assert stop is not None
    assert stop.rival == 5
    assert stop.chance == pytest.approx(stats.t.sf(threshold + 0.01, G - 1) * RACE.rungs * eligible)
    assert 0.9 * level < stop.chance < level
    assert RACE.decide(candidate, own, {}, 0) is None


def test_the_shares_of_all_candidates_sum_to_the_error_rate() -> None:
    levels = [RACE.level(candidate) for candidate in range(100_000)]
    assert math.fsum(levels) == pytest.approx(0.05, rel=1e-3)
    assert math.fsum(levels) < 0.05
    assert levels == sorted(levels, reverse=True)


def test_ties_never_stop_each_other(own: Scores) -> None:
    assert RACE.decide(0, own, {1: own}, 1) is None
    constant = scores(np.full(G, 0.1 + 0.2), own.blocks[:, 1])
    rounded = scores(np.full(G, 0.3), own.blocks[:, 1] - 1)
    assert RACE.decide(0, constant, {1: rounded}, 1) is None, "a difference by rounding is none"
    assert (
        RACE.decide(0, constant, {1: scores(np.full(G, 0.2), own.blocks[:, 1] - 1)}, 1) is not None
    ), "without error"


def test_without_an_error_rate_dominated_candidates_stop(own: Scores) -> None:
    race = Race(("minimize", "maximize"), None, 3)

    def moved(*by: float) -> Scores:
        return Scores(own.blocks + np.array(by), own.noise, bias=np.array([0.5, 0.0]))

    candidate = moved(0, 0)
    assert (
        race.decide(7, candidate, {1: moved(0, 0), 2: moved(-9, -1e-3), 3: moved(1e-3, 9)}, 7)
        is None
    )
    assert race.decide(7, candidate, {1: moved(0, 0), 2: moved(0, 1e-3)}, 7) == Stop(2, 1.0)
    flipped = Scores(own.blocks * [1, -1], own.noise)  # `shifted` makes less better
    near, clear = (shifted(flipped, *by) for by in ((0.1, -0.1), (3, 9)))
    stop = race.decide(
        7,
        own,
        {2: Scores(near.blocks * [1, -1], own.noise), 4: Scores(clear.blocks * [1, -1], own.noise)},
        7,
    )
    assert stop is not None
    assert stop.rival == 4
    assert stop.chance == pytest.approx(stats.t.sf(3, G - 1) * 7 * 3, rel=1e-6)
    biased = Scores(own.blocks - [9, 0], own.noise, bias=np.array([20.0, 0.0]))
    assert race.decide(0, candidate, {1: biased}, 1) is None, (
        "values as measured count, bias included"
    )


def test_replicates_of_means_are_the_means_blocks() -> None:
    blocks = np.random.default_rng(3).standard_normal((G, 2))
    left_out = (blocks.sum(axis=0) - blocks) / (G - 1)
    found = Scores.from_replicates(blocks.mean(axis=0), left_out.T)
    np.testing.assert_allclose(found.blocks, blocks, atol=1e-12)


def test_the_bias_of_small_samples_stops_nobody() -> None:
    """Squared lengths of two equal means: their bias, trace(covariance) / n, is far larger for the
    candidate.
    """
    own, rival = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((2, G, 400)) * np.array([2.0, 0.5])[:, None, None]
        values = (features.mean(axis=1) ** 2).sum(axis=-1)
        left_out = (((features.sum(axis=1, keepdims=True) - features) / (G - 1)) ** 2).sum(axis=-1)
        first, second = (
            Scores.from_replicates([v, v], [r, r]) for v, r in zip(values, left_out, strict=True)
        )
        own.append(RACE.p_values(first, [second])[0])
        assert values[0] - values[1] > 4 * (first.blocks - second.blocks).std() / np.sqrt(G), (
            "biased values differ"
        )
        rival.append(RACE.p_values(second, [first])[0])
    # P(the smallest of 20 p-values is below 1e-4) is 0.002
    assert min(own) > 1e-4
    assert min(rival) > 1e-4


def test_a_rival_must_be_better_with_and_without_the_correction_of_bias(own: Scores) -> None:
    """The rival is 5 standard errors ahead; without the correction it is 2, 5 or 8 ahead."""
    rival = shifted(own, 5.0, 5.0)
    error = (own.blocks - rival.blocks).std(axis=0, ddof=1) / np.sqrt(len(own.blocks))
    for direction, sign in (("minimize", 1), ("maximize", -1)):
        race = Race(cast("tuple[Direction, ...]", (direction, direction)), 0.05, 1)
        for ahead, expected in ((-3, 2), (0, 5), (3, 5)):
            candidate = Scores(sign * own.blocks, bias=sign * ahead * error)
            (p,) = race.p_values(candidate, [Scores(sign * rival.blocks)])
            assert p == pytest.approx(stats.t.sf(expected, len(own.blocks) - 1), rel=1e-6)
    values = np.array([3.0, 4.0])
    left_out = values[:, None] + np.array([[0.5], [-0.25]]) + np.zeros((2, 4))
    assert Scores.from_replicates(values, left_out).bias.tolist() == [1.5, -0.75], (
        "(G - 1) (mean replicate - value)"
    )


def test_noise_that_is_not_the_items_widens_a_difference_unless_the_two_share_it() -> None:
    rng = np.random.default_rng(5)
    base = rng.standard_normal((2, G))
    noise = np.array([2.0, 0.0]), np.array([1.6, 0.0])
    second = (8 + base + 0.01 * rng.standard_normal((2, G))).T
    own = Scores((10 + base).T, noise[0], "shape", noise_dof=7)
    rival, other = (
        Scores(second, noise[1], source, noise_dof=dof)
        for source, dof in (("shape", 7), ("another", 3))
    )
    same, different = RACE.p_values(own, [rival, other])
    assert same == pytest.approx(stats.t.sf(2 / 0.4, 7), rel=0.05)
    welch = (2.0**2 + 1.6**2) ** 2 / (2.0**4 / 7 + 1.6**4 / 3)
    assert different == pytest.approx(stats.t.sf(2 / math.hypot(2.0, 1.6), welch), rel=0.05)
    unknown = (
        Scores(own.blocks, own.noise, noise_dof=7),
        Scores(rival.blocks, rival.noise, noise_dof=3),
    )
    assert RACE.p_values(unknown[0], [unknown[1]])[0] == pytest.approx(different), (
        "no source is shared with nobody"
    )


def test_noise_of_few_measurements_is_not_taken_for_well_known() -> None:
    """Two ties, each with noise of a clock that was read three times: t with 23 degrees of freedom
    would reject 2 %.
    """
    rng = np.random.default_rng(6)
    race, rejected = Race(("minimize",), error_rate=0.05, rungs=1), 0
    for _ in range(2000):
        clocks = rng.standard_normal((2, 3))
        own, rival = (
            Scores(
                np.full((G, 1), 100 + clock.mean()),
                clock.std(ddof=1, keepdims=True) / np.sqrt(3),
                str(row),
                2,
            )
            for row, clock in enumerate(clocks)
        )
        rejected += race.p_values(own, [rival])[0] < 0.005
    # 10 expected (t with 23 degrees of freedom: 40); P(more than 22) is 0.0003
    assert rejected <= 22


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((("minimize",), 0.0, 3), "error_rate"),
        ((("minimize",), 1.0, 3), "error_rate"),
        ((("minimize",), math.nan, 3), "error_rate"),
        ((("minimize",), 0.05, 0), "rungs"),
        (((), 0.05, 3), "minimize"),
        ((("less",), 0.05, 3), "minimize"),
    ],
)
def test_impossible_races_are_refused(
    arguments: tuple[tuple[str, ...], float, int], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        Race(*arguments)  # type: ignore[arg-type]


def test_scores_that_cannot_be_compared_are_refused(own: Scores) -> None:
    for blocks in (own.blocks[:12], own.blocks[:, :1]):
        with pytest.raises(ValueError, match="same blocks"):
            RACE.decide(0, own, {1: Scores(blocks)}, 1)
    with pytest.raises(ValueError, match="at least 2"):
        RACE.decide(0, Scores(own.blocks[:1]), {1: Scores(own.blocks[:1])}, 1)
    with pytest.raises(ValueError, match="eligible"):
        RACE.decide(0, own, {1: own}, 0)
    for values, replicates in (([1.0], [[1.0]]), ([1.0, 2.0], [[1.0, 1.0]]), ([1.0], [1.0, 1.0])):
        with pytest.raises(ValueError, match="G >= 2"):
            Scores.from_replicates(values, replicates)


def measured(number: int, rng: np.random.Generator, axes: Sequence[Metric]) -> TrialRecord:
    """Every third trial is complete. Three devices timed them, one of which is unknown; some values
    tie.
    """
    is_complete, device = number % 3 == 0, ("gpu 0", "gpu 1", "")[number % 7 % 3]
    state: State = "complete" if is_complete else "stopped"
    images = 96 if is_complete else 24
    metrics = {
        axis.name: Estimate(
            float(value), 0.1, images, tuple((value + 0.02 * rng.standard_normal(G)).tolist())
        )
        for axis, value in zip(axes, rng.random(len(axes)).round(1), strict=True)
    }
    stop = None if is_complete else EarlyStop(0, 24, 0.1)
    history, timed_on = ((24, metrics),), {images: device}
    return TrialRecord(
        number,
        "",
        state,
        None,
        metrics=metrics,
        images=images,
        stop=stop,
        history=history,
        timed_on=timed_on,
    )


@pytest.mark.parametrize("axes", [AXES, (*AXES, Metric("clip_score", "maximize"))])
def test_the_probability_to_be_on_the_front_counts_the_samples_of_brute_force(
    axes: Sequence[Metric],
) -> None:
    rng = np.random.default_rng(0)
    records = [measured(number, rng, axes) for number in range(40)]
    records[4] = replace(records[4], constraints={"fid <= 1": 0.5})
    found = front_probabilities(records, axes)
    complete = [record for record in records if record.state == "complete"]
    stopped = [record for record in records if record.state == "stopped" and record.number != 4]
    assert list(found) == [record.number for record in stopped]
    assert len(set(found.values())) > 10
    moved = [at_full_size(record, records[0]) for record in stopped]
    samples = JointErrors.of([*complete, *moved], axes).samples(4000, 0)
    samples *= np.array([-1.0 if axis.direction == "maximize" else 1.0 for axis in axes])
    for row, record in enumerate(stopped, start=len(complete)):
        rivals = [
            place
            for place, rival in enumerate(complete)
            if may_compare_speeds(rival.device, record.device)
        ]
        own, other = samples[:, row : row + 1], samples[:, rivals]
        beaten = np.all(other <= own, axis=2) & np.any(other < own, axis=2)
        assert found[record.number] == float(1 - beaten.any(axis=1).mean())


def test_trials_of_earlier_sweeps_count_as_rivals() -> None:
    """The chance that a stop is wrong grows with what the rivals were chosen from, and a trial near
    its share of the error rate goes on.
    """
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((G, 2))
    values = {"speedup": 2.0 - shared[:, 0], "fid": 4.0 + shared[:, 1]}

    def blocks(behind: float) -> dict[str, Estimate]:
        found = {}
        for name, sign in (("speedup", -1.0), ("fid", 1.0)):
            rows = values[name] + sign * behind + 0.1 * rng.standard_normal(G)
            left_out = (rows.sum() - rows) / (G - 1)
            found[name] = Estimate(float(rows.mean()), 0.1, 24, tuple(left_out.tolist()))
        return found

    best = blocks(0.0)
    rival = TrialRecord(0, "", "complete", None, metrics=best, images=96, history=((24, best),))
    changes = {
        "racing": {"rungs": [24, 48]},
        "search.parallel": 1,
        "objectives": ["speedup", "fid"],
    }
    sweep = SweepConfig.read("quickstart", {**changes, "enqueue": ["vanilla"]})
    behind = blocks(0.3)
    chances = {}
    for earlier in (0, 9, 10**9):
        racing = EarlyStopping(sweep, AXES, [rival], earlier)
        stop = racing.decide(1, 24, behind, "", "")
        chances[earlier] = None if stop is None else stop.chance
    assert chances[0] is not None
    assert chances[9] == pytest.approx(10 * chances[0])
    assert chances[10**9] is None
