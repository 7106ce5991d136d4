"""The setting that a command line asks for: a preset or a YAML file, with single keys overridden."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import WRONG_USAGE, CommandError, explain
from search_spaces.acceptance import NEIGHBOURHOODS, AcceptanceRule
from search_spaces.schedules import SCHEDULES
from search_spaces.settings import Setting, SettingError, knobs, unknown_key
from search_spaces.trees import POLICIES, Chain
from search_spaces.trial import DRAFTERS, DecodingConfig, Sampling

# Under which keys a section names its kinds. A new kind keeps the old one's values where it knows their keys.
TAGS: Mapping[str, Mapping[str, Mapping[str, type[Setting]]]] = {
    "drafter": {"kind": DRAFTERS},
    "tree": {"policy": POLICIES},
    "acceptance": {"neighbourhood": NEIGHBOURHOODS, "schedule": SCHEDULES},
    "sampling": {},
}
# Keys that answer the same question: giving one takes the other away.
RIVALS = {"tree.name": "paths", "tree.paths": "name"}


@dataclass(frozen=True, slots=True)
class Override:
    """One key of the setting ("tree.depth") to be given a value; `flag` is how the user said so."""

    flag: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Chosen:
    """A setting, but for the sampling, of which only some keys may have been said."""

    mapping: Mapping[str, Any]
    overrides: Sequence[Override]

    def complete(self, defaults: Sampling) -> DecodingConfig:
        """The whole setting, what was not said about the sampling taken from the target's own `defaults`.

        Raises:
            CommandError: a value out of its range, or parts that cannot go together.
        """
        try:
            return DecodingConfig.from_mapping(self.mapping, defaults=defaults)
        except SettingError as error:
            raise self.blame(error) from error

    def blame(self, error: SettingError) -> CommandError:
        """The error in terms of the option that set the key at fault, if one did."""
        key = ".".join(error.path)
        flag = next((override.flag for override in self.overrides if override.key == key), key)
        return CommandError(f"{flag}: {error.problem}" if flag else error.problem, WRONG_USAGE)


def choose(base: Mapping[str, Any], overrides: Sequence[Override]) -> Chosen:
    """`base` (as `DecodingConfig.to_mapping` writes it, sampling perhaps in part) with the overrides, checked.

    Raises:
        CommandError: as `Chosen.complete`, and for keys that no setting has.
    """
    sections = {name: dict(base.get(name) or {}) for name in TAGS}
    policy = next((o.value for o in overrides if o.key == "tree.policy"), sections["tree"].get("policy"))
    overrides = [part for override in overrides for part in spell_out(override, str(policy))]
    for override in overrides:
        if override.key.partition(".")[0] not in TAGS or "." not in override.key:
            raise CommandError(f"{override.flag}: {unknown_key(override.key, known_keys())}", WRONG_USAGE)
    for override in sorted(overrides, key=lambda override: not is_tag(override.key)):
        section, _, key = override.key.partition(".")
        sections[section].pop(RIVALS.get(override.key, ""), None)
        sections[section][key] = override.value
        if is_tag(override.key):
            keep_known(section, sections[section])
    mapping = {name: section for name, section in sections.items() if section or name != "sampling"}
    chosen = Chosen(mapping, overrides)
    chosen.complete(Sampling())  # finds every mistake that does not depend on the model
    return chosen


def spell_out(override: Override, policy: str) -> list[Override]:
    """Two short forms: static:NAME is a policy and a name, and the depth of a chain is its length."""
    if override.key == "tree.policy" and isinstance(override.value, str) and ":" in override.value:
        kind, _, name = override.value.partition(":")
        return [replace(override, value=kind), Override(override.flag, "tree.name", name)]
    if override.key == "tree.depth" and policy == Chain.kind:
        return [replace(override, key="tree.length")]
    return [override]


def is_tag(key: str) -> bool:
    section, _, name = key.partition(".")
    return name in TAGS.get(section, {})


def keep_known(name: str, section: dict[str, Any]) -> None:
    """Drop the keys of a section that none of its kinds knows (an unknown kind is left for the reader to refuse)."""
    chosen = {tag: section.get(tag, next(iter(options))) for tag, options in TAGS[name].items()}
    kinds = [TAGS[name][tag].get(kind) if isinstance(kind, str) else None for tag, kind in chosen.items()]
    if None in kinds:
        return
    own = knobs(AcceptanceRule) if name == "acceptance" else {}
    known = {*TAGS[name], *own, *(key for kind in kinds if kind is not None for key in knobs(kind))}
    for key in section.keys() - known:
        del section[key]


def known_keys() -> list[str]:
    """Every key that any setting has, as "section.key"."""
    found: dict[str, None] = {}
    for section, tags in TAGS.items():
        for tag, options in tags.items():
            keys = [tag, *(key for kind in options.values() for key in knobs(kind))]
            found |= dict.fromkeys(f"{section}.{key}" for key in keys)
    own = [*(f"acceptance.{key}" for key in knobs(AcceptanceRule)), *(f"sampling.{key}" for key in knobs(Sampling))]
    return [*found, *own]


def read_file(path: str) -> dict[str, Any]:
    """The setting in a YAML file, as a mapping with every key of drafter, tree and acceptance written out.

    Raises:
        CommandError: no such file, no YAML, or a setting that cannot be; the message names the file and the key.
    """
    try:
        given = yaml.safe_load(Path(path).read_bytes())
        config = DecodingConfig.from_mapping(given, defaults=Sampling())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or error
        raise CommandError(f"{path}{where}: not valid YAML: {reason}", WRONG_USAGE) from error
    except OSError as error:
        raise CommandError(explain(error), WRONG_USAGE) from error
    except ValueError as error:
        raise CommandError(f"{path}: {error}", WRONG_USAGE) from error
    written = config.with_sampling(None).to_mapping()
    return written | {"sampling": given["sampling"]} if given.get("sampling") else written


def read_sets(sets: Collection[str]) -> list[Override]:
    """Overrides written KEY=VALUE, the value as YAML.

    Raises:
        CommandError: no "=", or a value that is no YAML.
    """
    overrides = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set {text}: write KEY=VALUE, e.g. --set acceptance.delta=0.2", WRONG_USAGE)
        try:
            overrides.append(Override(f"--set {key}", key.strip(), yaml.safe_load(value)))
        except yaml.YAMLError as error:
            raise CommandError(f"--set {text}: the value is not valid YAML", WRONG_USAGE) from error
    return overrides
