"""Settings: frozen parameters that know their own ranges, and their way to and from plain mappings.

A setting is a frozen, slotted dataclass below `Setting`. Each field is annotated with its type, one sentence and, for
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

Kind = TypeVar("Kind", bound="Setting")
Path = tuple[str, ...]


class SettingError(ValueError):
    """A setting that cannot be: `path` leads to the key at fault, `problem` says what is wrong and the mend."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{'.'.join(path)}: {problem}" if path else problem)
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str]]:
        return type(self), (self.path, self.problem)  # the default would call the constructor with the joined message

    def under(self, *outer: str) -> SettingError:
        """The same fault, seen from the mapping that holds this one."""
        return SettingError((*outer, *self.path), self.problem)


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


class Words(tuple[str, ...]):
    """The allowed values of a field of type str, where they are data (a `Literal` says it where they are code)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Knob:
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
        """`value` as this knob stores it. SettingError if its type, word or range is wrong."""
        try:
            fitted = _fit(self.type, value, self.range)
            if self.words and fitted is not None and fitted not in self.words:
                raise ValueError(not_one_of(fitted, self.words))
        except ValueError as problem:
            raise SettingError((self.key,), str(problem)) from None
        return fitted


class Setting:
    """Base of all settings: values are converted and checked at construction; equality and hash are by value."""

    __slots__ = ()
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for knob in knobs(type(self)).values():
            object.__setattr__(self, knob.name, knob.fit(getattr(self, knob.name)))
        self.check()

    def check(self) -> None:
        """Rules between fields. SettingError names the key to change."""


_KNOBS: dict[type[Setting], Mapping[str, Knob]] = {}  # resolving annotations takes a millisecond


def knobs(setting: type[Setting]) -> Mapping[str, Knob]:
    """The knobs of a setting by mapping key, in order of definition. Fields that hold other settings are left out."""
    if setting not in _KNOBS:
        _KNOBS[setting] = MappingProxyType(_find_knobs(setting))
    return _KNOBS[setting]


def _find_knobs(setting: type[Setting]) -> dict[str, Knob]:
    hints = get_type_hints(setting, include_extras=True)
    found: dict[str, Knob] = {}
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]  # every Setting but the base is a dataclass
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        kind, about, *rest = get_args(hint)
        span = next((extra for extra in rest if isinstance(extra, Range)), Range())
        words = get_args(kind) if get_origin(kind) is Literal else next((e for e in rest if isinstance(e, Words)), ())
        key = str(next((extra for extra in rest if isinstance(extra, Key)), field.name))
        found[key] = Knob(field.name, key, kind, about, span, tuple(words), field.default)
    return found


def read(
    mapping: object, choices: Mapping[str, Mapping[str, type[Setting]]], own: Iterable[Knob] = ()
) -> dict[str, Any]:
    """Read one flat mapping: under each tag in `choices` the kind of a setting, with that setting's knobs beside the
    tag, and the knobs in `own`. Returns the settings by tag and the values of `own` by attribute name, where given.

    SettingError, with the path inside this mapping, for an unknown kind or key, a missing or a wrong value.
    """
    given = as_mapping(mapping)
    found: dict[str, Any] = {}
    chosen: dict[str, type[Setting]] = {}
    for tag, options in choices.items():
        kind = given.get(tag, next(iter(options)))
        if not isinstance(kind, str) or kind not in options:
            raise SettingError((tag,), not_one_of(kind, options))
        chosen[tag] = options[kind]
    plain = {knob.key: knob for knob in own}
    known = [*choices, *plain, *(key for setting in chosen.values() for key in knobs(setting))]
    for key in given:
        if key not in known:
            raise SettingError((key,), _stranger(key, known, choices, chosen))
    for tag, setting in chosen.items():
        found[tag] = build(setting, {key: given[key] for key in knobs(setting) if key in given})
    return found | {knob.name: knob.fit(given[key]) for key, knob in plain.items() if key in given}


def build(setting: type[Kind], given: Mapping[str, object]) -> Kind:
    """A setting from its knobs' values by key. SettingError for an unknown key, a missing or a wrong value."""
    wanted = knobs(setting)
    for key in given:
        if key not in wanted:
            raise SettingError((key,), unknown_key(key, wanted))
    for key, knob in wanted.items():
        if knob.required and key not in given:
            raise SettingError((key,), f"missing; give the {knob.about}" + (f" ({knob.range})" if knob.range else ""))
    return setting(**{wanted[key].name: value for key, value in given.items()})


def write(setting: Setting) -> dict[str, Any]:
    """The knobs of a setting as plain data: numbers, words, lists. A knob that is None is left out."""
    values = {key: getattr(setting, knob.name) for key, knob in knobs(type(setting)).items()}
    return {key: _plain(value) for key, value in values.items() if value is not None}


def as_mapping(value: object) -> dict[str, Any]:
    """`value` with string keys, if it is a mapping at all."""
    if not isinstance(value, Mapping):
        raise SettingError((), f"must be a mapping of keys to values, got {value!r}")
    return {str(key): entry for key, entry in value.items()}


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence for a key that nobody knows."""
    known = list(known)
    return f"unknown key;{_suggestion(key, known)} known keys: {', '.join(known) or 'none'}"


def _stranger(
    key: str, known: list[str], choices: Mapping[str, Mapping[str, type[Setting]]], chosen: Mapping[str, type[Setting]]
) -> str:
    """The sentence for a key that does not belong here: another choice's, or nobody's."""
    for tag, options in choices.items():
        owners = [repr(kind) for kind, setting in options.items() if key in knobs(setting)]
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
