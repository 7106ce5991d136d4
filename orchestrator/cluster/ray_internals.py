"""The private names of Ray that this project uses, and what is done if a version of Ray lacks one.

No other module uses them. Ray may change them in any version, so `pyproject.toml` bounds its
version. Without a name, a check is left to Ray's own, later one, and Ray starts all of its
processes; only the loopback is not given up.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import ray

from orchestrator.cluster.tasks import PoolError

ALIVE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_PROXY_VARIABLE = "RAY_grpc_enable_http_proxy"
_PING_METHOD = "/ray.rpc.RayletDriver/ClusterInfo"
# with the port of an agent; last words of a raylet
_AGENTS_ARE_LATE = b"Timed out waiting for file"


class PrivateName(StrEnum):
    """MODULE:ATTRIBUTE of each private name."""

    ACTOR_ID = "ray.actor:ActorHandle._actor_id"
    ACTORS = "ray._private.state:actors"
    API_SERVER = "ray._private.services:start_api_server"
    CHANNEL = "ray._private.grpc_utils:init_grpc_channel"
    CHECK_ALIVE_REPLY = "ray.core.generated.gcs_service_pb2:CheckAliveReply"
    CHECK_ALIVE_REQUEST = "ray.core.generated.gcs_service_pb2:CheckAliveRequest"
    CLUSTERS_ENABLED = "ray._private.ray_constants:ENABLE_RAY_CLUSTER"
    CONFIG = "ray._raylet:Config.initialize"
    GCS_ADDRESSES = "ray._private.services:find_gcs_addresses"
    GCS_ADDRESSES_CACHE = "ray._private.services:find_gcs_addresses.cache_clear"
    NODE = "ray._private.worker:_global_node"
    NODE_IDS = "ray._private.services:find_node_ids"
    PARAMETERS = "ray._private.parameter:RayParams"
    PING_REQUEST = "ray.core.generated.ray_client_pb2:ClusterInfoRequest"
    PING_TYPE = "ray.core.generated.ray_client_pb2:ClusterInfoType.PING"
    SIGTERM_SETTER = "ray._private.utils:set_sigterm_handler"
    TOKENS = "ray._raylet:AuthenticationTokenLoader.instance"
    WORKER_LOGS = "ray._private.worker:_worker_logs_enabled"


class MissingName(PoolError):
    """This version of Ray lacks a private name."""


def _private(name: PrivateName) -> Any:
    """The value of a private name. Raises MissingName."""
    try:
        return attrgetter(name.partition(":")[2])(_module(name))
    except (ImportError, AttributeError) as error:
        problem = f"Ray {ray.__version__} has no {name}"
        raise MissingName(
            f"{problem}; install a version that specfrontier's pyproject.toml allows"
        ) from error


def _module(name: PrivateName) -> Any:
    return importlib.import_module(name.partition(":")[0])


def forget_authentication() -> None:
    """Make Ray read its mode and token again: it caches them, and this process's next cluster may
    have others.
    """
    with suppress(MissingName):
        _private(PrivateName.CONFIG)("")
        _private(PrivateName.TOKENS)().reset_cache()


@contextmanager
def _replaced(name: PrivateName, value: Any) -> Iterator[None]:
    """While the block runs, a private name has this value. Raises MissingName."""
    before = _private(name)
    module = _module(name)
    attribute = name.partition(":")[2]
    setattr(module, attribute, value)
    try:
        yield
    finally:
        setattr(module, attribute, before)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Clusters that start in the block use the loopback's address, so all of their sockets are
    bound to it.

    Ray does so by itself where it supports no clusters of machines (macOS, Windows). It replaces a
    given 127.0.0.1 by the address of the network.

    Raises:
        MissingName: this version of Ray cannot be kept on the loopback.
    """
    with _replaced(PrivateName.CLUSTERS_ENABLED, False):
        yield


@contextmanager
def without_services() -> Iterator[None]:
    """Clusters that start in the block have no dashboard's server, autoscaler or log monitor. A
    sweep on one machine uses none of them, and they are half of the CPU time of a start.
    """
    with ExitStack() as stack:
        with suppress(MissingName):
            parameters = partial(
                _private(PrivateName.PARAMETERS), no_monitor=True, include_log_monitor=False
            )
            stack.enter_context(_replaced(PrivateName.PARAMETERS, parameters))
            stack.enter_context(_replaced(PrivateName.API_SERVER, lambda *_, **__: ("", None)))
        yield


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """What SIGTERM does stays as it is, in the block and after it. Ray would exit with code 15, and
    its C++ code prints a stack; in a thread other than the main one, it does neither.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)

    def keep(_: object = None) -> None:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)

    try:
        with ExitStack() as stack:
            with suppress(MissingName):
                stack.enter_context(_replaced(PrivateName.SIGTERM_SETTER, keep))
            yield
    finally:
        keep()


def has_late_agents(folder: Path) -> bool:
    """Whether a raylet whose files are in this folder aborted because its agents did not start
    within 15 s, as on a machine with much other work. Ray has no setting for it (2.60).
    """
    logs = folder.glob("session_*/logs/raylet.*")
    return any(_AGENTS_ARE_LATE in log.read_bytes() for log in logs)


def hide_worker_logs() -> None:
    """Keep the last messages of a raylet that dies off standard output."""
    with suppress(MissingName):
        _private(PrivateName.WORKER_LOGS)
        _module(PrivateName.WORKER_LOGS)._worker_logs_enabled = False


def dead_processes() -> set[str]:
    """The kinds of processes that have died in a cluster that this process started."""
    with suppress(MissingName):
        node = _private(PrivateName.NODE)
        return set() if node is None else {name for name, _ in node.dead_processes()}
    return set()


def have_processes(actors: Sequence[Any]) -> list[bool]:
    """Whether each of these actors has a process, as Ray's GCS knows: the others wait for a node.
    False for those of a Ray client, which cannot ask.
    """
    with suppress(MissingName):
        if actors and not ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
            identify = _private(PrivateName.ACTOR_ID).fget
            query = _private(PrivateName.ACTORS)
            known = query(job_id=ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id())))
            return [known.get(identify(actor).hex(), {}).get("Pid", 0) > 0 for actor in actors]
    return [False] * len(actors)


def local_clusters() -> set[str]:
    """The addresses of the clusters to which Ray processes on this machine belong."""
    with suppress(MissingName):
        _private(PrivateName.GCS_ADDRESSES_CACHE)()
        return set(_private(PrivateName.GCS_ADDRESSES)())
    return set()


def local_node_ids() -> list[str]:
    """The ids, in hexadecimal digits, of the Ray nodes that run on this machine."""
    return sorted(_private(PrivateName.NODE_IDS)())


def ping_client_server(endpoint: str, timeout_s: float) -> None:
    """Call the server of Ray clients at HOST:PORT. Raises as `_ask`."""
    _ask(
        endpoint,
        _PING_METHOD,
        _private(PrivateName.PING_REQUEST)(type=_private(PrivateName.PING_TYPE)),
        timeout_s,
    )


def check_alive(endpoint: str, nodes: Sequence[str], timeout_s: float) -> tuple[str, list[bool]]:
    """The version of Ray of the GCS at HOST:PORT, and whether each of these nodes is alive there.
    Raises as `_ask`.
    """
    request = _private(PrivateName.CHECK_ALIVE_REQUEST)(node_ids=map(bytes.fromhex, nodes))
    reply = _private(PrivateName.CHECK_ALIVE_REPLY).FromString(
        _ask(endpoint, ALIVE_METHOD, request, timeout_s)
    )
    return reply.ray_version, list(reply.raylet_alive)


def _ask(endpoint: str, method: str, request: Any, timeout_s: float) -> bytes:
    """The answer to one call, made with the user's token if RAY_AUTH_MODE says so. As Ray's own
    calls, it does not use a proxy.

    Raises:
        grpc.RpcError: no answer, or a refusal.
        RuntimeError: the certificates that RAY_USE_TLS needs are missing, or a private name is.
    """
    options = (("grpc.enable_http_proxy", int(uses_proxy())),)
    with _private(PrivateName.CHANNEL)(endpoint, options) as channel:
        answer: bytes = channel.unary_unary(method)(request.SerializeToString(), timeout=timeout_s)
        return answer


def uses_proxy() -> bool:
    """Whether the user wants Ray's calls to go through a proxy."""
    return os.environ.get(_PROXY_VARIABLE, "0").lower() in ("1", "true")
