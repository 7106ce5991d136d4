"""The driver's loop on workers that return at once: order, duplicates, failures, budgets,
resuming.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.instant import InstantWorkers, make_driver, plausible
from orchestrator.cluster.tasks import Limits, Outcome, SweepError, Task, TaskResult
from orchestrator.errors import StudyError
from orchestrator.front.plateau import Plateau
from orchestrator.run.driver import Driver
from orchestrator.store.events import Event, Shard, TrialStarted
from orchestrator.store.events import Plateau as PlateauEvent
from orchestrator.store.records import TrialRecord, read_trials, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Views
from orchestrator.views.study import open_storage, short_names
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import Budget
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.studies import study_identity, study_view
from tests.fakes.synthetic_sweeps import identity
from tests.fakes.waiting import HANG_S
from workers.data.shards import Experiment, QualityShard
from workers.data.storage import Storage
from workers.metrics.definition import Direction, Metric

NAMES = ("speedup", "fid")
DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
SPACE = """
name: tested
captions: {source: scenes, count: 32, seed: 1}
quality: {batch: 8, shard: 8}
timing: {batch: 1, images: 2, repetitions: 2}
search: {sampler: SAMPLER, parallel: PARALLEL}
budget: {trials: 24}
objectives: [{metric: speedup, direction: maximize}, {metric: fid, direction: minimize}]
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
enqueue: [vanilla, {label: chain, drafter: eagle, tree: {policy: chain, length: 3}}, lantern]
space:
  drafter: eagle
  tree: [{policy: chain, length: {low: 2, high: 6}}, {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}]
  acceptance:
    - {neighbourhood: none, schedule: constant, budget: {low: 1, high: 3, log: true}}
    - {neighbourhood: additive, k: {low: 2, high: 200, log: true}, delta: {low: 0.01, high: 0.5, log: true}}
"""


def sweep(
    folder: Path, sampler: str = "tpe", parallel: int = 3, changes: Mapping[str, Any] | None = None
) -> SweepConfig:
    path = folder / "tested.yaml"
    path.write_text(SPACE.replace("SAMPLER", sampler).replace("PARALLEL", str(parallel)))
    return SweepConfig.read(str(path), changes)


def driver(config: SweepConfig, folder: Path, workers: Any, **kwargs: Any) -> Driver:
    folder.mkdir(parents=True, exist_ok=True)
    objectives = list(map(Metric, NAMES, DIRECTIONS))
    return make_driver(
        config, Storage(str(folder)), workers, objectives, sampling=Sampling(cfg=1.5), **kwargs
    )


def run(
    config: SweepConfig, folder: Path, workers: Any, revive: Collection[int] = (), **kwargs: Any
) -> Outcome:
    """Run a sweep and its study."""
    folder.mkdir(parents=True, exist_ok=True)
    storage = Storage(str(folder))
    view = study_view(config, folder / "study.log")
    view.end_timeout_s = view.short_timeout_s = HANG_S
    views, stored = Views(storage, [view]), read_trials(storage)
    views.start(study_identity(config), stored)
    try:
        return driver(config, folder, workers, update=views.update, **kwargs).run(stored, revive)
    finally:
        assert views.end("finished") == []


def configs(records: Sequence[TrialRecord]) -> list[DecodingConfig | None]:
    return [record.config for record in records]


Undisturbed = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The sweep run from start to end, once for each sampler."""

    @functools.cache
    def outcome(sampler: str) -> Outcome:
        folder = tmp_path_factory.mktemp("undisturbed")
        return run(sweep(folder, sampler), folder / "store", InstantWorkers())

    return outcome


class Dying(InstantWorkers):
    """Workers whose driver is killed after `results` results."""

    def __init__(self, results: int) -> None:
        super().__init__()
        self.left = results

    def collect(self, timeout: float) -> list[TaskResult]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().collect(timeout)


def test_a_sweep_runs_its_budget_with_the_baselines_first(tmp_path: Path) -> None:
    outcome = run(sweep(tmp_path), tmp_path / "store", InstantWorkers())
    assert outcome.stopped_by == "trials"
    assert [record.label for record in outcome.records[:3]] == ["vanilla", "chain", "lantern"]
    assert [record.number for record in outcome.records] == list(range(24))
    assert read_trials(Storage(str(tmp_path / "store"))) == list(outcome.records)
    kinds = {
        (r.config.policy.kind, r.config.acceptance.neighbourhood.kind)
        for r in outcome.records
        if r.config
    }
    assert {
        ("chain", "none"),
        ("chain", "additive"),
        ("dynamic", "none"),
        ("dynamic", "additive"),
    } <= kinds


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "nsga3", "random", "qmc"])
def test_the_search_depends_on_results_not_on_their_order(
    sampler: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    reversed_order = run(
        sweep(tmp_path, sampler), tmp_path / "store", InstantWorkers(last_first=True)
    )
    assert configs(reversed_order.records) == configs(undisturbed(sampler).records)
    assert [r.shape for r in reversed_order.records] == [
        r.shape for r in undisturbed(sampler).records
    ]


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
@pytest.mark.parametrize("results", [1, 37, 90])
def test_a_killed_sweep_resumes_to_the_same_trials(
    sampler: str, results: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    config = sweep(tmp_path, sampler)
    whole = undisturbed(sampler)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", Dying(results))
    before = {record.number for record in read_trials(Storage(str(tmp_path / "cut")))}
    workers = InstantWorkers()
    resumed = run(config, tmp_path / "cut", workers)
    assert configs(resumed.records) == configs(whole.records)
    assert [r.params for r in resumed.records] == [r.params for r in whole.records]
    repeated = {task for task in workers.ran if task.startswith("measures")}
    assert len(repeated) == len(
        {r.digest for r in whole.records} - {whole.records[n].digest for n in before}
    )
    study = optuna.load_study(
        study_name="tested", storage=open_storage(str(tmp_path / "cut" / "study.log"))
    )
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 24
    names = short_names(config.space.parameters())
    assert [t.params for t in study.trials] == [
        {names[key]: v for key, v in r.params.items()} for r in whole.records
    ]


def test_a_grown_budget_gives_the_trials_of_one_long_sweep(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    short = sweep(tmp_path, changes={"budget.trials": 11})
    run(short, tmp_path / "grown", InstantWorkers())
    grown = run(sweep(tmp_path), tmp_path / "grown", InstantWorkers())
    assert configs(grown.records) == configs(undisturbed("tpe").records)


def test_a_resumed_sweep_names_no_shards_of_finished_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are hashes: those of a thousand trials with 500 shards each would take a minute."""
    named: list[DecodingConfig] = []
    original = QualityShard.name

    def name(shard: QualityShard, experiment: Experiment) -> str:
        named.append(shard.config)
        return original(shard, experiment)

    whole = run(sweep(tmp_path), tmp_path / "sweep", InstantWorkers())
    monkeypatch.setattr(QualityShard, "name", name)
    resumed = run(sweep(tmp_path), tmp_path / "sweep", InstantWorkers())
    assert configs(resumed.records) == configs(whole.records)
    assert not named, "nothing is measured"


def test_existing_shards_are_not_drawn_again(tmp_path: Path) -> None:
    config, workers = sweep(tmp_path), InstantWorkers()
    first = driver(config, tmp_path / "a", InstantWorkers())
    first.run()
    kept = sorted(first.trials.build.files)[::2]
    for name in kept:
        Storage(str(tmp_path / "b")).write(name, b"")
    driver(config, tmp_path / "b", workers).run()
    shards = [name for name in workers.ran if name.startswith(("shards", "timings"))]
    assert not set(shards) & set(kept)
    assert set(shards) | set(kept) >= first.trials.build.files
    assert len(shards) == len(set(shards))


def test_a_trial_that_starts_says_how_many_shards_it_lacks(tmp_path: Path) -> None:
    config, events, whole = sweep(tmp_path), list[Event](), list[Event]()
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", dying := Dying(37))
    for name in dying.ran:
        if name.startswith("shards/"):
            Storage(str(tmp_path / "cut")).write(name, b"")
    run(config, tmp_path / "cut", InstantWorkers(), emit=events.append)
    run(config, tmp_path / "whole", InstantWorkers(), emit=whole.append)
    starts = [event for event in events if isinstance(event, TrialStarted)]
    started = {event.trial: event.shards for event in starts}
    total = {event.trial: event.total_shards for event in starts}
    drawn = images_shards(events)
    assert started == {number: drawn[number] for number in started}
    assert len(set(started.values())) > 1, "the first ones had shards already"
    at_once = images_shards(whole)
    assert total == {number: at_once[number] for number in total}


def images_shards(emitted: Sequence[Event]) -> Counter[int]:
    """How many shards of images each trial has."""
    return Counter(
        event.trial for event in emitted if isinstance(event, Shard) and event.has_images
    )


def test_a_duplicate_config_is_not_run_again(tmp_path: Path) -> None:
    config = sweep(tmp_path, parallel=2)
    few = """
space: {drafter: eagle, tree: {policy: chain, length: {values: [2, 3]}}}
"""
    path = tmp_path / "few.yaml"
    path.write_text(
        SPACE.split("space:\n")[0].replace("SAMPLER", "random").replace("PARALLEL", "2") + few
    )
    config = SweepConfig.read(str(path), {"budget.trials": 12})
    workers = InstantWorkers()
    outcome = run(config, tmp_path / "store", workers)
    distinct = {record.digest for record in outcome.records}
    # vanilla, lantern, and chains of 2 and of 3, one of which was enqueued
    assert len(distinct) == 4
    assert sum(name.startswith("measures") for name in workers.ran) == 4
    duplicates = [record for record in outcome.records if record.duplicate_of is not None]
    assert len(duplicates) == 8
    for duplicate in duplicates:
        first = outcome.records[duplicate.duplicate_of or 0]
        assert (duplicate.digest, duplicate.metrics, duplicate.shards) == (
            first.digest,
            first.metrics,
            first.shards,
        )


class Failing(InstantWorkers):
    """Every quality shard of configs with a dynamic tree runs out of memory."""

    def collect(self, timeout: float) -> list[TaskResult]:
        return [
            (
                TaskResult(result.task, None, "OutOfMemory: at batch 4")
                if result.task.kind == "quality"
                and result.task.payload["config"]["tree"]["policy"] == "dynamic"
                else result
            )
            for result in super().collect(timeout)
        ]


def test_a_trial_fails_alone_and_says_why(tmp_path: Path) -> None:
    outcome = run(sweep(tmp_path), tmp_path / "store", Failing())
    failed = [record for record in outcome.records if record.state == "failed"]
    assert failed
    assert all(record.config and record.config.policy.kind == "dynamic" for record in failed)
    assert {record.cause for record in failed} == {"OutOfMemory: at batch 4"}
    assert sum(record.state == "complete" for record in outcome.records) == 24 - len(failed)
    study = optuna.load_study(
        study_name="tested", storage=open_storage(str(tmp_path / "store" / "study.log"))
    )
    states = {trial.number: trial.state.name for trial in study.trials}
    assert all(states[record.number] == "FAIL" for record in failed)
    assert study.trials[failed[0].number].user_attrs["cause"] == "OutOfMemory: at batch 4"


class Losing(InstantWorkers):
    """The quality shards of dynamic trees are lost with their machine, which is no fault of the
    config.
    """

    def collect(self, timeout: float) -> list[TaskResult]:
        return [
            (
                TaskResult(result.task, None, "the machine is gone", permanent=False)
                if result.task.kind == "quality"
                and result.task.payload["config"]["tree"]["policy"] == "dynamic"
                else result
            )
            for result in super().collect(timeout)
        ]


def test_a_lost_trial_has_no_record_and_runs_again_on_resume(tmp_path: Path) -> None:
    config, store = sweep(tmp_path), tmp_path / "store"
    lost = run(config, store, Losing()).lost
    assert lost
    assert {record.number for record in read_trials(Storage(str(store)))} == set(range(24)) - set(
        lost
    )
    resumed = run(config, store, InstantWorkers())
    assert not resumed.lost
    assert all(resumed.records[number].state == "complete" for number in lost)
    assert {record.number for record in read_trials(Storage(str(store)))} == set(range(24))


class Misnaming(InstantWorkers):
    """Workers with other captions: the shards of dynamic trees get another name."""

    def answer(self, task: Task) -> Mapping[str, Any]:
        other = task.kind == "quality" and task.payload["config"]["tree"]["policy"] == "dynamic"
        return {**super().answer(task), **({"name": "shards/other.parquet"} if other else {})}


def test_a_shard_under_another_name_is_not_a_trials_shard(tmp_path: Path) -> None:
    outcome = run(sweep(tmp_path), tmp_path / "store", Misnaming())
    failed = [record for record in outcome.records if record.state == "failed"]
    assert failed
    assert {record.number for record in failed} == set(outcome.lost)
    assert all("shards/other.parquet instead of" in (record.cause or "") for record in failed)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_values_that_are_missing_or_not_finite_never_reach_the_study(
    tmp_path: Path, value: float | None
) -> None:
    def numbers(config: DecodingConfig) -> dict[str, float]:
        values = plausible(config)
        if config.policy.kind == "dynamic":
            values.pop("fid") if value is None else values.update(fid=value)
        return values

    class ThroughJson(InstantWorkers):
        def answer(self, task: Task) -> Mapping[str, Any]:
            return json.loads(json.dumps(super().answer(task)))  # type: ignore[no-any-return]

    outcome = run(sweep(tmp_path), tmp_path / "store", ThroughJson(numbers))
    failed = [record for record in outcome.records if record.state == "failed"]
    assert failed
    assert all("fid" in (record.cause or "") for record in failed)


def test_a_failed_baseline_ends_the_sweep(tmp_path: Path) -> None:
    class NoVanilla(InstantWorkers):
        def collect(self, timeout: float) -> list[TaskResult]:
            return [
                TaskResult(result.task, None, "no weights") for result in super().collect(timeout)
            ]

    with pytest.raises(SweepError, match=r"vanilla.*no weights"):
        run(sweep(tmp_path), tmp_path / "store", NoVanilla())
    assert len(run(sweep(tmp_path), tmp_path / "store", InstantWorkers()).records) == 24


def test_an_objective_that_vanilla_lacks_ends_the_sweep_with_the_reason(tmp_path: Path) -> None:
    class TooFew(InstantWorkers):
        def answer(self, task: Task) -> Mapping[str, Any]:
            result = {**super().answer(task)}
            if task.kind == "measure":
                fid = result["metrics"].pop("fid")
                assert fid
                result["skipped"] = {"fid": "use at least 69 images"}
            return result

    workers = TooFew()
    with pytest.raises(SweepError, match=r"vanilla.* fid: use at least 69 images"):
        run(sweep(tmp_path), tmp_path / "store", workers)
    assert sum(name.startswith("measures") for name in workers.ran) == 1
    assert read_trials(Storage(str(tmp_path / "store"))) == []


def test_budgets_end_a_sweep(tmp_path: Path) -> None:
    by_images = run(
        sweep(tmp_path, changes={"budget.images": 200}), tmp_path / "images", InstantWorkers()
    )
    assert by_images.stopped_by == "images"
    drawn = len({record.digest for record in by_images.records}) * 32
    assert 200 <= drawn < 200 + 32
    by_hours = run(
        sweep(tmp_path, changes={"budget.hours": 1e-9}), tmp_path / "hours", InstantWorkers()
    )
    assert by_hours.stopped_by == "hours"


PLATEAU = {"budget.plateau": 0.1, "budget.patience": 4, "budget.trials": 60}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_plateau_ends_a_sweep_at_the_same_trial(sampler: str, tmp_path: Path) -> None:
    """In any order of results, and after a kill; the trials in flight finish. Another launch runs
    nothing.
    """
    config = sweep(tmp_path, sampler, changes=PLATEAU)
    whole = run(config, tmp_path / "whole", InstantWorkers())
    assert whole.stopped_by == "plateau"
    told = whole.records[: len(whole.records) - config.search.parallel + 1]
    plateau = Plateau(0.1, 4, len(config.enqueue), list(map(Metric, NAMES, DIRECTIONS)))
    assert [plateau.state(told[:count]).is_reached for count in (len(told) - 1, len(told))] == [
        False,
        True,
    ]
    reverse = run(config, tmp_path / "reverse", InstantWorkers(last_first=True))
    assert configs(reverse.records) == configs(whole.records)
    for results in (30, 60):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / f"cut{results}", Dying(results))
        resumed = run(config, tmp_path / f"cut{results}", InstantWorkers())
        assert (resumed.stopped_by, configs(resumed.records)) == (
            "plateau",
            configs(whole.records),
        )
    workers = InstantWorkers()
    for changes in (PLATEAU, PLATEAU | {"budget.trials": 99}):
        again = run(sweep(tmp_path, sampler, changes=changes), tmp_path / "whole", workers)
        assert (again.stopped_by, len(again.records), workers.ran) == (
            "plateau",
            len(whole.records),
            [],
        )
    more = run(sweep(tmp_path, sampler, changes={"budget.trials": 60}), tmp_path / "whole", workers)
    assert (more.stopped_by, len(more.records)) == ("trials", 60)
    alone = run(
        sweep(tmp_path, sampler, changes={"budget.trials": 60}),
        tmp_path / "alone",
        InstantWorkers(),
    )
    assert configs(more.records) == configs(alone.records), "as if it had never stopped"
    short = run(config, tmp_path / "whole", workers)
    assert len(short.records) >= len(whole.records), "what is stored stays"


def test_a_sweep_says_how_close_its_front_is_to_a_plateau(tmp_path: Path) -> None:
    """Whenever that changes, until it ends: for a plateau, or with its budget."""
    for share, ended in ((0.1, "plateau"), (1e-9, "trials")):
        events = list[Any]()
        config = sweep(tmp_path, changes=PLATEAU | {"budget.plateau": share})
        outcome = run(config, tmp_path / ended, InstantWorkers(), emit=events.append)
        assert outcome.stopped_by == ended
        told = [event for event in events if isinstance(event, PlateauEvent)]
        assert [event.trials for event in told[:3]] == [0, 1, 2]
        assert told[-1].is_reached == (ended == "plateau")
        assert len({event.text for event in told}) > 5
    plateau = Plateau(1e-9, 4, len(config.enqueue), list(map(Metric, NAMES, DIRECTIONS)))
    assert told[-1].added == plateau.added(outcome.records), "by all trials, at the end"


def test_a_plateau_lasts_whatever_the_trials_in_flight_find() -> None:
    limits = Limits(Budget(), lambda number: False, "space", iter([False, True, False]).__next__)
    assert [limits.reached(number, is_stored=False) for number in (3, 4, 4)] == [
        None,
        "plateau",
        "plateau",
    ]


def test_hours_of_earlier_launches_count(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    three = run(sweep(tmp_path, changes={"budget.trials": 3}), folder, InstantWorkers())
    for record in three.records:  # an hour each, one after the other, weeks ago
        at = [f"2026-01-02T{record.number + hour:02d}:00:00.000+00:00" for hour in (0, 1)]
        write_trial(Storage(str(folder)), replace(record, started=at[0], finished=at[1]))
    resumed = run(
        sweep(tmp_path, changes={"budget.trials": 9, "budget.hours": 3}), folder, InstantWorkers()
    )
    assert (resumed.stopped_by, len(resumed.records)) == ("hours", 3)
    more = run(
        sweep(tmp_path, changes={"budget.trials": 5, "budget.hours": 4}), folder, InstantWorkers()
    )
    assert (more.stopped_by, len(more.records)) == ("trials", 5)


def test_a_grid_is_run_to_its_end(tmp_path: Path) -> None:
    grid = """
space:
  drafter: eagle
  tree: [{policy: chain, length: {values: [2, 3, 4]}}, {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}]
"""
    path = tmp_path / "grid.yaml"
    path.write_text(
        SPACE.split("space:\n")[0].replace("SAMPLER", "grid").replace("PARALLEL", "2") + grid
    )
    outcome = run(
        SweepConfig.read(str(path), {"budget.trials": 100}), tmp_path / "store", InstantWorkers()
    )
    assert outcome.stopped_by == "space"
    assert len(outcome.records) == 3 + 5


def test_constraints_reach_the_study(tmp_path: Path) -> None:
    config = sweep(tmp_path, changes={"constraints": ["fid <= 1.2 * vanilla"]})
    outcome = run(config, tmp_path / "store", InstantWorkers())
    limit = 1.2 * outcome.records[0].metrics["fid"].value
    for record in outcome.records:
        assert record.feasible == (record.metrics["fid"].value <= limit)
    assert 0 < sum(record.feasible for record in outcome.records) < 24
    study = optuna.load_study(
        study_name="tested", storage=open_storage(str(tmp_path / "store" / "study.log"))
    )
    assert {t.number for t in study.best_trials} <= {
        r.number for r in outcome.records if r.feasible
    }


def test_configs_that_the_model_cannot_serve_fail_undrawn(tmp_path: Path) -> None:
    def check(config: DecodingConfig) -> None:
        if config.policy.kind == "dynamic":
            raise ConfigError(("tree",), "too deep for this model")

    workers = InstantWorkers()
    outcome = run(sweep(tmp_path), tmp_path / "store", workers, check=check)
    failed = [record for record in outcome.records if record.state == "failed"]
    assert failed
    assert all("too deep for this model" in (record.cause or "") for record in failed)


def test_another_sweep_with_the_same_name_is_refused(tmp_path: Path) -> None:
    config, journal = sweep(tmp_path), tmp_path / "store" / "study.log"
    run(config, tmp_path / "store", InstantWorkers())
    other = Sweep(
        Storage(tmp_path / "other"), identity("tested", started="2025-12-24T00:00:00+00:00"), ()
    )
    with pytest.raises(StudyError, match="another sweep"):
        study_view(config, journal).update(other)
