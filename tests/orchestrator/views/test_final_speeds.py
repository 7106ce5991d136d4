"""Speeds that timing sessions change after a trial was told: the views show the final ones once a
sweep has ended.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from orchestrator.front.questions import front_records
from orchestrator.store.files import read_table
from orchestrator.store.launches import load_identity
from orchestrator.store.records import TrialRecord, read_trials, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Ending, View, Views
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError
from orchestrator.views.mlflow_runs import sweep_metrics
from orchestrator.views.mlflow_sync import sync
from orchestrator.views.tables import Tables
from tests.fakes.metric_inputs import write_session
from tests.fakes.mlflow_processes import sync_result
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import give_time
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

TRIALS = 5
LIMIT = "speedup >= 1"
SPEEDS = (1.0, 0.8, 3.5, 1.4, 1.2)  # as told: the sessions lower some and raise others


@pytest.fixture
def storage(tmp_path: Path, empty_database: Path) -> Storage:
    """A sweep whose speeds no session has changed yet, next to a database that lacks it."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    records = write_sweep(tmp_path / "sweep", TRIALS, name="demo", failed=(), constraints=[LIMIT])
    storage = Storage(str(tmp_path / "sweep"))
    for record, speed in zip(records, SPEEDS, strict=True):
        metrics = {**record.metrics, "speedup": Estimate(speed, 0.5, 9)}
        passes = (143.0 if record.config and record.config.is_vanilla else 50.0,) * 25
        told = replace(
            record, metrics=metrics, history=(), passes={1: passes}, constraints={LIMIT: 1 - speed}
        )
        write_trial(storage, told)
    return storage


def time_all(storage: Storage) -> dict[int, TrialRecord]:
    """Write a session that times every setting; returns the sweep's records with the final
    speeds.
    """
    configs = {record.config: record.number for record in read_trials(storage) if record.config}
    costs = {
        config: [0.03 * (1 + 0.4 * number) * wobble for wobble in (1.0, 1.01) * 3]
        for config, number in configs.items()
    }
    write_session(storage, costs)
    return {record.number: record for record in Sweep.open(storage).records}


def runs(storage: Storage) -> tuple[MlflowClient, Run, dict[int, Run]]:
    """The client, the sweep's run, and the trials' runs by number."""
    path = storage.path("x")
    assert path is not None
    client = MlflowClient(f"sqlite:///{path.parents[1]}/mlflow.db")
    experiment = client.get_experiment_by_name("specfrontier/demo")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    trials = {
        int(r.data.tags["specfrontier.trial"]): r
        for r in found
        if "specfrontier.trial" in r.data.tags
    }
    (parent,) = (run for run in found if "specfrontier.trial" not in run.data.tags)
    assert len(found) == TRIALS + 1
    return client, parent, trials


def shown(storage: Storage) -> dict[int, tuple[float, float, str]]:
    """The speed-up, its error and whether it is on the front, of each trial in MLflow."""
    return {
        number: (
            run.data.metrics["speedup"],
            run.data.metrics["error/speedup"],
            run.data.tags["specfrontier.pareto"],
        )
        for number, run in runs(storage)[2].items()
    }


def points(storage: Storage, key: str = "speedup") -> dict[int, int]:
    """How often a metric of each trial was logged."""
    client, _, trials = runs(storage)
    return {
        number: len(client.get_metric_history(run.info.run_id, key))
        for number, run in trials.items()
    }


def expected(storage: Storage) -> dict[int, tuple[float, float, str]]:
    sweep = Sweep.open(storage)
    front = {record.number for record in front_records(sweep)}
    return {
        record.number: (
            record.metrics["speedup"].value,
            record.metrics["speedup"].error,
            str(record.number in front).lower(),
        )
        for record in sweep.records
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that MLflow was asked to change, one entry for each request."""
    made: list[str] = []
    original = MlflowClient.log_batch

    def log_batch(client: MlflowClient, run_id: str, *rest: Any, **more: Any) -> None:
        made.append(run_id)
        original(client, run_id, *rest, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    return made


def test_final_speeds_replace_those_that_were_logged(
    storage: Storage, calls: list[str], tmp_path: Path
) -> None:
    sync(storage)
    told = shown(storage)
    assert [told[number][0] for number in range(TRIALS)] == list(SPEEDS)
    records = time_all(storage)
    differ = {n for n, record in records.items() if record.metrics["speedup"].value != SPEEDS[n]}
    assert {records[n].metrics["speedup"].value > SPEEDS[n] for n in differ} == {True, False}, (
        "some rise, others fall"
    )
    calls.clear()
    assert sync(storage) == sync_result(0, TRIALS)
    client, parent, trials = runs(storage)
    assert shown(storage) == expected(storage) != told
    changed = [run_id for run_id in calls if run_id != parent.info.run_id]
    assert len(changed) == len(set(changed)) <= TRIALS, "one request for each run"
    assert points(storage) == {n: 1 + (n in differ) for n in range(TRIALS)}, (
        "the value as told stays in the history"
    )
    assert set(points(storage, "fid").values()) == {1}
    for number, run in trials.items():
        tags, record = run.data.tags, records[number]
        assert tags["specfrontier.feasible"] == str(record.feasible).lower()
        assert tags.get("specfrontier.violated_constraints", "") == (
            "" if record.feasible else LIMIT
        )
    assert {r.feasible for r in records.values()} == {True, False}
    best = records[max(differ)]
    text = Path(
        download_artifacts(
            run_id=trials[best.number].info.run_id,
            artifact_path="config.yaml",
            dst_path=str(tmp_path / "got"),
            tracking_uri=f"sqlite:///{tmp_path}/mlflow.db",
        )
    ).read_text()
    assert f"speedup {best.metrics['speedup']} at batch" in text
    front = {number for number, entry in expected(storage).items() if entry[2] == "true"}
    assert parent.data.metrics["front"] == len(front)
    history = {
        key: client.get_metric_history(parent.info.run_id, key) for key in parent.data.metrics
    }
    assert len(history["trials"]) == TRIALS
    for count, entries in sweep_metrics(Sweep.open(storage), 0).items():
        for key, value in entries.items():
            points_at = [point for point in history[key] if point.step == count]
            last = max(points_at, key=lambda point: point.timestamp)
            assert last.value == value or (math.isnan(last.value) and math.isnan(value))
    assert len(history["hypervolume"]) > TRIALS, "the values as told stay in the history"
    calls.clear()
    sync(storage)
    assert len(client.get_metric_history(parent.info.run_id, "hypervolume")) == len(
        history["hypervolume"]
    ), "once"
    note = parent.data.tags["mlflow.note.content"]
    assert all(
        str(records[number].metrics["speedup"]).partition(" ±")[0] in note for number in front
    )


def test_a_speed_of_another_device_is_not_shown_as_one_of_the_sweeps(
    storage: Storage, calls: list[str]
) -> None:
    """MLflow keeps what was told of a trial that only another device timed, but its value is none
    any more.
    """
    vanilla, *others = read_trials(storage)
    write_trial(storage, replace(others[1], timed_on={others[1].images: "gpu B"}))
    sync(storage)
    assert runs(storage)[2][2].data.tags["specfrontier.timed_on"] == "gpu B"
    for name, part in (("A", [others[0], *others[2:]]), ("B", [others[1]])):
        costs = {
            record.config: [0.03, 0.031, 0.03, 0.031]
            for record in (vanilla, *part)
            if record.config
        }
        write_session(storage, costs, device=f"gpu {name}", name=f"timings/{name}.parquet")
    sync(storage)
    client, parent, trials = runs(storage)
    tags = {
        number: run.data.tags.get("specfrontier.timed_on", "") for number, run in trials.items()
    }
    assert tags == dict.fromkeys((0, 1, 3, 4), "gpu A, 1 thread") | {2: ""}
    assert math.isnan(trials[2].data.metrics["speedup"])
    assert math.isnan(trials[2].data.metrics["error/speedup"])
    assert trials[2].data.metrics["fid"] == others[1].metrics["fid"].value
    ids, history = (
        [parent.info.experiment_id],
        client.get_metric_history(trials[2].info.run_id, "speedup"),
    )
    assert history[0].value == SPEEDS[2]
    best = client.search_runs(
        ids, "tags.`specfrontier.kind` = 'trial'", order_by=["metrics.speedup DESC"]
    )
    assert best[-1].info.run_id == trials[2].info.run_id
    calls.clear()
    sync(storage)
    assert set(calls) == {parent.info.run_id}, "nothing again"
    costs = {
        record.config: [0.03, 0.031, 0.03, 0.031]
        for record in (vanilla, others[1])
        if record.config
    }
    write_session(storage, costs, device="gpu A", name="timings/C.parquet", is_later=True)
    sync(storage)
    assert shown(storage) == expected(storage)


def test_a_sync_that_is_repeated_logs_nothing_again(storage: Storage, calls: list[str]) -> None:
    sync(storage)
    time_all(storage)
    sync(storage)
    before, counted = shown(storage), points(storage)
    calls.clear()
    sync(storage)
    assert set(calls) == {runs(storage)[1].info.run_id}, "the description alone"
    assert (shown(storage), points(storage)) == (before, counted)


def test_a_sync_that_fails_half_way_is_repeated(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the requests arrive, one of them without an answer."""
    sync(storage)
    time_all(storage)
    original, left = MlflowClient.log_batch, [3]

    def log_batch(client: MlflowClient, run_id: str, *rest: Any, **more: Any) -> None:
        original(client, run_id, *rest, **more)
        left[0] -= 1
        if not left[0]:
            raise OSError("no answer")

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    with pytest.raises(TrackingError, match="no answer"):
        sync(storage)
    sync(storage)
    assert shown(storage) == expected(storage)
    assert max(points(storage).values()) == 2


def test_a_run_that_was_not_completed_gets_the_final_speeds(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values as told arrived before the sweep was killed, at the moment of the trial's end."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_terminated", refuse)
        with pytest.raises(TrackingError, match="killed"):
            sync(storage)
    time_all(storage)
    sync(storage)
    assert shown(storage) == expected(storage)


class Seen(View[Sweep]):
    """The speed-ups at the end. is_priced: see `View`."""

    def __init__(self, *, is_priced: bool) -> None:
        super().__init__()
        self.is_priced = is_priced
        self.speeds: Mapping[int, float] = {}

    def end(self, source: Sweep, how: Ending) -> None:
        self.speeds = {record.number: record.metrics["speedup"].value for record in source.records}

    def describe(self, problem: str) -> str:
        return problem


def test_a_sweep_that_ends_gives_its_views_the_final_speeds(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those that keep what was told, such as the study. A resumed sweep without news
    changes nothing.
    """
    records, identity = read_trials(storage), load_identity(storage)
    give_time(monkeypatch, Tables, Seen, MlflowView)

    def follow() -> tuple[Seen, Seen]:
        told, final = Seen(is_priced=False), Seen(is_priced=True)
        views = Views(storage, [Tables(), told, final, MlflowView(storage)])
        views.start(identity)
        for record in records:
            views.update(record)
        if not storage.names("timings"):
            time_all(storage)
        assert views.end("finished") == []
        return told, final

    told, final = follow()
    values = {number: entry[0] for number, entry in expected(storage).items()}
    assert (told.speeds, final.speeds) == (dict(enumerate(SPEEDS)), values)
    assert shown(storage) == expected(storage)
    assert dict(zip(*_columns(storage), strict=True)) == values
    before = points(storage)
    follow()
    assert (shown(storage), points(storage)) == (expected(storage), before)


def _columns(storage: Storage) -> tuple[list[int], list[float]]:
    table = read_table(storage, "trials.parquet", ["number", "speedup"], fix="")
    return table.column("number").to_pylist(), table.column("speedup").to_pylist()
