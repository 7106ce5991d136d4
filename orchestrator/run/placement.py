"""The nodes that a sweep's workers run on: their resources, and by Ray's labels who draws images and who times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from orchestrator.run.tasks import PoolError
from search_spaces.sweep import SweepConfig
from workers.metrics.registry import uses_timings
from workers.runtime.allocator import allocator_environment
from workers.runtime.threads import thread_environment

Labels = Mapping[str, str]
NODE_ID_LABEL = "ray.io/node-id"  # Ray sets it


@dataclass(frozen=True, slots=True)
class Slots:
    """Number of workers (None: as many as the cluster has room for) and resources of each. gpus None: see `fit`."""

    count: int | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def environment(self, threads: int | None) -> dict[str, str]:
        """Environment of a worker with this many threads (None: one for each of its cores): no downloads."""
        threads = threads or max(1, int(self.cpus))
        return thread_environment(threads) | allocator_environment() | {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node's resources, by Ray's names, and labels."""

    resources: Mapping[str, float]
    labels: Labels = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.labels.get(NODE_ID_LABEL, "")

    def room(self, slots: Slots) -> int:
        """How many workers it holds. Ray puts a fraction on one GPU."""
        gpus = int(self.resources.get("GPU", 0))
        counts = [int(self.resources.get("CPU", 0) // slots.cpus)] if slots.cpus else []
        if slots.gpus:
            counts.append(gpus * int(1 / slots.gpus) if slots.gpus < 1 else int(gpus // slots.gpus))
        return min(counts, default=1)


@dataclass(frozen=True, slots=True)
class Placement:
    """Labels of the nodes that draw images, and of those that time; empty: of any node. times None: nobody times."""

    draws: Labels = field(default_factory=dict)
    times: Labels | None = field(default_factory=dict)

    @classmethod
    def of(cls, sweep: SweepConfig) -> Self:
        """What the sweep's sections say. Timing shards without labels run where quality shards do."""
        draws = dict(sweep.quality.nodes or {})
        is_timed = uses_timings(sweep.requested_metrics)
        return cls(draws, dict(sweep.timing.nodes or draws) if is_timed else None)

    @property
    def kinds(self) -> dict[str, Labels]:
        """The kinds of nodes that the sweep cannot do without, by the key that names them."""
        kinds = {"timing.nodes": self.times or {}, "quality.nodes": self.draws}
        return {
            key: labels for key, labels in kinds.items() if labels and (key == "timing.nodes" or labels != self.times)
        }

    @property
    def roles(self) -> tuple[str, ...]:
        """What at least one worker must be able to do, as attributes of a `PoolWorker`."""
        return ("draws",) if self.times is None else ("draws", "times")

    @property
    def alternatives(self) -> list[Labels]:
        """Labels of which a node must have one set to be of use; none: any node is."""
        return list(self.kinds.values()) if self.draws else []

    def next_labels(self, present: Sequence[Labels]) -> list[Labels]:
        """Labels of which the next worker's node must have one set: first of a kind that no worker is on. present: of
        the workers' nodes.
        """
        for kind in self.kinds.values():
            if not any(has_labels(labels, kind) for labels in present):
                return [kind]
        return self.alternatives

    def uses(self, node: Node) -> bool:
        """Whether a worker on this node is of use."""
        return not self.alternatives or any(has_labels(node.labels, labels) for labels in self.alternatives)

    def check(self, slots: Slots, nodes: Sequence[Node]) -> None:
        """Check that every kind of node is there. With a number of workers, missing ones may come.

        Raises:
            PoolError: names the key and the labels that there are.
        """
        if slots.count is not None and slots.count < len(self.kinds):
            keys = " and ".join(self.kinds)
            raise PoolError(f"--workers {slots.count}: {keys} name two kinds of nodes; give 2 or more")
        for key, labels in self.kinds.items():
            if slots.count is None and not any(has_labels(node.labels, labels) and node.room(slots) for node in nodes):
                found = {f"{name}={node.labels[name]}" for name in labels for node in nodes if name in node.labels}
                raise PoolError(
                    f"{key}: no node with room for a worker has {describe_labels(labels)} (there is "
                    f"{', '.join(sorted(found)) or 'no such label'}); correct it, start such a node with "
                    "`ray start --labels`, or give --workers N on an autoscaling cluster"
                )


ANYWHERE = Placement()


def has_labels(labels: Labels, required: Labels) -> bool:
    return required.items() <= labels.items()


def describe_labels(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def fit(slots: Slots, nodes: Sequence[Node]) -> Slots:
    """Slots for these nodes: if `slots` does not say how many GPUs a worker has, one if a node has any, else none.

    Ray waits forever for resources that no node has. That makes sense only on an autoscaling cluster, where waiting
    workers are the demand, so it requires an explicit number of workers.

    Raises:
        PoolError: no node has room for a worker.
    """
    gpus = float(_have_gpus(nodes)) if slots.gpus is None else slots.gpus
    fitted = Slots(slots.count, slots.cpus, gpus)
    if slots.count is None and not any(node.room(fitted) for node in nodes):
        needed = {"CPU": slots.cpus, "GPU": gpus}
        largest = {name: max((node.resources.get(name, 0) for node in nodes), default=0) for name in needed}
        name = next((name for name in needed if needed[name] > largest[name]), "CPU")
        raise PoolError(
            f"a worker needs {needed[name]:g} {name}, but the largest node has {largest[name]:g}: lower "
            f"--{name.lower()}s-per-worker, or give --workers N on an autoscaling cluster"
        )
    return fitted


def check_demand(slots: Slots, nodes: Sequence[Node]) -> None:
    """Check that `slots` says what nodes to come must have: an autoscaler starts those that workers ask for.

    Raises:
        PoolError: the nodes lack room for all workers, and none of them tells whether workers have a GPU.
    """
    if slots.count is None or slots.gpus is not None or not slots.cpus or _have_gpus(nodes):
        return
    room = sum(node.room(slots) for node in nodes)
    if room < slots.count:
        raise PoolError(
            f"--workers {slots.count}: the cluster has room for {room} now, and no GPU; give --gpus-per-worker 1 if "
            "nodes to come have GPUs, or --gpus-per-worker 0 for workers on CPUs"
        )


def _have_gpus(nodes: Sequence[Node]) -> bool:
    return any(node.resources.get("GPU", 0) >= 1 for node in nodes)


def worker_capacity(slots: Slots, nodes: Sequence[Node]) -> int:
    """How many workers these nodes hold; at least 1, because nodes may still join."""
    return max(1, sum(node.room(slots) for node in nodes))
