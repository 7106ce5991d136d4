"""What would tell trials apart that are within error of each other: more images, more timing
sessions, or timings of another day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Literal

from orchestrator.front.front import Front
from orchestrator.front.joint import VarianceParts
from orchestrator.front.pareto import LEVEL
from orchestrator.front.plateau import plateau_state
from orchestrator.store import files

_CRITICAL = NormalDist().inv_cdf(1 - LEVEL / 2)
_MOST = 1000.0  # times as much; beyond it nobody tries
#: What is measured again. A sitting is one call of `launch` or `time`; one of another day counts.
Effort = Literal["images", "sessions", "days"]


@dataclass(frozen=True, slots=True)
class Separation:
    """What would make the difference of two trials in a metric twice its standard error, if it is
    as large as it was measured.
    """

    first: str  # name of a trial
    second: str
    metric: str
    effort: Effort
    factor: float  # how many times as much as now
    images: int | None = None  # of each trial, if `effort` is images

    @property
    def text(self) -> str:
        """One sentence."""
        pair = f"{self.first} and {self.second}: {self.metric} would differ with"
        if self.images is not None:
            return f"{pair} {self.images:,} images each ({self.factor:.1f} times as many)"
        if self.effort == "sessions":
            return f"{pair} {self.factor:.1f} times as many timing sessions"
        return f"{pair} timings of {math.ceil(self.factor)} days"


def _separations(front: Front) -> list[Separation]:
    """Of each two neighbours on the front that are within error of each other in a metric, the
    least effort that would tell them apart in it. Not where none would.
    """
    joint = front.joint_errors
    places = {trial.name: place for place, trial in enumerate(front.candidates)}
    found = []
    for one, other in pairwise(front.members):
        pair = (places[one.name], places[other.name])
        differs = joint.differ(*pair)
        differences, _, _ = joint.difference(*pair)
        images = min(one.record.images, other.record.images)
        for index, metric in enumerate(front.metrics):
            if differs[index]:
                continue
            least = _least(joint.variance_parts(*pair, index), float(differences[index]))
            if least is not None:
                effort, factor = least
                count = math.ceil(factor * images) if effort == "images" else None
                found.append(Separation(one.name, other.name, metric.name, effort, factor, count))
    return found


def _least(part: VarianceParts, difference: float) -> tuple[Effort, float] | None:
    """The effort that brings the variance of a difference to what tells it from 0, and how many
    times as much of it; None if none does.
    """
    target = (difference / _CRITICAL) ** 2
    total = part.images + part.sessions + part.sittings
    if not difference or not total:
        return None
    ways: list[tuple[Effort, float, float]] = [
        ("sessions", part.sessions, total - part.sessions),
        ("images", part.images, total - part.images),
        ("days", part.sessions + part.sittings, part.images),
    ]
    for kind, falls, stays in ways:
        if falls and target > stays:
            factor = falls / (target - stays)
            if factor <= _MOST:
                return kind, max(1.0, factor)
    return None


@dataclass(frozen=True, slots=True)
class WhatNext:
    """What more measurements of a front would show."""

    separations: Sequence[Separation]
    plateaus: Sequence[str]  # how much the last trials moved the front, of each sweep that says so
    commands: Sequence[str]  # that time the trials again

    @property
    def lines(self) -> list[str]:
        """Sentences."""
        if self.separations:
            lines = [each.text for each in self.separations]
        else:
            lines = ["more of the same measurements would tell no neighbours on the front apart"]
        return [*lines, *self.plateaus, *(f"time again: {command}" for command in self.commands)]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "separations": [asdict(each) for each in self.separations],
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
    found = _separations(front)
    plateaus = []
    commands = []
    for name, sweep in front.sweeps.items():
        state = plateau_state(sweep)
        if state is not None:
            plateaus.append(f"{name}: {state.text}")
        if any(each.effort != "images" for each in found):
            commands.append(files.command(sweep.storage, "time"))
    return WhatNext(found, plateaus, commands)
