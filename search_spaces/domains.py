"""Domains: the values that a field of a search space may take, read from plain data: one, several,
or an interval of numbers.

    length: 4                                   fixed
    width: {values: [2, 4, 8]}                  several values
    delta: {low: 0.01, high: 0.5, log: true}    an interval; with `step` a finite one

A study sees a parameter as a scalar: numbers and strings as they are, lists by a short text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from search_spaces.params import ConfigError, ParamField, as_tuples, at, expect_list, expect_mapping

Scalar = str | int | float | bool | None
VALUES_KEY = "values"
_INTERVAL_KEYS = ("low", "high", "log", "step")
_MAX_NAME_LENGTH = 32


class TrialLike(Protocol):
    """What a space needs of a trial; `optuna.Trial` has it."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar: ...


@dataclass(frozen=True, slots=True)
class Values:
    """One of several values. A single value is fixed: it is not a parameter."""

    values: tuple[Any, ...]
    names: tuple[Scalar, ...]  # what a study sees in the place of each value; None for a fixed one

    def __str__(self) -> str:
        shown = self.values if self.is_fixed else self.names
        return ", ".join(map(str, shown))

    @property
    def is_fixed(self) -> bool:
        return len(self.values) == 1

    @property
    def corners(self) -> tuple[Any, ...]:
        return self.values

    def suggest(self, name: str, trial: TrialLike) -> Any:
        if self.is_fixed:
            return self.values[0]
        return self.values[self.names.index(trial.suggest_categorical(name, self.names))]

    def param(self, value: object) -> Scalar:
        """The parameter for `value`. Raises ValueError if the domain does not have it."""
        return self.names[self.values.index(value)]

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        """All (parameter, value) pairs."""
        yield from zip(self.names, self.values, strict=True)

    def size(self) -> int | None:
        """The number of values; None for a continuous domain."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of numbers, both ends included."""

    low: float
    high: float
    integer: bool
    log: bool = False  # searched on a logarithmic scale
    step: float | None = None  # only multiples of it from `low`; None: all numbers
    is_fixed = False

    def __str__(self) -> str:
        text = f"{self.low:g} to {self.high:g}"
        if self.step not in (None, 1):
            text += f", every {self.step:g}"
        if self.log:
            text += ", on a logarithmic scale"
        return text

    @property
    def corners(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def suggest(self, name: str, trial: TrialLike) -> Any:
        if self.integer:
            return trial.suggest_int(
                name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log
            )
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def param(self, value: object) -> Scalar:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.low <= value <= self.high
        ):
            raise ValueError(f"{value!r} is not within {self.low:g} and {self.high:g}")
        if self.step is not None:
            steps = (value - self.low) / self.step
            if abs(steps - round(steps)) > 1e-8:
                raise ValueError(f"{value!r} is not a whole number of steps from {self.low:g}")
        return value

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        """All (parameter, value) pairs. Raises ValueError for a continuous domain."""
        size = self.size()
        if size is None:
            raise ValueError("the interval is continuous; give a step, or values")
        for index in range(size):
            # In decimal arithmetic, where 0.1 + 0.2 is 0.3.
            exact = Decimal(str(self.low)) + index * Decimal(str(self.step or 1))
            value = int(exact) if self.integer else float(exact)
            yield value, value

    def size(self) -> int | None:
        if self.step is None:
            if self.integer:
                return int(self.high) - int(self.low) + 1
            return None
        return int(_count_steps(self.low, self.high, self.step)) + 1


Domain = Values | Interval


def fixed(value: Any) -> Values:
    """The domain of a single value."""
    return Values((as_tuples(value),), (None,))


def read_domain(value: object, field: ParamField) -> Domain:
    """The domain of a field. Raises ConfigError if a value or bound does not fit the field."""
    if isinstance(value, Mapping):
        if VALUES_KEY in value:
            return _read_values(value, field)
        return _read_interval(value, field)
    if isinstance(value, list) and not field.is_list:
        if any(isinstance(entry, Mapping) for entry in value):
            raise ConfigError(
                (),
                "branches belong one level up; write {values: [...]} or {low: ..., high: ...} here",
            )
        problem = f"to search several values write {{values: {value}}}"
        is_numeric = field.number is not None and all(isinstance(e, int | float) for e in value)
        if is_numeric and len(value) > 1:
            problem += f", or for a range {{low: {min(value)}, high: {max(value)}}}"
        raise ConfigError((), problem)
    return fixed(field.fit(value))


def distinct_labels(candidates: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One label per item, from its candidate labels in growing detail: the shortest that make all
    items distinct.

    If even the most detailed ones are not distinct, the shortest are numbered.
    """
    for detail in range(max(map(len, candidates))):
        found = [labels[min(detail, len(labels) - 1)] for labels in candidates]
        if len(set(found)) == len(found):
            return tuple(found)
    found = [labels[0] for labels in candidates]
    numbered: list[str] = []
    for place, label in enumerate(found):
        if found.count(label) > 1:
            numbered.append(f"{label}#{found[: place + 1].count(label)}")
        else:
            numbered.append(label)
    return tuple(numbered)


def _read_values(mapping: Mapping[str, object], field: ParamField) -> Domain:
    for key in mapping:
        if key != VALUES_KEY:
            raise ConfigError(
                (key,), "cannot be combined with `values`; give either values, or low and high"
            )
    values: list[Any] = []
    with at(VALUES_KEY):
        for index, entry in enumerate(expect_list(mapping[VALUES_KEY])):
            with at(f"[{index}]"):
                value = field.fit(entry)
                if value in values:
                    raise ConfigError((), f"{entry!r} is listed twice; remove one of the two")
            values.append(value)
        if not values:
            raise ConfigError((), "must not be empty; list what the search may choose from")
    if len(values) == 1:
        return fixed(values[0])
    if field.is_list:
        return Values(tuple(values), distinct_labels([[_list_name(value)] for value in values]))
    return Values(tuple(values), tuple(values))


def _read_interval(mapping: Mapping[str, object], field: ParamField) -> Domain:
    if field.number is None:
        problem = "is not numeric, so it has no range; write {values: [...]}"
        if field.choices:
            problem += f" of {', '.join(field.choices)}"
        raise ConfigError((), problem)
    given = expect_mapping(mapping, (*_INTERVAL_KEYS, VALUES_KEY))
    for key in ("low", "high"):
        if key not in given:
            raise ConfigError(
                (key,), f"missing; a range has a low and a high ({field.range or 'any number'})"
            )
        with at(key):
            given[key] = field.fit(given[key])
    low = given["low"]
    high = given["high"]
    log = given.get("log", False)
    if low > high:
        raise ConfigError(("low",), f"must be at most high, got {low!r} and {high!r}; swap the two")
    if not isinstance(log, bool):
        raise ConfigError(("log",), f"must be true or false, got {log!r}")
    if log and low <= 0:
        least = "1" if field.number is int else "a small number such as 0.001"
        raise ConfigError(
            ("low",), f"must be greater than 0 for log, got {low!r}; raise it to at least {least}"
        )
    step = None
    if "step" in given:
        if log:
            raise ConfigError(
                ("step",),
                "cannot be combined with `log`; remove one of the two, or list the values",
            )
        with at("step"):
            step = _read_step(given["step"], field.number, low, high)
    if low == high:
        return fixed(low)
    return Interval(low, high, field.number is int, log, step)


def _read_step(step: Any, number: type, low: float, high: float) -> float:
    """The step of an interval. Raises ConfigError if it is not positive, or misses the high end."""
    is_number = isinstance(step, int) or (number is not int and isinstance(step, float))
    if isinstance(step, bool) or not is_number or not step > 0:
        noun = "whole number" if number is int else "number"
        raise ConfigError((), f"must be a {noun} greater than 0, got {step!r}")
    steps = _count_steps(low, high, step)
    if steps != steps.to_integral_value():
        start = Decimal(str(low))
        width = Decimal(str(step))
        count = int(steps)
        before, after = start + count * width, start + (count + 1) * width
        problem = (
            f"steps of {step:g} from {low:g} reach {before} and {after} but not {high:g}; make one "
            "of them high"
        )
        if not count:
            most = Decimal(str(high)) - start
            problem = f"{low:g} + {step:g} is more than {high:g}; make the step at most {most}"
        raise ConfigError((), problem)
    if number is float:
        return float(step)
    return int(step)


def _count_steps(low: float, high: float, step: float) -> Decimal:
    """(high - low) / step in decimal arithmetic, where 0.1 is exactly a tenth."""
    return (Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step))


def _list_name(value: Any) -> str:
    """A short name of a list: its JSON text, or its length if the text is long."""
    text = json.dumps(value, separators=(",", ":"))
    if len(text) <= _MAX_NAME_LENGTH:
        return text
    return f"{len(value)} entries"
