"""A sweep as a Ray job on a cluster that loses a node and gets another; its MLflow server starts
late and goes away.
"""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.cluster.ray_internals import without_services
from tests.fakes.command_line import specfrontier
from tests.fakes.mlflow_proxy import Address, proxy
from tests.fakes.ports import claim_port
from tests.fakes.ray_starts import start_ray
from tests.fakes.real_sweeps import (
    CAPTIONS,
    ROOT,
    SWEEP,
    SweepRun,
    assert_every_image_once,
    assert_same,
    files,
    processes,
    ray_folder,
    send_signal,
)
from tests.fakes.waiting import HANG_S

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.slow(seconds=110)
TRIALS = 12
# The command, which does not take a worker that the test stops for one that hangs, however long a
# new node takes.
PATIENT_COMMAND = """
from orchestrator.cli.app import main
from orchestrator.cluster import pool_worker
pool_worker._SILENCE_TIMEOUT_S = 3600.0
main()
"""
STATUS_INTERVAL_S = 0.2  # each question about a job costs milliseconds in three of Ray's processes
OBJECT_STORE_BYTES = 80 << 20
HEALTH_CHECK = {  # a dead node is lost after seconds, and a slow one is waited for; in milliseconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster_files() -> Iterator[Path]:
    with ray_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def cluster(cluster_files: Path) -> Iterator[Any]:
    """A head node without CPUs, and two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(cluster_files))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head: dict[str, Any] = {
            "num_cpus": 0,
            "include_dashboard": True,
            "dashboard_port": claim_port(),
        }
        head |= {
            "object_store_memory": OBJECT_STORE_BYTES,
            "_system_config": HEALTH_CHECK,
        } | agent_port()
        cluster: Any = start_ray(lambda: Cluster(initialize_head=True, head_node_args=dict(head)))
        for _ in range(2):
            add_node(cluster)
        yield cluster
        logging.disable(logging.WARNING)  # about nodes that are gone
        cluster.shutdown()
        logging.disable(logging.NOTSET)


def add_node(cluster: Any) -> Any:
    with without_services():
        return start_ray(
            lambda: cluster.add_node(
                num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, **agent_port()
            )
        )


def agent_port() -> dict[str, int]:
    """Ray's default is one fixed port, so that a second cluster on the machine would take no
    jobs.
    """
    return {"dashboard_agent_listen_port": claim_port()}


def current_workers(run: SweepRun) -> int:
    """The number of workers that are up now, 0 until one of the first two was lost."""
    alive = [
        event["alive"]
        for event in run.events
        if event["event"] == "workers" and not event.get("note")
    ]
    return alive[-1] if 1 in alive[alive.index(2) :] else 0


def submit(client: Any, command: str, environment: Mapping[str, Any]) -> str:
    """The job's id. Retries while the head node's agent is starting."""
    end = time.monotonic() + HANG_S
    while True:
        try:
            job: str = client.submit_job(entrypoint=command, runtime_env=dict(environment))
            return job
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.5)


@dataclass(frozen=True)
class ClusterSweep:
    """A finished job's sweep, and what was seen meanwhile."""

    run: SweepRun
    status: str
    logs: str
    before_loss: Mapping[str, object]  # the files when the node was lost
    address: Address  # of the MLflow server that was there for a moment only


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    """Of an MLflow server that is there for a moment only."""
    with closing(Address()) as kept:
        yield kept


@pytest.fixture(scope="module")
def job(
    cluster: Any,
    cluster_files: Path,
    mlflow_server: str,
    tmp_path_factory: pytest.TempPathFactory,
    address: Address,
) -> ClusterSweep:
    """A job of twice as many trials as `small` has, so that every worker has something to do.

    It loses a node. While its other worker is stopped, its MLflow server answers, and another node
    joins.
    """
    from ray.job_submission import JobSubmissionClient

    run = SweepRun(tmp_path_factory.mktemp("job"), SWEEP, cluster_files)
    client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
    options = ("--address", "auto", "--trials", str(TRIALS), "--tracking-uri", address.url)
    environment = {"env_vars": {"PYTHONPATH": run.environment["PYTHONPATH"]}}
    submitted = submit(
        client,
        shlex.join([sys.executable, "-c", PATIENT_COMMAND, *run.arguments(*options)]),
        environment,
    )

    def running() -> bool:
        return not client.get_job_status(submitted).is_terminal()

    def wait_for(condition: Callable[[], object]) -> None:
        run.wait_for(lambda: condition() or not running(), STATUS_INTERVAL_S)
        assert condition(), client.get_job_logs(submitted)

    wait_for(
        lambda: (
            len(run.workers) == 2 and run.count("workers", alive=2) and run.count("trial_finished")
        )
    )
    assert address.url in run.store.joinpath("mlflow.json").read_text(), (
        "the place is known before it answers"
    )
    assert not trial_runs(mlflow_server, "small")
    before = files(run.store)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # kills its raylet
    others = processes(cluster_files, "ray::Worker")
    # else the other worker could finish before the new node is up
    send_signal(others, signal.SIGSTOP)
    try:
        with proxy(mlflow_server, at=address):
            wait_for(lambda: trial_runs(mlflow_server, "small"))
        add_node(cluster)
        wait_for(lambda: current_workers(run) == 2)
    finally:
        send_signal(others, signal.SIGCONT)
    run.wait_for(lambda: not running(), STATUS_INTERVAL_S)
    return ClusterSweep(
        run,
        client.get_job_status(submitted).value,
        client.get_job_logs(submitted),
        before,
        address,
    )


def test_a_ray_job_loses_a_node_and_uses_a_new_one(job: ClusterSweep) -> None:
    assert job.status == "SUCCEEDED", job.logs
    assert f"{TRIALS} trials; the budget of trials is spent" in job.logs
    assert len(job.run.workers) == 3, "the new node's worker took part"
    assert job.before_loss.items() <= files(job.run.store).items()


def test_results_depend_on_neither_lost_nodes_nor_the_number_of_workers(
    job: ClusterSweep, small: SweepRun
) -> None:
    assert_same(small, job.run, trials=len(small.records))
    assert_every_image_once(job.run, CAPTIONS)


def test_sync_logs_every_trial_that_mlflow_missed(job: ClusterSweep, mlflow_server: str) -> None:
    started = trial_runs(mlflow_server, "small")
    logged = sum(run.info.status != "RUNNING" for run in started.values())
    assert 0 < len(started) < len(job.run.records) == TRIALS
    missing = TRIALS - logged
    assert "MLflow is not complete" in job.logs
    with proxy(mlflow_server, at=job.address) as base:
        for expected in (missing, 0):
            synced = specfrontier("sync", str(job.run.store), "--uri", base, "--json")
            assert synced.code == 0, synced.err
            assert (synced.json["logged"], synced.json["already"]) == (expected, TRIALS - expected)
        runs = trial_runs(base, "small", status="FINISHED")
    assert runs.keys() == set(range(TRIALS))
    for record in job.run.records:
        assert runs[record.number].info.status == "FINISHED"
        assert (
            runs[record.number].data.metrics["step_compression"]
            == record.metrics["step_compression"].value
        )


JOB = """
ls -A
run() {
    "$PYTHON" -c "from orchestrator.cli.app import main; main()" launch quickstart --address auto --no-mlflow "$@" 2>&1
    echo "code $?"
}
run
run --out "$PWD/sweeps"
run --out "$LASTING" --study study.log
run --out "$LASTING" --check
"""


def test_a_job_refuses_results_in_its_copy_of_the_working_folder(
    cluster: Any, tmp_path: Path
) -> None:
    """And its package has what neither `excludes` nor .gitignore leaves out."""
    from ray.job_submission import JobSubmissionClient

    folder, lasting = tmp_path / "work", tmp_path / "lasting"
    (folder / "weights").mkdir(parents=True)
    files = {
        "job.sh": JOB,
        ".gitignore": "ignored.txt",
        "ignored.txt": "",
        "weights/large.safetensors": "",
        "a.yaml": "",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
    variables = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "LASTING": str(lasting)}
    environment = {
        "working_dir": str(folder),
        "excludes": ["weights", "sweeps"],
        "env_vars": variables,
    }
    job = submit(client, "sh job.sh", environment)
    end = time.monotonic() + HANG_S
    while not client.get_job_status(job).is_terminal() and time.monotonic() < end:
        time.sleep(STATUS_INTERVAL_S)
    logs = client.get_job_logs(job)
    listed, default, absolute, study, good = (
        logs.split("code ")[0].partition("Error")[0],
        *logs.split("code ")[:4],
    )
    assert set(listed.split()) >= {"job.sh", "a.yaml"}
    assert not {"weights", "ignored.txt"} & set(listed.split())
    assert "Error: --out sweeps: " in default
    assert "Error: --out /" in absolute
    assert "Error: --study study.log: " in study
    assert "Error" not in good
    assert [part.split()[0] for part in logs.split("code ")[1:]] == ["2", "2", "2", "0"]
    assert not lasting.exists()


def trial_runs(base: str, name: str, status: str | None = None) -> dict[int, Run]:
    """MLflow's runs of a sweep's trials by number, none without an experiment; fails if there are
    two of one trial or of the sweep. status: of the sweep's run.
    """
    from mlflow.tracking import MlflowClient

    client = MlflowClient(base)
    experiment = client.get_experiment_by_name(f"specfrontier/{name}")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) <= 1
    if status is not None:
        assert [parent.info.status for parent in parents] == [status]
    found = {int(run.data.tags["specfrontier.trial"]): run for run in runs if run not in parents}
    assert len(found) == len(runs) - len(parents)
    return found
