"""Settings: frozen parameters that know their own ranges, and their way to and from plain mappings.

A setting is a frozen, slotted dataclass below `Params`. Each field is annotated with its type, one sentence and, for
numbers, the range of allowed values:

    delta: Annotated[float, "largest mass that neighbours may add", Range(0, 1)]

That line is what construction checks, what `read` holds a mapping against, and what a search space asks for bounds.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind", bound="Params")
Path = tuple[str, ...]


class ConfigError(ValueError):
    """An invalid value in a configuration.

    path: keys from the root to the value. problem: what is wrong, and the fix. location: "file:line", if known.
    """

    def __init__(self, path: Path, problem: str, location: str = "") -> None:
        parts = [location, ".".join(path).replace(".[", "["), problem]
        super().__init__(": ".join(part for part in parts if part))
        self.path, self.problem, self.location = path, problem, location

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str, str]]:
        return type(self), (self.path, self.problem, self.location)

    def under(self, *outer: str) -> ConfigError:
        """The same error with a path that starts at an outer mapping."""
        return ConfigError((*outer, *self.path), self.problem, self.location)


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`; None is no limit. `open_low` leaves `low` itself out."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        if self.low is not None and (value < self.low or (self.open_low and value == self.low)):
            return False
        return self.high is None or value <= self.high

    def __bool__(self) -> bool:
        return self.low is not None or self.high is not None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            parts = [] if self.low is None else [f"{'greater than' if self.open_low else 'at least'} {self.low:g}"]
            return " and ".join([*parts, *([] if self.high is None else [f"at most {self.high:g}"])])
        return f"in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"


class Key(str):
    """The name of a field in mappings, where Python does not allow it as an attribute (`lambda`)."""

    __slots__ = ()


class Choices(tuple[str, ...]):
    """The allowed values of a field of type str, where they are data (a `Literal` says it where they are code)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ParamField:
    """A field of a setting: attribute `name`, `key` in mappings, type, sentence, range or words, default."""

    name: str
    key: str
    type: Any
    about: str
    range: Range
    words: tuple[str, ...]
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    def fit(self, value: object) -> Any:
        """`value` as this knob stores it. ConfigError if its type, word or range is wrong."""
        try:
            fitted = _fit(self.type, value, self.range)
            if self.words and fitted is not None and fitted not in self.words:
                raise ValueError(not_one_of(fitted, self.words))
        except ValueError as problem:
            raise ConfigError((self.key,), str(problem)) from None
        return fitted


class Params:
    """Base of all parameters: values are converted and checked at construction; equality and hash are by value."""

    __slots__ = ()
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in self.fields().values():
            object.__setattr__(self, field.name, field.fit(getattr(self, field.name)))
        self.check()

    def check(self) -> None:
        """Rules between fields. ConfigError names the key to change."""

    @classmethod
    def fields(cls) -> Mapping[str, ParamField]:
        """The fields by mapping key, in order of definition. Fields that hold other parameters are left out."""
        if cls not in _FIELDS:
            _FIELDS[cls] = MappingProxyType(_find_fields(cls))
        return _FIELDS[cls]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """Read values by key. ConfigError for an unknown key, a missing or a wrong value."""
        fields = cls.fields()
        for key in mapping:
            if key not in fields:
                raise ConfigError((key,), unknown_key(key, fields))
        for key, field in fields.items():
            if field.required and key not in mapping:
                problem = f"missing; give the {field.about}" + (f" ({field.range})" if field.range else "")
                raise ConfigError((key,), problem)
        return cls(**{fields[key].name: value for key, value in mapping.items()})

    def to_mapping(self) -> dict[str, Any]:
        """Plain data by key: numbers, strings, lists. A field that is None is left out."""
        values = {key: getattr(self, field.name) for key, field in self.fields().items()}
        return {key: _plain(value) for key, value in values.items() if value is not None}


_FIELDS: dict[type[Params], Mapping[str, ParamField]] = {}  # resolving annotations takes a millisecond


def _find_fields(setting: type[Params]) -> dict[str, ParamField]:
    hints = get_type_hints(setting, include_extras=True)
    found: dict[str, ParamField] = {}
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]  # every Setting but the base is a dataclass
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        kind, about, *rest = get_args(hint)
        span = next((extra for extra in rest if isinstance(extra, Range)), Range())
        words = get_args(kind) if get_origin(kind) is Literal else next((e for e in rest if isinstance(e, Choices)), ())
        key = str(next((extra for extra in rest if isinstance(extra, Key)), field.name))
        found[key] = ParamField(field.name, key, kind, about, span, tuple(words), field.default)
    return found


def read(
    mapping: object, choices: Mapping[str, Mapping[str, type[Params]]], own: Iterable[ParamField] = ()
) -> dict[str, Any]:
    """Read one flat mapping: under each tag in `choices` the kind of a setting, with that setting's knobs beside the
    tag, and the knobs in `own`. Returns the settings by tag and the values of `own` by attribute name, where given.

    ConfigError, with the path inside this mapping, for an unknown kind or key, a missing or a wrong value.
    """
    given = as_mapping(mapping)
    found: dict[str, Any] = {}
    chosen: dict[str, type[Params]] = {}
    for tag, options in choices.items():
        kind = given.get(tag, next(iter(options)))
        if not isinstance(kind, str) or kind not in options:
            raise ConfigError((tag,), not_one_of(kind, options))
        chosen[tag] = options[kind]
    plain = {knob.key: knob for knob in own}
    known = [*choices, *plain, *(key for setting in chosen.values() for key in setting.fields())]
    for key in given:
        if key not in known:
            raise ConfigError((key,), _stranger(key, known, choices, chosen))
    for tag, setting in chosen.items():
        found[tag] = setting.from_mapping({key: given[key] for key in setting.fields() if key in given})
    return found | {knob.name: knob.fit(given[key]) for key, knob in plain.items() if key in given}


def as_mapping(value: object) -> dict[str, Any]:
    """`value` with string keys, if it is a mapping at all."""
    if not isinstance(value, Mapping):
        raise ConfigError((), f"must be a mapping of keys to values, got {value!r}")
    return {str(key): entry for key, entry in value.items()}


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence for a key that nobody knows."""
    known = list(known)
    return f"unknown key;{_suggestion(key, known)} known keys: {', '.join(known) or 'none'}"


def _stranger(
    key: str, known: list[str], choices: Mapping[str, Mapping[str, type[Params]]], chosen: Mapping[str, type[Params]]
) -> str:
    """The sentence for a key that does not belong here: another choice's, or nobody's."""
    for tag, options in choices.items():
        owners = [repr(kind) for kind, setting in options.items() if key in setting.fields()]
        if owners:
            return f"not a key of {tag} {chosen[tag].kind!r} but of {', '.join(owners)}; known keys: {', '.join(known)}"
    return unknown_key(key, known)


def not_one_of(value: object, words: Iterable[str]) -> str:
    words = list(words)
    hint = _suggestion(value, words).rstrip() if isinstance(value, str) else ""
    return f"must be one of {', '.join(words)}, got {value!r}" + (f";{hint}" if hint else "")


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" did you mean {close[0]!r}?" if close else ""


def _fit(kind: Any, value: object, span: Range) -> Any:
    """`value` converted to the annotation `kind`. ValueError with the reason if it cannot be."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (arg for arg in args if arg is not NoneType)
        return None if value is None else _fit(inner, value, span)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list, got {value!r}")
        if args[-1] is Ellipsis:
            return tuple(_fit(args[0], entry, span) for entry in value)
        if len(value) != len(args):
            raise ValueError(f"must be a list of {len(args)}, got {list(value)!r}")
        return tuple(_fit(arg, entry, span) for arg, entry in zip(args, value, strict=True))
    if kind is str or origin is Literal:
        if not isinstance(value, str):
            raise ValueError(f"must be a name, got {value!r}")
        return value
    return _fit_number(kind, value, span)


def _fit_number(kind: Any, value: object, span: Range) -> int | float:
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        raise ValueError(f"must be a {'whole ' if kind is int else ''}number, got {value!r}")
    number: int | float = kind(value)
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, got {value!r}")
    if number not in span:
        raise ValueError(f"must be {span}, got {value!r}")
    return number


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value
