"""A sweep as a Ray job on a cluster that loses a node and gets another."""

from __future__ import annotations

import logging
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.server import free_port
from tests.fakes.real_sweeps import (
    CAPTIONS,
    COMMAND,
    SWEEP,
    SWEEP_TIMEOUT_S,
    SweepRun,
    assert_every_image_once,
    assert_same,
    files,
    processes,
    ray_folder,
    send_signal,
)

pytestmark = pytest.mark.slow(seconds=110)
OBJECT_STORE_BYTES = 80 << 20
HEALTH_CHECK = {  # a silent node is lost after seconds, not after a minute; in milliseconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
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
        head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": free_port("127.0.0.1", 0)}
        head |= {"object_store_memory": OBJECT_STORE_BYTES, "_system_config": HEALTH_CHECK} | agent_port()
        cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            add_node(cluster)
        yield cluster
        logging.disable(logging.WARNING)  # about nodes that are gone
        cluster.shutdown()
        logging.disable(logging.NOTSET)


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, **agent_port())


def agent_port() -> dict[str, int]:
    """Ray's default is one fixed port, so that a second cluster on the machine would take no jobs."""
    return {"dashboard_agent_listen_port": free_port("127.0.0.1", 0)}


def current_workers(run: SweepRun) -> int:
    """The number of workers that are up now, 0 until one of the first two was lost."""
    alive = [event["alive"] for event in run.events if event["event"] == "workers" and not event["note"]]
    return alive[-1] if 1 in alive[alive.index(2) :] else 0


def submit(client: Any, command: str, path: str) -> str:
    """The job's id. Retries while the head node's agent is starting."""
    end = time.monotonic() + SWEEP_TIMEOUT_S
    while True:
        try:
            job: str = client.submit_job(entrypoint=command, runtime_env={"env_vars": {"PYTHONPATH": path}})
            return job
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.5)


def test_a_ray_job_loses_a_node_and_uses_a_new_one(
    cluster: Any, cluster_files: Path, small: SweepRun, tmp_path: Path
) -> None:
    """`small` ran on one machine; the job runs twice as many trials, so that every worker has something to do."""
    from ray.job_submission import JobStatus, JobSubmissionClient

    run = SweepRun(tmp_path, SWEEP, cluster_files)
    client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
    command = [*COMMAND, *run.arguments("--no-mlflow", "--address", "auto", "--trials", "12")]
    job = submit(client, shlex.join(command), run.environment["PYTHONPATH"])

    def running() -> bool:
        return not client.get_job_status(job).is_terminal()

    def wait_for(condition: Callable[[], object]) -> None:
        run.wait_for(lambda: condition() or not running())
        assert condition(), client.get_job_logs(job)

    wait_for(lambda: len(run.workers) == 2 and run.count("workers", alive=2))
    before = files(run.store)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # kills its raylet
    others = processes(cluster_files, "ray::Worker")
    send_signal(others, signal.SIGSTOP)  # else the other worker could finish before the new node is up
    try:
        add_node(cluster)
        wait_for(lambda: current_workers(run) == 2)
    finally:
        send_signal(others, signal.SIGCONT)
    run.wait_for(lambda: not running())
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    assert "12 trials; the budget of trials is spent" in logs
    assert len(run.workers) == 3, "the new node's worker took part"
    assert before.items() <= files(run.store).items()
    assert_same(small, run, trials=len(small.records))
    assert_every_image_once(run, CAPTIONS)
