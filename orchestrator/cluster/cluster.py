"""Connects to the Ray cluster that workers run on, or starts one on this machine, and notices when
it is lost.

Ray itself retries for minutes, then aborts the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import ray

from orchestrator.cluster import ray_internals
from orchestrator.cluster.cluster_guard import ClusterGuard
from orchestrator.cluster.placement import ANYWHERE, Node, Placement, Slots, fit
from orchestrator.cluster.tasks import ClusterLost, PoolError
from orchestrator.interrupts import cleaned_up
from orchestrator.proxies import without_proxy
from orchestrator.text import without_credentials

# Ray aborts the process after 60; a GCS that Redis or Kubernetes restarts is back by then
GCS_TIMEOUT_S = 25.0
_CLIENT = "ray://"  # a driver with such an address runs outside of the cluster
_AUTO = "auto"
# environment variables
_ADDRESS = "RAY_ADDRESS"
_AUTH_MODE = "RAY_AUTH_MODE"
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_TOKEN = "RAY_AUTH_TOKEN"
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_DEFAULT_TOKEN_PATH = "~/.ray/auth_token"
_OBJECT_STORE_BYTES = 128 << 20  # results are files, so Ray's object store stays nearly empty
_START_ATTEMPTS = 5  # half a minute each
_ESSENTIAL_PROCESSES = frozenset({"gcs_server", "raylet"})
_PROBE_INTERVAL_S = 1.0
_CONNECT_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 6.0
_NODE_TIMEOUT_S = 5.0  # for a node that has just started
_NODE_INTERVAL_S = 0.5
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/?#@\[\]\s]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is."""

    address: str  # as `ray.init` takes it: HOST:PORT or ray://HOST:PORT
    source: str  # the option, variable or file that names it
    fix: str  # what to do if there is no cluster

    @property
    def is_client(self) -> bool:
        """Whether the driver is a Ray client, outside of the cluster."""
        return self.address.startswith(_CLIENT)

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the server; this machine's address for localhost, as Ray replaces it."""
        host, _, port = self.address.removeprefix(_CLIENT).rpartition(":")
        if not self.is_client and host.strip("[]") in ("localhost", "127.0.0.1", "::1"):
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            if ":" in host:
                host = f"[{host}]"
        return f"{host}:{port}"

    def problem(self, text: str, fix: str | None = None) -> PoolError:
        """An error that names the source of the address, and the fix."""
        return PoolError(f"{self.source}: {text}; {fix or self.fix}")


def resolve_address(given: str) -> ClusterAddress:
    """The cluster that --address names. auto: RAY_ADDRESS, a Ray process on this machine, or the
    file of the last `ray start`, in Ray's own order.

    Raises:
        ValueError: not an address of a cluster.
        PoolError: auto, and there is no cluster, or several.
    """
    option = f"--address {without_credentials(given)}"
    if given != _AUTO:
        return _parse_address(given, option, "`ray status` on the head node shows the address")
    if (named := os.environ.get(_ADDRESS, "")) not in ("", _AUTO):
        source = f"{option}: {_ADDRESS} is {without_credentials(named)}"
        return _parse_address(named, source, f"correct or unset {_ADDRESS}")
    running = sorted(ray_internals.local_clusters())
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder, "ray", "ray_current_cluster")
    if len(running) == 1:
        source = f"{option}: a Ray process on this machine belongs to {running[0]}"
        return _parse_address(running[0], source, "restart it, or give --address HOST:PORT")
    if file.is_file() and (stored := file.read_text().strip()):
        fix = "start the cluster, remove the file, or give --address HOST:PORT"
        return _parse_address(stored, f"{option}: {file} names {stored}", fix)
    if running:
        raise PoolError(
            f"{option}: several clusters run on this machine; give one of {', '.join(running)}"
        )
    raise PoolError(
        f"{option}: no Ray cluster runs on this machine, {_ADDRESS} is not set, and there is no "
        f"{file}; start a cluster with `ray start --head`, or give --address HOST:PORT"
    )


def _parse_address(address: str, source: str, fix: str) -> ClusterAddress:
    """The address with its source.

    Raises:
        ValueError: it has no HOST:PORT; the message says what to write.
    """
    if address.startswith(("http://", "https://")):
        raise ValueError(
            f"{source}: this is the dashboard; give HOST:PORT of `ray start --port` (6379)"
        )
    parts = _HOST_PORT.fullmatch(address.removeprefix(_CLIENT))
    if parts is None or not 0 < int(parts["port"]) < 1 << 16:
        raise ValueError(
            f"{source}: not the address of a Ray cluster; give HOST:PORT, [IPV6]:PORT, "
            "ray://HOST:PORT or auto, or leave --address out to start Ray on this machine"
        )
    return ClusterAddress(address, source, fix)


def requires_token(cluster: ClusterAddress) -> bool:
    """Whether the cluster refuses the calls of this process, by its mode and token (RAY_AUTH_MODE).

    Raises:
        PoolError: nothing responds at the address, or no cluster, or one of another version of Ray;
            or this machine is not a node of it.
    """
    if not ray_internals.uses_proxy() and (reason := _connection_problem(cluster.endpoint)):
        raise cluster.problem(f"no response from {cluster.endpoint} ({reason})")
    try:
        if cluster.is_client:
            ray_internals.ping_client_server(cluster.endpoint, _ANSWER_TIMEOUT_S)
        else:
            _check_membership(cluster)
    except ray_internals.MissingName:  # Ray finds out when it connects
        return False
    except PoolError:
        raise
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return True
        server = "a Ray cluster (GCS, port 6379)"
        if cluster.is_client:
            server = "a Ray client server (port 10001)"
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            server += ", or one that needs RAY_USE_TLS"
        raise cluster.problem(
            f"{cluster.endpoint} is not {server} ({error.code().name})"
        ) from error
    except RuntimeError as error:  # certificates that RAY_USE_TLS needs
        raise cluster.problem(
            str(error), "set the variables of Ray's TLS, or unset RAY_USE_TLS"
        ) from error
    return False


def _check_membership(cluster: ClusterAddress) -> None:
    """Check that a process of this machine is a node of the cluster, as Ray needs for a driver, and
    of its version.

    Raises:
        PoolError: none is, or it is not.
    """
    end = time.monotonic() + _NODE_TIMEOUT_S
    while True:
        nodes = ray_internals.local_node_ids()
        version, are_alive = ray_internals.check_alive(cluster.endpoint, nodes, _ANSWER_TIMEOUT_S)
        if version != ray.__version__:
            text = f"the cluster has Ray {version}, this process has {ray.__version__}"
            raise cluster.problem(text, "install the same version on all machines")
        if any(are_alive):
            return
        if time.monotonic() > end:
            text = f"this machine is not a node of the cluster at {cluster.endpoint}"
            raise cluster.problem(
                text, "launch on one of its nodes, with `ray job submit`, or at ray://HOST:10001"
            )
        time.sleep(_NODE_INTERVAL_S)


def _connection_problem(endpoint: str) -> str | None:
    """Connect once to HOST:PORT; returns the system's reason if that fails."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return getattr(error, "strerror", None) or str(error)
    return None


@contextlib.contextmanager
def connected(
    address: str | None,
    slots: Slots,
    cores: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    placement: Placement = ANYWHERE,
) -> Iterator[Slots]:
    """A context connected to the cluster at `address`, or to a Ray started on this machine. Yields
    slots that fit.

    Args:
        address: see `resolve_address`; None: start Ray on this machine.
        slots: what is asked for.
        cores: of this machine.
        environment: variables of the processes of a Ray started here. (Ray's own way starts an
            agent for it first.)
        placement: the nodes that the sweep needs.

    Raises:
        ValueError: `address` is not the address of a cluster, or Ray's files cannot be kept here
            (RAY_TMPDIR).
        PoolError: no cluster at the address, or no node with room for a worker, or none of a kind
            that is needed.
    """
    cluster = None if address is None else resolve_address(address)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(without_proxy(ray.util.get_node_ip_address())))  # type: ignore[no-untyped-call]
        if cluster is None:
            local_cores = max(cores, round((slots.count or 1) * slots.cpus + 0.5))
            guard = _start(stack, local_cores, environment)
        else:
            stack.enter_context(_environment({_AUTH_MODE: os.environ.get(_AUTH_MODE)}))
            stack.callback(ray.shutdown)
            _connect(cluster, {})
        nodes = alive_nodes()
        slots = fit(slots, nodes)
        placement.check(slots, nodes)
        try:
            yield slots
        except ClusterLost:
            guard.kill()  # what is left would take seconds to notice
            raise


def _start(stack: contextlib.ExitStack, cores: int, environment: Mapping[str, str]) -> ClusterGuard:
    """Start Ray on this machine until the stack is closed. On a busy machine, Ray gives up after
    seconds: it is started again then.

    Raises:
        PoolError, ValueError: as `connected`.
    """
    for attempts_left in reversed(range(_START_ATTEMPTS)):
        with contextlib.ExitStack() as attempt:
            guard = attempt.enter_context(contextlib.closing(ClusterGuard()))
            attempt.enter_context(cleaned_up(guard.kill))
            # Without a mode, Ray requires tokens of whoever connects to a cluster that it starts.
            # The files of a job, if this process is one, are on the job's own cluster.
            variables = {
                **environment,
                **guard.mark,
                **_new_token(guard.folder),
                _AUTH_MODE: None,
                _JOB_CONFIG: None,
            }
            attempt.enter_context(_environment(variables))
            attempt.enter_context(ray_internals.on_loopback())
            attempt.enter_context(ray_internals.without_services())
            attempt.callback(ray.shutdown)
            files = guard.folder / "ray"
            options = {
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "num_cpus": cores,
            }
            try:
                _connect(None, options | {"_temp_dir": str(files)})
            except PoolError:
                if not attempts_left or not ray_internals.has_late_agents(files):
                    raise
                continue
            stack.push(attempt.pop_all())
            break
    return guard


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables of the processes that start in the block (None: not set)."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    ray_internals.forget_authentication()


def _has_token() -> bool:
    """Whether the user has a token, by Ray's variables or its file."""
    path = Path(os.environ.get(_TOKEN_PATH) or _DEFAULT_TOKEN_PATH).expanduser()
    return bool(os.environ.get(_TOKEN)) or path.is_file()


def _new_token(folder: Path) -> dict[str, str]:
    """The environment variable of a new token in a folder of this user alone; none if the user has
    a token.

    If there is none, Ray writes one that other users can read to ~/.ray, which may be read-only.
    """
    if _has_token():
        return {}
    path = folder / "auth_token"
    path.write_text(secrets.token_hex(32))
    return {_TOKEN_PATH: str(path)}


def _connect(cluster: ClusterAddress | None, options: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start Ray on this machine (None). Handlers of signals stay as they
    are.

    Raises:
        PoolError: no cluster; the message has the cause and the fix.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # idle processes, which no actor takes
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    if cluster is not None:
        _authenticate(cluster)
    ray_internals.hide_worker_logs()
    with ray_internals.keeping_sigterm():
        try:
            ray.init(
                "local" if cluster is None else cluster.address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **options,
            )
        except Exception as error:
            # Ray has no class of its own for a node that did not start in time
            raise _connect_problem(cluster, error) from error


def _authenticate(cluster: ClusterAddress) -> None:
    """Use the user's token if the cluster requires one. With a token, a driver in a cluster without
    tokens would refuse its own workers' calls.

    Raises:
        PoolError: no cluster responds, or it requires a token that the user does not have.
    """
    mode = os.environ.get(_AUTH_MODE)
    is_refused = requires_token(cluster)
    copy = f"copy the head node's {_DEFAULT_TOKEN_PATH} here, or name that file by {_TOKEN_PATH}"
    if mode is None:
        if is_refused and not _has_token():
            raise cluster.problem("the cluster requires a token, and there is none", copy)
        _set({_AUTH_MODE: "token" if is_refused else "disabled"})
        is_refused = is_refused and requires_token(cluster)
    if is_refused and (mode or "token").lower() != "token":
        raise cluster.problem(
            f"the cluster requires a token, and {_AUTH_MODE} is {mode}", f"unset {_AUTH_MODE}"
        )
    if is_refused:
        raise cluster.problem("the cluster refuses this user's token", copy)


def _connect_problem(cluster: ClusterAddress | None, error: Exception) -> PoolError:
    """Why there is no cluster, in one line, with the fix for this cause."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if cluster is None:
        fix = (
            "check this machine's free memory, its load, and the space in the folder of RAY_TMPDIR "
            "or TMPDIR"
        )
        return PoolError(f"Ray did not start on this machine: {text}; {fix}")
    if "Version mismatch" in text:
        return cluster.problem(text, "install the same versions of Ray and Python on all machines")
    return cluster.problem(text)


def alive_nodes() -> list[Node]:
    """The nodes that the cluster has now."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(node["Resources"], node["Labels"]) for node in nodes if node["Alive"]]


class ClusterMonitor:
    """Notices that the cluster that this process is connected to lost what a driver cannot do
    without.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        is_client = ray.util.client.ray.is_connected()  # type: ignore[no-untyped-call]
        # a client connects to a proxy, and not to the GCS
        self._gcs_address = "" if is_client else context.gcs_address
        self._node_id = context.get_node_id()
        self._probed = time.monotonic()
        self._silent_since: float | None = None

    def responds(self, max_age: float = _PROBE_INTERVAL_S) -> bool:
        """Whether the cluster responded at most `max_age` seconds ago; if not, calls of its GCS
        would block.

        Raises:
            ClusterLost: a process of a cluster that this process started has died.
            PoolError: the GCS of another cluster has not responded for a while.
        """
        if lost := sorted(ray_internals.dead_processes() & _ESSENTIAL_PROCESSES):
            raise ClusterLost(f"Ray on this machine lost its {' and '.join(lost)}")
        if self._gcs_address and time.monotonic() - self._probed >= max_age:
            is_up = _connection_problem(self._gcs_address) is None
            self._probed = time.monotonic()
            if is_up:
                self._silent_since = None
            elif self._silent_since is None:
                self._silent_since = self._probed
        if self._silent_since is None:
            return True
        silence = self._probed - self._silent_since
        if silence > GCS_TIMEOUT_S:
            raise PoolError(
                f"Ray's GCS at {self._gcs_address} has not responded for {silence:.0f} s; start "
                "the cluster again"
            )
        return False

    def check_node(self) -> None:
        """Raise PoolError if the node of this process is dead: Ray would wait for it. Call it while
        Ray responds.
        """
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if any(node["NodeID"] == self._node_id and not node["Alive"] for node in nodes):
            raise PoolError("Ray's node on the driver's machine died; start it again")
