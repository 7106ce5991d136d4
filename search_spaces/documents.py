"""YAML documents as plain data, with the line of every value, so that an error can name file, line
and key.

The loader builds plain data only (the types of `yaml.safe_load`, without dates), refuses duplicate
keys and documents whose aliases expand to an excessive size. `1e-3`, `1.5e3` and `-.5` are numbers.
Unquoted scalars that programs read differently, such as `1:30`, `0200`, `1_000` and `no`, are
refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from search_spaces.params import ConfigError, Path

MAX_VALUES = 100_000  # values of a document; aliases of aliases could expand to any size
MAX_LENGTH = 1_000_000  # characters or bytes of a document, which take PyYAML several seconds
_MAX_DIFFERENCES = 5  # differences in a message
_MAX_SHOWN_LENGTH = 60  # characters of a text in a message
_HASH_LENGTH = 12  # characters of the hash of a text that is cut
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "map", "seq")
)
# Scalars that YAML 1.2 reads as numbers and PyYAML as text: 1e3, 1.5e3, -.5, 089, 0o17; and times
# such as 0:30.
_OTHER_NUMBERS = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?0o[0-7]+$|[-+]?[0-9]+(:[0-5]?[0-9])+$"
)
_NUMBER_FIX = (
    "write a number without leading zeros, underscores and colons, such as 1.5 for 1:30, and put "
    "text in quotes"
)
_TRUTH_FIX = "write true or false, and put text in quotes"
# The scalars of a type that all readers of YAML read alike, and how to write others.
_ACCEPTED = {
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+"), _NUMBER_FIX),
    "tag:yaml.org,2002:float": (
        re.compile(
            r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        _NUMBER_FIX,
    ),
    "tag:yaml.org,2002:bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), _TRUTH_FIX),
}


OVERRIDE = "--set"  # the location of a value that replaces the file's


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document.

    A path holds keys, and indices of lists as "[0]". The location of a mapping's value is the line
    of its key.
    """

    data: Any  # plain data
    locations: Mapping[Path, str]  # "file:line" of each value by its path

    def location(self, path: Path) -> str:
        """The location of a value, or of the nearest enclosing value that the document has."""
        while path not in self.locations:
            path = path[:-1]
        return self.locations[path]

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Add the location to a ConfigError that is raised inside, about a path of this
        document.
        """
        try:
            yield
        except ConfigError as error:
            raise ConfigError(
                error.path, error.problem, error.location or self.location(error.path)
            ) from error

    def with_override(self, key: str, value: object) -> Document:
        """The document with `value` under a dotted key ("space.tree.0.length").

        Raises:
            ConfigError: an index out of range, or a key of a scalar.
        """
        data, path = _override(self.data, key.split("."), value, ())
        locations = {
            other: line for other, line in self.locations.items() if other[: len(path)] != path
        }
        created = {path[:end]: OVERRIDE for end in range(len(path) + 1)}
        return Document(data, created | locations)


def _override(data: Any, keys: list[str], value: object, path: Path) -> tuple[Any, Path]:
    """The changed data, and the path of the value in it."""
    if not keys:
        return value, path
    key = keys[0]
    rest = keys[1:]
    if isinstance(data, list):
        if not key.isdecimal() or int(key) >= len(data):
            indices = f"0 to {len(data) - 1}" if data else "none, the list is empty"
            raise ConfigError((*path, key), f"index out of range; indices: {indices}", OVERRIDE)
        entry, found = _override(data[int(key)], rest, value, (*path, f"[{key}]"))
        return [*data[: int(key)], entry, *data[int(key) + 1 :]], found
    if not isinstance(data, dict | None):
        raise ConfigError(
            (*path, key), f"{'.'.join(path)} is {data!r}, a scalar without keys", OVERRIDE
        )
    entry, found = _override((data or {}).get(key), rest, value, (*path, key))
    return {**(data or {}), key: entry}, found


class _Loader(yaml.SafeLoader):
    """SafeLoader without dates, and with the numbers of YAML 1.2."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes strings which _Loader would not read as strings, and never writes
    anchors.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True


for _end in (_Loader, _Dumper):
    _end.add_implicit_resolver("tag:yaml.org,2002:float", _OTHER_NUMBERS, list("-+.0123456789"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if not tag.endswith(":timestamp")]
    for first, entries in _Loader.yaml_implicit_resolvers.items()
}


def read_document(text: str | bytes, file: str) -> Document:
    """The document in `text`; `file` is its name in messages.

    Raises:
        ConfigError: it is not plain YAML, with the line, or longer than `MAX_LENGTH`.
    """
    if len(text) > MAX_LENGTH:
        problem = f"{len(text)} characters are too many for a YAML file; {MAX_LENGTH} are the limit"
        raise ConfigError((), problem, f"{file}:1")
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError(
                    (), "the file is empty; give at least a name and objectives", f"{file}:1"
                )
            return _Builder(loader, file).document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise ConfigError((), f"not valid YAML: {reason}", f"{file}:{line}") from error
    except RecursionError:
        raise ConfigError(
            (), "nested too deeply, or an alias that contains itself", f"{file}:1"
        ) from None


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """The value of a JSON text. With `finite`, NaN and infinity, which are not JSON, are refused.

    Raises:
        ValueError: not JSON, or nested too deeply or with too long an integer for Python's parser.
        UnicodeDecodeError: bytes that are not UTF-8.
    """
    try:
        if not finite:
            return json.loads(text)
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        return _FINITE_DECODER.decode(text)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    except ValueError as error:
        if not str(error).startswith("Exceeds the limit"):
            raise
        limit = sys.get_int_max_str_digits()
        raise json.JSONDecodeError(f"an integer of more than {limit} digits", "", 0) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Made once: that takes as long as reading an event.
_FINITE_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def write_document(data: Mapping[str, Any], *, is_compact: bool = True) -> str:
    """Plain data as YAML that `read_document` reads back, keys in their order. If it is compact,
    short lists and mappings are on one line; otherwise each value has a line of its own.
    """
    style = None if is_compact else False
    text: str = yaml.dump(
        dict(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=120,
        default_flow_style=style,
    )
    return text


def differences(before: Any, after: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    """The values of two documents that differ, before and after, by dotted key as `with_override`
    takes it. None stands for a key that one of them lacks. Lists of different lengths differ as a
    whole.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = {str(index): pair for index, pair in enumerate(zip(before, after, strict=True))}
    elif before == after:
        return {}
    else:
        return {key: (before, after)}
    changes: dict[str, tuple[Any, Any]] = {}
    for name, (old, new) in pairs.items():
        changes |= differences(old, new, f"{key}.{name}" if key else str(name))
    return changes


def describe_differences(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """`tree.length.high was 6, is 8`, for the first few keys."""
    texts = [f"{key} was {_short(old)}, is {_short(new)}" for key, (old, new) in changes.items()]
    more = len(texts) - _MAX_DIFFERENCES
    if more > 0:
        texts[_MAX_DIFFERENCES:] = [f"and {more} more"]
    return "; ".join(texts)


def _short(value: Any) -> str:
    """A value in JSON, shortened."""
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return shorten(text, _MAX_SHOWN_LENGTH)


def shorten(text: str, limit: int, ellipsis: str = "… ") -> str:
    """A text of at most `limit` characters. A longer one is cut and ends in an ellipsis and a hash
    of all of it, so that different texts stay different.
    """
    if len(text) <= limit:
        return text
    mark = (
        ellipsis
        + hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_HASH_LENGTH]
    )
    return text[: limit - len(mark)] + mark


class _Builder:
    """Builds plain data from YAML's nodes and notes the lines."""

    def __init__(self, loader: _Loader, file: str) -> None:
        self.loader = loader
        self.file = file
        # Ids of mappings whose keys were checked, before merging added others.
        self.checked: set[int] = set()
        self.locations: dict[Path, str] = {}

    def document(self, root: yaml.Node) -> Document:
        return Document(self.build(root, (), root.start_mark.line), self.locations)

    def build(self, node: yaml.Node, path: Path, line: int) -> Any:
        """The plain data of a node, which is in this line (from 0)."""
        location = self.locations[path] = f"{self.file}:{line + 1}"
        if len(self.locations) > MAX_VALUES:
            raise ConfigError(
                (),
                f"the document expands to more than {MAX_VALUES} values; use fewer aliases",
                location,
            )
        if node.tag not in _PLAIN_TAGS:
            raise ConfigError(path, f"the tag {node.tag} is not allowed; use plain YAML", location)
        if isinstance(node, yaml.MappingNode):
            if id(node) not in self.checked:
                self.checked.add(id(node))
                self.check_keys(node, path)
                self.loader.flatten_mapping(node)
            return {
                k.value: self.build(v, (*path, k.value), k.start_mark.line) for k, v in node.value
            }
        if isinstance(node, yaml.SequenceNode):
            return [
                self.build(entry, (*path, f"[{i}]"), entry.start_mark.line)
                for i, entry in enumerate(node.value)
            ]
        accepted, fix = _ACCEPTED.get(node.tag, (None, ""))
        if accepted is not None and not accepted.fullmatch(node.value):
            raise ConfigError(
                path, f"not every program reads {node.value} as the same value; {fix}", location
            )
        try:
            return self.loader.construct_object(node)
        except ValueError as error:
            raise ConfigError(path, f"not a value of its type: {error}", location) from error

    def check_keys(self, node: yaml.MappingNode, path: Path) -> None:
        """Raises ConfigError for a key that is not a string, or is given twice."""
        first: dict[str, int] = {}
        for key, _ in node.value:
            location = f"{self.file}:{key.start_mark.line + 1}"
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                text = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                raise ConfigError(
                    path, f"the key {text} is not a string; put it in quotes", location
                )
            if key.value in first:
                problem = f"given twice, first in line {first[key.value]}; remove one of the two"
                raise ConfigError((*path, key.value), problem, location)
            first[key.value] = key.start_mark.line + 1
