"""Connects to the Ray cluster that workers run on, or starts one on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.authentication import authentication_token_setup
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from orchestrator.interrupts import Terminated, cleaned_up
from orchestrator.proxies import without_proxy
from orchestrator.run.cluster_address import ClusterAddress, requires_token, resolve_address
from orchestrator.run.cluster_guard import ClusterGuard
from orchestrator.run.placement import ANYWHERE, Node, Placement, Slots, fit
from orchestrator.run.tasks import ClusterLost, PoolError

_AUTH_MODE = "RAY_AUTH_MODE"
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_OBJECT_STORE_BYTES = 128 << 20  # results are files, so Ray's object store stays nearly empty


@contextlib.contextmanager
def connected(
    address: str | None,
    slots: Slots,
    cores: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    placement: Placement = ANYWHERE,
) -> Iterator[Slots]:
    """A context connected to the cluster at `address`, or to a Ray started on this machine. Yields slots that fit.

    environment: variables of the processes of a Ray started here. (Ray's own way starts an agent for it first.)

    Raises:
        ValueError: `address` is not the address of a cluster, or Ray's files cannot be kept here (RAY_TMPDIR).
        PoolError: no cluster at the address, or no node with room for a worker, or none of a kind that is needed.
    """
    cluster = None if address is None else resolve_address(address)
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        stack.enter_context(_environment(without_proxy(ray.util.get_node_ip_address())))  # type: ignore[no-untyped-call]
        if cluster is None:
            guard = stack.enter_context(contextlib.closing(ClusterGuard()))
            stack.enter_context(cleaned_up(guard.kill))
            # Without a mode, Ray requires tokens of whoever connects to a cluster that it starts. The files of a job,
            # if this process is one, are on the job's own cluster.
            variables = {**environment, **guard.mark, **_token(guard.folder), _AUTH_MODE: None, _JOB_CONFIG: None}
            stack.enter_context(_environment(variables))
            stack.enter_context(_loopback())
            local_cores = max(cores, round((slots.count or 1) * slots.cpus + 0.5))
            options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
            options |= {"num_cpus": local_cores, "_temp_dir": str(guard.folder / "ray")}
        else:
            stack.enter_context(_environment({_AUTH_MODE: os.environ.get(_AUTH_MODE)}))
        stack.callback(ray.shutdown)
        _connect(cluster, options)
        nodes = alive_nodes()
        slots = fit(slots, nodes)
        placement.check(slots, nodes)
        try:
            yield slots
        except ClusterLost:
            guard.kill()  # what is left would take seconds to notice
            raise


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables of the processes that start in the block (None: not set)."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)
        Config.initialize("")  # Ray caches the mode and the token; this process's next cluster may have others
        AuthenticationTokenLoader.instance().reset_cache()


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _token(folder: Path) -> dict[str, str]:
    """The environment variable of a new token in a folder of this user alone; none if the user has a token.

    If there is none, Ray writes one that other users can read to ~/.ray, which may be read-only.
    """
    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()
    if loader.has_token(ignore_auth_mode=True):
        return {}
    path = folder / "auth_token"
    path.write_text(generate_new_authentication_token())
    return {"RAY_AUTH_TOKEN_PATH": str(path)}


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Clusters that start in the block use the loopback's address, so all of their sockets are bound to it.

    Ray does so by itself where it supports no clusters of machines (macOS, Windows). It replaces a given 127.0.0.1 by
    the address of the network.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _connect(cluster: ClusterAddress | None, options: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start Ray on this machine (None). Handlers of signals stay as they are.

    Raises:
        PoolError: no cluster; the message has the cause and the fix.
        Terminated: SIGTERM arrived meanwhile.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # idle processes, which no actor takes
    if cluster is not None:
        _authenticate(cluster)
    handler = signal.getsignal(signal.SIGTERM)
    ray._private.worker._worker_logs_enabled = False  # a dead raylet's last words would go to standard output
    try:
        ray.init("local" if cluster is None else cluster.address, **options)
    except SystemExit:  # by Ray's own handler
        raise Terminated from None
    except Exception as error:  # Ray has no class of its own for a node that did not start in time
        raise _connect_problem(cluster, error) from error
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _authenticate(cluster: ClusterAddress) -> None:
    """Use the user's token if the cluster requires one. With a token, a driver in a cluster without tokens would refuse
    its own workers' calls.

    Raises:
        PoolError: no cluster responds, or it requires a token that the user does not have.
    """
    mode = os.environ.get(_AUTH_MODE)
    if requires_token(cluster) and mode is None:
        if not authentication_token_setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False):
            fix = "copy the head node's ~/.ray/auth_token here, or name a file by RAY_AUTH_TOKEN_PATH"
            raise cluster.problem("the cluster requires a token, and there is none", fix)
    elif mode is None:
        os.environ[_AUTH_MODE] = "disabled"
        Config.initialize("")  # Ray caches the mode
        return
    if requires_token(cluster):
        if mode is not None and mode.lower() != "token":
            raise cluster.problem(f"the cluster requires a token, and {_AUTH_MODE} is {mode}", f"unset {_AUTH_MODE}")
        fix = "copy the head node's ~/.ray/auth_token here, or name that file by RAY_AUTH_TOKEN_PATH"
        raise cluster.problem("the cluster refuses this user's token", fix)


def _connect_problem(cluster: ClusterAddress | None, error: Exception) -> PoolError:
    """Why there is no cluster, in one line, with the fix for this cause."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if cluster is None:
        fix = "check this machine's free memory, its load, and the space in the folder of RAY_TMPDIR or TMPDIR"
        return PoolError(f"Ray did not start on this machine: {text}; {fix}")
    same_versions = "install the same versions of Ray and Python on all machines"
    return cluster.problem(text, same_versions if "Version mismatch" in text else None)


def alive_nodes() -> list[Node]:
    """The nodes that the cluster has now."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(node["Resources"], node["Labels"]) for node in nodes if node["Alive"]]
