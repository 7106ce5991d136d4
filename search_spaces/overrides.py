"""`KEY=VALUE` assignments, as command lines give them, and how they change a decoding config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from search_spaces.acceptance import NEIGHBOURHOODS, AcceptanceRule
from search_spaces.documents import read_document
from search_spaces.params import ConfigError, Params, unknown_key
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES
from search_spaces.trial import DRAFTERS, Sampling

# The keys of each section that name a kind, with the classes to choose from.
_KINDS: Mapping[str, Mapping[str, Mapping[str, type[Params]]]] = {
    "drafter": {"kind": DRAFTERS},
    "tree": {"policy": POLICIES},
    "acceptance": {"neighbourhood": NEIGHBOURHOODS, "schedule": SCHEDULES},
    "sampling": {},
}
# Classes whose fields are keys of a section whatever its kinds are.
_COMMON: Mapping[str, type[Params]] = {"acceptance": AcceptanceRule, "sampling": Sampling}


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
        assignments[key.strip()] = read_document(value, f"--set {key}").plain() if value.strip() else None
    return assignments


def override(mapping: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`mapping` (as `DecodingConfig.to_mapping` writes it) with `section.key` assignments applied.

    Kinds are assigned first. A section whose kind changes keeps the values of keys that the new kind has. The result is
    not validated.

    Raises:
        ConfigError: a key without a section, or of an unknown section.
    """
    sections = {name: dict(mapping.get(name) or {}) for name in _KINDS}
    for path in sorted(assignments, key=lambda path: not _names_kind(path)):
        section, _, key = path.partition(".")
        if section not in sections or not key:
            raise ConfigError((path,), unknown_key(path, config_keys()))
        sections[section][key] = assignments[path]
        if _names_kind(path):
            sections[section] = _without_unknown(section, sections[section])
    return {name: section for name, section in sections.items() if section}


def config_keys() -> list[str]:
    """Every key that a decoding config can have, as `section.key`."""
    keys: dict[str, None] = {}
    for section, kinds in _KINDS.items():
        for name, choices in kinds.items():
            keys[f"{section}.{name}"] = None
            keys |= {f"{section}.{key}": None for choice in choices.values() for key in choice.fields()}
    keys |= {f"{section}.{key}": None for section, common in _COMMON.items() for key in common.fields()}
    return list(keys)


def _names_kind(path: str) -> bool:
    section, _, key = path.partition(".")
    return key in _KINDS.get(section, {})


def _without_unknown(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """The section without keys that its kinds do not have. Left as it is if a kind is unknown."""
    allowed = {*_KINDS[name], *(_COMMON[name].fields() if name in _COMMON else ())}
    for key, choices in _KINDS[name].items():
        kind = section.get(key, next(iter(choices)))
        if not isinstance(kind, str) or kind not in choices:
            return dict(section)
        allowed |= choices[kind].fields().keys()
    return {key: value for key, value in section.items() if key in allowed}
