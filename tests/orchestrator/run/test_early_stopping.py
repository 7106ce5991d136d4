"""Racing in the driver: trials grow, stop and are revived; the same for any order and after a
kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from benchmarks.instant import InstantWorkers, plausible
from orchestrator.cluster.tasks import Outcome, SweepError, Task, TaskResult
from orchestrator.run.racing import (
    EarlyStopping,
    _moved,
    at_full_size,
    front_probabilities,
    next_trials,
    with_constraints,
)
from orchestrator.store.records import EarlyStop, TrialRecord, read_trials
from orchestrator.views.study import open_storage
from search_spaces.constraints import Constraint
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.orchestrator.run.test_driver import SPACE
from tests.orchestrator.run.test_driver import run as run_driver
from workers.data.storage import Storage
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

CAPTIONS, SHARD, BLOCKS = 96, 24, 24
RUNGS = (24, 48)
CHANGES = {"captions.count": CAPTIONS, "quality.shard": 48, "budget.trials": 24}
AXES = (Metric("speedup", "maximize"), Metric("fid", "minimize"))


class CaptionWorkers(InstantWorkers):
    """Measures on the captions of the shards, with noise that captions share, and writes the
    shards' files.

    Dynamic trees are worse in both objectives. results: the driver is killed after so many.
    """

    def __init__(self, folder: Path, results: int | None = None, last_first: bool = False) -> None:
        super().__init__(last_first=last_first)
        self.storage, self.left = Storage(str(folder)), results
        self.images: dict[int, int] = {}

    def collect(self, timeout: float) -> list[TaskResult]:
        if self.left is not None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
        return super().collect(timeout)

    def answer(self, task: Task) -> Mapping[str, Any]:
        if task.kind != "measure":
            self.storage.write(task.name, b"")
            if task.kind == "quality":
                images = task.payload["stop"] - task.payload["start"]
                self.images[task.trial] = self.images.get(task.trial, 0) + images
            return super().answer(task)
        rows = self.values(DecodingConfig.from_mapping(task.payload["config"]))[
            : SHARD * len(task.payload["quality"])
        ]
        return {"metrics": self.metrics(rows), "history": [], "skipped": {}}

    def values(self, config: DecodingConfig) -> np.ndarray:
        """[captions, 2] speed-up and fid."""
        truth = plausible(config)
        worse = 0.6 * (config.policy.kind == "dynamic")
        own = np.random.default_rng(int(config.digest(), 16) % 2**32).standard_normal((CAPTIONS, 2))
        shared = np.random.default_rng(0).standard_normal((CAPTIONS, 2))
        return np.array([truth["speedup"] - worse, truth["fid"] + worse]) + shared + 0.1 * own

    def metrics(self, rows: np.ndarray) -> dict[str, Any]:
        blocks = rows.reshape(-1, BLOCKS, 2).sum(axis=0)
        left_out = (rows.sum(axis=0) - blocks) / (len(rows) * (BLOCKS - 1) / BLOCKS)
        return {
            name: {
                "value": float(mean),
                "error": 0.1,
                "n": len(rows),
                "replicates": replicates.tolist(),
            }
            for name, mean, replicates in zip(
                ("speedup", "fid"), rows.mean(axis=0), left_out.T, strict=True
            )
        }


def sweep(
    folder: Path, changes: Mapping[str, Any] | None = None, rungs: Sequence[int] = RUNGS
) -> SweepConfig:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "raced.yaml"
    text = SPACE.replace("SAMPLER", "tpe").replace("PARALLEL", "3")
    path.write_text(f"{text}racing: {{rungs: {list(rungs)}}}\n" if rungs else text)
    return SweepConfig.read(str(path), {**CHANGES, **(changes or {})})


def run(folder: Path, workers: Any = None, revive: Collection[int] = (), **changes: Any) -> Outcome:
    config = sweep(folder, {key.replace("__", "."): value for key, value in changes.items()})
    workers = workers or CaptionWorkers(folder / "store")
    return run_driver(config, folder / "store", workers, revive)


def without_times(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [replace(record, started="", finished="") for record in records]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, CaptionWorkers]:
    folder = tmp_path_factory.mktemp("undisturbed")
    workers = CaptionWorkers(folder / "store")
    return folder, run(folder, workers), workers


def stopped_of(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [
        record for record in records if record.state == "stopped" and record.duplicate_of is None
    ]


def test_only_trials_that_a_rival_beats_stop(
    undisturbed: tuple[Path, Outcome, CaptionWorkers],
) -> None:
    folder, outcome, workers = undisturbed
    records = outcome.records
    stopped = stopped_of(records)
    assert len(stopped) >= 3
    for record in stopped:
        assert record.number >= 3, "enqueued configs run to the end"
        assert record.config is not None
        assert record.stop is not None
        assert record.stop.rival <= record.number - 3, "known before the trial was proposed"
        assert record.images == record.stop.images == workers.images[record.number]
        assert record.images in RUNGS
        assert str(record.stop.rival) in (record.cause or "")
        assert 0 <= record.stop.chance < 0.05
        assert not record.feasible
        rival = dict(records[record.stop.rival].history)[record.images]
        assert rival["speedup"].value > record.metrics["speedup"].value
        assert rival["fid"].value < record.metrics["fid"].value
        assert [images for images, _ in record.history] == [
            rung for rung in RUNGS if rung <= record.images
        ]
    for record in records:
        if record.state == "complete":
            assert [images for images, _ in record.history] == [*RUNGS, CAPTIONS]
            assert record.metrics == record.history[-1][1]
    assert read_trials(Storage(str(folder / "store"))) == list(records)


def test_dominated_trials_stop_and_the_likely_ones_go_on_in_the_end(tmp_path: Path) -> None:
    """Without a test more trials stop, and earlier; each has a rival that was finished before it
    was proposed.
    """
    undisturbed, dominated = (
        run(tmp_path / "tested"),
        run(tmp_path / "dominated", racing__stop="dominated"),
    )
    records = {record.number: record for record in dominated.records}
    ever = [record for record in dominated.records if record.stop is not None]
    assert len(ever) > len([record for record in undisturbed.records if record.stop is not None])
    for record in ever:
        stop = record.stop
        assert stop is not None
        own, rival = (dict(entry.history)[stop.images] for entry in (record, records[stop.rival]))
        assert rival["speedup"].value >= own["speedup"].value
        assert rival["fid"].value <= own["fid"].value
        assert stop.rival <= record.number - 3
    again = run(tmp_path / "again", racing__stop="dominated")
    assert without_times(again.records) == without_times(dominated.records)


class TwoDevices(CaptionWorkers):
    """The costs of every second setting are known on another device alone."""

    def answer(self, task: Task) -> Mapping[str, Any]:
        output = super().answer(task)
        return (
            {**output, "device": device_of(task.payload["config"])}
            if task.kind == "measure"
            else output
        )


def device_of(config: Mapping[str, Any]) -> str:
    setting = DecodingConfig.from_mapping(config)
    return f"gpu {0 if setting.is_vanilla else int(setting.digest(), 16) % 2}"


@pytest.mark.parametrize("workers", [CaptionWorkers, TwoDevices])
def test_only_speeds_of_one_device_stop_a_trial(
    workers: type[CaptionWorkers], tmp_path: Path
) -> None:
    """Where nobody says what timed a trial, rivals stop it that another device would have timed."""
    records = run(tmp_path, workers(tmp_path / "store"), racing__stop="dominated").records
    same = set()
    for record in records:
        if record.stop is not None and record.config is not None:
            rival = records[record.stop.rival].config
            assert rival is not None
            same.add(device_of(record.config.to_mapping()) == device_of(rival.to_mapping()))
    assert same == ({True} if workers is TwoDevices else {True, False})
    assert {record.device for record in records} == (
        {"gpu 0", "gpu 1"} if workers is TwoDevices else {""}
    )


def test_a_trial_that_another_device_timed_is_beaten_by_none(tmp_path: Path) -> None:
    better = {"speedup": Estimate(3.0, 0.01, 9), "fid": Estimate(4.0, 0.01, 9)}
    worse = {"speedup": Estimate(1.0, 0.01, 9), "fid": Estimate(9.0, 0.01, 9)}
    first, rival = (
        TrialRecord(number, "", "complete", None, metrics=better, images=9, timed_on={9: "gpu 0"})
        for number in (0, 1)
    )
    share = {}
    for device in ("gpu 0", "gpu 1", ""):
        timed_on = {4: device} if device else {}
        stopped = TrialRecord(
            2,
            "",
            "stopped",
            None,
            metrics=worse,
            images=4,
            timed_on=timed_on,
            stop=EarlyStop(1, 4, 0.1),
        )
        share[device] = front_probabilities([first, rival, stopped], AXES)[2]
    assert share == {"gpu 0": 0.0, "gpu 1": 1.0, "": 0.0}
    assert front_probabilities(
        [first, rival, replace(stopped, timed_on={4: "gpu 1"})], AXES[1:]
    ) == {2: 0.0}


def test_the_study_gets_the_values_expected_on_all_images(
    undisturbed: tuple[Path, Outcome, CaptionWorkers],
) -> None:
    folder, outcome, workers = undisturbed
    study = optuna.load_study(
        study_name="tested", storage=open_storage(str(folder / "store" / "study.log"))
    )
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    for record in stopped_of(outcome.records):
        trial = study.trials[record.number]
        assert trial.user_attrs["stopped"] == record.cause
        assert trial.user_attrs["images"] == record.images
        assert all(trial.user_attrs[name] == entry.value for name, entry in record.metrics.items())
        assert record.config is not None
        # captions' noise, 0.1 a metric, cancels against vanilla
        on_all = workers.values(record.config).mean(axis=0)
        assert trial.values == pytest.approx(on_all.tolist(), abs=0.15)
        assert any(violation > 0 for violation in trial.constraints.values())
    best = {trial.number for trial in study.best_trials}
    assert best
    assert all(outcome.records[number].state == "complete" for number in best)
    complete = [record for record in outcome.records if record.state == "complete"]
    assert all("stopped" not in study.trials[record.number].user_attrs for record in complete)


def test_the_order_of_results_changes_nothing(
    undisturbed: tuple[Path, Outcome, CaptionWorkers], tmp_path: Path
) -> None:
    other = run(tmp_path, CaptionWorkers(tmp_path / "store", last_first=True))
    assert without_times(other.records) == without_times(undisturbed[1].records)


@pytest.mark.parametrize("results", [2, 33, 64, 95])
def test_a_killed_sweep_resumes_to_the_same_records(
    results: int, undisturbed: tuple[Path, Outcome, CaptionWorkers], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, CaptionWorkers(tmp_path / "store", results))
    assert without_times(run(tmp_path).records) == without_times(undisturbed[1].records)


def test_a_budget_of_images_buys_more_trials_with_racing(tmp_path: Path) -> None:
    def trials(folder: Path, rungs: Sequence[int]) -> list[TrialRecord]:
        config = sweep(folder, {"budget.images": 1300, "budget.trials": 99}, rungs)
        outcome = run_driver(config, folder / "store", CaptionWorkers(folder / "store"))
        assert outcome.stopped_by == "images"
        assert (
            sum(r.images for r in outcome.records if r.duplicate_of is None) >= 1300 - 2 * CAPTIONS
        )
        return list(outcome.records)

    assert len(trials(tmp_path / "raced", RUNGS)) > len(trials(tmp_path / "plain", ()))


def test_revived_trials_run_to_the_end_and_a_kill_loses_nothing(
    undisturbed: tuple[Path, Outcome, CaptionWorkers], tmp_path: Path
) -> None:
    before = undisturbed[1].records
    numbers = [record.number for record in stopped_of(before)][:2]

    def copy(name: str) -> Path:
        shutil.copytree(undisturbed[0], tmp_path / name)
        return tmp_path / name

    copy("whole")
    whole = run(tmp_path / "whole", revive=numbers).records
    for number in numbers:
        record, old = whole[number], before[number]
        assert (record.state, record.cause, record.stop) == ("complete", None, old.stop)
        assert [images for images, _ in record.history] == [*RUNGS, CAPTIONS]
        assert dict(record.history)[old.images] == old.metrics
        past = EarlyStopping(sweep(tmp_path), AXES).before_revival(record)
        assert (past.state, past.cause, past.metrics, past.images) == (
            "stopped",
            old.cause,
            old.metrics,
            old.images,
        )
        assert all(whole[r.number].images == CAPTIONS for r in whole if r.duplicate_of == number)
    study = optuna.load_study(
        study_name="tested", storage=open_storage(str(tmp_path / "whole" / "store" / "study.log"))
    )
    for number in numbers:
        revived = study.user_attrs[f"revived {number}"]
        assert revived.startswith(f"complete at {CAPTIONS} images: ")
        assert all(f"{value.value:.6g}" in revived for value in whole[number].metrics.values())
    for results in range(5):
        folder = copy(f"{results}")
        with pytest.raises(KeyboardInterrupt):
            run(folder, CaptionWorkers(folder / "store", results), numbers)
        for record in read_trials(Storage(str(folder / "store"))):
            assert (
                dict(record.history)[before[record.number].images] == before[record.number].metrics
            )
        resumed = run(folder, revive=numbers)
        assert without_times(resumed.records) == without_times(whole)


def test_a_revival_that_fails_or_is_beyond_the_budget_says_so(tmp_path: Path) -> None:
    class Broken(CaptionWorkers):
        def answer(self, task: Task) -> Mapping[str, Any]:
            return (
                {"metrics": {}, "history": [], "skipped": {}}
                if task.kind == "measure"
                else super().answer(task)
            )

    number = stopped_of(run(tmp_path).records)[-1].number
    with pytest.raises(SweepError, match=f"trial {number} could not go on: .*fid"):
        run(tmp_path, Broken(tmp_path / "store"), [number])
    with pytest.raises(SweepError, match=r"budget\.trials"):
        run(tmp_path, revive=[number], budget__trials=number)
    assert stopped_of(read_trials(Storage(str(tmp_path / "store"))))[-1].number == number


def test_a_sweep_from_before_rungs_had_metrics_keeps_its_constraints() -> None:
    vanilla = replace(record_of(0, np.ones((BLOCKS, 2))), history=((CAPTIONS, {}),))
    constraint = Constraint.parse("fid <= vanilla + 0.5")
    worse = record_of(1, np.full((BLOCKS, 2), 3.0))
    assert with_constraints(worse, [constraint], [vanilla]).constraints[
        constraint.text
    ] == pytest.approx(1.5)


def test_a_sweep_that_grows_after_a_revival_proposes_as_before(tmp_path: Path) -> None:
    long = run(tmp_path / "long", budget__trials=20).records
    short = run(tmp_path / "short", budget__trials=14).records
    numbers = [record.number for record in stopped_of(short)]
    run(tmp_path / "short", revive=numbers, budget__trials=14)
    grown = run(tmp_path / "short", budget__trials=20).records
    assert [record.params for record in grown] == [record.params for record in long]
    assert [record.stop for record in grown] == [record.stop for record in long]
    assert {record.number for record in grown if record.stop and record.state == "complete"} >= set(
        numbers
    )


def test_objectives_that_cannot_be_measured_at_a_rung_end_the_sweep_with_the_key(
    tmp_path: Path,
) -> None:
    class TooFew(CaptionWorkers):
        def metrics(self, rows: np.ndarray) -> dict[str, Any]:
            found = super().metrics(rows)
            return {"speedup": found["speedup"]} if len(rows) < 48 else found

    class WithoutBlocks(CaptionWorkers):
        def metrics(self, rows: np.ndarray) -> dict[str, Any]:
            found = super().metrics(rows)
            return {**found, "fid": {**found["fid"], "replicates": []}}

    with pytest.raises(SweepError, match=r"24 images, fid.*racing\.rungs"):
        run(tmp_path / "few", TooFew(tmp_path / "few" / "store"))
    with pytest.raises(SweepError, match=r"racing: .*fid on 0"):
        run(tmp_path / "none", WithoutBlocks(tmp_path / "none" / "store"))


def record_of(number: int, blocks: np.ndarray, images: int = CAPTIONS, **facts: Any) -> TrialRecord:
    """Of two objectives with block means [G, 2]."""
    left_out = (blocks.sum(axis=0) - blocks) / (len(blocks) - 1)
    error = blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    metrics = {
        axis.name: Estimate(
            float(blocks[:, j].mean()), float(error[j]), images, tuple(left_out[:, j].tolist())
        )
        for j, axis in enumerate(AXES)
    }
    history = ((24, metrics), (images, metrics)) if images > 24 else ((24, metrics),)
    fields = {
        "state": "complete",
        "metrics": metrics,
        "history": history,
        "images": images,
        **facts,
    }
    return TrialRecord(number, "", config=DecodingConfig(), **fields)


def synthetic(gap: float, noise: float, seed: int = 0) -> list[TrialRecord]:
    """Vanilla, a good trial, and a stopped one that is `gap` behind it in both objectives."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((BLOCKS, 2))
    good = shared + np.array([2.0, 4.0])
    late = good + np.array([-gap, gap]) + noise * rng.standard_normal((BLOCKS, 2))
    stop = EarlyStop(1, 24, 0.001)
    return [
        record_of(0, shared + np.array([1.0, 5.0])),
        record_of(1, good),
        record_of(2, late, 24, state="stopped", stop=stop, cause="why"),
    ]


def test_the_probability_to_be_on_the_front_uses_what_trials_share() -> None:
    assert front_probabilities(synthetic(0.5, 0.01), AXES) == {2: 0.0}, (
        "0.5 is within the errors, but not apart"
    )
    (close,) = front_probabilities(synthetic(0.0, 0.5), AXES).values()
    assert 0.3 < close < 0.98
    violating = synthetic(0.0, 0.5)
    violating[2] = replace(violating[2], constraints={"fid <= 1": 0.5})
    assert front_probabilities(violating, AXES) == {}


def test_the_least_sure_trials_go_on_until_nothing_is_uncertain() -> None:
    records = [*synthetic(0.0, 0.5), replace(synthetic(5.0, 0.1)[2], number=3)]

    def run_all(threshold: float, budget: int | None, numbers: Collection[int] = ()) -> list[int]:
        found, current = [], list(records)
        while queue := next_trials(current, AXES, numbers, threshold=threshold, budget=budget):
            found.append(queue[0])
            current[queue[0]] = replace(current[queue[0]], state="complete", images=CAPTIONS)
        return found

    assert run_all(0.05, None) == [2]
    assert run_all(0.05, None, [3]) == [3, 2]
    assert run_all(0.99, None) == []
    assert run_all(0.05, 1) == []
    assert next_trials(records, AXES, (), threshold=0.05, budget=None, failed={2}) == [], (
        "it cannot be measured"
    )
    both = [
        next_trials(records, AXES, (2, 3), threshold=1.0, budget=budget) for budget in (None, 1)
    ]
    assert both == [[2, 3], [2]], "with a budget of images no trial generates ahead"


def test_a_revived_trial_passes_a_rung_at_which_a_metric_is_missing(
    undisturbed: tuple[Path, Outcome, CaptionWorkers], tmp_path: Path
) -> None:
    folder, outcome, _ = undisturbed
    number = next(
        record.number for record in stopped_of(outcome.records) if record.images == RUNGS[0]
    )
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)

    class Lacking(CaptionWorkers):
        def metrics(self, rows: np.ndarray) -> dict[str, Any]:
            metrics = super().metrics(rows)
            return {"fid": metrics["fid"]} if len(rows) == RUNGS[1] else metrics

    workers = Lacking(tmp_path / "store")
    revived = run(tmp_path, workers, revive=[number], constraints=["speedup >= 0.1"]).records[
        number
    ]
    assert (revived.state, revived.images) == ("complete", CAPTIONS)
    assert [list(metrics) for _, metrics in revived.history] == [
        ["speedup", "fid"],
        ["fid"],
        ["speedup", "fid"],
    ]


def test_revived_trials_draw_at_the_same_time(
    undisturbed: tuple[Path, Outcome, CaptionWorkers], tmp_path: Path
) -> None:
    """The records are those of trials that go on one by one, as with a budget of images."""

    class Watched(CaptionWorkers):
        most = 0

        def collect(self, timeout: float) -> list[TaskResult]:
            self.most = max(
                self.most, len({task.trial for task in self.waiting if task.kind == "quality"})
            )
            return super().collect(timeout)

    numbers = [record.number for record in stopped_of(undisturbed[1].records)][:3]
    found = []
    for images in (None, 10**9):
        folder = tmp_path / str(images)
        run(folder)
        workers = Watched(folder / "store")
        found.append(
            (
                without_times(run(folder, workers, numbers, budget__images=images).records),
                workers.most,
            )
        )
    assert [most for _, most in found] == [3, 1]
    assert found[0][0] == found[1][0]


def test_a_stopped_trials_values_are_moved_by_vanillas_difference() -> None:
    vanilla, _, stopped = synthetic(0.2, 0.1)
    early = {name: replace(entry, value=entry.value + 1) for name, entry in vanilla.metrics.items()}
    vanilla = replace(vanilla, history=((24, early), (CAPTIONS, vanilla.metrics)))
    moved = at_full_size(stopped, vanilla)
    assert moved.metrics["fid"].value == pytest.approx(stopped.metrics["fid"].value - 1)
    assert moved.metrics["fid"].error == pytest.approx(stopped.metrics["fid"].error)
    assert moved.metrics["fid"].n == CAPTIONS
    assert at_full_size(vanilla, vanilla) is vanilla


def test_a_distance_to_vanilla_is_moved_by_its_own_bias() -> None:
    """1.5 + 48 / n images: as many as all 96 images would give, although vanilla's is 0 at any
    n.
    """
    blocks, n = 24, 24
    replicates = (1.5 + 48 / (n * (blocks - 1) / blocks),) * blocks
    moved = _moved(Estimate(3.5, 0.3, n, replicates), Estimate(0.0, 0.0, n), Estimate(0.0, 0.0, 96))
    assert moved.value == pytest.approx(2.0)
    assert moved.n == 96
    assert np.mean(moved.replicates) - moved.value == pytest.approx(replicates[0] - 3.5)


def test_a_record_with_its_stop_survives_json() -> None:
    record = synthetic(0.2, 0.1)[2]
    assert TrialRecord.from_json(record.to_json()) == record
