"""What would tell trials apart that are within error of each other: more images, more timing
sessions, or timings on more days.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np

from orchestrator.front.front import Front
from orchestrator.front.joint import JointErrors, critical_t
from orchestrator.front.plateau import plateau_state
from orchestrator.front.trial import Candidate
from orchestrator.store import files
from workers.metrics.costs import SittingSource
from workers.metrics.definition import TIMINGS, Metric

_MAX_FACTOR = 1000.0  # times as many images or sessions; beyond it nobody tries
_MAX_DAYS = 100
#: What is measured again. A sitting is one call of `launch` or `time`; one of another day counts.
Effort = Literal["images", "sessions", "days"]


@dataclass(frozen=True, slots=True)
class Separation:
    """What would make the difference of two trials in a metric significant, if it is as large as it
    was measured.
    """

    first: str  # name of a trial
    second: str
    metric: str
    effort: Effort
    factor: float  # how many times as much as now
    count: int | None = None  # images of each, or days in all; None for sessions

    @property
    def text(self) -> str:
        """One sentence."""
        pair = f"{self.first} and {self.second}: {self.metric} would differ"
        if self.effort == "images":
            return f"{pair} with {self.count:,} images each ({self.factor:.1f} times as many)"
        if self.effort == "sessions":
            return f"{pair} with {self.factor:.1f} times as many timing sessions"
        return f"{pair} if timed on {self.count} days in all"


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the variance of a difference consists of."""

    images: float  # falls with the number of images
    sessions: float  # falls with the number of timing sessions
    sittings: float  # falls with the number of sittings, such as days
    days: int  # the number of sittings

    @property
    def total(self) -> float:
        return self.images + self.sessions + self.sittings


def _parts(joint: JointErrors, pair: tuple[int, int], place: int, metric: Metric) -> _Parts | None:
    """The parts for two trials in a metric, by its place; None if an error is unknown."""
    own = joint.own[list(pair), place]
    if np.isnan(own).any():
        return None
    is_timed = TIMINGS in metric.needs
    found = {"images": 0.0, "sessions": 0.0, "sittings": 0.0}
    found["sessions" if is_timed else "images"] += float(np.square(own).sum())
    sittings = set[str]()
    effects = joint.effects[pair[0], place] - joint.effects[pair[1], place]
    for source, effect in zip(joint.sources, effects, strict=True):
        last = source[-1]
        if source[0] == "captions" or not is_timed:
            kind = "images"
        elif isinstance(last, SittingSource):
            kind = "sittings"
            if effect:
                sittings.add(last.sitting)
        else:
            kind = "sessions"
        found[kind] += float(effect) ** 2
    return _Parts(**found, days=len(sittings))


def _least(part: _Parts, difference: float, dof: float) -> tuple[Effort, float] | None:
    """The effort that makes a difference significant by Student's t, and how many times as much of
    it; None if none does. The degrees of freedom grow by one with each further day.
    """
    if not difference or not part.total:
        return None
    target = (difference / _critical(dof)) ** 2
    ways: tuple[tuple[Effort, float], ...] = (("sessions", part.sessions), ("images", part.images))
    for effort, reducible in ways:
        rest = part.total - reducible
        if reducible and target > rest:
            factor = reducible / (target - rest)
            if factor <= _MAX_FACTOR:
                return effort, factor
    if not part.days:
        return None
    for days in range(part.days + 1, _MAX_DAYS + 1):
        variance = part.images + (part.sessions + part.sittings) * part.days / days
        if abs(difference) > _critical(dof + days - part.days) * math.sqrt(variance):
            return "days", days / part.days
    return None


def _critical(dof: float) -> float:
    return float(critical_t(np.array([dof]))[0])


def _pairs(front: Front) -> Iterator[tuple[Candidate, Candidate]]:
    """Neighbours on a front of two metrics; on one of three, which has none, the trials that are
    within error of each other in all metrics.
    """
    if len(front.metrics) == 2:
        yield from pairwise(front.members)
        return
    for first, second in combinations(front.members, 2):
        if second.name in (first.within_error_of or ()):
            yield first, second


def _separations(front: Front) -> tuple[list[Separation], int]:
    """Of each pair, the least effort that would tell it apart in each metric in which it is within
    error; and the number of metrics of pairs that are within error.
    """
    joint = front.joint_errors
    places = {trial.name: place for place, trial in enumerate(front.candidates)}
    found = []
    within = 0
    for first, second in _pairs(front):
        pair = (places[first.name], places[second.name])
        differs = joint.differ(*pair)
        differences, _, dof = joint.difference(*pair)
        for place, metric in enumerate(front.metrics):
            if differs[place] or (first.has_vanillas(metric) and second.has_vanillas(metric)):
                continue
            within += 1
            part = _parts(joint, pair, place, metric)
            if part is None:
                continue
            least = _least(part, float(differences[place]), float(dof[place]))
            if least is None:
                continue
            effort, factor = least
            images = min(trial.metrics[metric.name].n for trial in (first, second))
            counts = {"images": math.ceil(factor * images), "days": round(factor * part.days)}
            found.append(
                Separation(first.name, second.name, metric.name, effort, factor, counts.get(effort))
            )
    return found, within


@dataclass(frozen=True, slots=True)
class WhatNext:
    """What more measurements of a front would show."""

    separations: Sequence[Separation]
    within_error: int  # metrics of pairs that are within error
    plateaus: Sequence[str]  # how much the last trials moved the front, of each sweep that says so
    commands: Sequence[str]  # that time the trials again

    @property
    def sentences(self) -> list[str]:
        """What it says, without the commands."""
        lines = [each.text for each in self.separations]
        left = self.within_error - len(lines)
        if not self.within_error:
            lines = ["trials next to each other on the front differ in every metric"]
        elif left:
            lines.append(f"{left} more differences are too small to be shown by any of these")
        return [*lines, *self.plateaus]

    @property
    def lines(self) -> list[str]:
        """The sentences, and the commands."""
        return [*self.sentences, *(f"time again: {command}" for command in self.commands)]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "separations": [asdict(each) for each in self.separations],
            "within_error": self.within_error,
            "plateaus": list(self.plateaus),
            "commands": list(self.commands),
        }

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def what_next(front: Front) -> WhatNext:
    """What more measurements of a front would show.

    Raises:
        ValueError: the records or the settings of a sweep are damaged.
    """
    found, within = _separations(front)
    plateaus = []
    commands = []
    for name, sweep in front.sweeps.items():
        state = plateau_state(sweep)
        if state is not None:
            plateaus.append(f"{name}: {state.text}")
        if any(each.effort != "images" for each in found):
            commands.append(files.command(sweep.storage, "time"))
    return WhatNext(found, within, plateaus, commands)
