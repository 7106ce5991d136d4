"""Objectives: a metric, its better direction, and what its values are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["maximize", "minimize"]
TIMINGS, OWN_TIMINGS, BASELINE = "timings", "own_timings", "baseline"
# metric inputs that need no neural network
COUNTS = frozenset({TIMINGS, OWN_TIMINGS, "emitted", "rounds", "depth", "caption_id", "sample"})
_TIME_UNITS, _RATIO_UNIT = {"s", "ms", "min", "h"}, "x"


@dataclass(frozen=True, slots=True)
class Axis:
    """A metric as an objective: which direction is better, its unit, what it means, and what it is computed from
    (`workers.metrics.metric.Metric.needs`)."""

    name: str
    direction: Direction
    unit: str = ""
    about: str = ""
    needs: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """Name of the column with the metric's standard errors."""
        return f"{self.name}_error"

    @property
    def is_of_counts(self) -> bool:
        """Whether it is computed from counts and times alone, and so says nothing about the images' quality."""
        return COUNTS.issuperset(self.needs)

    @property
    def is_of_vanilla(self) -> bool:
        """Whether it compares a trial's images with vanilla's, so that vanilla's own value is one by construction."""
        return BASELINE in self.needs

    @property
    def is_time(self) -> bool:
        """Whether its values are times or rates, such as s/image: of one machine, in the minutes of the timing."""
        return TIMINGS in self.needs and not _TIME_UNITS.isdisjoint(self.unit.split("/"))

    @property
    def is_speed(self) -> bool:
        """Whether a better value is faster."""
        return self.is_time or (TIMINGS in self.needs and self.unit == _RATIO_UNIT)

    @property
    def no_worse(self) -> str:
        """The operator of a limit: `<=` where less is better."""
        return "<=" if self.direction == "minimize" else ">="

    @property
    def better(self) -> str:
        """What to call a better trial: `faster` for a speed, else `better fid`."""
        return "faster" if self.is_speed else f"better {self.name}"

    @property
    def best(self) -> str:
        """What to call the best trial: `fastest` for a speed, else `best fid`."""
        return "fastest" if self.is_speed else f"best {self.name}"

    @property
    def best_lossless(self) -> str:
        """What to call the best lossless trial: `fastest lossless`, else `lossless with the best target_passes`."""
        return "fastest lossless" if self.is_speed else f"lossless with the {self.best}"
