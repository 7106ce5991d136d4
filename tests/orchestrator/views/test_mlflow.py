"""Sweeps and trainings in a real MLflow database: what their runs hold, and that each trial has
exactly one run.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from orchestrator.store.files import write_sweep_text
from orchestrator.store.launches import load_identity
from orchestrator.store.records import TrialRecord, read_trials, trial_file, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Ending, Follower, Views
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError
from orchestrator.views.mlflow_sync import find_location, sync
from orchestrator.views.tables import write_tables
from orchestrator.views.training import TrainingView
from search_spaces.trial import DecodingConfig
from tests.fakes.mlflow_processes import run_in_child, sync_and_die, sync_in_child, sync_result
from tests.fakes.synthetic_sweeps import stop_early, write_sweep
from tests.fakes.waiting import HANG_S, give_time, wait_until
from workers.data.checked_json import dump_checked, load_checked
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

TRIALS, FAILED = 9, 7


@pytest.fixture
def storage(tmp_path: Path, empty_database: Path) -> Storage:
    """A sweep next to a database that lacks it."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    write_sweep(tmp_path / "sweep", TRIALS, name="demo", failed=(FAILED,))
    return Storage(str(tmp_path / "sweep"))


def client(storage: Storage) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    path = storage.path("x")
    assert path is not None
    return MlflowClient(f"sqlite:///{path.parents[1]}/mlflow.db")


def runs_of(
    found: MlflowClient, experiment: str = "specfrontier/demo"
) -> tuple[Run, dict[int, Run]]:
    """The sweep's run and its trials' runs by number; fails if there is a duplicate or a foreign
    run.
    """
    place = found.get_experiment_by_name(experiment)
    assert place is not None
    runs = found.search_runs([place.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {parent.info.run_id}
    numbers = [int(run.data.tags["specfrontier.trial"]) for run in children]
    assert len(numbers) == len(set(numbers))
    return parent, dict(zip(numbers, children, strict=True))


def test_no_credentials_reach_mlflow(storage: Storage, tmp_path: Path) -> None:
    from mlflow.artifacts import download_artifacts

    source = "s3://AKID:hunter22@bucket/real"
    facts = load_checked(storage.read("identity.json"))
    facts["reference"]["source"] = source
    storage.write("identity.json", dump_checked(facts))
    write_sweep_text(storage, yaml.safe_dump({"name": "demo", "reference": {"source": source}}))
    sync(storage)
    parent, children = runs_of(client(storage))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for run in (parent, *children.values()):
        assert "hunter22" not in str(run.to_dictionary())
        folder = Path(
            download_artifacts(
                run_id=run.info.run_id, dst_path=str(tmp_path / "got"), tracking_uri=uri
            )
        )
        for file in (path for path in folder.rglob("*") if path.is_file()):
            assert b"hunter22" not in file.read_bytes(), file
    shown = yaml.safe_load((tmp_path / "got" / "sweep.yaml").read_text())["reference"]["source"]
    assert (
        shown == json.loads((tmp_path / "got" / "identity.json").read_text())["reference"]["source"]
    )
    assert shown == "s3://***@bucket/real"


def test_every_trial_is_a_run_with_its_setting_metrics_and_pictures(
    storage: Storage, tmp_path: Path
) -> None:
    from mlflow.artifacts import download_artifacts

    write_tables(Sweep.open(storage))
    storage.write("report.html", b"a view")
    assert sync(storage) == sync_result(TRIALS, 0)
    found = client(storage)
    parent, children = runs_of(found)
    assert children.keys() == set(range(TRIALS))
    for record in Sweep.open(storage).records:
        run = children[record.number]
        assert record.config is not None
        flat = {key: str(value) for key, value in record.config.flat().items()}
        assert run.data.params == flat, "what a setting lacks is absent"
        for name, entry in record.metrics.items():
            assert run.data.metrics[name] == entry.value
            assert run.data.metrics[f"error/{name}"] == entry.error
            histories = [
                found.get_metric_history(run.info.run_id, key) for key in (name, f"series/{name}")
            ]
            assert [[point.step for point in h] for h in histories] == [
                [entry.n],
                [entry.n // 2, entry.n],
            ]
        assert run.info.status == ("FAILED" if record.number == FAILED else "FINISHED")
        assert run.info.end_time - run.info.start_time == 1000
        got = download_artifacts(
            run_id=run.info.run_id, dst_path=str(tmp_path / "got"), tracking_uri=uri(storage)
        )
        folder = Path(got)
        assert (
            DecodingConfig.from_mapping(yaml.safe_load((folder / "config.yaml").read_bytes()))
            == record.config
        )
        if record.number != FAILED:
            assert (folder / "images.png").read_bytes() == storage.read(
                f"pictures/{record.digest}.png"
            )
            assert (folder / "heatmap.png").read_bytes() == storage.read(
                f"heatmaps/{record.digest}.png"
            )
        shutil.rmtree(folder)
    assert "OutOfMemoryError" in children[FAILED].data.tags["specfrontier.cause"]
    assert (parent.info.run_name, parent.info.status) == ("demo", "FINISHED")
    assert parent.data.metrics["trials"] == TRIALS
    assert len(found.get_metric_history(parent.info.run_id, "hypervolume")) == TRIALS
    names = {entry.path for entry in found.list_artifacts(parent.info.run_id)}
    views = {"front.png", "report.html", "front.parquet", "trials.parquet"}
    assert names == {*views, "sweep.yaml", "identity.json"}


def uri(storage: Storage) -> str:
    path = storage.path("x")
    assert path is not None
    return f"sqlite:///{path.parents[1]}/mlflow.db"


def contents(storage: Storage) -> list[tuple[object, ...]]:
    """All that MLflow has of the sweep's runs, for comparison."""
    parent, children = runs_of(client(storage))
    runs = [parent, *(children[number] for number in sorted(children))]
    return [
        (run.info.run_id, run.info.status, run.data.params, run.data.metrics, run.data.tags)
        for run in runs
    ]


def test_a_second_sync_changes_nothing(storage: Storage) -> None:
    sync(storage)
    before = contents(storage)
    assert sync(storage) == sync_result(0, TRIALS)
    assert contents(storage) == before


def test_a_lost_database_is_rebuilt(storage: Storage, tmp_path: Path, empty_database: Path) -> None:
    sync(storage)
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    assert sync_in_child(storage, tmp_path / "output") == "SyncResult(logged=9, already=0)"
    assert sync_in_child(storage, tmp_path / "output") == "SyncResult(logged=0, already=9)"


def test_exactly_the_front_has_the_pareto_tag(storage: Storage) -> None:
    def marked() -> set[int]:
        _, children = runs_of(client(storage))
        return {
            number
            for number, run in children.items()
            if run.data.tags["specfrontier.pareto"] == "true"
        }

    sync(storage)
    records = [r for r in Sweep.open(storage).records if r.feasible]
    values = {r.number: (-r.metrics["speedup"].value, r.metrics["fid"].value) for r in records}
    front = {
        number
        for number, (slow, bad) in values.items()
        if not any(s <= slow and b <= bad and (s, b) != (slow, bad) for s, b in values.values())
    }
    assert marked() == front
    assert len(front) > 1
    best = {"speedup": Estimate(99.0, 0.1, 9), "fid": Estimate(0.01, 0.1, 192)}
    lossy = next(r for r in records if r.config and r.config.acceptance.is_relaxed)
    write_trial(storage, another(lossy, TRIALS, metrics={**lossy.metrics, **best}))
    assert sync(storage) == sync_result(1, TRIALS)
    assert marked() == {TRIALS}


def another(record: TrialRecord, number: int, **changed: object) -> TrialRecord:
    from dataclasses import replace

    return replace(record, number=number, **changed)  # type: ignore[arg-type]


@pytest.mark.slow(seconds=20)
def test_a_trial_is_logged_once_and_completely_whichever_step_is_killed(
    storage: Storage, tmp_path: Path, empty_database: Path
) -> None:
    """Processes die one after the other, each at another step, the first ones while they create the
    sweep's run.
    """
    for step in ("create_run", "create_run", "log_batch", "set_terminated"):
        assert run_in_child(sync_and_die, storage.uri, step, "after") == -signal.SIGKILL, step
        runs_of(client(storage))
    sync(storage)
    broken = contents(storage)
    shutil.copytree(
        tmp_path / "sweep", tmp_path / "other" / "sweep", ignore=shutil.ignore_patterns("mlflow*")
    )
    whole = Storage(str(tmp_path / "other" / "sweep"))
    shutil.copy(empty_database, tmp_path / "other" / "mlflow.db")
    sync(whole)

    def without_ids(entries: list[tuple[object, ...]]) -> list[object]:
        text = json.dumps([entry[1:4] for entry in entries], sort_keys=True)
        return list(json.loads(text))

    assert without_ids(broken) == without_ids(contents(whole))


def test_the_sweeps_run_has_the_status_of_its_end(storage: Storage) -> None:
    def ends(*events: dict[str, str]) -> str:
        lines = [{"at": "2026-01-02T03:04:05+00:00", **event} for event in events]
        storage.write("events.jsonl", b"".join(dump_checked(line) + b"\n" for line in lines))
        sync(storage)
        return str(runs_of(client(storage))[0].info.status)

    assert ends() == "FINISHED"
    launch, states = {"event": "launch"}, ("finished", "interrupted", "failed")
    endings = [ends(launch, {"event": "end", "state": state}) for state in states]
    assert endings == ["FINISHED", "KILLED", "FAILED"]
    storage.write("driver.lock", b'{"pid": 1, "host": "gone", "since": "2026-01-02"}')
    assert ends(launch) == "KILLED"


def test_an_untracked_sweep_that_stopped_early_was_interrupted(
    tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    write_sweep(tmp_path / "sweep", 3, name="demo", failed=(), budget=10)
    storage = Storage(str(tmp_path / "sweep"))
    sync(storage)
    assert runs_of(client(storage))[0].info.status == "KILLED"


def test_a_stopped_trial_is_marked_and_its_revival_completes_its_run(
    tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    complete = write_sweep(tmp_path / "sweep", 5, name="demo", failed=())[4]
    storage = Storage(str(tmp_path / "sweep"))
    stopped = stop_early(complete, 2)
    write_trial(storage, stopped)
    sync(storage)
    parent, children = runs_of(client(storage))
    run = children[4]
    assert (run.info.status, run.data.tags["specfrontier.state"]) == ("KILLED", "stopped")
    assert run.data.tags["specfrontier.cause"] == stopped.cause
    assert run.data.metrics["stopped/fid"] == stopped.metrics["fid"].value
    assert "fid" not in run.data.metrics
    assert (parent.data.metrics["stopped"], parent.data.metrics["failed"]) == (1, 0)
    later = complete.finished.replace("T03", "T04")
    write_trial(storage, replace(complete, stop=stopped.stop, finished=later))
    for _ in range(2):
        sync(storage)
        parent, children = runs_of(client(storage))
        assert children[4].info.run_id == run.info.run_id
        assert (children[4].info.status, children[4].data.tags["specfrontier.state"]) == (
            "FINISHED",
            "complete",
        )
        assert children[4].data.tags["specfrontier.cause"] == "revived"
        assert children[4].data.metrics["fid"] == complete.metrics["fid"].value
        assert parent.data.metrics["stopped"] == 0


def test_runs_of_others_in_the_experiment_stay_as_they_are(
    storage: Storage, tmp_path: Path
) -> None:
    found = client(storage)
    experiment = found.create_experiment(
        "specfrontier/demo",
        str(tmp_path / "theirs"),
        tags={"mlflow.note.content": "theirs", "team": "vision"},
    )
    theirs = {"specfrontier.sweep_id": "theirs", "specfrontier.kind": "sweep"}
    other = found.create_run(experiment, tags=theirs, run_name="theirs").info.run_id
    trial = theirs | {
        "specfrontier.kind": "trial",
        "specfrontier.trial": "0",
        "mlflow.parentRunId": other,
    }
    others = [other, found.create_run(experiment, tags=trial).info.run_id]
    before = [found.get_run(run).to_dictionary() for run in others]
    assert sync(storage) == sync_result(TRIALS, 0)
    assert [found.get_run(run).to_dictionary() for run in others] == before
    own = [run for run in found.search_runs([experiment]) if run.info.run_id not in others]
    (parent,) = (run for run in own if run.data.tags["specfrontier.kind"] == "sweep")
    sweep_id = {key: parent.data.tags[key] for key in ("specfrontier.sweep_id",)}
    others += [
        found.create_run(
            experiment, tags=sweep_id | {"mlflow.parentRunId": parent.info.run_id}
        ).info.run_id
    ]
    before = [found.get_run(run).to_dictionary() for run in others]
    assert sync(storage) == sync_result(0, TRIALS)
    assert [found.get_run(run).to_dictionary() for run in others] == before
    tags = found.get_experiment(experiment).tags
    assert {key: tags[key] for key in ("mlflow.note.content", "team")} == {
        "mlflow.note.content": "theirs",
        "team": "vision",
    }


def test_a_trials_run_without_its_number_is_not_the_trials(storage: Storage) -> None:
    sync(storage)
    found, (_, children) = client(storage), runs_of(client(storage))
    found.delete_tag(children[3].info.run_id, "specfrontier.trial")
    found.set_tag(children[4].info.run_id, "specfrontier.trial", "four")
    assert sync(storage) == sync_result(2, TRIALS - 2)
    assert sync(storage) == sync_result(0, TRIALS)


def test_trials_follow_a_sweeps_run_that_is_made_again(storage: Storage) -> None:
    sync(storage)
    before, _ = runs_of(client(storage))
    client(storage).delete_run(before.info.run_id)
    assert sync(storage) == sync_result(0, TRIALS)
    after, children = runs_of(client(storage))
    assert after.info.run_id != before.info.run_id
    assert len(children) == TRIALS


def test_no_run_is_created_among_those_of_others_when_a_server_lost_its_data(
    storage: Storage, tmp_path: Path
) -> None:
    """The experiment of this id may be another one by now."""
    records, place = read_trials(storage), f"sqlite:///{tmp_path}/mlflow.db"
    view = MlflowView(storage, place)
    view.update(replace(Sweep.open(storage), records=tuple(records[:4])))
    experiment = client(storage).get_experiment_by_name("specfrontier/demo")
    assert experiment is not None
    client(storage).rename_experiment(experiment.experiment_id, "theirs")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        for table in ("params", "metrics", "latest_metrics", "tags", "runs"):
            database.execute(f"DELETE FROM {table}")
    with pytest.raises(Exception, match="not found"):
        view.update(Sweep.open(storage))
    assert client(storage).search_runs([experiment.experiment_id]) == []
    view.update(Sweep.open(storage))
    view.close()
    assert len(runs_of(client(storage))[1]) == TRIALS
    assert client(storage).search_runs([experiment.experiment_id]) == []


def test_a_trial_that_mlflow_refuses_does_not_keep_the_others_out(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    log_batch = MlflowClient.log_batch

    def refuse(
        self: MlflowClient, run_id: str, metrics: Sequence[Metric] = (), *rest: Any, **options: Any
    ) -> None:
        if any(metric.key == "speedup" and metric.value == refused for metric in metrics):
            raise ValueError("refused by a rule")
        log_batch(self, run_id, metrics, *rest, **options)

    refused = read_trials(storage)[1].metrics["speedup"].value
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_batch", refuse)
        view = MlflowView(storage)
        for _ in range(6):
            with pytest.raises(ValueError, match="refused by a rule"):
                view.update(Sweep.open(storage))
        view.close()
    _, children = runs_of(client(storage))
    assert [number for number, run in sorted(children.items()) if run.info.status == "RUNNING"] == [
        1
    ]
    assert sync(storage) == sync_result(1, TRIALS - 1)


@pytest.fixture
def growing(storage: Storage) -> tuple[Storage, list[TrialRecord]]:
    """A sweep without trials yet, and its trials to come."""
    records = read_trials(storage)
    for record in records:
        path = storage.path(trial_file(record.number))
        assert path is not None
        path.unlink()
    return storage, records


def views_of(storage: Storage, uri: str | None = None) -> tuple[Views, Follower[Sweep]]:
    """The view of a running sweep in MLflow."""
    views = Views(storage, [MlflowView(storage, uri)])
    return views, views._followers[0]


def test_a_view_logs_while_the_sweep_runs(
    growing: tuple[Storage, list[TrialRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_time(monkeypatch, MlflowView)
    storage, records = growing
    views, follower = views_of(storage)
    views.start(load_identity(storage))
    for record in records[:4]:
        write_trial(storage, record)
        views.update(record)
    wait_until(lambda: find_location(Sweep.open(storage), uri(storage)).parent != "")
    wait_until(lambda: runs_of(client(storage))[0].data.metrics.get("trials") == 4)
    parent, children = runs_of(client(storage))
    assert (parent.info.status, len(children)) == ("RUNNING", 4)
    with pytest.raises(TrackingError, match="another process is logging"):
        sync(storage)
    for record in records[4:]:
        write_trial(storage, record)
        views.update(record)
    assert views.end("interrupted") == []
    assert follower.problem is None
    parent, children = runs_of(client(storage))
    assert (parent.info.status, len(children)) == ("KILLED", TRIALS)
    assert sync(storage) == sync_result(0, TRIALS)
    again, _ = views_of(storage)
    again.start(load_identity(storage), records)
    wait_until(lambda: runs_of(client(storage))[0].info.status == "RUNNING")
    assert again.end("finished") == []
    assert runs_of(client(storage))[0].info.status == "FINISHED"


def test_a_server_that_is_away_costs_the_sweep_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All attempts are made in the view's own thread, and an interrupt does not wait for the end's
    time limit.
    """
    threads, update = set[int](), MlflowView.update

    def noted(view: MlflowView, source: Sweep) -> None:
        threads.add(threading.get_ident())
        update(view, source)

    monkeypatch.setattr(MlflowView, "update", noted)
    monkeypatch.setattr(MlflowView, "end_timeout_s", 2 * HANG_S)
    views, follower = views_of(storage, "http://me:hidden-word@127.0.0.1:9/?token=hidden-key")
    records = read_trials(storage)
    views.start(load_identity(storage))
    for _ in range(100):
        for record in records:
            views.update(record)
    wait_until(lambda: follower.problem is not None)
    assert threads
    assert threading.get_ident() not in threads
    began = time.monotonic()
    (problem,) = views.end("interrupted")
    assert time.monotonic() - began < HANG_S
    assert "127.0.0.1:9" in problem
    assert "specfrontier sync" in problem
    assert "hidden" not in problem
    assert b"hidden" not in storage.read("mlflow.json")
    assert load_checked(storage.read("mlflow.json"))["uri"] == "http://127.0.0.1:9"


@pytest.mark.parametrize("uri", ["sqlite:////proc/no/x.db", "nonsense://x", "/a/folder"])
def test_an_invalid_place_is_a_problem_not_an_error(storage: Storage, uri: str) -> None:
    with pytest.raises(TrackingError, match=uri):
        sync(storage, uri)
    assert not storage.exists("mlflow.json")
    views, follower = views_of(storage, uri)
    views.start(load_identity(storage), read_trials(storage))
    wait_until(lambda: follower.problem is not None)
    assert views.end("interrupted") != []


def test_a_folder_with_an_odd_name(tmp_path: Path, empty_database: Path) -> None:
    folder = tmp_path / "50 % of it #1"
    write_sweep(folder / "sweep", 2, failed=())
    shutil.copy(empty_database, folder / "mlflow.db")
    storage = Storage(str(folder / "sweep"))
    assert sync(storage) == sync_result(2, 0)
    parent, children = runs_of(client(storage), "specfrontier/synthetic")
    assert len(children) == 2
    assert client(storage).list_artifacts(parent.info.run_id)


def test_a_trainings_curve_continues_in_its_run(tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    journal, storage = tmp_path / "drafter" / "eagle.journal.jsonl", Storage(tmp_path / "drafter")
    journal.parent.mkdir()
    found = client(storage)

    def train(steps: int, how: Ending, *, resume: bool) -> None:
        view = TrainingView(journal, uri(storage), {"batch": 4}, resume=resume)
        follower: Follower[Path] = Follower(view, lambda: journal)
        lines = [json.dumps({"step": step, "loss": 1 / (1 + step)}) + "\n" for step in range(steps)]
        journal.write_text("".join(lines) + '{"step": 9, "lo')
        follower.notify()
        assert follower.end(how) is None

    train(2, "interrupted", resume=False)
    experiment = found.get_experiment_by_name("specfrontier/train")
    assert experiment is not None
    (lost,) = found.search_runs([experiment.experiment_id])
    found.delete_run(lost.info.run_id)  # as on a server that lost its data
    train(3, "interrupted", resume=True)
    train(5, "finished", resume=True)
    experiment = found.get_experiment_by_name("specfrontier/train")
    assert experiment is not None
    (logged,) = found.search_runs([experiment.experiment_id])
    assert (logged.info.status, logged.info.run_name, logged.data.params) == (
        "FINISHED",
        "drafter",
        {"batch": "4"},
    )
    assert [point.step for point in found.get_metric_history(logged.info.run_id, "loss")] == [
        0,
        1,
        2,
        3,
        4,
    ]
