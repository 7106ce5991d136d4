"""Connects to the Ray cluster that workers run on, or starts one on this machine, and sizes the workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from orchestrator.run.tasks import PoolError
from workers.runtime.allocator import allocator_environment
from workers.runtime.threads import thread_environment

_OBJECT_STORE_BYTES = 128 << 20  # results are files, so Ray's object store stays nearly empty


@dataclass(frozen=True, slots=True)
class Slots:
    """Number of workers (None: as many as the cluster has room for) and resources of each. gpus 0: chosen by `fit`."""

    count: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def environment(self, threads: int | None) -> dict[str, str]:
        """Environment of a worker with this many threads (None: one for each of its cores): no downloads."""
        threads = threads or max(1, int(self.cpus))
        return thread_environment(threads) | allocator_environment() | {"HF_HUB_OFFLINE": "1"}


@contextlib.contextmanager
def connected(address: str | None, slots: Slots, cores: int) -> Iterator[Slots]:
    """A context connected to the cluster at `address`, or to a Ray started on this machine. Yields slots that fit.

    Raises:
        PoolError: no cluster at the address, or no node with room for a worker.
    """
    _connect(address, max(cores, round((slots.count or 1) * slots.cpus + 0.5)))
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        yield fit(slots, nodes)
    finally:
        ray.shutdown()


def _connect(address: str | None, cores: int) -> None:
    """Connect to the cluster at `address`, or start Ray on this machine with `cores` cores.

    Raises:
        PoolError: no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
            ray.init("local", num_cpus=cores, **options)
        else:
            if "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray" / "auth_token").exists():
                os.environ["RAY_AUTH_MODE"] = "token"
            ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        host = f"at {address}" if address else "on this machine"
        raise PoolError(
            f"no Ray cluster {host}: {error}. `ray status` shows running clusters; for one that requires a token, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        ) from error


def cluster_resources() -> dict[str, float]:
    """Resources of all nodes together, by Ray's names."""
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def fit(slots: Slots, nodes: Sequence[Mapping[str, float]]) -> Slots:
    """Slots for these nodes: one GPU per worker if a node has one and `slots` asks for none.

    Ray waits forever for resources that no node has. That makes sense only on an autoscaling cluster, where waiting
    workers are the demand, so it requires an explicit number of workers.

    Raises:
        PoolError: no node has room for a worker.
    """
    gpus = slots.gpus or (1.0 if any(node.get("GPU", 0) >= 1 for node in nodes) else 0.0)
    needed = {"CPU": slots.cpus, "GPU": gpus}
    fits = any(all(node.get(name, 0) >= amount for name, amount in needed.items()) for node in nodes)
    if not fits and slots.count is None:
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needed}
        name = next((name for name in needed if needed[name] > largest[name]), "CPU")
        raise PoolError(
            f"a worker needs {needed[name]:g} {name}, but the largest node has {largest[name]:g}: lower "
            f"--{name.lower()}s-per-worker, or give --workers N on an autoscaling cluster"
        )
    return Slots(slots.count, slots.cpus, gpus)


def worker_capacity(slots: Slots, resources: Mapping[str, float]) -> int:
    """How many workers the cluster has room for; at least 1, because nodes may still join."""
    counts = [int(resources.get("CPU", 0) // slots.cpus)] if slots.cpus else []
    counts += [int(resources.get("GPU", 0) // slots.gpus)] if slots.gpus else []
    return max(1, min(counts, default=1))
