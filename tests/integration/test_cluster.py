"""A sweep on a cluster of several nodes, of which one is killed and another comes late; and as a Ray job."""

from __future__ import annotations

import logging
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.server import free_port
from tests.fakes.real_sweeps import (
    COMMAND,
    PATIENCE,
    SMALL,
    Launched,
    assert_every_image_once,
    assert_same,
    files,
    halt,
    processes,
    ray_folder,
)

pytestmark = pytest.mark.slow(seconds=120)
METRICS = ("step_compression", "caption_accuracy")
CAPTIONS, STORE = 16, 80 << 20
QUICK = {  # Ray's patience with a silent node, in milliseconds: seconds in all, not a minute
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
    """A head that does no work itself, and two nodes with room for one worker each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(cluster_files))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": free_port("127.0.0.1", 0)}
        head |= {"object_store_memory": STORE, "_system_config": QUICK} | agent_port()
        cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            add_node(cluster)
        yield cluster
        logging.disable(logging.WARNING)  # of nodes that are gone already
        cluster.shutdown()
        logging.disable(logging.NOTSET)


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=STORE, **agent_port())


def agent_port() -> dict[str, int]:
    """Ray's own choice is one port for all: a second cluster on the machine would take no jobs."""
    return {"dashboard_agent_listen_port": free_port("127.0.0.1", 0)}


def workers(launched: Launched) -> set[str]:
    """The workers that have drawn something."""
    return {event["worker"] for event in launched.events if event["event"] == "shard"}


def up(launched: Launched) -> int:
    """Workers that are up, as was said last: one goes with its node, and another comes."""
    alive = [event["alive"] for event in launched.events if event["event"] == "workers" and not event["note"]]
    return alive[-1] if 1 in alive[alive.index(2) :] else 0


def test_a_killed_node_costs_nothing_but_time_and_a_new_one_is_used(
    cluster: Any, cluster_files: Path, small: Launched, tmp_path: Path
) -> None:
    launched = Launched(tmp_path, SMALL, cluster_files)
    launched.start("--no-mlflow", "--address", cluster.address)
    launched.wait_for(lambda: len(workers(launched)) == 2)
    launched.wait_for(lambda: launched.count("workers", alive=2))
    before = files(launched.store)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)  # its raylet is killed
    left = processes(cluster_files, "ray::Worker")
    halt(left, signal.SIGSTOP)  # or the one that is left would have drawn everything before the new node is up
    try:
        add_node(cluster)
        launched.wait_for(lambda: up(launched) == 2)
    finally:
        halt(left, signal.SIGCONT)
    assert launched.ended() == 0, launched.said
    assert len(workers(launched)) == 3, "the node that came late took part"
    assert before.items() <= files(launched.store).items()
    assert_same(small, launched, METRICS)
    assert_every_image_once(launched, CAPTIONS)


def submitted(client: Any, command: str, path: str, end: float) -> str:
    """The job's id. A head whose agent has not yet come up asks to try again later."""
    while True:
        try:
            job: str = client.submit_job(entrypoint=command, runtime_env={"env_vars": {"PYTHONPATH": path}})
            return job
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.5)


def test_a_sweep_runs_as_a_ray_job(cluster: Any, cluster_files: Path, small: Launched, tmp_path: Path) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    launched = Launched(tmp_path, SMALL, cluster_files)
    client = JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
    command = [*COMMAND, *launched.arguments("--no-mlflow", "--address", "auto")]
    end = time.monotonic() + PATIENCE
    job = submitted(client, shlex.join(command), launched.variables["PYTHONPATH"], end)
    while not (status := client.get_job_status(job)).is_terminal():
        assert time.monotonic() < end, client.get_job_logs(job)
        time.sleep(0.5)
    logs = client.get_job_logs(job)
    assert status == JobStatus.SUCCEEDED, logs
    assert "6 trials; the budget of trials is spent" in logs
    assert_same(small, launched, METRICS)
