"""Timing sessions of a sweep: who is timed with whom, what trials wait for, and what happens when a
session fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.instant import EXPERIMENT, make_driver, plausible
from benchmarks.simulated import write_session
from orchestrator.cluster.tasks import ClusterLost, Limits, PoolError, Task
from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.front.questions import front_records
from orchestrator.store.records import read_trials
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.timed_launches import (
    SPACE,
    TRIALS,
    Timed,
    TimedWorkers,
    Workers,
    digests,
    launch,
    results,
    run,
    sessions,
)
from workers.data.shards import TimingSession
from workers.data.storage import Storage
from workers.metrics.definition import Metric


def test_enqueued_shapes_share_the_first_session(tmp_path: Path) -> None:
    """Other shapes each have one when their first trial comes, next to the anchor."""
    workers = Workers()
    records = run(tmp_path, workers).records
    shapes = {record.shape: record.number for record in reversed(records)}
    first, *later = sessions(workers)
    assert first == digests(records, 0, 1, 2)
    assert later == [
        digests(records, 0, 1, number) for number in sorted(shapes.values()) if number > 2
    ]
    assert later
    assert all(record.state == "complete" and record.shape for record in records)


def test_vanilla_with_another_sampling_is_a_setting_like_others(tmp_path: Path) -> None:
    """Its steps may cost more or less than the baseline's, as with guidance."""
    path = tmp_path / "shapes.yaml"
    greedy = "{label: greedy, sampling: {temperature: 0, top_k: 0, top_p: 1.0, cfg: 1.0}}"
    path.write_text(
        SPACE.replace("PARALLEL", "1").replace("  - vanilla\n", f"  - vanilla\n  - {greedy}\n")
    )
    workers = Workers()
    config, storage = SweepConfig.read(str(path)), Storage(str(tmp_path))
    workers.storage = storage
    driver = make_driver(
        config, storage, workers, [Metric("speedup", "maximize"), Metric("fid", "minimize")]
    )
    records = driver.run(read_trials(storage)).records
    assert sessions(workers)[0] == digests(records, 0, 1, 2, 3)
    assert records[1].config is not None
    assert records[1].config.is_vanilla
    assert records[0].shape != records[1].shape


def test_a_trial_is_priced_by_the_sessions_up_to_its_own(tmp_path: Path) -> None:
    """However many come later: what is told to the search must not depend on the workers."""
    workers = Workers()
    run(tmp_path, workers)
    numbers = {task.name: task.payload["number"] for task in workers.tasks if task.kind == "timing"}
    priced = {
        trial: sorted(numbers[name] for name in payload["timing"])
        for trial, payload in workers.measured_with().items()
    }
    assert priced[0] == [0]
    assert all(found == list(range(len(found))) for found in priced.values())
    assert [len(priced[trial]) for trial in sorted(priced)] == sorted(
        len(found) for found in priced.values()
    )


def is_shared(number: int) -> Callable[[Task], bool]:
    """Whether a task is the session of this number, and not one that takes its place."""

    def is_it(task: Task) -> bool:
        return (
            task.kind == "timing"
            and task.payload["number"] == number
            and len(task.payload["configs"]) > 2
        )

    return is_it


@pytest.mark.parametrize("permanent", [True, False], ids=["failed", "lost"])
def test_a_session_that_fails_is_replaced_by_one_for_each_shape(
    permanent: bool, tmp_path: Path
) -> None:
    workers = Workers(is_shared(0), permanent=permanent)
    records = run(tmp_path, workers).records
    assert all(record.state == "complete" for record in records)
    alone = [found for found in sessions(workers) if len(found) < 3]
    assert alone == [digests(records, 0), digests(records, 0, 1), digests(records, 0, 2)]


def test_a_config_that_cannot_be_timed_fails_alone(tmp_path: Path) -> None:
    """The enqueued chain makes every session with it fail, and others are timed without it."""

    def is_chain(config: Mapping[str, Any]) -> bool:
        return bool(config["tree"].get("length") == 3)

    def has_chain(task: Task) -> bool:
        return task.kind == "timing" and any(map(is_chain, task.payload["configs"]))

    workers = Workers(has_chain)
    records = run(tmp_path, workers).records
    failed = {record.number for record in records if record.state == "failed"}
    assert failed == {r.number for r in records if r.config and is_chain(r.config.to_mapping())}
    assert failed
    assert len(failed) < len(records)


@pytest.mark.parametrize("results", range(1, 26, 3))
def test_a_killed_sweep_has_the_same_sessions(results: int, tmp_path: Path) -> None:
    undisturbed = Workers()
    run(tmp_path / "other", undisturbed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", before := Workers(left=results))
    run(tmp_path / "killed", after := Workers())
    names = {task.name for task in (*before.tasks, *after.tasks) if task.kind == "timing"}
    assert names == {task.name for task in undisturbed.tasks if task.kind == "timing"}


@pytest.mark.parametrize("parallel", [1, 3, 30])
def test_the_number_of_workers_changes_no_session(parallel: int, tmp_path: Path) -> None:
    one, many = Workers(), Workers()
    records = run(tmp_path / "one", one, parallel=1).records
    assert [record.config for record in run(tmp_path / "many", many, parallel=parallel).records][
        :2
    ] == [record.config for record in records[:2]]
    assert sessions(many)[0] == sessions(one)[0]


def last_session(workers: TimedWorkers) -> Task:
    """The one that was wanted after all trials."""
    last = [task for task in workers.tasks if task.kind == "timing"][-1]
    assert last is workers.tasks[-1]
    return last


def test_the_last_session_times_the_front(tmp_path: Path) -> None:
    """A setting of each of its shapes, and of those that decide a choice, at the speeds of the
    earlier sessions.
    """
    workers = TimedWorkers()
    timed = launch(tmp_path, workers)
    last = last_session(workers)
    before = timed.sweep.priced([name for name in timed.sessions.values() if name != last.name])
    front = front_of([before])
    chosen = list(recommend(front).choices.values())
    rivals = [trial for choice in chosen for trial in choice.alternatives or ()]
    shapes = {
        trial.config.shape
        for trial in (*front.members, *chosen, *rivals)
        if not trial.config.is_vanilla
    }
    configs = [DecodingConfig.from_mapping(config) for config in last.payload["configs"]]
    assert configs[0].is_vanilla
    assert {config.shape for config in configs[1:]} == shapes
    assert len(configs) == 1 + len(shapes) > 1
    assert len(timed.sweep.prices.sessions) == len(timed.sessions)
    assert timed.notes == []
    told = {
        record.number: record.metrics["speedup"].value
        for record in read_trials(timed.sweep.storage)
    }
    final = {
        r.number: r.metrics["speedup"].value
        for r in timed.sweep.records
        if r.config and r.config.shape in shapes
    }
    assert all(told[number] != value for number, value in final.items()), (
        "records keep what was told"
    )


def test_a_sweep_killed_in_its_last_session_goes_on_with_the_same_one(tmp_path: Path) -> None:
    whole = launch(tmp_path / "whole", TimedWorkers())
    last = max(whole.sessions)

    def kill(task: Task) -> None:
        if task.payload["number"] == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path / "killed", TimedWorkers(kill))
    resumed = launch(tmp_path / "killed", after := TimedWorkers())
    assert resumed.sessions == {last: whole.sessions[last]}
    assert [task.kind for task in after.tasks] == ["timing"], "nothing is made twice"
    assert results(resumed) == results(whole)


def test_sessions_of_specfrontier_time_do_not_change_the_last_one(tmp_path: Path) -> None:
    """A sweep is killed in its last session, its front is timed by hand, at other speeds, and it
    goes on.
    """
    whole = launch(tmp_path / "whole", TimedWorkers())
    last = max(whole.sessions)

    def kill(task: Task) -> None:
        if task.payload["number"] == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path / "killed", TimedWorkers(kill))
    configs = {
        record.config.shape: record.config for record in whole.sweep.records if record.config
    }
    for number in range(10**6, 10**6 + 4):
        session = TimingSession(tuple(configs.values()), 0, 2, (1,), 2, number=number)
        write_session(
            Storage(str(tmp_path / "killed")), session.name(EXPERIMENT), session, noise=1.0
        )
    resumed = launch(tmp_path / "killed", TimedWorkers())
    assert resumed.sessions == {last: whole.sessions[last]}


def test_a_finished_sweep_adds_no_session(tmp_path: Path) -> None:
    first = launch(tmp_path, TimedWorkers())
    again = launch(tmp_path, workers := TimedWorkers())
    assert workers.tasks == []
    assert results(again) == results(first)


def test_a_last_session_that_fails_leaves_the_sweep_complete(tmp_path: Path) -> None:
    last = max(launch(tmp_path / "whole", TimedWorkers()).sessions)

    def is_last(task: Task) -> bool:
        return task.kind == "timing" and task.payload["number"] == last

    failed = launch(tmp_path / "failed", TimedWorkers(fault=is_last, permanent=False))
    assert failed.notes == [f"the front was not timed once more: {failed.untimed}"]
    assert failed.untimed.startswith("timings/timing-")
    assert {record.state for record in failed.sweep.records} == {"complete"}
    assert len(failed.sweep.prices.sessions) == last


def test_without_workers_the_last_session_is_left_out(tmp_path: Path) -> None:
    """But another cluster makes it up for one that is lost."""
    last = max(launch(tmp_path / "whole", TimedWorkers()).sessions)

    def ends_with(error: PoolError) -> Callable[[Task], None]:
        def end(task: Task) -> None:
            if task.payload["number"] == last:
                raise error

        return end

    left_out = launch(tmp_path / "none", TimedWorkers(ends_with(PoolError("no worker is left"))))
    assert left_out.untimed == "no worker is left"
    with pytest.raises(ClusterLost):
        launch(tmp_path / "lost", TimedWorkers(ends_with(ClusterLost("gone"))))


def test_a_damaged_session_is_left_out_of_the_prices(tmp_path: Path) -> None:
    """At the end of a sweep no trial reads the sessions again, so it is named, and none is timed
    for it.
    """
    whole = launch(tmp_path, TimedWorkers())
    storage, last = whole.sweep.storage, max(whole.sessions)
    for number in (last, 1):
        data = storage.read(whole.sessions[number])
        storage.write(whole.sessions[number], data[: len(data) // 2])
        resumed = launch(tmp_path, workers := TimedWorkers())
        assert len(resumed.sweep.prices.sessions) == storage_count(storage) - len(
            resumed.sweep.prices.problems
        )
        assert any(whole.sessions[number] in problem for problem in resumed.sweep.prices.problems)
        assert {record.state for record in resumed.sweep.records} == {"complete"}
        assert all(task.kind == "timing" for task in workers.tasks)


def storage_count(storage: Storage) -> int:
    return len(storage.names("timings"))


def test_a_sweep_whose_timings_were_moved_times_all_of_its_shapes_again(tmp_path: Path) -> None:
    """As the message says that refuses workers on another device."""
    whole = launch(tmp_path / "whole", TimedWorkers())
    fewer = SPACE.replace("trials: 9", "trials: 6")
    before = launch(tmp_path / "moved", TimedWorkers(), fewer)
    (tmp_path / "moved" / "timings").rename(tmp_path / "elsewhere")
    after = launch(tmp_path / "moved", TimedWorkers(), SPACE)
    of_trials = sorted(whole.sessions)[:-1]
    assert {number: after.sessions.get(number) for number in of_trials} == {
        n: whole.sessions[n] for n in of_trials
    }
    assert before.sessions.keys() >= {0, 1}
    assert after.sweep.machine is not None
    assert all("speedup" in record.metrics for record in after.sweep.records)


def test_a_sweep_of_one_shape_times_it_twice(tmp_path: Path) -> None:
    start, end = SPACE.index("enqueue:"), SPACE.index("space:\n")
    text = SPACE[:start] + "enqueue: [vanilla]\n" + SPACE[end:].replace("{low: 3, high: 5}", "3")
    text = text.replace(
        "    - {schedule: exponential, budget: {low: 1, high: 3, log: true}, nu: {low: 0.1, high: "
        "0.5}}\n",
        "",
    )
    workers = TimedWorkers()
    timed = launch(tmp_path, workers, text)
    assert len({record.shape for record in timed.sweep.records}) == 2, "vanilla's, and one other"
    assert [len(found) for found in sessions(workers)] == [1, 2, 2]


def test_a_front_of_vanilla_alone_is_not_timed_again(tmp_path: Path) -> None:
    def poor(config: DecodingConfig) -> dict[str, float]:
        value = 1.0 if config.is_vanilla else 9.0
        return {"speedup": 1.0, "fid": value, "step_compression": 1 / value}

    workers = TimedWorkers(numbers=poor)
    timed = launch(tmp_path, workers, front=("step_compression", "fid"))
    assert [record.number for record in front_records(timed.sweep)] == [0]
    assert len(timed.sweep.prices.sessions) > 1
    assert workers.tasks[-1].kind != "timing"


def test_a_sweep_without_a_front_is_complete(tmp_path: Path) -> None:
    """It has one metric alone."""
    timed = launch(tmp_path, workers := TimedWorkers(), front=("speedup",))
    (note,) = timed.notes
    assert note.startswith("the front was not timed once more: ")
    assert {record.state for record in timed.sweep.records} == {"complete"}
    assert workers.tasks[-1].kind != "timing"


def test_workers_that_end_in_any_order_time_the_same_sessions(tmp_path: Path) -> None:
    """Such as two of one kind: which of them has a session, and when, makes no difference to what
    is timed.
    """
    one = launch(tmp_path / "one", TimedWorkers())
    two = launch(tmp_path / "two", TimedWorkers(last_first=True))
    assert two.sessions == one.sessions
    assert results(two) == results(one)


@pytest.mark.parametrize(("number", "chain"), [(0, False), (1, False), (0, True)])
def test_a_finished_sweep_with_a_session_that_failed_adds_none(
    number: int, chain: bool, tmp_path: Path
) -> None:
    """The sessions that replaced it are those of its trials when the sweep is resumed."""

    def has_chain(config: Mapping[str, Any]) -> bool:
        return bool(config["tree"].get("length") == 3)

    def fails(task: Task) -> bool:
        configs = task.payload.get("configs", [])
        return is_shared(number)(task) or (
            chain and task.kind == "timing" and any(map(has_chain, configs))
        )

    whole = launch(tmp_path, TimedWorkers(fault=fails, permanent=True))
    assert len({record.state for record in whole.sweep.records}) == 1 + chain
    again = launch(tmp_path, workers := TimedWorkers())
    assert workers.tasks == []
    assert results(again) == results(whole)


@pytest.mark.parametrize("number", [0, 1])
def test_a_session_that_fails_changes_no_other_one(number: int, tmp_path: Path) -> None:
    """Those of later shapes keep their numbers, so that a sweep that is resumed looks for no other
    ones.
    """
    whole = launch(tmp_path / "whole", TimedWorkers())
    workers = TimedWorkers(fault=is_shared(number))
    launch(tmp_path / "failed", workers)
    planned = {task.name for task in workers.tasks if task.kind == "timing" and not task.about}
    of_trials = {whole.sessions[each] for each in sorted(whole.sessions)[:-1]}
    assert planned >= of_trials
    replaced = [task for task in workers.tasks if task.name in planned - of_trials]
    assert replaced
    assert {task.payload["number"] for task in replaced} == {number}


@pytest.mark.parametrize("results", range(2, 30, 3))
def test_a_killed_sweep_whose_session_failed_has_the_same_sessions(
    results: int, tmp_path: Path
) -> None:
    undisturbed = TimedWorkers(fault=is_shared(0))
    launch(tmp_path / "other", undisturbed)
    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path / "killed", before := TimedWorkers(fault=is_shared(0), left=results))
    launch(tmp_path / "killed", after := TimedWorkers(fault=is_shared(0)))
    names = {task.name for task in (*before.tasks, *after.tasks) if task.kind == "timing"}
    assert names == {task.name for task in undisturbed.tasks if task.kind == "timing"}


def test_a_sweep_that_its_hours_ended_times_its_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = TimedWorkers()
    monkeypatch.setattr(Limits, "is_time_spent", property(lambda limits: len(workers.ran) > 12))
    timed = launch(tmp_path, workers, SPACE.replace("trials: 9", "trials: 9, hours: 1"))
    assert timed.limit == "hours"
    assert 3 <= len(timed.sweep.records) < TRIALS
    assert last_session(workers).about
    assert timed.notes == []


def searched(objective: str) -> str:
    """A sweep of many shapes, whose search learns from this objective and the FID."""
    changes = {
        "sampler: random,": "sampler: tpe, options: {n_startup_trials: 3},",
        "trials: 9": "trials: 14",
        "high: 5": "high: 9",
        "{metric: speedup, d": f"{{metric: {objective}, d",
    }
    text = f"{SPACE}metrics: [speedup, step_compression, fid]\n"
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def steps(config: DecodingConfig) -> dict[str, float]:
    found = plausible(config)
    return {"step_compression": found["speedup"], "fid": found["fid"]}


def proposals(timed: Timed) -> list[tuple[object, ...]]:
    return [(record.number, record.config, record.params) for record in timed.sweep.records]


def sessions_of_trials(workers: TimedWorkers) -> set[str]:
    return {task.name for task in workers.tasks if task.kind == "timing" and not task.about}


@pytest.mark.parametrize("objective", ["step_compression", "speedup"])
def test_trials_and_sessions_depend_on_speeds_only_if_the_search_is_told_them(
    objective: str, tmp_path: Path
) -> None:
    text, front = searched(objective), (objective, "fid")
    made = [TimedWorkers(numbers=steps, seed=seed, noise=0.3) for seed in range(3)]
    found = [launch(tmp_path / str(seed), made[seed], text, front=front) for seed in range(3)]
    speeds = {
        tuple(record.metrics["speedup"].value for record in timed.sweep.records[:3])
        for timed in found
    }
    assert len(speeds) == 3
    is_same = objective != "speedup"
    assert all(proposals(timed) == proposals(found[0]) for timed in found) == is_same
    assert (
        all(sessions_of_trials(workers) == sessions_of_trials(made[0]) for workers in made)
        == is_same
    )


@pytest.mark.parametrize("finished", [4, 11, 18, 25, 32, 39, 46])
def test_a_search_by_speed_is_a_function_of_its_sessions(finished: int, tmp_path: Path) -> None:
    """A sweep is killed, and goes on at other speeds. One that is not, and whose sessions read the
    same, is equal.
    """
    text = searched("speedup")
    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path / "killed", TimedWorkers(numbers=steps, noise=0.3, left=finished), text)
    killed = launch(tmp_path / "killed", TimedWorkers(numbers=steps, seed=1, noise=0.3), text)
    again = launch(
        tmp_path / "again",
        TimedWorkers(numbers=steps, timed=killed.sweep.storage, last_first=True),
        text,
    )
    assert proposals(again) == proposals(killed)
    assert results(again) == results(killed)
    told = [
        [record.metrics["speedup"] for record in read_trials(timed.sweep.storage)]
        for timed in (killed, again)
    ]
    assert told[0] == told[1]
