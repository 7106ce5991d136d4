"""What each worker may do: draw images if it computes what the others compute, time if it is on a node that times.

Agreement is measured. A worker that starts runs the target on fixed input (`workers.runtime.numerics`). In float32,
devices of different kinds may draw together if their numbers agree within rounding. In 16 bits, rounding changes
tokens, so the device must be the same and the numbers equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.run.placement import ANYWHERE, Labels, Placement, describe_labels, has_labels
from orchestrator.run.tasks import PoolError
from workers.runtime.numerics import max_difference

Facts = Mapping[str, Any]

_MAX_DIFFERENCE = 1e-4  # of float32 numbers, relative to the largest
_SAME_EXPERIMENT = ("models", "extractors", "captions", "precision")
_SAME_STEPS = (*_SAME_EXPERIMENT, "kernels")  # of workers that draw
_SAME_COSTS = ("kernels", "device", "threads")  # of workers that time


class Roles(NamedTuple):
    """Why a worker may not draw, and why it may not time; None if it may."""

    drawing_problem: str | None
    timing_problem: str | None

    @property
    def draws(self) -> bool:
        return self.drawing_problem is None

    @property
    def times(self) -> bool:
        return self.timing_problem is None


@dataclass(slots=True)
class WorkerAgreement:
    """The facts that workers share: those that draw, and those that time. The first of each sets them.

    If more nodes agree with each other than with the first worker before any image is drawn, the sweep stops: it would
    otherwise run on the few workers that agree with the first.

    unstarted: names of the first workers that have not started yet. stored: facts of a resumed sweep's images. active:
    until the first images are drawn.
    """

    unstarted: set[str]
    placement: Placement = ANYWHERE
    stored: Facts = field(default_factory=dict)
    active: bool = True
    drawing: Facts | None = None
    timing: Facts | None = None
    groups: list[tuple[Facts, set[str]]] = field(default_factory=list)  # nodes that would draw the same
    has_failed: bool = False  # a worker did not start; another one takes its place
    problems: dict[str, str] = field(default_factory=dict)  # by role, of the last worker that was refused it

    def add(self, worker: str, facts: Facts | None) -> Roles:
        """Record the facts of a worker; returns what it may do. `facts` is None if it did not start."""
        self.unstarted.discard(worker)
        if facts is None:
            self.has_failed = True
            return Roles("it did not start", "it did not start")
        drawing = self._drawing_problem(facts)
        if drawing is None and self.drawing is None:
            self.drawing = {**facts, **self.stored}
        timing = self._timing_problem(facts)
        if timing is None and self.timing is None:
            self.timing = facts
        self.problems |= {role: problem for role, problem in (("draw", drawing), ("time", timing)) if problem}
        return Roles(drawing, timing)

    def check(self) -> None:
        """Check the first workers, once all of them have started.

        Raises:
            PoolError: most of them differ from the first, or none of them may draw, or time.
        """
        if self.unstarted or not self.active:
            return
        found = {"draw": self.drawing, "time": self.timing}
        missing = [role for role, facts in found.items() if facts is None and role in self.problems]
        if missing and not self.has_failed and (missing[0] == "draw" or self.placement.times is not None):
            problem = f"no worker can {missing[0]} what this sweep needs: {self.problems[missing[0]]}"
            raise PoolError(f"{problem}. Start workers on other nodes, or launch under another --name")
        if self.drawing is None or self.stored:
            return
        first = next(nodes for facts, nodes in self.groups if _diff_images(self.drawing, facts) is None)
        other, largest = max(self.groups, key=lambda group: len(group[1]))
        if len(largest) > len(first):
            raise PoolError(
                f"workers on {len(largest)} nodes agree with each other but not with the first worker: "
                f"{_diff_images(self.drawing, other)}. Exclude the first worker's node, or name the nodes that draw in "
                "quality.nodes, and start again"
            )

    def _drawing_problem(self, facts: Facts) -> str | None:
        if problem := _label_problem(facts, self.placement.draws, "quality.nodes"):
            return problem
        for other, nodes in self.groups:
            if _diff_images(other, facts) is None:
                nodes.add(str(facts.get("node")))
                break
        else:
            self.groups.append((facts, {str(facts.get("node"))}))
        return _diff_images(self.drawing or self.stored, facts)

    def _timing_problem(self, facts: Facts) -> str | None:
        labels = self.placement.times
        if labels is None:
            return "the sweep needs no timings"
        if problem := _label_problem(facts, labels, "timing.nodes"):
            return problem
        first = self.timing or ({} if labels else self.stored or self.drawing or {})
        experiment = self.drawing or self.timing or {}
        return diff_facts(experiment, facts, _SAME_EXPERIMENT) or diff_facts(first, facts, _SAME_COSTS)


def _label_problem(facts: Facts, labels: Labels, key: str) -> str | None:
    found = facts.get("labels", {})
    return None if has_labels(found, labels) else f"its node is without {describe_labels(labels)} of {key}"


def _diff_images(first: Facts, other: Facts) -> str | None:
    """Why two workers would draw different images, as a message; None if they would not."""
    if problem := diff_facts(first, other, _SAME_STEPS):
        return problem
    numerics = first.get("numerics")
    if numerics is None or other.get("precision") != "float32":
        return diff_facts(first, other, ("device", "numerics"))
    if (difference := max_difference(numerics, other["numerics"])) <= _MAX_DIFFERENCE:
        return None
    devices = f"{other.get('device')}, the first worker's is {first.get('device')}"
    return f"numerics: its float32 numbers differ by {difference:.1g} of the largest (its device is {devices})"


def diff_facts(first: Facts, other: Facts, keys: Iterable[str]) -> str | None:
    """The first of these facts in which a worker differs from the first worker, as a message; None if there is none."""
    for key in keys:
        if key in first and first[key] != other.get(key):
            if key == "numerics":
                return "numerics: other bits than the first worker computes, on the same kind of device"
            return f"{key}: {other.get(key)}, but the first worker has {first[key]}"
    return None
