"""YAML documents whose every value knows where it stands, so that a complaint can name the file, the line and the key.

The loader builds plain data only (`yaml.safe_load`'s kinds, without dates), refuses keys given twice and documents that
unfold without end, and reads `1e-3` as the number it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from search_spaces.params import ConfigError, unknown_key

Path = tuple[str, ...]
MOST_NODES = 100_000  # aliases of aliases unfold to any size
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "map", "seq"))
BARE_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")


def dotted(path: Iterable[str]) -> str:
    """A path as it is written in messages: `space.tree[1].length`."""
    return ".".join(path).replace(".[", "[")


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands.

    value: a scalar, a tuple of nodes, or a mapping of keys to nodes. path: keys from the root, places in a list as
    "[0]". A node below a key stands in the key's line.
    """

    value: Any
    where: str
    path: Path = ()

    def error(self, problem: str, *below: str) -> ConfigError:
        return ConfigError((*self.path, *below), problem, self.where)

    def plain(self) -> Any:
        """The value as plain data."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        return [child.plain() for child in self.value] if isinstance(self.value, tuple) else self.value

    def mapping(self, known: Iterable[str] | None = None) -> dict[str, Node]:
        """The children of a mapping. ConfigError if this is none, or has a key that is not `known`."""
        if not isinstance(self.value, dict):
            raise self.error(f"must be a mapping of keys to values, got {self.plain()!r}")
        known = None if known is None else list(known)
        for key, child in self.value.items():
            if known is not None and key not in known:
                raise child.error(unknown_key(key, known))
        return self.value

    def entries(self) -> tuple[Node, ...]:
        """The entries of a list. ConfigError if this is none."""
        if not isinstance(self.value, tuple):
            raise self.error(f"must be a list, got {self.plain()!r}")
        return self.value

    @contextmanager
    def with_location(self) -> Iterator[None]:
        """A ConfigError about this node's plain value becomes a ConfigError at the key at fault."""
        try:
            yield
        except ConfigError as error:
            if error.location:
                raise
            node: Node = self
            for key in error.path:
                node = node.value.get(key, node) if isinstance(node.value, dict) else node
            raise ConfigError((*self.path, *error.path), error.problem, node.where) from error


def as_node(value: object, where: str, path: Path = ()) -> Node:
    """Plain data (or a node, as it is) as a node, all of it standing at `where`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        return Node({str(key): as_node(entry, where, (*path, str(key))) for key, entry in value.items()}, where, path)
    if isinstance(value, list | tuple):
        return Node(tuple(as_node(entry, where, (*path, f"[{i}]")) for i, entry in enumerate(value)), where, path)
    return Node(value, where, path)


def overridden(root: Node, key: str, value: object) -> Node:
    """`root` with `value` under a dotted key ("space.tree.0.length"). ConfigError if the way leads through a scalar."""
    return _replaced(root, tuple(key.split(".")), value, "override")


def _replaced(node: Node, steps: Path, value: object, where: str) -> Node:
    if not steps:
        return as_node(value, where, node.path)
    step, rest = steps[0], steps[1:]
    if isinstance(node.value, tuple):
        if not step.isdecimal() or int(step) >= len(node.value):
            known = f"0 to {len(node.value) - 1}" if node.value else "none: it is empty"
            raise ConfigError((*node.path, step), f"index out of range; indices: {known}", where)
        place = int(step)
        entries = (*node.value[:place], _replaced(node.value[place], rest, value, where), *node.value[place + 1 :])
        return Node(entries, node.where, node.path)
    if not isinstance(node.value, dict | None):
        problem = f"{dotted(node.path)} is {node.value!r}, a scalar without keys"
        raise ConfigError((*node.path, step), problem, where)
    children = node.value or {}
    child = children.get(step, Node(None, where, (*node.path, step)))
    return Node({**children, step: _replaced(child, rest, value, where)}, node.where, node.path)


class _Loader(yaml.SafeLoader):
    """SafeLoader without dates, and with numbers such as 1e-3."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what _Loader would read as a number, and never abbreviates by anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _end in (_Loader, _Dumper):
    _end.add_implicit_resolver("tag:yaml.org,2002:float", BARE_EXPONENT, list("-+0123456789"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if not tag.endswith(":timestamp")]
    for first, entries in _Loader.yaml_implicit_resolvers.items()
}


def read_document(text: str | bytes, file: str) -> Node:
    """The document in `text`; `file` is its name in messages. ConfigError, with the line, for what is no plain YAML."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError((), "the file is empty; give at least a name and objectives", f"{file}:1")
            return _Builder(loader, file).build(root, (), root.start_mark.line)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else f"{file}:1"
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise ConfigError((), f"not valid YAML: {reason}", where) from error
    except RecursionError:
        raise ConfigError((), "nested too deeply, or an alias that contains itself", f"{file}:1") from None


def write_document(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `read_document` reads back; keys in their order, short lists and mappings on one line."""
    text: str = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text


class _Builder:
    """YAML's own nodes to ours."""

    def __init__(self, loader: _Loader, file: str) -> None:
        self.loader, self.file = loader, file
        self.checked: set[int] = set()  # mappings whose keys were looked at, before merging brought others in
        self.built = 0

    def build(self, node: yaml.Node, path: Path, line: int) -> Node:
        where = f"{self.file}:{line + 1}"
        self.built += 1
        if self.built > MOST_NODES:
            raise ConfigError((), f"the document unfolds to more than {MOST_NODES} values; use fewer aliases", where)
        if isinstance(node, yaml.MappingNode):
            return Node(self.mapping(node, path, where), where, path)
        if node.tag not in PLAIN_TAGS:
            raise ConfigError(path, f"the tag {node.tag} is not allowed; use plain YAML", where)
        if isinstance(node, yaml.SequenceNode):
            entries = enumerate(node.value)
            return Node(tuple(self.build(e, (*path, f"[{i}]"), e.start_mark.line) for i, e in entries), where, path)
        try:
            return Node(self.loader.construct_object(node), where, path)
        except ValueError as error:
            raise ConfigError(path, f"not a value of its kind: {error}", where) from error

    def mapping(self, node: yaml.MappingNode, path: Path, where: str) -> dict[str, Node]:
        if node.tag not in PLAIN_TAGS:
            raise ConfigError(path, f"the tag {node.tag} is not allowed; use plain YAML", where)
        if id(node) not in self.checked:
            self.checked.add(id(node))
            self.check_keys(node, path)
            self.loader.flatten_mapping(node)
        return {k.value: self.build(v, (*path, k.value), k.start_mark.line) for k, v in node.value}

    def check_keys(self, node: yaml.MappingNode, path: Path) -> None:
        first: dict[str, int] = {}
        for key, _ in node.value:
            where = f"{self.file}:{key.start_mark.line + 1}"
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                raise ConfigError(path, f"the key {shown} is not a word; put it in quotes", where)
            if key.value in first:
                problem = f"given twice, first in line {first[key.value]}; remove one of the two"
                raise ConfigError((*path, key.value), problem, where)
            first[key.value] = key.start_mark.line + 1
