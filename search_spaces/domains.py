"""What a knob may be in a search space: one value, some values, or a span of numbers.

    length: 4                                   fixed
    width: {values: [2, 4, 8]}                  some values
    delta: {low: 0.01, high: 0.5, log: true}    a span; with `step` a finite one

A study knows a parameter by the scalars it suggests: numbers and words as they are, lists by a short name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType
from typing import Any, Protocol, get_args, get_origin

from search_spaces.documents import Node
from search_spaces.params import ConfigError, ParamField

Scalar = str | int | float | bool | None
LONGEST_NAME = 32
SPAN_KEYS, VALUES_KEY = ("low", "high", "log", "step"), "values"


class Suggests(Protocol):
    """What a space needs of a trial; `optuna.Trial` has it."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Scalar: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that is not searched."""

    value: Any

    def suggest(self, name: str, trial: Suggests) -> Any:
        return self.value

    def param(self, value: object) -> Scalar:
        """The parameter that stands for `value`. ValueError if the domain has no such value."""
        if value != self.value:
            raise ValueError(f"{value!r} is not {self.value!r}")
        return None

    @property
    def shown(self) -> str:
        """The domain in words, for people."""
        return str(self.value)

    def corners(self) -> tuple[Any, ...]:
        return (self.value,)

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        """All (parameter, value). ValueError if there is no end to them."""
        yield None, self.value

    def size(self) -> int | None:
        """The number of values; None if there is no end to them."""
        return 1


@dataclass(frozen=True, slots=True)
class Values:
    """One of `values`; a study knows them by `names`."""

    values: tuple[Any, ...]
    names: tuple[Scalar, ...]

    def suggest(self, name: str, trial: Suggests) -> Any:
        return self.values[self.names.index(trial.suggest_categorical(name, self.names))]

    def param(self, value: object) -> Scalar:
        return self.names[self.values.index(value)]

    @property
    def shown(self) -> str:
        return ", ".join(str(name) for name in self.names)

    def corners(self) -> tuple[Any, ...]:
        return self.values

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        yield from zip(self.names, self.values, strict=True)

    def size(self) -> int | None:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers from `low` to `high`, both included: whole ones, or all, or every `step`."""

    low: float
    high: float
    whole: bool
    log: bool = False
    step: float | None = None

    def suggest(self, name: str, trial: Suggests) -> Any:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def param(self, value: object) -> Scalar:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise ValueError(f"{value!r} is not within {self.low:g} and {self.high:g}")
        if self.step is not None:
            steps = (value - self.low) / self.step
            if abs(steps - round(steps)) > 1e-8:
                raise ValueError(f"{value!r} is not a whole number of steps from {self.low:g}")
        return value

    @property
    def shown(self) -> str:
        steps = f", every {self.step:g}" if self.step not in (None, 1) else ""
        return f"{self.low:g} to {self.high:g}{steps}{', on a logarithmic scale' if self.log else ''}"

    def corners(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def points(self) -> Iterator[tuple[Scalar, Any]]:
        size = self.size()
        if size is None:
            raise ValueError("any number of the span will do; give a step, or values")
        for place in range(size):
            exact = Decimal(str(self.low)) + place * Decimal(str(self.step or 1))  # the numbers that one would write
            value = int(exact) if self.whole else float(exact)
            yield value, value

    def size(self) -> int | None:
        if self.step is None:
            return int(self.high) - int(self.low) + 1 if self.whole else None
        return int(_exact_steps(self.low, self.high, self.step)) + 1


Domain = Fixed | Values | Span


def read_domain(node: Node, knob: ParamField) -> Domain:
    """What `node` allows the knob to be, every value and bound held against the knob's type, range and words.

    ConfigError with the line and the mend.
    """
    if isinstance(node.value, dict):
        return _read_values(node, knob) if VALUES_KEY in node.value else _read_span(node, knob)
    if isinstance(node.value, tuple) and not _is_list(knob.type):
        if any(isinstance(entry.value, dict) for entry in node.value):
            raise node.error("branches stand one level up; write {values: [...]} or {low: ..., high: ...} here")
        raise node.error(f"to search several values write {{values: {node.plain()}}}")
    return Fixed(_fit(node, knob))


def distinct(labels: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """A label for each item from those it offers in growing detail: the least detail that tells all apart.

    Items that even the most detail leaves alike are numbered.
    """
    offers = [list(offer) for offer in labels]
    for detail in range(max(map(len, offers))):
        found = [offer[min(detail, len(offer) - 1)] for offer in offers]
        if len(set(found)) == len(found):
            return tuple(found)
    found = [offer[0] for offer in offers]
    return tuple(f"{label}#{found[: i + 1].count(label)}" if found.count(label) > 1 else label
                 for i, label in enumerate(found))  # fmt: skip


def _read_values(node: Node, knob: ParamField) -> Domain:
    for key, child in node.mapping().items():
        if key != VALUES_KEY:
            raise child.error("goes not with values; give either values, or low and high")
    entries = node.value[VALUES_KEY].entries()
    if not entries:
        raise node.value[VALUES_KEY].error("must not be empty; list what the search may choose from")
    values: list[Any] = []
    for entry in entries:
        value = _fit(entry, knob)
        if value in values:
            raise entry.error(f"{entry.plain()!r} is listed twice; remove one of the two")
        values.append(value)
    if len(values) == 1:
        return Fixed(values[0])
    names = distinct([[_name(value)] for value in values]) if any(isinstance(v, tuple) for v in values) else values
    return Values(tuple(values), tuple(names))


def _read_span(node: Node, knob: ParamField) -> Domain:
    kind = _number(knob.type)
    if kind is None:
        words = f" of {', '.join(knob.words)}" if knob.words else ""
        raise node.error(f"is no number and has no span; write {{values: [...]}}{words}")
    keys = node.mapping((*SPAN_KEYS, VALUES_KEY))
    for key in ("low", "high"):
        if key not in keys:
            raise node.error(f"missing; a span has a low and a high ({knob.range or 'any number'})", key)
    low, high = _fit(keys["low"], knob), _fit(keys["high"], knob)
    if low > high:
        raise keys["low"].error(f"must be at most high, got {low!r} and {high!r}; swap the two")
    log = keys["log"].value if "log" in keys else False
    if not isinstance(log, bool):
        raise keys["log"].error(f"must be true or false, got {keys['log'].plain()!r}")
    if log and low <= 0:
        least = f"at least {1 if kind is int else 'a small number such as 0.001'}"
        raise keys["low"].error(f"must be greater than 0 for log, got {low!r}; raise it to {least}")
    if log and "step" in keys:
        raise keys["step"].error("goes not with log; remove one of the two, or list the values")
    step = _read_step(keys["step"], kind, low, high) if "step" in keys else None
    return Fixed(low) if low == high else Span(low, high, kind is int, log, step)


def _read_step(node: Node, kind: type, low: float, high: float) -> float:
    step = node.value
    if isinstance(step, bool) or not isinstance(step, int if kind is int else int | float) or not step > 0:
        raise node.error(f"must be a {'whole ' if kind is int else ''}number greater than 0, got {node.plain()!r}")
    steps = _exact_steps(low, high, step)
    if steps != steps.to_integral_value():
        start, width, count = Decimal(str(low)), Decimal(str(step)), int(steps)
        before, after = start + count * width, start + (count + 1) * width
        raise node.error(f"steps of {step:g} from {low:g} reach {before} and {after} but not {high:g}; make one of "
                         f"them high" if count else f"overshoots: {low:g} + {step:g} is more than {high:g}; make it "
                         f"at most {Decimal(str(high)) - start}")  # fmt: skip
    return kind(step)  # type: ignore[no-any-return]  # int or float


def _exact_steps(low: float, high: float, step: float) -> Decimal:
    """(high - low) / step in the decimals that were written: 0.1 is a tenth."""
    return (Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step))


def _fit(node: Node, knob: ParamField) -> Any:
    try:
        return knob.fit(node.plain())
    except ConfigError as error:
        raise node.error(error.problem) from None


def _kinds(annotation: Any) -> list[Any]:
    """The annotation's alternatives, None left out."""
    alternatives = get_args(annotation) if NoneType in get_args(annotation) else (annotation,)
    return [kind for kind in alternatives if kind is not NoneType]


def _is_list(annotation: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in _kinds(annotation))


def _number(annotation: Any) -> type | None:
    return next((kind for kind in _kinds(annotation) if kind in (int, float)), None)


def _name(value: Any) -> str:
    """A short name of a list: itself, if it is short, else how long it is."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= LONGEST_NAME else f"{len(value)} entries"
