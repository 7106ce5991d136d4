"""A sweep whose files are in an object store, whose study is in PostgreSQL, and whose MLflow server
uses both.

The store and the database go away in the middle, the driver is killed, a file is damaged; the
results do not change.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from benchmarks.sweep_results import TIMING_COLUMNS, images, results
from orchestrator.store import locks
from orchestrator.store.records import read_trials
from orchestrator.views.mlflow_client import serving
from orchestrator.views.study import open_storage, short_names
from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.object_store import REGION, ObjectStore, object_store
from tests.fakes.postgresql import PASSWORD, postgresql
from tests.fakes.real_sweeps import METRICS, SWEEP, SweepRun, ray_folder
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=100)
BUCKET = "lab"
AWAY_S = 3.0


@dataclass(frozen=True)
class StoredSweep:
    """A finished sweep. printed: everything that its launches printed. damaged: the shard that was
    cut.
    """

    store: ObjectStore
    uri: str
    study: str
    tracking: str
    printed: str
    damaged: str

    @property
    def storage(self) -> Storage:
        return Storage(self.uri)

    def objects(self) -> dict[str, bytes]:
        client = self.store.client(key=self.store.key, secret=self.store.secret)
        names = [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        return {name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}


def unrecorded(storage: Storage) -> list[str]:
    """The quality shards of trials without a record."""
    recorded = {name for record in read_trials(storage) for name in record.shards}
    names = [f"shards/{name}" for name in storage.names("shards") if name.startswith("quality")]
    return [name for name in names if name not in recorded]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredSweep]:
    folder = tmp_path_factory.mktemp("stored")
    with (
        object_store() as store,
        postgresql() as database,
        ray_folder() as ray,
        pytest.MonkeyPatch.context() as patch,
    ):
        parent = store.bucket(BUCKET).replace(f"@{BUCKET}", f"@{BUCKET}/sweeps")
        study, backend = database.create("optuna"), database.create("mlflow")
        for name, value in {
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
            "MLFLOW_S3_ENDPOINT_URL": store.endpoint,
            "AWS_ACCESS_KEY_ID": store.key,
            "AWS_SECRET_ACCESS_KEY": store.secret,
            "AWS_DEFAULT_REGION": REGION,
        }.items():
            patch.setenv(name, value)
        run = SweepRun(folder, SWEEP, ray)
        uri = parent.replace("/sweeps?", "/sweeps/small?")
        storage = Storage(uri)
        with store.checking_keys(), serving(backend, "127.0.0.1", 0) as (tracking, _):
            options = (
                "--out",
                parent,
                "--study",
                study,
                "--tracking-uri",
                tracking,
                "--workers",
                "1",
            )
            run.start(*options)
            run.wait_for(lambda: len(storage.names("shards")) >= 3)
            store.stop()
            database.stop()
            time.sleep(AWAY_S)
            store.start()
            database.start()
            run.kill_when(lambda: read_trials(storage) and unrecorded(storage))
            damaged = unrecorded(storage)[0]
            storage.write(damaged, storage.read(damaged)[:-700])
            patch.setattr(locks, "LEASE_S", 2.0)  # the dead driver's claim
            with local_launches():
                last = specfrontier(*run.arguments(*options, "--resume"))
            assert last.code == 0, last.err
            yield StoredSweep(
                store, uri, study, tracking, run.output + last.out + last.err, damaged
            )


def test_results_are_those_of_an_undisturbed_sweep_in_a_folder(
    sweep: StoredSweep, small: SweepRun
) -> None:
    assert results(read_trials(sweep.storage), METRICS) == results(small.records, METRICS)
    for name, table in images(small.store).items():
        ours = pq.read_table(io.BytesIO(sweep.storage.read(f"shards/{name}")))
        ours = ours.select(
            [column for column in ours.column_names if not column.startswith(TIMING_COLUMNS)]
        )
        assert ours.to_pylist() == table.to_pylist(), name


def test_a_damaged_shard_was_set_aside_and_the_locks_are_released(sweep: StoredSweep) -> None:
    (kept,) = sweep.storage.names("damaged")
    assert kept.startswith(sweep.damaged.removeprefix("shards/").removesuffix(".parquet"))
    assert sweep.storage.names("driver.lock") == sweep.storage.names("mlflow.lock") == []
    assert "did not end by itself" in sweep.printed


def test_the_study_in_postgresql_has_every_trial(sweep: StoredSweep) -> None:
    study: Any = optuna.load_study(study_name="small", storage=open_storage(sweep.study))
    records = read_trials(sweep.storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * len(records)
    short = short_names({name: None for record in records for name in record.params})
    expected = [{short[name]: value for name, value in record.params.items()} for record in records]
    assert [trial.params for trial in study.trials] == expected
    assert any(expected)


def test_mlflow_has_every_trial_and_its_artifacts_are_in_the_bucket(sweep: StoredSweep) -> None:
    client = MlflowClient(sweep.tracking)
    experiment = client.get_experiment_by_name("specfrontier/small")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    numbers = [
        run.data.tags["specfrontier.trial"] for run in runs if "specfrontier.trial" in run.data.tags
    ]
    assert sorted(map(int, numbers)) == [record.number for record in read_trials(sweep.storage)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    grids = [
        name
        for name in sweep.objects()
        if name.startswith("mlflow/") and name.endswith("images.png")
    ]
    assert len(grids) == len(numbers)


def test_queries_and_the_report_read_the_bucket(sweep: StoredSweep) -> None:
    front = specfrontier("pareto", sweep.uri, "--json")
    assert front.code == 0, front.err
    assert front.json["rows"]
    written = specfrontier("report", sweep.uri)
    assert written.code == 0, written.err
    assert written.out.strip() == sweep.storage.locate("report.html")
    status = specfrontier("status", sweep.uri)
    assert status.code == 0, status.err


def test_credentials_are_nowhere(sweep: StoredSweep) -> None:
    secrets = (sweep.store.secret, sweep.store.key, PASSWORD)
    assert not any(secret in sweep.printed for secret in secrets)
    objects = sweep.objects()
    assert {Path(name).suffix for name in objects} >= {
        ".parquet",
        ".json",
        ".yaml",
        ".html",
        ".png",
    }
    for name, data in objects.items():
        assert not any(secret.encode() in data for secret in secrets), name
    for run in MlflowClient(sweep.tracking).search_runs(["1"]):
        assert not any(secret in str(run.to_dictionary()) for secret in secrets)
