"""Sections of a decoding config: how a section's kinds and fields are read from plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search_spaces.params import (
    ConfigError,
    ParamField,
    Params,
    class_error,
    expect_mapping,
    unknown_choice,
    unknown_key,
)
from search_spaces.plugins import is_external


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a config: kinds to choose from, and their fields."""

    # The kinds to choose from under each tag; the first is the default.
    tags: Mapping[str, Mapping[str, type[Params]]]
    # Fields of any kind.
    common: Mapping[str, ParamField] = field(default_factory=dict)
    # Whole sections by name.
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The tags that mappings leave out where they have their default.
    omitted: Collection[str] = ()

    def expand(self, value: object) -> dict[str, Any]:
        """The mapping that a value of the section stands for: nothing, the name of a rule or kind,
        or a mapping.
        """
        if value is None:
            return {}
        tag = next((tag for tag in self.tags if tag not in self.omitted), None)
        if not isinstance(value, str) or tag is None:
            return expect_mapping(value)
        names: Collection[str] = self.rules or self.tags[tag]
        if value not in names:
            raise ConfigError((), unknown_choice(value, names))
        return dict(self.rules.get(value, {tag: value}))

    def read(self, value: object) -> dict[str, Any]:
        """The parameters by tag, and the values of common fields by key.

        Raises:
            ConfigError: an unknown kind or key, a missing or a wrong value.
        """
        mapping = self.expand(value)
        kinds = self.kinds(mapping)
        self.check_keys(mapping, kinds)
        classes = {tag: self.tags[tag][kind] for tag, (kind,) in kinds.items()}
        parts = {
            tag: made.from_mapping({key: mapping[key] for key in made.fields() if key in mapping})
            for tag, made in classes.items()
        }
        return parts | {key: mapping[key] for key in self.common if key in mapping}

    def kinds(self, mapping: Mapping[str, Any]) -> dict[str, list[str]]:
        """The kind under each tag, by default the first, as a list of one. Raises ConfigError for
        an unknown kind.
        """
        found = {tag: mapping.get(tag, next(iter(options))) for tag, options in self.tags.items()}
        for tag, kind in found.items():
            if not isinstance(kind, str) or kind not in self.tags[tag]:
                raise ConfigError((tag,), unknown_choice(kind, self.tags[tag]))
        return {tag: [kind] for tag, kind in found.items()}

    def check_keys(self, keys: Iterable[str], kinds: Mapping[str, Sequence[str]]) -> None:
        """Raises ConfigError for a key that none of `kinds`, by tag, has."""
        allowed = self.known_keys(kinds)
        for key in keys:
            if key in allowed:
                continue
            known = self.known_keys({tag: found[:1] for tag, found in kinds.items()})
            for tag, options in self.tags.items():
                owners = [repr(kind) for kind in options if key in options[kind].fields()]
                if owners:
                    raise ConfigError(
                        (key,),
                        f"not a key of {tag} {kinds[tag][0]!r} but of {', '.join(owners)}; "
                        f"known keys: {', '.join(known)}",
                    )
            raise ConfigError((key,), unknown_key(key, known))

    def known_keys(self, kinds: Mapping[str, Iterable[str]]) -> list[str]:
        """The tags, the common keys, and the keys of these kinds by tag."""
        return [
            *self.tags,
            *self.common,
            *(key for tag, found in kinds.items() for key in self.keys_of(tag, found)),
        ]

    def types(self) -> dict[str, type]:
        """The type of each key's value in tables: int, float or str (see `ParamField.column_type`).

        Raises:
            ConfigError: kinds disagree on a key's type.
        """
        found: dict[str, tuple[type, str]] = dict.fromkeys(self.tags, (str, "the name of a kind"))
        found |= {key: (entry.column_type, "every kind") for key, entry in self.common.items()}
        classes = [made for options in self.tags.values() for made in options.values()]
        # The project's classes first, so that errors are about a plugin's key.
        for made in sorted(classes, key=lambda made: is_external(made.__module__)):
            for key, entry in made.fields().items():
                kind, first = found.setdefault(key, (entry.column_type, repr(made.kind)))
                if kind is not entry.column_type:
                    clash = f"is {entry.column_type.__name__} here but {kind.__name__} in {first}"
                    raise class_error(
                        made, f"the key {key!r} {clash}, and both are one column; rename it"
                    )
        return {key: kind for key, (kind, _) in found.items()}

    def keys_of(self, tag: str, kinds: Iterable[str]) -> list[str]:
        """The keys of the fields of these kinds."""
        return [key for kind in kinds for key in self.tags[tag][kind].fields()]
