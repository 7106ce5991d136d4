"""The plateau of a front: at which trial it is reached, by values and by errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.front.plateau import Plateau
from orchestrator.store.records import EarlyStop, TrialRecord
from search_spaces.params import ConfigError
from search_spaces.sweep_sections import Budget
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

OBJECTIVES = (Metric("speedup", "maximize"), Metric("fid", "minimize"))
PLATEAU = Plateau(share=0.01, patience=4, enqueued=1, objectives=OBJECTIVES)
BLOCKS = 24


def trial(
    number: int, speedup: float, fid: float, error: float = 0.0, **changes: Any
) -> TrialRecord:
    """error: of both values, from blocks of captions whose effects differ from trial to trial."""
    rng, values = np.random.default_rng(number), {"speedup": speedup, "fid": fid}
    metrics = {}
    for name, value in values.items():
        effects = rng.standard_normal(BLOCKS)
        effects *= error / (np.sqrt(BLOCKS - 1) * effects.std() or 1)
        metrics[name] = Estimate(value, error, 96, tuple(value + effects - effects.mean()))
    return TrialRecord(number, "", "complete", None, metrics=metrics, **changes)


def on_curve(position: float) -> tuple[float, float]:
    """A point of the front that a search approaches: a faster one has a larger fid."""
    return 1 + 2 * position, 10 + 10 * position**2


def stops_at(records: Sequence[TrialRecord], plateau: Plateau = PLATEAU) -> int | None:
    """The number of trials after which a front no longer moves."""
    counts = range(len(records) + 1)
    return next((count for count in counts if plateau.state(records[:count]).is_reached), None)


@pytest.mark.parametrize("error", [0.0, 0.02])
def test_a_front_that_has_converged_stops_at_the_right_trial(error: float) -> None:
    """Vanilla and six trials make the front; the others lie behind it."""
    found = [trial(n, *on_curve(n / 6), error) for n in range(7)]
    behind = [
        trial(n, on_curve(n % 6 / 6)[0] - 0.2, on_curve(n % 6 / 6)[1] + 1, error)
        for n in range(7, 20)
    ]
    assert stops_at([*found, *behind]) == 7 + PLATEAU.patience


def test_a_front_that_moves_does_not_stop() -> None:
    """Every fourth trial moves it; small steps count together."""
    slow = [trial(n, *on_curve(n / 8)) for n in range(8)]
    slow += [trial(n, 2.6 + 0.05 * n, 15) if n % 4 == 0 else trial(n, 1, 30) for n in range(8, 30)]
    assert stops_at(slow) is None
    assert stops_at(slow, replace(PLATEAU, patience=3)) == 12, (
        "the three trials behind the front, after the one at 8"
    )
    steps = [trial(n, 1 + 0.004 * n, 10) for n in range(30)]
    single, together = (replace(PLATEAU, share=0.05, patience=patience) for patience in (1, 4))
    assert stops_at(steps, replace(single, enqueued=20)) == 21, "each adds less than 5 %"
    assert stops_at(steps, replace(together, enqueued=20)) is None, "four together more"


def test_what_errors_leave_open_keeps_a_sweep_running() -> None:
    """Trials a little behind the front may be on it if errors are large."""

    def added(error: float) -> float:
        found = [trial(n, *on_curve(n / 6), error) for n in range(7)]
        behind = [
            trial(n, on_curve(n % 6 / 6)[0] - 0.05, on_curve(n % 6 / 6)[1], error)
            for n in range(7, 11)
        ]
        return PLATEAU.added([*found, *behind]) or 0.0

    assert added(0.0) == 0
    assert 0 < added(0.01) < PLATEAU.share < added(0.5)


def test_trials_of_enqueue_and_failed_ones_are_not_counted() -> None:
    """Stopped, infeasible and repeated ones are: they did not move the front."""
    found = [trial(n, *on_curve(n / 6)) for n in range(7)]
    nothing = [trial(n, 1, 30) for n in range(7, 20)]
    records = [*found, *nothing]
    assert stops_at(records, replace(PLATEAU, enqueued=9)) == 9 + 4
    failed = [*found, *(replace(r, state="failed", metrics={}) for r in nothing[:3]), *nothing[3:]]
    assert stops_at(failed) == 7 + 3 + 4
    stopped = replace(trial(7, 9, 1), state="stopped", stop=EarlyStop(3, 48, 0.01))
    infeasible, repeated = (
        trial(8, 9, 1, constraints={"kid <= 3": 1.0}),
        trial(9, 9, 1, duplicate_of=7),
    )
    revived = trial(10, 9, 1, stop=EarlyStop(3, 48, 0.01), images=96)
    assert stops_at([*found, stopped, infeasible, repeated, revived]) == 7 + 4


def test_how_close_a_front_is() -> None:
    """Trials of enqueue and failed ones are not counted, and no more than are looked at."""
    found = [trial(n, *on_curve(n / 8)) for n in range(9)]
    counts = [PLATEAU.state(found[:count]).trials for count in range(8)]
    assert counts == [0, 0, 1, 2, 3, 4, 4, 4]
    assert PLATEAU.state([*found[:3], replace(found[3], state="failed", metrics={})]).trials == 2
    states = [PLATEAU.state(found[:count]) for count in (4, 9)]
    assert [state.added is None for state in states] == [True, False]
    assert PLATEAU.state(found).added == PLATEAU.added(found)
    assert not any(state.is_reached for state in states)
    assert len({PLATEAU.state(found[:count]).text for count in (4, 5, 9)}) == 3
    assert "1e+02" not in replace(PLATEAU, share=1.0).state(found).text


def test_nothing_is_decided_without_a_front() -> None:
    outside = [trial(n, 2, 12, constraints={"kid <= 3": 1.0}) for n in range(20)]
    assert stops_at(outside) is None
    assert stops_at([*outside[:10], trial(10, 1, 10), *outside[11:]]) == 11 + 4


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"plateau": 0}, "plateau"),
        ({"plateau": -0.1}, "plateau"),
        ({"plateau": 1.5}, "plateau"),
        ({"plateau": "small"}, "plateau"),
        ({"plateau": 0.01, "patience": 0}, "patience"),
        ({"plateau": 0.01, "patience": 2.5}, "patience"),
        ({"patience": 5}, "patience"),
    ],
)
def test_bad_values_are_refused_by_key(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Budget.from_mapping(given)
    assert raised.value.path == (key,)


def test_a_plateau_that_is_taken_off_takes_its_patience_with_it() -> None:
    assert Budget.from_mapping({"plateau": None, "patience": 3}) == Budget()


def test_the_default_patience() -> None:
    assert Budget.from_mapping({"plateau": 0.01}).patience == 5
    assert Budget.from_mapping({}).patience is None
