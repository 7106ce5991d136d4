"""Constraints of a sweep, such as `clip_score >= 0.9 * vanilla`.

Any name passes as a metric here; the metrics that exist are known where they are measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from search_spaces.params import ConfigError

_METRIC = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RELATIVE_BOUND = (  # a regular expression
    rf"(?:(?P<before>{_NUMBER})\s*\*\s*)?vanilla(?:\s*\*\s*(?P<after>{_NUMBER}))?"
    rf"(?:\s*(?P<sign>[-+])\s*(?P<offset>{_NUMBER}))?"
)
_CONSTRAINT = re.compile(r"(?P<metric>\S+?)\s*(?P<op><=|>=|==|=|<|>|≤|≥)(?!=)\s*(?P<bound>.*)")
_BOUND = re.compile(rf"(?P<number>{_NUMBER})|{RELATIVE_BOUND}")
Op = Literal["<=", ">="]
_OPERATORS: Mapping[str, Op] = {"<=": "<=", ">=": ">=", "≤": "<=", "≥": ">="}
_FORMS = "write it like 'drift <= 2', 'clip_score >= 0.9 * vanilla' or 'fid <= vanilla + 0.5'"


AT_BATCH = ("speedup", "latency")  # metrics that a sweep may measure at several batch sizes
_AT_BATCH = re.compile(rf"({'|'.join(AT_BATCH)})_batch([1-9][0-9]{{0,4}})")


def at_batch(metric: str, batch: int) -> str:
    """The name of a metric at a batch size other than the sweep's first: `speedup_batch8`."""
    return f"{metric}_batch{batch}"


def split_batch(name: str) -> tuple[str, int | None]:
    """The metric and the batch size of `speedup_batch8`; None with other names."""
    match = _AT_BATCH.fullmatch(name)
    if match is None:
        return (name, None)
    return (match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class Constraint:
    """A limit of a metric: `metric` `op` factor x vanilla's value + offset."""

    metric: str
    op: Op
    factor: float  # 0: the limit does not depend on vanilla
    offset: float  # in the unit of the metric

    @classmethod
    def parse(cls, text: object) -> Constraint:
        """Read a constraint. Raises ConfigError, without a path, if the text is not one."""
        if not isinstance(text, str):
            raise ConfigError((), f"must be a string, got {text!r}; {_FORMS}")
        match = _CONSTRAINT.fullmatch(text.strip())
        if match is None:
            raise ConfigError((), f"{text!r} is not a constraint; {_FORMS}")
        metric = check_metric(match["metric"])
        op = _OPERATORS.get(match["op"])
        if (end := match["bound"][-1:] or match["op"]) in ("+", "-", "*", match["op"]):
            raise ConfigError((), f"a number or vanilla is missing after {end}; {_FORMS}")
        if match["op"] in ("<", ">"):
            bound = match["bound"].strip()
            hint = _FORMS
            if _BOUND.fullmatch(bound):
                hint = f"write '{metric} {match['op']}= {bound}'"
            raise ConfigError((), f"limits are inclusive; {hint}")
        if op is None:
            raise ConfigError((), f"{text!r} compares by {match['op']}; use <= or >=")
        bound = _BOUND.fullmatch(match["bound"].strip())
        if bound is None or (bound["before"] and bound["after"]):
            raise ConfigError((), f"cannot read the bound {match['bound'].strip()!r}; {_FORMS}")
        if bound["number"]:
            return cls(metric, op, 0.0, float(bound["number"]))
        factor = float(bound["before"] or bound["after"] or 1)
        if factor == 0:
            raise ConfigError((), f"{text!r} multiplies vanilla by 0; write a plain number")
        offset = float(bound["offset"] or 0)
        if bound["sign"] == "-":
            offset = -offset
        return cls(metric, op, factor, offset)

    @property
    def relative_to_vanilla(self) -> bool:
        return self.factor != 0

    def check_vanilla(self, value: float) -> None:
        """Check that the bound means something if this is vanilla's value.

        Raises:
            ConfigError: it is a multiple of 0; without a path.
        """
        if value == 0 and self.factor not in (0.0, 1.0) and not self.offset:
            sign = "+" if self.op == "<=" else "-"
            fix = f"{self.metric} {self.op} vanilla {sign} X"
            raise ConfigError(
                (), f"vanilla's {self.metric} is 0, and so is every multiple of it; write {fix!r}"
            )

    @property
    def text(self) -> str:
        """The constraint in its canonical form; `parse` reads it back."""
        if not self.relative_to_vanilla:
            return f"{self.metric} {self.op} {_format(self.offset)}"
        factor = "" if self.factor == 1 else f"{_format(self.factor)} * "
        sign = "-" if self.offset < 0 else "+"
        offset = f" {sign} {_format(abs(self.offset))}" if self.offset else ""
        return f"{self.metric} {self.op} {factor}vanilla{offset}"

    def violation(self, value: float, vanilla_value: float | None = None) -> float:
        """How far `value` is beyond the bound, in the metric's unit: at most 0 if the bound is met,
        infinite for NaN.

        Raises:
            ValueError: the bound needs vanilla's value, which is missing.
        """
        if self.relative_to_vanilla and (vanilla_value is None or math.isnan(vanilla_value)):
            raise ValueError(f"{self.text!r} needs vanilla's {self.metric}")
        bound = self.factor * (vanilla_value or 0.0) + self.offset
        excess = value - bound
        if self.op == ">=":
            excess = bound - value
        return math.inf if math.isnan(excess) else excess


def check_metric(name: object) -> str:
    """`name`, if it can be the name of a metric. Raises ConfigError otherwise."""
    if not isinstance(name, str) or not _METRIC.fullmatch(name):
        raise ConfigError((), f"must be a metric's name such as fid or clip_score, got {name!r}")
    return name


def _format(number: float) -> str:
    if number == int(number) and abs(number) < 1e15:
        return repr(int(number))
    return repr(number)
