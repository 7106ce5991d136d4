"""Frozen parameter classes that validate themselves, and their conversion from and to plain
mappings.

A parameter class is a frozen, slotted dataclass that inherits from `Params`. Each field is
annotated with its type, a description and, for numbers, the range of allowed values:

    delta: Annotated[float, "largest mass that neighbours may add", Range(0, 1)]

Construction and `from_mapping` validate values against the annotation; a search space validates its
bounds against it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Path = tuple[str, ...]


class ConfigError(ValueError):
    """An invalid value in a configuration."""

    def __init__(self, path: Path, problem: str, location: str = "") -> None:
        """
        Args:
            path: keys from the root to the value.
            problem: what is wrong, and the fix.
            location: "file:line", if known.
        """
        parts = [location, ".".join(path).replace(".[", "["), problem]
        super().__init__(": ".join(part for part in parts if part))
        self.path = path
        self.problem = problem
        self.location = location

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str, str]]:
        return type(self), (self.path, self.problem, self.location)

    def under(self, *outer: str) -> ConfigError:
        """The same error with a path that starts at an outer mapping."""
        return ConfigError((*outer, *self.path), self.problem, self.location)


def class_error(part: type, problem: str) -> ConfigError:
    """The error that a class contradicts its base; it names the file that defines the class, and
    the class.
    """
    file = getattr(sys.modules.get(part.__module__), "__file__", None)
    return ConfigError((), f"class {part.__qualname__} in {file or part.__module__}: {problem}")


@contextmanager
def class_errors(part: type, member: str) -> Iterator[None]:
    """Turn an exception that a method or property of a class raises into a `class_error`."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise class_error(
            part, f"{member} fails: {type(error).__name__}: {error}; correct it"
        ) from error


@contextmanager
def at(*path: str) -> Iterator[None]:
    """Prefix the path of a ConfigError that is raised inside."""
    try:
        yield
    except ConfigError as error:
        raise error.under(*path) from error.__cause__


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`; None is unbounded. `open_low` excludes `low` itself."""

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
        least = _number_text(self.low)
        most = _number_text(self.high)
        if least and most:
            bracket = "(" if self.open_low else "["
            return f"in {bracket}{least}, {most}]"
        if most:
            return f"at most {most}"
        if least:
            relation = "greater than" if self.open_low else "at least"
            return f"{relation} {least}"
        return ""


def _number_text(number: float | None) -> str:
    if number is None:
        return ""
    if isinstance(number, int):
        return str(number)
    return f"{number:g}"


class Key(str):
    """The name of a field in mappings, where it is not a valid attribute name (`lambda`)."""

    __slots__ = ()


class Extensible:
    """Mixin for the names of implementations, to which plugins may add."""

    __slots__ = ()
    # The plugins of stored sweeps that cannot be found, and the reason. Messages about unknown
    # names have them.
    missing: ClassVar[dict[str, str]] = {}


class Choices(tuple[str, ...]):
    """The allowed values of a string field, if they are known only at run time; otherwise the field
    uses `Literal`.
    """

    __slots__ = ()


class Abbreviations(dict[str, str]):
    """Short forms of a string field's values, for names of settings:
    `Abbreviations(cosine="cos")`.
    """

    __slots__ = ()


class PathField:
    """Marks a string field whose values are paths of files or folders."""

    __slots__ = ()


class Symbol(str):
    """The text before a field's value in names of settings, such as `d`, in place of its key."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ParamField:
    """A field of a parameter class."""

    name: str  # name of the attribute
    key: str  # name in mappings
    type: Any  # its annotation
    about: str  # description
    range: Range  # allowed numbers
    choices: tuple[str, ...]  # allowed values; empty: all
    default: Any  # `dataclasses.MISSING` if it has none
    symbol: str  # see `Symbol`
    abbreviations: Mapping[str, str]  # short forms of its values
    is_path: bool  # whether its values are paths of files or folders

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def number(self) -> type | None:
        """Int or float for a numeric field."""
        kind = without_none(self.type)
        if kind not in (int, float):
            return None
        return kind

    @property
    def column_type(self) -> type:
        """The type of its values in tables: int, float, or str, which lists become as JSON."""
        return self.number or str

    @property
    def is_list(self) -> bool:
        """Whether its values are lists."""
        return get_origin(without_none(self.type)) is tuple

    def fit(self, value: object) -> Any:
        """`value` converted to the field's type. Raises ConfigError, without a path, for a wrong
        type or a value out of range.
        """
        fitted = fit_value(self.type, value, self.range)
        if self.choices and fitted is not None and fitted not in self.choices:
            raise ConfigError((), unknown_choice(fitted, self.choices))
        return fitted


class Params:
    """Base of all parameters: values are converted and checked at construction; equality and hash
    are by value.
    """

    __slots__ = ()
    kind: ClassVar[str]  # the class's name in configs
    short: ClassVar[str] = ""  # its name where space is short; the kind if the class defines none
    leading: ClassVar[tuple[str, ...]] = ()  # keys that a name of limited length has first
    summary: ClassVar[str] = ""  # what it does, in plain words, with its keys in braces
    paper: ClassVar[str] = ""  # where it is from: the method's name and its arXiv number

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        # Not the base's: one short name would stand for two kinds.
        cls.short = own.get("short", own.get("kind", ""))
        cls.summary = own.get("summary", "")
        cls.paper = own.get("paper", "")

    def __post_init__(self) -> None:
        for key, field in self.fields().items():
            value = getattr(self, field.name)
            try:
                if value is not None and (problem := self.lacks(field.name)):
                    raise ConfigError((), problem)
                object.__setattr__(self, field.name, field.fit(value))
            except ConfigError as error:  # `at` would take as long as all else here
                raise error.under(key) from error.__cause__
        self.check()

    def lacks(self, name: str) -> str:
        """Why a field must be None; "" if it need not. The fields before it are checked already."""
        return ""

    def check(self) -> None:
        """Check the rules that involve several fields. Raises ConfigError with the key to
        change.
        """

    @classmethod
    def fields(cls) -> Mapping[str, ParamField]:
        """The fields with a description, by mapping key, in order of definition."""
        if cls not in _FIELDS:
            _FIELDS[cls] = MappingProxyType(_find_fields(cls))
        return _FIELDS[cls]

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read values by key. Raises ConfigError for an unknown key, or a missing or invalid
        value.
        """
        fields = cls.fields()
        given = expect_mapping(mapping, fields)
        for key, field in fields.items():
            if field.required and key not in given:
                allowed = f" ({field.range})" if field.range else ""
                raise ConfigError((key,), f"missing; give the {field.about}{allowed}")
        return cls(**{fields[key].name: value for key, value in given.items()})

    def to_mapping(self) -> dict[str, Any]:
        """Plain data by key: numbers, strings, lists. A field that is None is left out."""
        values = {key: getattr(self, field.name) for key, field in self.fields().items()}
        return {key: _as_lists(value) for key, value in values.items() if value is not None}

    @property
    def papers(self) -> tuple[str, ...]:
        """Where it is from, with these values: each paper's method and arXiv number."""
        return (self.paper,) if self.paper else ()

    def nondefault_values(self) -> dict[str, Any]:
        """Plain data: the kind, and the values by key that are not defaults, of parts too.

        Keys of stored results are hashes of this. So a field that is added later, with a default,
        changes no key.
        """
        keys = {field.name: key for key, field in self.fields().items()}
        found: dict[str, Any] = {}
        if hasattr(self, "kind"):
            found["kind"] = self.kind
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every Params but the base is a dataclass
            value = getattr(self, field.name)
            if value != _default(field):
                plain = value.nondefault_values() if isinstance(value, Params) else _as_lists(value)
                found[keys.get(field.name, field.name)] = plain
        return found


def expect_mapping(value: object, known: Iterable[str] | None = None) -> dict[str, Any]:
    """`value` with string keys. Raises ConfigError if it is not a mapping, or has a key that is not
    `known`.
    """
    if not isinstance(value, Mapping):
        raise ConfigError((), f"must be a mapping of keys to values, got {quoted(value)}")
    if known is not None and not isinstance(known, Extensible):
        known = list(known)
    for key in value:
        if known is not None and str(key) not in known:
            raise ConfigError((str(key),), unknown_key(str(key), known))
    return {str(key): entry for key, entry in value.items()}


def expect_list(value: object) -> list[Any]:
    """`value` as a list. Raises ConfigError if it is not a list."""
    if not isinstance(value, list | tuple):
        raise ConfigError((), f"must be a list, got {quoted(value)}")
    return list(value)


def unknown_key(key: str, known: Iterable[str], noun: str = "key") -> str:
    """The error message for an unknown key (or metric, column), with the nearest and all known
    keys.
    """
    names = list(known)
    return (
        f"unknown {noun};{_suggestion(key, names)} known {noun}s: "
        f"{_list(known) or 'none'}{_missing_plugins(known)}"
    )


def unknown_choice(value: object, choices: Iterable[str]) -> str:
    """The error message for a value that is not one of `choices`, with the nearest of them."""
    problem = f"must be one of {_list(choices)}, got {quoted(value)}"
    if isinstance(value, str) and (hint := _suggestion(value, list(choices))):
        problem += f";{hint}"
    return problem + _missing_plugins(choices)


def _list(names: Iterable[str]) -> str:
    listed = list(names)
    if isinstance(names, Extensible):
        listed.append("or a plugin's (--plugin MODULE)")
    return ", ".join(listed)


def _missing_plugins(names: Iterable[str]) -> str:
    if not isinstance(names, Extensible):
        return ""
    return "".join(
        f"; the sweep's plugin {module} cannot be found ({reason}): install it, put its folder on "
        "PYTHONPATH, or name another module by --plugin"
        for module, reason in names.missing.items()
    )


def as_tuples(value: Any) -> Any:
    """Lists as tuples, at any depth: the form in which parameters keep them."""
    if isinstance(value, list | tuple):
        return tuple(map(as_tuples, value))
    return value


def _as_lists(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_as_lists, value))
    return value


def _suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f" did you mean {close[0]!r}?"
    return ""


_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = _SHORT_REPR.maxlong = 200
_SHORT_REPR.maxlist = _SHORT_REPR.maxtuple = _SHORT_REPR.maxdict = 20


def quoted(value: object) -> str:
    """A value for a message: a long one is cut, and so is a deeply nested one."""
    if isinstance(value, int | float | str) and len(str(value)) < 200:
        return repr(value)
    return _SHORT_REPR.repr(value)


# The largest whole number without a smaller bound: they become sizes and indices of tensors.
_MAX_WHOLE = 2**31 - 1
# Fields by class, kept because resolving annotations takes a millisecond.
_FIELDS: dict[type[Params], Mapping[str, ParamField]] = {}


def _find_fields(cls: type[Params]) -> dict[str, ParamField]:
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise class_error(
            cls, f"{error}; fields need the names of their types when the module runs"
        ) from error
    found: dict[str, ParamField] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every Params but the base is a dataclass
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        annotation, about, *extras = get_args(hint)
        by_type = {type(extra): extra for extra in extras}
        key = str(by_type.get(Key, field.name))
        kind = without_none(annotation)
        words = get_args(kind) if get_origin(kind) is Literal else ()
        found[key] = ParamField(
            name=field.name,
            key=key,
            type=annotation,
            about=about,
            range=by_type.get(Range, Range()),
            choices=by_type.get(Choices, words),
            default=_default(field),
            symbol=by_type.get(Symbol, Symbol(key)),
            abbreviations=by_type.get(Abbreviations, Abbreviations()),
            is_path=PathField in by_type,
        )
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default; `dataclasses.MISSING` if it has none."""
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()


def without_none(annotation: Any) -> Any:
    """The type of an annotation that also allows None."""
    alternatives = get_args(annotation)
    if NoneType not in alternatives:
        return annotation
    return next(kind for kind in alternatives if kind is not NoneType)


def fit_value(annotation: Any, value: object, allowed: Range) -> Any:
    """`value` converted to the type of an annotation. Raises ConfigError if that fails."""
    if value is None and NoneType in get_args(annotation):
        return None
    kind = without_none(annotation)
    if kind not in (int, float):
        return _fit_other(kind, value, allowed)
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        noun = "whole number" if kind is int else "number"
        raise ConfigError((), f"must be a {noun}, got {quoted(value)}")
    try:
        # -0.0 becomes 0.0: they are equal, but their texts differ, and so would keys.
        number: int | float = kind(value) + 0
    except OverflowError:  # a whole number that is too large for a float
        number = math.inf
    if isinstance(number, float) and not math.isfinite(number):
        raise ConfigError((), f"must be a finite number, got {quoted(value)}")
    if kind is int and allowed.high is None and number > _MAX_WHOLE:
        raise ConfigError((), f"must be at most {_MAX_WHOLE}, got {quoted(value)}")
    if number not in allowed:
        raise ConfigError((), f"must be {allowed}, got {quoted(value)}")
    return number


def _fit_other(kind: Any, value: object, allowed: Range) -> Any:
    """`value` converted to a type that is not a number."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:  # one value, or a list of such
        wanted = args[1] if isinstance(value, list | tuple) else args[0]
        return fit_value(wanted, value, allowed)
    if origin is Union:  # a word, or a number
        words, number_type = get_args(args[0]), args[1]
        if isinstance(value, str) and value not in words:
            raise ConfigError((), f"must be a number or {_list(words)}, got {quoted(value)}")
        return value if isinstance(value, str) else fit_value(number_type, value, allowed)
    if origin is tuple:
        entries = expect_list(value)
        if args[-1] is not Ellipsis and len(entries) != len(args):
            raise ConfigError((), f"must be a list of {len(args)}, got {quoted(entries)}")
        kinds = args[:1] * len(entries) if args[-1] is Ellipsis else args
        return tuple(
            fit_value(inner, entry, allowed) for inner, entry in zip(kinds, entries, strict=True)
        )
    if origin is Mapping:
        return expect_mapping(value)
    if not isinstance(value, str):
        raise ConfigError((), f"must be a string, got {quoted(value)}")
    return value
