"""A driver on a cluster that it did not start, which loses its GCS or the driver's node."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator.run import cluster_monitor
from orchestrator.run.cluster_monitor import ClusterMonitor
from orchestrator.run.tasks import ClusterLost, PoolError


@pytest.fixture
def gcs() -> Any:
    """A socket in the place of a GCS."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def monitor(gcs: Any, monkeypatch: pytest.MonkeyPatch) -> ClusterMonitor:
    address = f"127.0.0.1:{gcs.getsockname()[1]}"
    context = SimpleNamespace(gcs_address=address, get_node_id=lambda: "own")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(cluster_monitor, "_PROBE_INTERVAL_S", 0.0)
    monkeypatch.setattr(cluster_monitor, "GCS_TIMEOUT_S", 0.3)
    return ClusterMonitor()


def test_a_gcs_that_is_gone_for_a_moment_is_waited_for(gcs: Any, monitor: ClusterMonitor) -> None:
    address = gcs.getsockname()
    assert monitor.responds()
    gcs.close()
    assert not monitor.responds()
    with socket.create_server(address):
        assert monitor.responds()
    time.sleep(0.4)
    assert not monitor.responds(), "it responded a moment ago, whatever happened before"
    time.sleep(0.4)
    with pytest.raises(PoolError, match=r"GCS at 127\.0\.0\.1:\d+ has not responded") as lost:
        monitor.responds()
    assert not isinstance(lost.value, ClusterLost), "it is not ours to start again"


def test_a_driver_whose_own_node_died_ends(monitor: ClusterMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"NodeID": "own", "Alive": True}, {"NodeID": "other", "Alive": False}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monitor.check_node()
    nodes[0]["Alive"] = False
    with pytest.raises(PoolError, match="driver's machine"):
        monitor.check_node()
