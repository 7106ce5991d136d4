"""Sections of a decoding config: flat mappings that name a kind under each tag and hold the fields of all kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search_spaces.params import ConfigError, ParamField, Params, expect_mapping, unknown_choice, unknown_key


@dataclass(frozen=True, slots=True)
class Section:
    """tags: the kinds to choose from under each tag; the first is the default. common: fields of any kind.

    rules: whole sections by name.
    """

    tags: Mapping[str, Mapping[str, type[Params]]]
    common: Mapping[str, ParamField] = field(default_factory=dict)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def expand(self, value: object) -> dict[str, Any]:
        """The mapping that a value of the section stands for: nothing, the name of a rule or kind, or a mapping."""
        if value is None:
            return {}
        if not isinstance(value, str) or not self.tags:
            return expect_mapping(value)
        tag = next(iter(self.tags))
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
        kinds = {tag: mapping.get(tag, next(iter(options))) for tag, options in self.tags.items()}
        for tag, kind in kinds.items():
            if not isinstance(kind, str) or kind not in self.tags[tag]:
                raise ConfigError((tag,), unknown_choice(kind, self.tags[tag]))
        self.check_keys(mapping, {tag: [kind] for tag, kind in kinds.items()})
        classes = {tag: self.tags[tag][kind] for tag, kind in kinds.items()}
        parts = {
            tag: made.from_mapping({key: mapping[key] for key in made.fields() if key in mapping})
            for tag, made in classes.items()
        }
        return parts | {key: mapping[key] for key in self.common if key in mapping}

    def check_keys(self, keys: Iterable[str], kinds: Mapping[str, Sequence[str]]) -> None:
        """ConfigError for a key that none of `kinds`, by tag, has."""
        allowed = self.known_keys(kinds)
        for key in keys:
            if key in allowed:
                continue
            known = self.known_keys({tag: found[:1] for tag, found in kinds.items()})
            for tag, options in self.tags.items():
                owners = [repr(kind) for kind in options if key in options[kind].fields()]
                if owners:
                    raise ConfigError((key,), f"not a key of {tag} {kinds[tag][0]!r} but of {', '.join(owners)}; "
                                              f"known keys: {', '.join(known)}")  # fmt: skip
            raise ConfigError((key,), unknown_key(key, known))

    def known_keys(self, kinds: Mapping[str, Iterable[str]]) -> list[str]:
        """The tags, the common keys, and the keys of these kinds by tag."""
        return [*self.tags, *self.common, *(key for tag, found in kinds.items() for key in self.keys_of(tag, found))]

    def types(self) -> dict[str, type]:
        """The type of each key's value in tables: int, float or str (see `ParamField.column_type`).

        Raises:
            ConfigError: kinds disagree on a key's type.
        """
        found: dict[str, tuple[type, str]] = dict.fromkeys(self.tags, (str, "the name of a kind"))
        kinds = ((repr(kind), entry.fields()) for options in self.tags.values() for kind, entry in options.items())
        for owner, fields in (("every kind", self.common), *kinds):
            for key, entry in fields.items():
                kind, first = found.setdefault(key, (entry.column_type, owner))
                if kind is not entry.column_type:
                    clash = f"{kind.__name__} in {first}, {entry.column_type.__name__} in {owner}"
                    raise ConfigError((key,), f"has one type in every kind: {clash}; rename the plugin's key")
        return {key: kind for key, (kind, _) in found.items()}

    def keys_of(self, tag: str, kinds: Iterable[str]) -> list[str]:
        """The keys of the fields of these kinds."""
        return [key for kind in kinds for key in self.tags[tag][kind].fields()]
