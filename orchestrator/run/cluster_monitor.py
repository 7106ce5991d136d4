"""Notices that Ray lost what a driver cannot do without. Ray itself waits for it, then aborts the process."""

from __future__ import annotations

import socket
import time
from typing import Any

import ray

from orchestrator.run.tasks import ClusterLost, PoolError

_ESSENTIAL_PROCESSES = frozenset({"gcs_server", "raylet"})
_PROBE_INTERVAL_S = 1.0
_CONNECT_TIMEOUT_S = 3.0
GCS_TIMEOUT_S = 25.0  # Ray aborts the process after 60; a GCS that Redis or Kubernetes restarts is back by then


class ClusterMonitor:
    """Watches the cluster that this process is connected to."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        is_client = ray.util.client.ray.is_connected()  # type: ignore[no-untyped-call]
        self._gcs_address = "" if is_client else context.gcs_address  # such a driver connects to a proxy
        self._node_id = context.get_node_id()
        self._probed = time.monotonic()
        self._silent_since: float | None = None

    def responds(self) -> bool:
        """Whether the cluster responds now, as of the last second; calls of Ray would block if not.

        Raises:
            ClusterLost: a process of a cluster that this process started has died.
            PoolError: the GCS of another cluster has not responded for a while.
        """
        _check_own_processes()
        if self._gcs_address and time.monotonic() - self._probed >= _PROBE_INTERVAL_S:
            is_up = _accepts_connections(self._gcs_address)
            self._probed = time.monotonic()
            self._silent_since = None if is_up else self._silent_since or self._probed
        silence = 0.0 if self._silent_since is None else self._probed - self._silent_since
        if silence > GCS_TIMEOUT_S:
            problem = f"Ray's GCS at {self._gcs_address} has not responded for {silence:.0f} s; start the cluster again"
            raise PoolError(problem)
        return self._silent_since is None

    def check_node(self) -> None:
        """Raise PoolError if the node of this process is dead: Ray would wait for it. Call it while Ray responds."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if any(node["NodeID"] == self._node_id and not node["Alive"] for node in nodes):
            raise PoolError("Ray's node on the driver's machine died; start it again")


def _check_own_processes() -> None:
    node: Any = ray._private.worker._global_node
    dead = {name for name, _ in node.dead_processes()} if node is not None else set()
    if lost := sorted(dead & _ESSENTIAL_PROCESSES):
        raise ClusterLost(f"Ray on this machine lost its {' and '.join(lost)}")


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
