"""Joint errors: against brute force and closed forms, and the coverage of the intervals that they
state.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.front.joint import JointErrors, critical_t, degrees_of_freedom, standard_error
from orchestrator.front.pareto import Floats
from orchestrator.store.records import TrialRecord
from search_spaces.trees import Chain
from tests.fakes.metric_inputs import CHAIN, VANILLA, price_list, timed_session
from tests.fakes.synthetic_sweeps import identity
from workers.metrics import costs
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, Noise

FID, SPEED = Metric("fid", "minimize"), Metric("speedup", "maximize")
BLOCKS = 24


def mean_of(blocks: Floats, noise: float = 0.0) -> Estimate:
    """The mean over equal blocks, with its jackknife."""
    replicates = (blocks.sum() - blocks) / (len(blocks) - 1)
    error = math.hypot(blocks.std(ddof=1) / math.sqrt(len(blocks)), noise)
    return Estimate(float(blocks.mean()), error, len(blocks), tuple(replicates.tolist()), noise)


def trial(shape: str = "", **metrics: Estimate) -> TrialRecord:
    return TrialRecord(0, "", "complete", None, metrics=metrics, shape=shape)


def test_the_covariance_is_the_brute_force_jackknifes() -> None:
    """Three trials, two metrics, from the replicates by the textbook's sum; 100,000 draws have it
    too.
    """
    rng = np.random.default_rng(0)
    shared = rng.normal(size=BLOCKS)
    data = shared + rng.normal(size=(3, 2, BLOCKS)) * [[[0.5], [2.0]]]
    records = [trial(fid=mean_of(fid), speedup=mean_of(speed)) for fid, speed in data]
    joint = JointErrors.of(records, [FID, SPEED])
    replicates = np.array(
        [[record.metrics[name].replicates for name in ("fid", "speedup")] for record in records]
    )
    deviations = (replicates - replicates.mean(axis=2, keepdims=True)).reshape(6, BLOCKS)
    expected = (BLOCKS - 1) / BLOCKS * deviations @ deviations.T
    np.testing.assert_allclose(joint.covariance(), expected, rtol=1e-9)
    np.testing.assert_allclose(
        np.sqrt(np.diag(expected)), [m.error or 0.0 for r in records for m in r.metrics.values()]
    )
    drawn = joint.samples(100_000).reshape(-1, 6)
    # the variance of Student's t with 23 degrees of freedom
    students = expected * (BLOCKS - 1) / (BLOCKS - 3)
    np.testing.assert_allclose(np.cov(drawn, rowvar=False), students, atol=0.02 * expected.max())
    np.testing.assert_allclose(drawn.mean(axis=0), joint.values.ravel(), atol=0.02)


def test_the_error_of_a_difference_of_means_is_that_of_the_mean_difference() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, BLOCKS)) + 3 * rng.normal(size=BLOCKS)
    difference, error, dof = JointErrors.of(
        [trial(fid=mean_of(x)), trial(fid=mean_of(y))], [FID]
    ).difference(0, 1)
    assert difference == pytest.approx(x.mean() - y.mean())
    assert error == pytest.approx((x - y).std(ddof=1) / math.sqrt(BLOCKS))
    assert dof.tolist() == [BLOCKS - 1]


def test_identical_trials_never_differ() -> None:
    record = trial("shape", fid=mean_of(np.random.default_rng(2).normal(size=BLOCKS), noise=0.3))
    joint = JointErrors.of([record, record], [FID])
    assert joint.difference(0, 1)[1].tolist() == [0.0]
    assert joint.differ(0, 1).tolist() == [False]
    drawn = joint.samples(10)
    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert drawn.std() > 0


def test_independent_trials_have_the_independent_error() -> None:
    """In the mean over 1,000 pairs, whose mean has a standard error of about 1 % (3 of them
    allowed).
    """
    blocks = np.random.default_rng(3).normal(size=(2000, BLOCKS))
    joint = JointErrors.of([trial(fid=mean_of(row)) for row in blocks], [FID])
    pairs = [joint.difference(2 * i, 2 * i + 1)[1][0] ** 2 for i in range(1000)]
    single = np.diag(joint.covariance()).reshape(1000, 2).sum(axis=1)
    assert np.mean(pairs) == pytest.approx(single.mean(), rel=0.03)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_stated_intervals_of_differences_cover(correlation: float) -> None:
    """95 % intervals of 5,000 true differences of 0; 3 deviations of the share are 0.9 points. With
    normal instead of Student's quantiles 93.8 % would be covered, with unpaired errors nearly all
    of the correlated ones.
    """
    rng = np.random.default_rng(4)
    own, shared = (
        rng.normal(size=(10_000, BLOCKS)),
        np.repeat(rng.normal(size=(5000, BLOCKS)), 2, axis=0),
    )
    blocks = math.sqrt(1 - correlation) * own + math.sqrt(correlation) * shared
    joint = JointErrors.of([trial(fid=mean_of(row)) for row in blocks], [FID])
    covered = 1 - np.mean([joint.differ(2 * i, 2 * i + 1)[0] for i in range(5000)])
    assert covered == pytest.approx(0.95, abs=0.0093)


def test_trials_of_one_shape_share_the_noise_of_its_costs() -> None:
    a, b, other = (
        trial(
            shape,
            speedup=Estimate(2.0, noise, 9, noise=noise),
            latency=Estimate(1.0, 0.1, 9, noise=0.1),
        )
        for shape, noise in (("x", 0.4), ("x", 0.3), ("y", 0.3))
    )
    joint = JointErrors.of([a, b, other], [SPEED, Metric("latency", "minimize")])
    assert joint.difference(0, 1)[1] == pytest.approx([0.1, 0.0])
    assert joint.difference(0, 2)[1] == pytest.approx([0.5, 0.1 * math.sqrt(2)])
    assert joint.covariance()[0, 1] == pytest.approx(-0.4 * 0.1), (
        "a slow step: less speed-up, more seconds"
    )


def test_noise_at_one_batch_size_is_not_that_at_another() -> None:
    """Whether its sources are known, or it is that of the shape's costs, as in files."""
    one, other = (
        timed_session(batch=batch, name=f"a session at {batch}").readings[batch] for batch in (1, 8)
    )
    prices = price_list(replace(timed_session(), readings={1: one, 8: other}))
    found = {
        name: getattr(prices.of(CHAIN.shape, batch)[0], metric)(
            CHAIN.shape, np.array([40.0]), 9, *rest
        )
        for name, metric, batch, rest in (
            ("speedup", "speedup", 1, ()),
            ("latency", "latency", 1, (1,)),
            ("speedup_batch8", "speedup", 8, ()),
        )
    }
    metrics = [SPEED, Metric("latency", "minimize"), Metric("speedup_batch8", "maximize")]
    for record in (
        trial(**found),
        trial("x", **{name: replace(entry, noises=()) for name, entry in found.items()}),
    ):
        covariance = JointErrors.of([record], metrics).covariance()
        assert np.diag(covariance) == pytest.approx([entry.error**2 for entry in found.values()])
        assert covariance[0, 1] < -0.5 * covariance[0, 0] ** 0.5 * covariance[1, 1] ** 0.5
        assert covariance[:2, 2].tolist() == [0.0, 0.0]


def test_costs_of_few_timed_units_leave_few_degrees_of_freedom() -> None:
    blocks = np.random.default_rng(8).normal(size=BLOCKS)
    a, b = (
        trial(shape, speedup=replace(mean_of(blocks * scale, noise=noise), noise_dof=dof))
        for shape, scale, noise, dof in (("x", 1.0, 0.4, 2), ("y", 2.0, 0.3, 5))
    )
    _, error, dof = JointErrors.of([a, b], [SPEED]).difference(0, 1)
    by_blocks = blocks.var(ddof=1) / BLOCKS
    variance = by_blocks + 0.4**2 + 0.3**2
    assert error[0] == pytest.approx(math.sqrt(variance))
    assert dof[0] == pytest.approx(
        variance**2 / (by_blocks**2 / (BLOCKS - 1) + 0.4**4 / 2 + 0.3**4 / 5)
    )


def test_without_replicates_errors_are_independent_and_normal() -> None:
    given = [(0.0, 3.0), (9.7, 4.0), (9.9, 4.0), (99.0, math.inf)]
    joint = JointErrors.of([*(trial(fid=Estimate(*entry, 9)) for entry in given), trial()], [FID])
    difference, error, dof = joint.difference(1, 0)
    assert (difference[0], error[0], dof[0]) == (9.7, pytest.approx(5.0), math.inf)
    told_apart = [joint.differ(0, row)[0] for row in range(5)]
    assert told_apart == [False, False, True, False, False], (
        "1.96 x 5 is 9.8; then unknown error, no value"
    )
    assert joint.differ(0, 2, level=0.01).tolist() == [False]
    drawn = joint.samples(20_000)
    assert drawn[:, 0].std() == pytest.approx(3.0, rel=0.02)
    assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 1, 0])[0, 1]) < 0.03
    assert (drawn[:, 3] == 99).all()
    assert np.isnan(drawn[:, 4]).all()


def test_an_error_beyond_its_replicates_is_the_values_own() -> None:
    blocks = np.random.default_rng(5).normal(size=BLOCKS)
    noisy = mean_of(blocks, noise=0.5)
    joint = JointErrors.of([trial(fid=noisy), trial(fid=noisy)], [FID])  # of no known shape
    assert joint.difference(0, 1)[1] == pytest.approx([0.5 * math.sqrt(2)])


def test_a_rung_shares_the_blocks_that_it_has() -> None:
    """12 captions are 12 blocks of the 24; the others of the larger trial are independent of it."""
    rng = np.random.default_rng(6)
    few, many = mean_of(rng.normal(size=12)), mean_of(rng.normal(size=BLOCKS))
    joint = JointErrors.of([trial(fid=few), trial(fid=many)], [FID])
    some, all_of_them = (
        np.array(measured.replicates) - np.mean(measured.replicates) for measured in (few, many)
    )
    assert joint.covariance()[0, 1] == pytest.approx(
        math.sqrt(11 / 12 * 23 / 24) * some @ all_of_them[:12]
    )
    assert joint.difference(0, 1)[2].tolist() == [11]


def test_sweeps_of_the_same_captions_are_paired() -> None:
    record = trial("shape", fid=mean_of(np.random.default_rng(7).normal(size=BLOCKS)))
    record_noise = trial("shape", speedup=Estimate(2.0, 0.3, 9, noise=0.3))
    captions = {"count": 9, "hash": "other", "source": "scenes"}
    one, again, other = identity("one"), identity("two"), identity("three", captions=captions)
    paired, independent = (
        JointErrors.of([record, record], [FID], [one, second]).difference(0, 1)[1][0]
        for second in (again, other)
    )
    assert paired == 0
    assert independent == pytest.approx(math.sqrt(2) * (record.metrics["fid"].error or 0.0))
    timed = JointErrors.of([record_noise, record_noise], [SPEED], [one, again])
    assert timed.difference(0, 1)[1] == pytest.approx([0.3 * math.sqrt(2)]), (
        "each sweep timed the shape itself"
    )


def test_settings_of_a_session_share_what_vanilla_cost_there() -> None:
    """The noise of vanilla is in both speed-ups, and cancels in their difference; each one's own
    does not.
    """
    shared = Noise("a session", "vanilla", 0.3, 6)
    one, other = (
        trial(
            shape,
            speedup=Estimate.from_replicates(
                np.array([2.0]), 9, [shared, Noise("a session", shape, 0.1, 6)]
            ),
        )
        for shape in ("one", "other")
    )
    joint = JointErrors.of([one, other], [SPEED])
    assert one.metrics["speedup"].error == pytest.approx(math.sqrt(0.1))
    difference, error, dof = joint.difference(0, 1)
    assert (difference[0], error[0], dof[0]) == pytest.approx((0.0, 0.1 * math.sqrt(2), 6.0))
    drawn = joint.samples(20_000)[..., 0]
    assert np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1] == pytest.approx(0.9, abs=0.03)


def test_two_shapes_of_a_session_share_vanilla_and_half_of_the_sitting() -> None:
    """Not the session's state, which differs from shape to shape, as the rest of the sitting's."""
    config = replace(CHAIN, policy=Chain(length=5))
    noise = np.random.default_rng(3).normal(0, 0.02, (3, 6))
    passes = {
        c: list(0.04 * np.exp(row)) for c, row in zip((VANILLA, CHAIN, config), noise, strict=True)
    }
    session = timed_session(passes, prefill=0.0)
    prices, readings = price_list(session).of(CHAIN.shape)[0], session.readings[1]
    found = [
        prices.speedup(c.shape, np.array([count]), 9)
        for c, count in ((CHAIN, 40.0), (config, 90.0))
    ]
    one, other = (entry.value for entry in found)
    error = JointErrors.of([trial(speedup=entry) for entry in found], [SPEED]).difference(0, 1)[1][
        0
    ]
    noise_of_mean = readings.noise / readings.units
    common = costs.COMMON_SHARE * costs.QUIET.ratio**2
    own = costs.QUIET.ratio**2 - common + prices.state + noise_of_mean
    variance = (one**2 + other**2) * own + (one - other) ** 2 * (common + noise_of_mean)
    assert error == pytest.approx(math.sqrt(variance))


def test_settings_of_one_shape_share_what_a_sitting_adds() -> None:
    """Two rules on one drafter: on another day both are faster, or both slower, by one factor. So
    only the difference of their passes is left, whatever the number of sittings.
    """
    sessions = [
        timed_session(call=str(day), name=str(day), started=f"2026-01-0{day}T00:00:00+00:00")
        for day in (1, 2)
    ]
    prices = price_list(*sessions).of(CHAIN.shape)[0]
    found = [prices.speedup(CHAIN.shape, np.array([count]), 9) for count in (40.0, 44.0)]
    joint = JointErrors.of([trial(speedup=entry) for entry in found], [SPEED])
    relative = found[0].error / found[0].value
    assert joint.difference(0, 1)[1][0] == pytest.approx(
        relative * (found[0].value - found[1].value)
    )
    drawn = np.log(np.maximum(joint.samples(2000)[..., 0], 1e-9))
    assert np.corrcoef(drawn.T)[0, 1] > 0.99


@pytest.mark.parametrize("shape", ["", "timed"])
def test_draws_from_few_timings_have_students_quantiles(shape: str) -> None:
    """Of 40,000 draws with two degrees of freedom 2,000 are beyond the central 95 %, with a
    deviation of 44.
    """
    entry = (
        Estimate(2.0, 0.1, 3, noise=0.1, noise_dof=2)
        if shape
        else Estimate(2.0, 0.1, 3, error_dof=2)
    )
    other = trial("other", speedup=entry)
    drawn = JointErrors.of([trial(shape, speedup=entry), other], [SPEED]).samples(40_000)[..., 0]
    beyond = (np.abs(drawn - 2.0) > 0.1 * critical_t(np.array([2.0]))[0]).mean(axis=0)
    assert beyond == pytest.approx([0.05, 0.05], abs=0.0033)
    scale = np.abs((drawn - 2.0) / 0.1)
    assert abs(np.corrcoef(np.minimum(scale, 9).T)[0, 1]) < 0.02, (
        "each has an unknown variance of its own"
    )


def test_draws_of_paired_trials_keep_what_they_share() -> None:
    blocks = np.random.default_rng(9).normal(size=BLOCKS)
    joint = JointErrors.of([trial(fid=mean_of(blocks)), trial(fid=mean_of(blocks + 1))], [FID])
    drawn = joint.samples(1000)[..., 0]
    assert drawn[:, 1] - drawn[:, 0] == pytest.approx(1.0)


def test_the_standard_error_of_draws_needs_no_variance() -> None:
    rng = np.random.default_rng(10)
    assert standard_error(3 * rng.standard_normal(100_000)) == pytest.approx(3.0, rel=0.02)
    # tan(0.6827 pi / 2)
    assert standard_error(rng.standard_cauchy(100_000)) == pytest.approx(1.837, rel=0.03)


def test_degrees_of_freedom_of_one_value() -> None:
    blocks = np.random.default_rng(11).normal(size=BLOCKS)
    both = replace(mean_of(blocks, noise=0.3), noise_dof=2)
    part = blocks.var(ddof=1) / BLOCKS
    assert degrees_of_freedom(both) == pytest.approx(
        (part + 0.09) ** 2 / (part**2 / (BLOCKS - 1) + 0.09**2 / 2)
    )
    assert degrees_of_freedom(mean_of(blocks)) == pytest.approx(BLOCKS - 1)
    assert degrees_of_freedom(Estimate(1.0, 0.1, 9)) == math.inf
    assert degrees_of_freedom(Estimate(1.0, math.inf, 9)) == math.inf
    assert degrees_of_freedom(Estimate(1.0, 0.0, 9, error_dof=2)) == math.inf


def test_quantiles_of_students_t() -> None:
    found = critical_t(np.array([1.0, 23.0, math.inf]))
    assert found == pytest.approx([12.7062, 2.06866, 1.959964], rel=1e-5)
    assert critical_t(np.array([10.0]), 0.01) == pytest.approx([3.16927], rel=1e-5)
