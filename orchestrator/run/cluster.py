"""The cluster that workers run on: joined, or started on this machine; what it has, and what fits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from orchestrator.run.tasks import PoolError

OBJECT_STORE = 128 << 20  # bytes; results are files, so the store holds next to nothing


@dataclass(frozen=True, slots=True)
class Slots:
    """What a worker takes of the cluster, and how many there shall be (None: as many as there is room for)."""

    count: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0


@contextlib.contextmanager
def connected(address: str | None, slots: Slots, cores: int) -> Iterator[Slots]:
    """Join the cluster at `address`, or start Ray on this machine alone, until the block is left. Gives slots that fit:
    a GPU a worker where there are GPUs, else `slots.cpus` cores.

    Raises:
        PoolError: no cluster there, or none with room for a single worker.
    """
    connect(address, max(cores, round((slots.count or 1) * slots.cpus + 0.5)))
    try:
        yield fit(slots, nodes())
    finally:
        ray.shutdown()


def connect(address: str | None, cores: int) -> None:
    """Join the cluster at `address`, or start Ray on this machine with so many cores.

    Raises:
        PoolError: no cluster there.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(
                "local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet
            )  # fmt: skip
        else:
            if "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray" / "auth_token").exists():
                os.environ["RAY_AUTH_MODE"] = "token"
            ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "on this machine"
        raise PoolError(
            f"no Ray cluster {where}: {error}. `ray status` shows one that runs; if it asks for a token, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
        ) from error


def resources() -> dict[str, float]:
    """What all nodes of the cluster have together, by Ray's names."""
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def nodes() -> list[dict[str, float]]:
    """What each node that is up has."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def fit(slots: Slots, there: Sequence[Mapping[str, float]]) -> Slots:
    """Slots for the nodes that are there: a GPU a worker if a node has one and none was asked for.

    Ray itself would wait for ever for what no node has. That is wanted only of a cluster that starts nodes on demand,
    and said by a number of workers: their waiting is the demand.

    Raises:
        PoolError: not even one worker fits on any node.
    """
    gpus = slots.gpus or (1.0 if any(node.get("GPU", 0) >= 1 for node in there) else 0.0)
    wanted = {"CPU": slots.cpus, "GPU": gpus}
    fits = any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in there)
    if not fits and slots.count is None:
        most = {name: max((node.get(name, 0) for node in there), default=0) for name in wanted}
        short = next((name for name in wanted if wanted[name] > most[name]), "CPU")
        raise PoolError(
            f"a worker wants {wanted[short]:g} {short}, the largest node has {most[short]:g}: ask for less "
            f"(--{short.lower()}s-per-worker), or say --workers N to a cluster that starts nodes on demand"
        )
    return Slots(slots.count, slots.cpus, gpus)


def room(slots: Slots, there: Mapping[str, float]) -> int:
    """How many workers fit; never less than one, for the nodes may yet come."""
    fits = [int(there.get("CPU", 0) // slots.cpus)] if slots.cpus else []
    fits += [int(there.get("GPU", 0) // slots.gpus)] if slots.gpus else []
    return max(1, min(fits, default=1))
