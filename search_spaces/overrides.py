"""`KEY=VALUE` assignments of command lines, and how they change a decoding config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from search_spaces.documents import read_document
from search_spaces.params import ConfigError, at, unknown_key
from search_spaces.trial import SECTIONS, flat_types


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Keys and values of `KEY=VALUE` texts, the values read as YAML.

    Raises:
        ConfigError: no `=`, or the value is not valid YAML.
    """
    assignments = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError((f"--set {text}",), "write KEY=VALUE, such as --set acceptance.delta=0.2")
        assignments[key.strip()] = read_document(value, f"--set {key}").data if value.strip() else None
    return assignments


def override(mapping: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`mapping` (as `DecodingConfig.to_mapping` writes it) with `section` and `section.key` assignments applied.

    Whole sections are assigned first, as in YAML (`drafter=eagle`, `acceptance=lantern`), then kinds. A section whose
    kind changes keeps the values of keys that the new kind has. The result is not validated.

    Raises:
        ConfigError: an unknown section, or a word that is not a kind or rule of its section.
    """
    sections = {name: dict(mapping.get(name) or {}) for name in SECTIONS}
    for path in sorted(assignments, key=lambda path: (path not in SECTIONS, not _names_kind(path))):
        section, _, key = path.partition(".")
        if path in SECTIONS:
            with at(path):
                sections[path] = SECTIONS[path].expand(assignments[path])
            continue
        if section not in sections or not key:
            raise ConfigError((path,), unknown_key(path, config_keys()))
        sections[section][key] = assignments[path]
        if _names_kind(path):
            sections[section] = _without_unknown(section, sections[section])
    return {name: section for name, section in sections.items() if section}


def config_keys() -> list[str]:
    """Every key that a decoding config can have, as `section.key`."""
    return list(flat_types())


def _names_kind(path: str) -> bool:
    name, _, key = path.partition(".")
    return name in SECTIONS and key in SECTIONS[name].tags


def _without_unknown(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The section without keys that its kinds do not have. Unchanged if a kind is unknown."""
    section = SECTIONS[name]
    kinds = {tag: mapping.get(tag, next(iter(options))) for tag, options in section.tags.items()}
    if not all(isinstance(kind, str) and kind in section.tags[tag] for tag, kind in kinds.items()):
        return dict(mapping)
    allowed = section.known_keys({tag: [kind] for tag, kind in kinds.items()})
    return {key: value for key, value in mapping.items() if key in allowed}
