"""What a sweep is after: objectives, and constraints such as `clip_score >= 0.9 * vanilla`.

A metric is a word here; which metrics there are is known where they are measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from search_spaces.params import Choices, ConfigError, Params

METRIC = re.compile(r"[a-z][a-z0-9_]*")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
CONSTRAINT = re.compile(r"(?P<metric>\S+?)\s*(?P<op><=|>=|==|=|<|>|≤|≥)\s*(?P<bound>.+)")
BOUND = re.compile(
    rf"(?P<number>{NUMBER})"
    rf"|(?:(?P<before>{NUMBER})\s*\*\s*)?vanilla(?:\s*\*\s*(?P<after>{NUMBER}))?(?:\s*(?P<sign>[-+])\s*(?P<offset>{NUMBER}))?"
)
Op = Literal["<=", ">="]
OPERATORS: Mapping[str, Op] = {"<=": "<=", ">=": ">=", "≤": "<=", "≥": ">="}
FORMS = "write it like 'drift <= 2', 'clip_score >= 0.9 * vanilla' or 'fid <= vanilla + 0.5'"


@dataclass(frozen=True, slots=True)
class Objective(Params):
    """A metric to be made large or small; without a direction, the metric's own."""

    metric: Annotated[str, "name of a metric"]
    direction: Annotated[str | None, "whether more or less is better", Choices(("maximize", "minimize"))] = None

    def check(self) -> None:
        check_metric(self.metric, "metric")

    def to_plain(self) -> Any:
        return self.metric if self.direction is None else self.to_mapping()


@dataclass(frozen=True, slots=True)
class Constraint:
    """`metric` must be at most (by `op`: at least) factor x vanilla's value + offset."""

    metric: str
    op: Op
    factor: float
    offset: float

    @classmethod
    def parse(cls, text: object) -> Constraint:
        """Read a constraint. ConfigError, without a path, for what is none."""
        if not isinstance(text, str):
            raise ConfigError((), f"must be a text, got {text!r}; {FORMS}")
        whole = CONSTRAINT.fullmatch(text.strip())
        if whole is None:
            raise ConfigError((), f"{text!r} is no constraint; {FORMS}")
        metric, op = whole["metric"], OPERATORS.get(whole["op"])
        check_metric(metric)
        if op is None:
            raise ConfigError((), f"{text!r} compares by {whole['op']}; use <= or >=")
        bound = BOUND.fullmatch(whole["bound"].strip())
        if bound is None or (bound["before"] and bound["after"]):
            raise ConfigError((), f"cannot read the bound {whole['bound'].strip()!r}; {FORMS}")
        if bound["number"]:
            return cls(metric, op, 0.0, float(bound["number"]))
        factor = float(bound["before"] or bound["after"] or 1)
        if factor == 0:
            raise ConfigError((), f"{text!r} takes vanilla 0 times; write a plain number")
        offset = float(bound["offset"] or 0) * (-1 if bound["sign"] == "-" else 1)
        return cls(metric, op, factor, offset)

    @property
    def relative_to_vanilla(self) -> bool:
        return self.factor != 0

    @property
    def text(self) -> str:
        """The constraint in its one way of writing; `parse` reads it back."""
        if not self.relative_to_vanilla:
            return f"{self.metric} {self.op} {_shown(self.offset)}"
        factor = "" if self.factor == 1 else f"{_shown(self.factor)} * "
        sign = "-" if self.offset < 0 else "+"
        offset = f" {sign} {_shown(abs(self.offset))}" if self.offset else ""
        return f"{self.metric} {self.op} {factor}vanilla{offset}"

    def violation(self, value: float, vanilla_value: float | None = None) -> float:
        """By how much `value` misses the bound, in the metric's unit: at most 0 if it is met, infinite for NaN.

        ValueError if the bound needs vanilla's value and there is none.
        """
        if self.relative_to_vanilla and (vanilla_value is None or math.isnan(vanilla_value)):
            raise ValueError(f"{self.text!r} needs vanilla's {self.metric}")
        bound = self.factor * (vanilla_value or 0.0) + self.offset
        miss = value - bound if self.op == "<=" else bound - value
        return math.inf if math.isnan(miss) else miss


def check_metric(name: str, *path: str) -> None:
    """ConfigError at `path` for what cannot be a metric's name."""
    if not METRIC.fullmatch(name):
        raise ConfigError(path, f"must be a metric's name such as fid or clip_score, got {name!r}")


def _shown(number: float) -> str:
    return repr(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)
