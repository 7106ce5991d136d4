"""A Ray cluster of `ray start` processes on this machine, or in its network namespaces, whose parts
can be killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from orchestrator.cluster.cluster_guard import MARK, kill_cluster
from orchestrator.views.mlflow_client import free_port

ROOT = Path(__file__).parents[1]
HEALTH_CHECKS = {  # a silent node is lost after seconds, not after a minute; in milliseconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
_OBJECT_STORE_BYTES = 80 << 20
_START_TIMEOUT_S = 60.0
_JOINED = "Ray runtime started."  # in what `ray start` prints
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Host:
    """Where a node runs: this machine, or one of its network namespaces."""

    address: str = "127.0.0.1"
    namespace: str = ""

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *words] if self.namespace else list(words)


LOCAL = Host()


def project_environment() -> dict[str, str]:
    """Environment of processes that run this checkout's code: one thread, no token, no MLflow but
    the given one.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    path = os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH"))))
    return inherited | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
    }


@dataclass
class Cluster:
    """A head without CPUs, and nodes of one CPU each. hosts: of the head, then of each node.

    health_checks: Ray's system configuration of the head. The cluster keeps its address when it is
    started again.
    """

    hosts: Sequence[Host] = (LOCAL, LOCAL, LOCAL)
    health_checks: Mapping[str, int] = field(default_factory=lambda: HEALTH_CHECKS)

    def __post_init__(self) -> None:
        self._port = free_port("", 0)
        self._folder = Path(tempfile.mkdtemp(prefix="sf-"))
        self._nodes: list[subprocess.Popen[bytes]] = []

    @property
    def worker_nodes(self) -> int:
        """How many nodes there are beside the head."""
        return len(self.hosts) - 1

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{self._port}"

    def start(self) -> None:
        """Start all nodes; returns when the head accepts connections.

        Raises:
            RuntimeError: it does not; with the node's last words.
        """
        head, port = self.hosts[0], str(self._port)
        self._nodes = [
            self._run(
                head,
                "--head",
                "--port",
                port,
                "--num-cpus",
                "0",
                "--include-dashboard",
                "false",
                "--system-config",
                json.dumps(dict(self.health_checks)),
            )
        ]
        probe = f"import socket; socket.create_connection(({head.address!r}, {port}), 1)"
        end = time.monotonic() + _START_TIMEOUT_S
        while subprocess.run(
            head.command([sys.executable, "-c", probe]), capture_output=True
        ).returncode:
            if time.monotonic() > end or self._nodes[0].poll() is not None:
                raise RuntimeError(f"the head node did not start: {self._log.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        for host in self.hosts[1:]:
            self._nodes.append(self._run_worker(host))

    def stop(self) -> None:
        """Kill every process of the cluster."""
        kill_cluster(self._folder)
        for node in self._nodes:
            node.wait()
        self._nodes = []

    def restart(self) -> None:
        self.stop()
        self._folder = Path(tempfile.mkdtemp(prefix="sf-"))
        self.start()

    def repair(self) -> None:
        """Start nodes again that have ended, as a supervisor would; a new cluster if the head
        has.
        """
        if self._nodes[0].poll() is not None:
            self.restart()
        for index, host in enumerate(self.hosts[1:], 1):
            if self._nodes[index].poll() is not None:
                self._nodes[index] = self._run_worker(host)

    def processes(self, name: str) -> list[psutil.Process]:
        """The running processes whose program, or whose title, starts with a name; those of the
        head come first.
        """
        found = []
        for node in self._nodes:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(node.pid).children(recursive=True):
                    with suppress(psutil.Error, IndexError):
                        if Path(process.cmdline()[0]).name.startswith(name):
                            found.append(process)
        return found

    @property
    def _log(self) -> Path:
        return self._folder / "nodes.log"

    def _run_worker(self, host: Host) -> subprocess.Popen[bytes]:
        """A node that has joined, or ended. Ray's nodes on one machine hinder each other if they
        start together.
        """
        joined = self._log.read_text().count(_JOINED)
        node = self._run(host, "--address", self.address, "--num-cpus", "1")
        end = time.monotonic() + _START_TIMEOUT_S
        while (
            node.poll() is None
            and self._log.read_text().count(_JOINED) == joined
            and time.monotonic() < end
        ):
            time.sleep(_POLL_S)
        return node

    def _run(self, host: Host, *options: str) -> subprocess.Popen[bytes]:
        """A node, in the foreground: it ends with its first process that dies."""
        words = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            *options,
            "--block",
            "--disable-usage-stats",
        ]
        words += [
            "--node-ip-address",
            host.address,
            "--object-store-memory",
            str(_OBJECT_STORE_BYTES),
        ]
        words += ["--dashboard-agent-listen-port", str(free_port("", 0))]
        environment = project_environment() | {
            MARK: str(self._folder),
            "RAY_TMPDIR": str(self._folder),
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                host.command(words),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
