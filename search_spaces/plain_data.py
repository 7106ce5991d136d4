"""Plain data of stored files, checked against the types of dataclasses and converted to them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from search_spaces.params import (
    ConfigError,
    Range,
    at,
    expect_list,
    expect_mapping,
    fit_value,
    quoted,
    without_none,
)

_STORED_WHOLE = Range(-(2**63), 2**63 - 1)  # a signed 64-bit integer
_MAX_DEPTH = 6  # levels of plain data within an entry of a stored file


def fit_type(annotation: Any, value: object) -> Any:
    """Plain data of a file, checked against a type and converted to it.

    The type is that of a parameter, `bool`, `Any` (plain data without deep nesting), `Literal`, a
    mapping of texts or a tuple of these, or a dataclass of them; each also in a union with None.

    Raises:
        ConfigError: the data has another type; its path is that of the value.
    """
    if value is None and NoneType in get_args(annotation):
        return None
    kind = annotation if annotation is Any else without_none(annotation)
    origin = get_origin(kind)
    args = get_args(kind)
    if kind is Any:
        _check_depth(value, _MAX_DEPTH)
        return value
    if origin is Literal or kind is bool:
        allowed = args or (True, False)
        if any(value is choice or (type(value) is str and value == choice) for choice in allowed):
            return value
        names = ", ".join(map(str, allowed))
        raise ConfigError((), f"must be one of {names}, got {quoted(value)}")
    if origin is Mapping:
        return {
            key: _fit_entry(key, args[1], entry) for key, entry in expect_mapping(value).items()
        }
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(
            _fit_entry(f"[{place}]", args[0], entry)
            for place, entry in enumerate(expect_list(value))
        )
    if dataclasses.is_dataclass(kind):
        types = field_types(kind)
        return kind(**fit_entries(types, expect_mapping(value, types)))
    numbers = _STORED_WHOLE if kind is int else Range()
    return fit_value(kind, value, numbers)


def fit_entries(types: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of plain data that have one of these types (see `fit_type`); others are left
    out.
    """
    return {key: _fit_entry(key, types[key], value) for key, value in given.items() if key in types}


@cache
def field_types(part: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields by name, in their order."""
    hints = get_type_hints(part)
    return MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(part)})


def _fit_entry(key: str, annotation: Any, value: object) -> Any:
    # First the most frequent types, in lists of thousands.
    if annotation is str and type(value) is str:
        return value
    if annotation is int and type(value) is int and value in _STORED_WHOLE:
        return value
    if annotation is float and type(value) is float and math.isfinite(value):
        return value + 0
    with at(key):
        return fit_type(annotation, value)


def _check_depth(value: object, depth: int) -> None:
    if not isinstance(value, Mapping | list | tuple):
        return
    if depth == 0:
        raise ConfigError((), "nested too deeply")
    entries = value.values() if isinstance(value, Mapping) else value
    for entry in entries:
        _check_depth(entry, depth - 1)
