"""The sampler that chooses from a pool: what it finds, what it leaves alone, and that it repeats
itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from orchestrator.front.compare import hypervolume
from orchestrator.front.pareto import Floats
from orchestrator.replay.sampler import PoolExhausted, ReplaySampler, SettingsPool
from orchestrator.replay.surrogate import Observations, Surrogate, _Outcome
from orchestrator.views.study import open_storage
from tests.fakes.waiting import HANG_S
from workers.metrics.definition import Direction

DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
NOISE = 0.03  # relative
NAMES = ("a", "b", "c")


pytestmark = pytest.mark.filterwarnings("ignore::Warning:botorch")


@lru_cache
def problem(count: int = 300) -> tuple[SettingsPool, Floats]:
    """A pool, and the noise-free values of its settings: `a` makes them quicker and worse."""
    x = np.random.default_rng(0).uniform(size=(count, 3))
    a, b, c = x.T
    values = np.stack(
        [np.exp(1.2 * a - 0.5 * b), 30 + 40 * a**2 + 10 * (c - 0.5) ** 2 - 3 * b], axis=1
    )
    return SettingsPool([dict(zip(NAMES, row, strict=True)) for row in x.tolist()], x), values


def ask(study: optuna.Study, pool: SettingsPool) -> tuple[optuna.Trial, int]:
    trial = study.ask()
    row = pool.find({name: trial.suggest_float(name, 0, 1) for name in NAMES})
    assert row is not None
    return trial, row


def search(trials: int, seed: int = 0, parallel: int = 1, constraint: bool = False) -> list[int]:
    """Rows of the pool in the order in which they were asked for."""
    pool, values = problem()
    study, rng = optuna.create_study(directions=DIRECTIONS), np.random.default_rng(seed)
    rows: list[int] = []
    running: list[tuple[optuna.Trial, int]] = []
    for number in range(trials):
        study.sampler = ReplaySampler(pool, samples=64, seed=1000 * seed + number)
        running.append(ask(study, pool))
        rows.append(running[-1][1])
        if len(running) == parallel:
            trial, row = running.pop(0)
            measured = values[row] * np.exp(NOISE * rng.standard_normal(2))
            trial.set_user_attr("errors", (NOISE * measured).tolist())
            if constraint:
                trial.set_constraint("fid <= 40", float(measured[1] - 40))
            study.tell(trial, measured.tolist())
    return rows


def share(rows: Sequence[int]) -> float:
    """Of the hypervolume of the whole pool."""
    _, values = problem()
    reference = [values[:, 0].min(), values[:, 1].max()]
    return hypervolume(values[rows], reference, DIRECTIONS) / hypervolume(
        values, reference, DIRECTIONS
    )


def test_it_finds_the_front_of_smooth_objectives() -> None:
    """With 14 of 300 settings it reaches more of the hypervolume than the best of 20 random
    searches with 28.
    """
    random = [np.random.default_rng(seed).permutation(300)[:28].tolist() for seed in range(20)]
    for seed in range(2):
        assert share(search(14, seed)) > max(0.9, *map(share, random))


def test_trials_are_the_same_with_more_threads_and_in_a_resumed_search() -> None:
    pool, values = problem()
    studies = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.manual_seed(threads)  # its random numbers do not matter
        studies.append(search(8, parallel=2))
        torch.set_num_threads(before)
    assert studies[0] == studies[1]
    first, resumed = (
        optuna.create_study(directions=DIRECTIONS),
        optuna.create_study(directions=DIRECTIONS),
    )
    asked = []
    for number in range(7):
        first.sampler = ReplaySampler(pool, seed=number)
        trial, row = ask(first, pool)
        asked.append(row)
        if number < 5:
            first.tell(trial, values[row].tolist())
    # the last two run; the resumed search sets the parameters of the first of them
    for frozen in first.trials[:6]:
        state = {"state": frozen.state, "values": frozen.values}
        resumed.add_trial(
            create_trial(params=frozen.params, distributions=frozen.distributions, **state)
        )
    resumed.sampler = ReplaySampler(pool, seed=6)
    assert ask(resumed, pool)[1] == asked[-1]


def test_constraints_count() -> None:
    """Half of the front violates the constraint; a search that knows of it leaves that half
    alone.
    """
    _, values = problem()
    feasible = [
        (values[search(11, constraint=known)[5:], 1] <= 41).mean() for known in (True, False)
    ]
    assert feasible[0] >= 0.8
    assert feasible[1] <= 0.6


def test_no_setting_comes_twice_and_the_pool_ends() -> None:
    x = np.arange(6.0)[:, None] / 6
    pool = SettingsPool([{"a": value} for value in x[:, 0].tolist()], x)
    study = optuna.create_study(
        directions=DIRECTIONS, sampler=ReplaySampler(pool, startup=2, samples=16)
    )
    study.enqueue_trial({"a": pool.params[3]["a"]})
    asked = []
    for number in range(6):
        trial = study.ask()
        asked.append(trial.suggest_float("a", 0, 1))
        if number == 1:
            study.tell(trial, state=TrialState.FAIL)  # a failed setting does not come again either
        elif number % 2:
            study.tell(trial, [asked[-1], 1 - asked[-1] ** 2])
    assert sorted(asked) == [entry["a"] for entry in pool.params]
    with pytest.raises(PoolExhausted):
        study.ask().suggest_float("a", 0, 1)


def test_guesses_order_a_pool_by_rank_from_the_middle_of_each() -> None:
    """Five on the front of the guesses, then two of one rank, then one that all others beat."""
    guesses = np.array([[9, 9], [1, 5], [3, 3], [5, 1], [2, 4], [4, 2], [2, 6], [6, 2]], float)
    pool = SettingsPool([{"a": row} for row in range(8)], np.zeros((8, 1)), guesses)
    order = list(pool.by_rank())
    assert order == [2, 4, 5, 1, 3, 7, 6, 0]
    for count in range(200):
        falling = np.stack([np.arange(count), -np.arange(count)], axis=1).astype(float)
        params = [{"a": row} for row in range(count)]
        found = list(SettingsPool(params, falling, falling).by_rank())
        assert found[:1] == [count // 2][: len(found)]
        assert sorted(found) == list(range(count))


@pytest.mark.parametrize(("has_guesses", "startup"), [(True, 64), (False, 4), (True, 2)])
def test_the_model_proposes_after_so_many_trials(
    has_guesses: bool, startup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the order of the guesses does; without guesses it is that of the features."""

    def last(observations: Observations, pending: Floats, candidates: Floats, **_: int) -> int:
        assert len(observations.values) >= startup
        return len(candidates) - 1

    monkeypatch.setattr("orchestrator.replay.surrogate.most_promising", last)
    x = np.random.default_rng(0).permutation(100)[:, None] / 100
    pool = SettingsPool([{"a": value} for value in x[:, 0].tolist()], x, x if has_guesses else None)
    options: dict[str, Any] = {"startup": startup} if startup == 2 else {}
    study = optuna.create_study(directions=DIRECTIONS, sampler=ReplaySampler(pool, **options))
    asked = []
    for _ in range(startup + 1):
        trial = study.ask()
        asked.append(trial.suggest_float("a", 0, 1))
        study.tell(trial, [asked[-1], 1 - asked[-1]])
    ordered = [pool.params[row]["a"] for row in pool.by_rank()]
    assert asked[:startup] == ordered[:startup]
    assert asked[startup] == x[-1, 0] != ordered[startup]


def test_a_waiting_trial_keeps_its_setting() -> None:
    pool, _ = problem()
    probe = optuna.create_study(directions=DIRECTIONS, sampler=ReplaySampler(pool))
    _, first = ask(probe, pool)
    study = optuna.create_study(directions=DIRECTIONS, sampler=ReplaySampler(pool))
    trial = study.ask()
    study.enqueue_trial(dict(pool.params[first]))
    assert trial.suggest_float("a", 0, 1) != pool.params[first]["a"]


def test_processes_that_choose_at_the_same_moment_take_different_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of them, each with a sampler and a connection of its own, make their first choices in
    step.
    """
    count, pool = 3, problem()[0]
    path = str(tmp_path / "study.log")
    optuna.create_study(study_name="shared", storage=open_storage(path), directions=DIRECTIONS)
    barrier, choose = threading.Barrier(count), ReplaySampler._choose
    first = threading.local()

    def in_step(self: ReplaySampler, *arguments: Any) -> int:
        row = choose(self, *arguments)
        if not hasattr(first, "row"):
            first.row = row
            barrier.wait(timeout=HANG_S)
        return row

    def search(_: int) -> tuple[int, int]:
        study = optuna.load_study(
            study_name="shared", storage=open_storage(path), sampler=ReplaySampler(pool)
        )
        row = ask(study, pool)[1]
        return first.row, row

    monkeypatch.setattr(ReplaySampler, "_choose", in_step)
    with ThreadPoolExecutor(count) as executor:
        chosen = list(executor.map(search, range(count)))
    assert len({before for before, _ in chosen}) == 1, "all would take the same one"
    assert len({row for _, row in chosen}) == count


def test_a_pool_of_another_space_is_refused() -> None:
    pool, _ = problem()
    study = optuna.create_study(directions=DIRECTIONS, sampler=ReplaySampler(pool))
    with pytest.raises(ValueError, match="tree"):
        study.ask().suggest_int("tree.length", 1, 4)
    with pytest.raises(ValueError, match="not sampled from this space"):
        study.ask().suggest_float("a", 2, 3)


def test_trials_outside_of_the_pool_count_by_their_features() -> None:
    """Their attribute describes them; without it they are ignored."""
    pool, values = problem()
    choices = []
    for features in (None, [0.0, 0.0, 0.5]):
        study = optuna.create_study(directions=DIRECTIONS, sampler=RandomSampler(seed=0))
        for row in range(8):
            params: dict[str, Any] = {name: pool.params[row][name] for name in NAMES}
            distributions: dict[str, BaseDistribution] = {
                name: FloatDistribution(0, 1) for name in NAMES
            }
            study.add_trial(
                create_trial(
                    params=params, distributions=distributions, values=values[row].tolist()
                )
            )
        attributes = {} if features is None else {"features": features}
        study.add_trial(create_trial(values=[9.0, 1.0], user_attrs=attributes))
        study.sampler = ReplaySampler(pool, seed=0)
        choices.append(ask(study, pool)[1])
    near = np.linalg.norm(pool.features - [0.0, 0.0, 0.5], axis=1)
    assert near[choices[1]] < 0.3 < near[choices[0]], (
        "such a result draws the search to its neighbours"
    )


def observations(noise: float = 0.1, constraint: bool = False) -> Observations:
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(6, 2))
    values = np.stack(
        [1 + x[:, 0], 3 + x[:, 0] ** 2 + x[:, 1]], axis=1
    ) + 0.05 * rng.standard_normal((6, 2))
    violations = (x[:, :1] - 0.6) if constraint else np.zeros((6, 0))
    return Observations(x, values, np.full((6, 2), noise), violations, DIRECTIONS)


def posterior_samples(surrogate: Surrogate, features: Floats, *, count: int, seed: int) -> Floats:
    """Values of the objectives, then violations of the constraints, [count, N, m + c] from the
    joint posterior.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        samples = (
            surrogate.model.posterior(surrogate._scaled(features))
            .rsample(torch.Size([count]))
            .detach()
        )
    values = [
        outcome.restore(samples[..., index]) for index, outcome in enumerate(surrogate._outcomes)
    ]
    return torch.stack(values, dim=-1).numpy()


@pytest.mark.parametrize("constraint", [False, True])
def test_the_acquisition_is_the_expected_gain_in_hypervolume(constraint: bool) -> None:
    """Against its definition: samples of the joint posterior, each with the exact hypervolume of
    its own front.
    """
    seen = observations(constraint=constraint)
    candidates = np.array([[0.3, 0.1], [0.5, 0.0], [0.57, 0.1], [0.62, 0.2], [0.9, 0.6]])
    surrogate = Surrogate(seen, np.concatenate([seen.features, candidates]))
    gains = surrogate.improvements(np.zeros((0, 2)), candidates, samples=1024, seed=0)
    feasible = (seen.violations <= 0).all(axis=1)
    values = seen.values[feasible]
    worst = np.array([values[:, 0].min(), values[:, 1].max()])
    reference = worst + 0.1 * np.ptp(values, axis=0) * [-1, 1]
    for row, candidate in enumerate(candidates):
        samples = posterior_samples(
            surrogate, np.concatenate([seen.features, candidate[None]]), count=600, seed=row
        )
        gained = []
        for sample in samples:
            kept = (sample[:, 2:] <= 0).all(axis=1)
            before = hypervolume(sample[:-1][kept[:-1], :2], reference, DIRECTIONS)
            gained.append(hypervolume(sample[kept, :2], reference, DIRECTIONS) - before)
        error = np.std(gained) / len(gained) ** 0.5
        assert abs(gains[row] - np.mean(gained)) <= 4 * error + 0.01 * np.mean(gained)
    assert np.sum(gains > 1e-3) >= 3


def test_running_trials_leave_less_to_gain_beside_them() -> None:
    seen, candidates = observations(), np.random.default_rng(4).uniform(size=(40, 2))
    surrogate = Surrogate(seen, np.concatenate([seen.features, candidates]))
    alone = surrogate.improvements(np.zeros((0, 2)), candidates, samples=128, seed=0)
    best = int(alone.argmax())
    beside = surrogate.improvements(candidates[best][None], candidates, samples=128, seed=0)
    assert beside[best] < 0.2 * alone[best]
    assert int(beside.argmax()) != best


def test_noise_counts() -> None:
    """The errors of the values reach the model: noisy values are smoothed, exact ones are met."""
    spread = []
    for noise in (0.001, 0.5):
        seen = observations(noise)
        fitted = posterior_samples(
            Surrogate(seen, seen.features), seen.features, count=200, seed=0
        ).mean(axis=0)
        spread.append(np.abs(fitted - seen.values).max())
    assert spread[0] < 0.02 < 0.1 < spread[1]


@pytest.mark.parametrize(
    "options", [{"startup": 0}, {"samples": 0}, {"samples": "many"}, {"startup": 2.5}]
)
def test_unusable_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ReplaySampler(problem()[0], **options)


def test_pools_are_checked() -> None:
    with pytest.raises(ValueError, match="finite"):
        SettingsPool([{"a": 1}], np.array([[np.nan]]))
    with pytest.raises(ValueError, match="each"):
        SettingsPool([{"a": 1}], np.zeros((2, 1)))
    with pytest.raises(ValueError, match="same parameters"):
        SettingsPool([{"a": 1}, {"a": 1}], np.zeros((2, 1)))


def test_objectives_are_fitted_on_a_log_scale_with_relative_errors() -> None:
    """Exact: a value's variance is (error / value / spread of the logs) squared; unknown errors
    count as the median.
    """
    values, errors = np.array([1.0, np.e**2, np.e**4]), np.array([0.1, np.nan, 0.3 * np.e**4])
    outcome = _Outcome.objective(values, errors)
    spread = np.std([0.0, 2.0, 4.0])
    assert outcome.log
    assert outcome.variance is not None
    assert np.allclose(outcome.variance[:, 0], (np.array([0.1, 0.2, 0.3]) / spread) ** 2)
    assert np.allclose(outcome.restore(outcome.target)[:, 0], values)
    signed = _Outcome.objective(values - 2, errors)
    assert not signed.log
    assert np.allclose(signed.restore(signed.target)[:, 0], values - 2)


def test_the_reference_point_bounds_the_search() -> None:
    """Nothing is gained beyond it."""
    seen, candidates = observations(), np.random.default_rng(4).uniform(size=(20, 2))
    bounded = replace(seen, reference=np.array([1.6, 3.6]))
    free, gains = (
        Surrogate(entry, candidates).improvements(np.zeros((0, 2)), candidates, samples=64, seed=0)
        for entry in (seen, bounded)
    )
    slow = candidates[:, 0] < 0.4  # the first objective is 1 plus the first feature
    assert free[slow].max() > 1e-3 > gains[slow].max()
