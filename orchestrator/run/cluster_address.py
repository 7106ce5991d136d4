"""Where a running Ray cluster is, and whether it responds. Ray itself would retry for minutes."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import ray
from ray._common.utils import get_ray_address_file
from ray._private import ray_constants, services
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, ray_client_pb2

from orchestrator.results.redaction import without_credentials
from orchestrator.run.tasks import PoolError

CLIENT = "ray://"  # such a driver runs outside of the cluster
_AUTO = "auto"
_VARIABLE = "RAY_ADDRESS"
_CONNECT_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 6.0
_NODE_TIMEOUT_S = 5.0  # for a node that has just started
_NODE_INTERVAL_S = 0.5
ALIVE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_PING_METHOD = "/ray.rpc.RayletDriver/ClusterInfo"
_GCS: Any = gcs_service_pb2  # protobuf makes their classes at run time
_CLIENT: Any = ray_client_pb2
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/?#@\[\]\s]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster, as `ray.init` takes it: HOST:PORT or ray://HOST:PORT.

    source: the option, variable or file that names it. fix: what to do if there is no cluster.
    """

    address: str
    source: str
    fix: str

    @property
    def is_client(self) -> bool:
        """Whether the driver is a Ray client, outside of the cluster."""
        return self.address.startswith(CLIENT)

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the server; this machine's address for localhost, as Ray replaces it."""
        if self.is_client:
            return self.address.removeprefix(CLIENT)
        return str(services.canonicalize_bootstrap_address(self.address))

    def problem(self, text: str, fix: str | None = None) -> PoolError:
        """An error that names the source of the address, and the fix."""
        return PoolError(f"{self.source}: {text}; {fix or self.fix}")


def resolve_address(given: str) -> ClusterAddress:
    """The cluster that --address names. auto: RAY_ADDRESS, a Ray process on this machine, or the file of the last
    `ray start`, in Ray's own order.

    Raises:
        ValueError: not an address of a cluster.
        PoolError: auto, and there is no cluster, or several.
    """
    option = f"--address {without_credentials(given)}"
    if given != _AUTO:
        return _address(given, option, "`ray status` on the head node shows the address")
    named = os.environ.get(_VARIABLE, "")
    if named not in ("", _AUTO):
        return _address(
            named, f"{option}: {_VARIABLE} is {without_credentials(named)}", f"correct or unset {_VARIABLE}"
        )
    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    running = services.find_gcs_addresses()  # type: ignore[no-untyped-call]
    file = get_ray_address_file(None)
    stored = services.find_bootstrap_address(None)
    if len(running) == 1:
        (address,) = running
        fix = "restart it, or give --address HOST:PORT"
        return _address(address, f"{option}: a Ray process on this machine belongs to {address}", fix)
    if stored:
        fix = "start the cluster, remove the file, or give --address HOST:PORT"
        return _address(stored, f"{option}: {file} names {stored}", fix)
    if running:
        raise PoolError(f"{option}: several clusters run on this machine; give one of {', '.join(sorted(running))}")
    raise PoolError(
        f"{option}: no Ray cluster runs on this machine, {_VARIABLE} is not set, and there is no {file}; start a "
        "cluster with `ray start --head`, or give --address HOST:PORT"
    )


def _address(address: str, source: str, fix: str) -> ClusterAddress:
    """The address with its source.

    Raises:
        ValueError: it has no HOST:PORT; the message says what to write.
    """
    if address.startswith(("http://", "https://")):
        raise ValueError(f"{source}: this is the dashboard; give HOST:PORT of `ray start --port` (6379)")
    parts = _HOST_PORT.fullmatch(address.removeprefix(CLIENT))
    if parts is None or not 0 < int(parts["port"]) < 1 << 16:
        raise ValueError(
            f"{source}: not the address of a Ray cluster; give HOST:PORT, [IPV6]:PORT, ray://HOST:PORT or auto, or "
            "leave --address out to start Ray on this machine"
        )
    return ClusterAddress(address, source, fix)


def requires_token(cluster: ClusterAddress) -> bool:
    """Whether the cluster refuses the calls of this process, by its mode and token (RAY_AUTH_MODE).

    Raises:
        PoolError: nothing responds at the address, or no cluster, or one of another version of Ray; or this machine is
            not a node of it.
    """
    _check_port(cluster)
    if cluster.is_client:
        return _ask(cluster, _PING_METHOD, _CLIENT.ClusterInfoRequest(type=_CLIENT.ClusterInfoType.PING)) is None
    reply = _check_alive(cluster)
    if reply is None:
        return True
    if (version := reply.ray_version) != ray.__version__:
        text = f"the cluster has Ray {version}, this process has {ray.__version__}"
        raise cluster.problem(text, "install the same version on all machines")
    _check_node(cluster)
    return False


def _check_port(cluster: ClusterAddress) -> None:
    """Connect once. Raises PoolError with the system's reason."""
    if ray_constants.GRPC_ENABLE_HTTP_PROXY:
        return  # the user's choice; only gRPC can connect
    host, _, port = cluster.endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise cluster.problem(f"no response from {cluster.endpoint} ({reason})") from error


def _ask(cluster: ClusterAddress, method: str, request: Any) -> bytes | None:
    """The answer to one call; None: a token is needed. As Ray's own calls, it does not use a proxy.

    Raises:
        PoolError: no answer, or not that of a Ray cluster.
    """
    try:
        with init_grpc_channel(cluster.endpoint, ray_constants.GLOBAL_GRPC_OPTIONS) as channel:
            answer: bytes = channel.unary_unary(method)(request.SerializeToString(), timeout=_ANSWER_TIMEOUT_S)
            return answer
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return None
        server = "a Ray client server (port 10001)" if cluster.is_client else "a Ray cluster (GCS, port 6379)"
        uses_tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
        over_tls = "" if uses_tls else ", or one that needs RAY_USE_TLS"
        raise cluster.problem(f"{cluster.endpoint} is not {server}{over_tls} ({error.code().name})") from error
    except RuntimeError as error:  # certificates that RAY_USE_TLS needs
        raise cluster.problem(str(error), "set the variables of Ray's TLS, or unset RAY_USE_TLS") from error


def _check_alive(cluster: ClusterAddress, nodes: Iterable[str] = ()) -> Any:
    """The reply of the cluster's GCS: its `ray_version`, and which nodes are alive. None: a token is needed."""
    answer = _ask(cluster, ALIVE_METHOD, _GCS.CheckAliveRequest(node_ids=map(bytes.fromhex, nodes)))
    return None if answer is None else _GCS.CheckAliveReply.FromString(answer)


def _check_node(cluster: ClusterAddress) -> None:
    """Check that a process of this machine is a node of the cluster, as Ray needs for a driver.

    Raises:
        PoolError: none is.
    """
    end = time.monotonic() + _NODE_TIMEOUT_S
    while True:
        nodes = services.find_node_ids()  # type: ignore[no-untyped-call]
        if any(_check_alive(cluster, nodes).raylet_alive):
            return
        if time.monotonic() > end:
            text = f"this machine is not a node of the cluster at {cluster.endpoint}"
            raise cluster.problem(text, "launch on one of its nodes, with `ray job submit`, or at ray://HOST:10001")
        time.sleep(_NODE_INTERVAL_S)
