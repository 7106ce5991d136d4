"""The published methods by name, read from presets.yaml: each is one point of the space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

import yaml

from search_spaces.params import at
from search_spaces.plugins import Registry
from search_spaces.trial import DecodingConfig


@dataclass(frozen=True, slots=True)
class Preset:
    """A published setting."""

    config: DecodingConfig
    about: str  # what it is, in one line
    source: str  # where it is from


def _read_catalogue() -> Mapping[str, Preset]:
    text = files("search_spaces").joinpath("presets.yaml").read_text("utf-8")
    # libyaml's parser takes 2 ms, the Python one 30. This runs at every start, and users do not
    # edit the file.
    entries = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return MappingProxyType(
        {
            name: Preset(
                about=entry.pop("about"),
                source=entry.pop("source"),
                config=DecodingConfig.from_mapping(entry),
            )
            for name, entry in entries.items()
        }
    )


CATALOGUE = _read_catalogue()
ALIASES: Mapping[str, str] = MappingProxyType({"peanut": "adt"})

PRESETS: Registry[DecodingConfig] = Registry("preset")
for _name in (*CATALOGUE, *ALIASES):
    PRESETS.add(_name, CATALOGUE[ALIASES.get(_name, _name)].config)


def preset(name: str) -> DecodingConfig:
    """A published setting by name. Raises ConfigError, with the nearest and the known names, if
    there is none.
    """
    with at("preset"):
        return PRESETS.lookup(name)
