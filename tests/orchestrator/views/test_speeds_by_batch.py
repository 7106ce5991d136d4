"""The speed-up over the batch size in MLflow: one metric of a trial's run, whose step is the
size.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.store.records import TrialRecord, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow_sync import find_location, sync
from tests.fakes.synthetic_sweeps import stop_early, write_sweep
from tests.fakes.timed_sweeps import SPEEDS, time_again, write_timed_sweep
from workers.data.storage import Storage

SIZES = (4, 1, 8)  # the first is that of `speedup`


def logged(sweep: Sweep, uri: str, key: str) -> dict[int, list[tuple[int, float]]]:
    """Step and value of each point of a metric of each trial, in the order in which they were
    logged.
    """
    client, found = MlflowClient(uri), find_location(sweep, uri)
    histories = {
        number: client.get_metric_history(run_id, key) for number, run_id in found.runs.items()
    }
    return {
        number: [
            (point.step, point.value)
            for point in sorted(points, key=lambda point: (point.timestamp, point.step))
        ]
        for number, points in histories.items()
    }


def expected(record: TrialRecord, name: str) -> list[tuple[int, float]]:
    at = {1: f"{name}_batch1", 4: name, 8: f"{name}_batch8"}
    return [(size, record.metrics[metric].value) for size, metric in at.items()]


@pytest.fixture
def place(tmp_path: Path, empty_database: Path) -> tuple[Path, str]:
    """A sweep's folder, and the URI of the database beside it."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path / "sweep", f"sqlite:///{tmp_path}/mlflow.db"


def test_each_trial_has_its_speeds_by_batch_size(place: tuple[Path, str]) -> None:
    folder, uri = place
    sweep = write_timed_sweep(folder, sizes=SIZES, failed=())
    sync(sweep.storage, uri)
    for name in SPEEDS:
        points = logged(sweep, uri, f"by_batch/{name}")
        assert points == {record.number: expected(record, name) for record in sweep.records}
    client, run_id = MlflowClient(uri), find_location(sweep, uri).runs[1]
    last = sweep.records[1].metrics["speedup_batch8"].value
    assert client.get_run(run_id).data.metrics["by_batch/speedup"] == last, (
        "MLflow shows that of the largest batch"
    )


def test_the_speeds_are_logged_again_if_one_of_them_changes(place: tuple[Path, str]) -> None:
    """Even if that of the last step stays."""
    folder, uri = place
    sweep = write_timed_sweep(folder, sizes=SIZES, failed=())
    sync(sweep.storage, uri)
    sync(sweep.storage, uri)
    assert {len(points) for points in logged(sweep, uri, "by_batch/speedup").values()} == {3}, (
        "nothing has changed"
    )
    time_again(sweep, [4])
    now = Sweep.open(sweep.storage)
    before, after = sweep.records[1].metrics, now.records[1].metrics
    assert before["speedup"] != after["speedup"]
    assert before["speedup_batch8"] == after["speedup_batch8"]
    sync(now.storage, uri)
    points = logged(now, uri, "by_batch/speedup")
    assert points[1] == [
        *expected(sweep.records[1], "speedup"),
        *expected(now.records[1], "speedup"),
    ]
    assert len(points[0]) == 3, "vanilla's is always 1"


def test_stopped_trials_and_sweeps_of_one_batch_size_have_no_such_metric(
    place: tuple[Path, str],
) -> None:
    """A stopped trial's speeds are of fewer images."""
    folder, uri = place
    sweep = write_timed_sweep(folder, sizes=SIZES, failed=())
    write_trial(sweep.storage, stop_early(sweep.records[4], rival=1))
    sync(sweep.storage, uri)
    assert [
        number for number, points in logged(sweep, uri, "by_batch/speedup").items() if not points
    ] == [4]
    write_sweep(folder.parent / "one", 3, name="one", failed=())
    one = Sweep.open(Storage(str(folder.parent / "one")))
    time_again(one, [1])
    sync(one.storage, uri)
    assert set(map(len, logged(one, uri, "by_batch/speedup").values())) == {0}
