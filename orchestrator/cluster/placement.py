"""The nodes that a sweep's workers run on: their resources, and which of them generate images and
which ones time.

Labels of Ray say where a sweep wants its workers; whether workers may share the work is measured. A
worker that starts runs the target on fixed input (`workers.runtime.numerics`). In float32, devices
of different kinds may generate together if their numbers agree within rounding. In 16 bits,
rounding changes tokens, so the device must be the same and the numbers equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from orchestrator.cluster.tasks import PoolError
from search_spaces.sweep import SweepConfig
from workers.runtime.numerics import max_difference
from workers.runtime.process import process_environment

Facts = Mapping[str, Any]
Labels = Mapping[str, str]
NODE_ID_LABEL = "ray.io/node-id"  # Ray sets it
# what a worker may do
GENERATE = "generate"  # and all other tasks except timing
TIME = "time"
ROLES = (GENERATE, TIME)
_MAX_DIFFERENCE = 1e-4  # between float32 numbers, relative to the largest
_SAME_EXPERIMENT = ("models", "extractors", "captions", "precision")
_SAME_STEPS = (*_SAME_EXPERIMENT, "kernels")  # facts that workers that generate share
_SAME_COSTS = ("kernels", "device", "timing_device")  # facts that workers that time share


@dataclass(frozen=True, slots=True)
class Slots:
    """The workers, and the resources of each."""

    count: int | None = None  # None: as many as the cluster has room for
    cpus: float = 1.0
    gpus: float | None = None  # None: see `fit`

    def environment(self, threads: int | None) -> dict[str, str]:
        """Environment of a worker with this many threads (None: one for each of its cores): no
        downloads.
        """
        threads = threads or max(1, int(self.cpus))
        return process_environment(threads) | {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    resources: Mapping[str, float]  # by Ray's names
    labels: Labels = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.labels.get(NODE_ID_LABEL, "")

    def room(self, slots: Slots) -> int:
        """How many workers it holds. Ray puts a fraction on one GPU."""
        gpus = int(self.resources.get("GPU", 0))
        counts = []
        if slots.cpus:
            counts.append(int(self.resources.get("CPU", 0) // slots.cpus))
        if slots.gpus:
            share = gpus * int(1 / slots.gpus) if slots.gpus < 1 else int(gpus // slots.gpus)
            counts.append(share)
        return min(counts, default=1)


@dataclass(frozen=True, slots=True)
class Placement:
    """Labels of the nodes that a sweep uses."""

    generates: Labels = field(default_factory=dict)  # empty: any node generates
    times: Labels | None = field(default_factory=dict)  # empty: any node times; None: none does

    @classmethod
    def of(cls, sweep: SweepConfig) -> Self:
        """What the sweep's sections say. Timing sessions without labels run where quality shards
        do.
        """
        # it imports torch, which processes that only connect to a cluster do without
        from workers.metrics.registry import uses_timings

        generates = dict(sweep.quality.nodes or {})
        if not uses_timings(sweep.requested_metrics):
            return cls(generates, None)
        return cls(generates, dict(sweep.timing.nodes or generates))

    @property
    def kinds(self) -> dict[str, Labels]:
        """The kinds of nodes that the sweep cannot do without, by the key that names them."""
        kinds = {}
        if self.times:
            kinds["timing.nodes"] = self.times
        if self.generates and self.generates != self.times:
            kinds["quality.nodes"] = self.generates
        return kinds

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that at least one worker must have."""
        return (GENERATE,) if self.times is None else ROLES

    @property
    def alternatives(self) -> list[Labels]:
        """Labels of which a node must have one set to be used; none: any node is."""
        return list(self.kinds.values()) if self.generates else []

    def next_labels(self, present: Sequence[Labels]) -> list[Labels]:
        """Labels of which the next worker's node must have one set: first of a kind that no worker
        is on. present: of the workers' nodes.
        """
        for kind in self.kinds.values():
            if not any(_has_labels(labels, kind) for labels in present):
                return [kind]
        return self.alternatives

    def capacity(self, slots: Slots, nodes: Sequence[Node]) -> int:
        """How many workers the nodes hold for which the sweep has work; at least 1, because nodes
        may still join.
        """
        used = [
            node
            for node in nodes
            if any(_has_labels(node.labels, labels) for labels in self.alternatives or [{}])
        ]
        return max(1, sum(node.room(slots) for node in used))

    def check(self, slots: Slots, nodes: Sequence[Node]) -> None:
        """Check that the cluster has every kind of node. With a number of workers, missing ones may
        join later.

        Raises:
            PoolError: names the key and the labels that the nodes have.
        """
        if slots.count is not None and slots.count < len(self.kinds):
            keys = " and ".join(self.kinds)
            raise PoolError(
                f"--workers {slots.count}: {keys} name two kinds of nodes; give 2 or more"
            )
        for key, labels in self.kinds.items():
            fitting = [node for node in nodes if _has_labels(node.labels, labels)]
            if slots.count is not None or any(node.room(slots) for node in fitting):
                continue
            found: set[str] = set()
            for node in nodes:
                found |= {f"{name}={node.labels[name]}" for name in labels.keys() & node.labels}
            raise PoolError(
                f"{key}: no node with room for a worker has {describe_labels(labels)} (there is "
                f"{', '.join(sorted(found)) or 'no such label'}); correct it, start such a node "
                "with `ray start --labels`, or give --workers N on an autoscaling cluster"
            )


ANYWHERE = Placement()


def _has_labels(labels: Labels, required: Labels) -> bool:
    return required.items() <= labels.items()


def describe_labels(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def fit(slots: Slots, nodes: Sequence[Node]) -> Slots:
    """Slots for these nodes: if `slots` does not say how many GPUs a worker has, one if a node has
    any, else none.

    Ray waits forever for resources that no node has. That makes sense only on an autoscaling
    cluster, where waiting workers are the demand, so it requires an explicit number of workers.

    Raises:
        PoolError: no node has room for a worker.
    """
    gpus = float(_have_gpus(nodes)) if slots.gpus is None else slots.gpus
    fitted = Slots(slots.count, slots.cpus, gpus)
    if slots.count is None and not any(node.room(fitted) for node in nodes):
        needed = {"CPU": slots.cpus, "GPU": gpus}
        largest = {
            name: max((node.resources.get(name, 0) for node in nodes), default=0) for name in needed
        }
        name = next((name for name in needed if needed[name] > largest[name]), "CPU")
        raise PoolError(
            f"a worker needs {needed[name]:g} {name}, but the largest node has {largest[name]:g}: "
            f"lower --{name.lower()}s-per-worker, or give --workers N on an autoscaling cluster"
        )
    return fitted


def check_demand(slots: Slots, nodes: Sequence[Node]) -> None:
    """Check that `slots` says what nodes to come must have: an autoscaler starts those that workers
    ask for.

    Raises:
        PoolError: the nodes lack room for all workers, and none of them tells whether workers have
            a GPU.
    """
    if slots.count is None or slots.gpus is not None or not slots.cpus or _have_gpus(nodes):
        return
    room = sum(node.room(slots) for node in nodes)
    if room < slots.count:
        raise PoolError(
            f"--workers {slots.count}: the cluster has room for {room} now, and no GPU; give "
            "--gpus-per-worker 1 if nodes to come have GPUs, or --gpus-per-worker 0 for workers "
            "on CPUs"
        )


def _have_gpus(nodes: Sequence[Node]) -> bool:
    return any(node.resources.get("GPU", 0) >= 1 for node in nodes)


@dataclass(slots=True)
class WorkerAgreement:
    """The facts that workers share: those that generate, and those that time. The first of each
    sets them.

    If more nodes agree with each other than with the first worker before any image is generated,
    the sweep stops: it would otherwise run on the few workers that agree with the first.

    """

    unstarted: set[str]  # names of the first workers that have not started yet
    placement: Placement = ANYWHERE
    # facts of a resumed sweep's images, and the device that timed its settings
    stored: Facts = field(default_factory=dict)
    active: bool = True  # until the first images are generated
    first: dict[str, Facts] = field(default_factory=dict)  # the shared facts, by role
    # facts, and the nodes that would generate the same images
    groups: list[tuple[Facts, set[str]]] = field(default_factory=list)
    has_failed: bool = False  # whether a worker did not start; another one takes its place
    # by role, why the last worker that was refused the role may not have it
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, worker: str, facts: Facts | None) -> dict[str, str]:
        """Record the facts of a worker, None if it did not start; returns why it may not have a
        role, by role.
        """
        self.unstarted.discard(worker)
        if facts is None:
            self.has_failed = True
            return dict.fromkeys(ROLES, "it did not start")
        problems = {}
        for role, problem in ((GENERATE, self._generation_problem), (TIME, self._timing_problem)):
            if text := problem(facts):
                problems[role] = text
            elif role == GENERATE:
                self.first.setdefault(role, {**facts, **self.stored})
            else:
                self.first.setdefault(role, facts)
        self.problems |= problems
        return problems

    @property
    def timing_place(self) -> str:
        """Where settings are timed: the device, if it is known, and the labels of its nodes."""
        device = self.stored.get("timing_device") or self.first.get(TIME, {}).get("timing_device")
        return " and ".join(filter(None, [device, describe_labels(self.placement.times or {})]))

    def check(self) -> None:
        """Check the first workers, once all of them have started.

        Raises:
            PoolError: most of them differ from the first, or none of them may generate, or time.
        """
        if self.unstarted or not self.active:
            return
        missing = [
            role
            for role in self.placement.roles
            if role not in self.first and role in self.problems
        ]
        if missing and not self.has_failed:
            problem = (
                f"no worker can {missing[0]} what this sweep needs: {self.problems[missing[0]]}"
            )
            raise PoolError(
                f"{problem}. Start workers on other nodes, or launch under another --name"
            )
        generating = self.first.get(GENERATE)
        if generating is None or self.stored:
            return
        first = next(
            nodes for facts, nodes in self.groups if diff_images(generating, facts) is None
        )
        other, largest = max(self.groups, key=lambda group: len(group[1]))
        if len(largest) > len(first):
            raise PoolError(
                f"workers on {len(largest)} nodes agree with each other but not with the first "
                f"worker: {diff_images(generating, other)}. Exclude the first worker's node, or "
                "name the nodes that generate in quality.nodes, and start again"
            )

    def _generation_problem(self, facts: Facts) -> str | None:
        if problem := _label_problem(facts, self.placement.generates, "quality.nodes"):
            return problem
        for other, nodes in self.groups:
            if diff_images(other, facts) is None:
                nodes.add(str(facts.get("node")))
                break
        else:
            self.groups.append((facts, {str(facts.get("node"))}))
        return diff_images(self.first.get(GENERATE, self.stored), facts)

    def _timing_problem(self, facts: Facts) -> str | None:
        labels = self.placement.times
        if labels is None:
            return "the sweep needs no timings"
        if problem := _label_problem(facts, labels, "timing.nodes"):
            return problem
        generating = self.first.get(GENERATE, {})
        timed_on = self.stored.get("timing_device")
        found = facts.get("timing_device")
        if timed_on not in (None, found):
            return (
                f"its speeds are those of {timed_on}, not of {found} (to time all of its settings "
                "again, move its folder timings elsewhere)"
            )
        first = self.first.get(TIME) or ({} if labels else self.stored or generating)
        experiment = generating or self.first.get(TIME, {})
        return _diff_facts(experiment, facts, _SAME_EXPERIMENT) or _diff_facts(
            first, facts, _SAME_COSTS
        )


def _label_problem(facts: Facts, labels: Labels, key: str) -> str | None:
    if _has_labels(facts.get("labels", {}), labels):
        return None
    return f"its node is without {describe_labels(labels)} of {key}"


def diff_images(first: Facts, other: Facts) -> str | None:
    """Why two workers would generate different images, as a message; None if they would not."""
    if problem := _diff_facts(first, other, _SAME_STEPS):
        return problem
    numerics = first.get("numerics")
    if numerics is None or other.get("precision") != "float32":
        return _diff_facts(first, other, ("device", "numerics"))
    if (difference := max_difference(numerics, other["numerics"])) <= _MAX_DIFFERENCE:
        return None
    devices = f"{other.get('device')}, the first worker's is {first.get('device')}"
    return (
        f"numerics: its float32 numbers differ by {difference:.1g} of the largest (its device is "
        f"{devices})"
    )


def _diff_facts(first: Facts, other: Facts, keys: Iterable[str]) -> str | None:
    """The first of these facts in which a worker differs from the first worker, as a message; None
    if they agree.
    """
    for key in keys:
        if key in first and first[key] != other.get(key):
            if key == "numerics":
                return (
                    "numerics: other bits than the first worker computes, on the same kind of "
                    "device"
                )
            return f"{key}: {other.get(key)}, but the first worker has {first[key]}"
    return None
