"""The configuration of a trial: drafter x tree policy x acceptance rule x sampling, as one frozen
value with a digest; and `KEY=VALUE` assignments of command lines, which change one.

    DecodingConfig.from_mapping({
        "drafter": "eagle",
        "tree": {"policy": "dynamic", "depth": 5, "width": 8, "nodes": 32},
        "acceptance": {"neighbourhood": "additive", "k": 100, "delta": 0.1},
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 3.0},
    })

Defaults are no drafter, no tree and the exact rule. Without `sampling` the target's own defaults
apply.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Self

from search_spaces.acceptance import EXACT, RULES, AcceptanceRule
from search_spaces.documents import read_document
from search_spaces.drafters import DRAFTERS, DrafterChoice, NoDrafter
from search_spaces.modulations import MODULATIONS, NO_MODULATION
from search_spaces.neighbourhoods import NEIGHBOURHOODS
from search_spaces.params import ConfigError, Params, Range, Symbol, at, expect_mapping, unknown_key
from search_spaces.plugins import is_external
from search_spaces.schedules import SCHEDULES
from search_spaces.sections import Section
from search_spaces.temperatures import (
    CONSTANT_TEMPERATURE,
    DYNAMIC_TEMPERATURES,
    DynamicTemperature,
)
from search_spaces.trees import POLICIES, NoTree, TreePolicy
from search_spaces.verification import VERIFICATIONS


@dataclass(frozen=True, slots=True)
class Sampling(Params):
    """How the target's logits become its probs q: classifier-free guidance, temperature, then
    top-k, then top-p.

    logits = uncond + cfg (cond - uncond); with cfg 1 only the conditional rows run.
    """

    temperature: Annotated[
        float, "divisor of the logits; 0 is greedy decoding", Range(0), Symbol("T")
    ] = 1.0
    top_k: Annotated[int, "number of most likely tokens kept; 0 keeps all", Range(0)] = 0
    top_p: Annotated[
        float, "mass of the most likely tokens kept; 1 keeps all", Range(0, 1, open_low=True)
    ] = 1.0
    cfg: Annotated[float, "scale of classifier-free guidance; 1 is none", Range(0)] = 1.0
    # A factor of the temperature, which is then applied after top-k and top-p; mappings leave the
    # default out.
    dynamic_temperature: DynamicTemperature = CONSTANT_TEMPERATURE

    @classmethod
    def from_mapping(cls, mapping: object) -> Self:
        """Read what `to_mapping` wrote, or a part of it."""
        return cls(**SECTIONS["sampling"].read(mapping))

    def to_mapping(self) -> dict[str, Any]:
        """The values by key, those of the dynamic temperature among them."""
        values = Params.to_mapping(self)
        dynamic = self.dynamic_temperature
        if dynamic.is_constant:
            return values
        return values | {"dynamic_temperature": dynamic.kind, **dynamic.to_mapping()}


SECTIONS: Mapping[str, Section] = {
    "drafter": Section({"kind": DRAFTERS}),
    "tree": Section({"policy": POLICIES}),
    "acceptance": Section(
        {
            "neighbourhood": NEIGHBOURHOODS,
            "schedule": SCHEDULES,
            "modulation": MODULATIONS,
            "verification": VERIFICATIONS,
        },
        AcceptanceRule.fields(),
        {name: rule.to_mapping() for name, rule in RULES.items()},
        omitted={"modulation", "verification"},
    ),
    "sampling": Section(
        {"dynamic_temperature": DYNAMIC_TEMPERATURES},
        Sampling.fields(),
        omitted={"dynamic_temperature"},
    ),
}


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the cost of a decoding step depends on. Configs of one shape differ only in the rule's
    numbers.
    """

    drafter: DrafterChoice
    policy: TreePolicy
    sampling: Sampling | None
    work: tuple[str | Params, ...]  # parts of the rule that set its cost (`AcceptanceRule.work`)

    @property
    def key(self) -> str:
        """16 hex digits that identify this shape in every process and version (see
        `Params.nondefault_values`).
        """
        return _hash(
            {
                "drafter": self.drafter.nondefault_values(),
                "tree": self.policy.nondefault_values(),
                "sampling": None if self.sampling is None else self.sampling.nondefault_values(),
                "work": [
                    part if isinstance(part, str) else part.nondefault_values()
                    for part in self.work
                ],
            }
        )


@dataclass(frozen=True, slots=True)
class DecodingConfig:
    """A config of the decoding algorithm. Raises ConfigError if its parts cannot be combined."""

    drafter: DrafterChoice = field(default_factory=NoDrafter)
    policy: TreePolicy = field(default_factory=NoTree)
    acceptance: AcceptanceRule = EXACT
    # None: the target's defaults, which the worker sets by `with_sampling`.
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        drafter = self.drafter.kind
        tree = self.policy.kind
        if self.drafter.has_drafts == isinstance(self.policy, NoTree):
            if self.drafter.has_drafts:
                trees = ", ".join(kind for kind in POLICIES if kind != NoTree.kind)
                raise ConfigError(
                    ("tree", "policy"), f"drafter {drafter!r} needs a tree; choose one of {trees}"
                )
            names = ", ".join(kind for kind, choice in DRAFTERS.items() if choice.has_drafts)
            raise ConfigError(
                ("drafter",), f"the {tree!r} tree needs a drafter; choose one of {names}"
            )
        if not self.drafter.has_drafts:
            if self.acceptance != EXACT:
                raise ConfigError(
                    ("acceptance",), "has no effect without drafts; remove it, or choose a drafter"
                )
            return
        self.drafter.check_tree(self.policy)
        with at("acceptance"):
            self.acceptance.schedule.checked_omegas(self.policy.bounds.depth)
            self._check_neighbourhood()
            self._check_modulation()
            self.acceptance.verification.check_drafts(self.drafter, self.policy)

    def _check_neighbourhood(self) -> None:
        """Raises ConfigError if the rule reads the probs of drafts that are not sampled."""
        neighbourhood = self.acceptance.neighbourhood
        if neighbourhood.needs_sampled and not self.policy.is_sampled:
            problem = (
                f"{neighbourhood.kind!r} compares the target with the probs that drafts were "
                "sampled from; use a fixed tree with children: sampled"
            )
            raise ConfigError(("neighbourhood",), problem)

    def _check_modulation(self) -> None:
        """Raises ConfigError if it reads probs that there are not, or changes nothing."""
        modulation = self.acceptance.modulation
        if modulation == NO_MODULATION:
            return
        temperature = 1.0 if self.sampling is None else self.sampling.temperature
        if modulation.reads_probs and not temperature:
            problem = (
                f"{modulation.kind!r} reads the target's probs, and at temperature 0 one token has "
                "all of them; use row, or a temperature above 0"
            )
            raise ConfigError(("modulation",), problem)
        if not self.acceptance.relaxes(temperature, self.policy.bounds.depth):
            problem = (
                f"{modulation.kind!r} changes how much a rule relaxes drafts, and this one does "
                "not; set budget above 1, choose a neighbourhood, or remove it"
            )
            raise ConfigError(("modulation",), problem)

    @classmethod
    def from_mapping(
        cls,
        mapping: object,
        sampling: Sampling | None = None,
        sections: dict[tuple[str, str], dict[str, Any]] | None = None,
    ) -> DecodingConfig:
        """Read a mapping as in the module's example; `to_mapping` writes it.

        A drafter or tree may be the name of a kind, the acceptance the name of a published rule.
        `sampling` gives the keys that the mapping does not set. Without it a section `sampling`
        must have all of its keys: a partial one would silently replace the target's own values by
        neutral ones. `sections` keeps the parts of each section by its name and value's text, for
        many configs that are combinations of few sections.

        Raises:
            ConfigError: an unknown key or kind, an invalid value, or parts that cannot be combined.
        """
        given = expect_mapping(mapping, SECTIONS)
        kept = {} if sections is None else sections
        parts: dict[str, dict[str, Any]] = {}
        for name, section in SECTIONS.items():
            key = (name, repr(given.get(name)))
            if key not in kept:
                with at(name):
                    kept[key] = section.read(given.get(name))
            parts[name] = kept[key]
        with at("sampling"):
            if given.get("sampling") is not None:
                set_keys = SECTIONS["sampling"].expand(given["sampling"])
                own = {key: part for key, part in parts["sampling"].items() if key in set_keys}
                sampling = _sampling(own, sampling)
        with at("acceptance"):
            rule = AcceptanceRule(**parts["acceptance"])
        return cls(parts["drafter"]["kind"], parts["tree"]["policy"], rule, sampling)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data with every parameter written out; `from_mapping` gives the same config
        back.
        """
        mapping: dict[str, Any] = json.loads(_to_json(self))
        return mapping

    def flat(self) -> dict[str, int | float | str]:
        """`to_mapping` flattened to dotted keys, for tables and MLflow: `acceptance.delta`,
        `tree.policy`. Lists are JSON. Types: see `flat_types`.
        """
        found: dict[str, int | float | str] = {}
        for section, entries in self.to_mapping().items():
            for key, value in entries.items():
                if isinstance(value, list | dict):
                    value = json.dumps(value, separators=(",", ":"))
                found[f"{section}.{key}"] = value
        return found

    @property
    def is_vanilla(self) -> bool:
        """Whether nothing is drafted: plain autoregressive decoding."""
        return isinstance(self.drafter, NoDrafter)

    @property
    def plugins(self) -> list[str]:
        """The modules that define its parts, where those are not of this project."""
        rule = self.acceptance
        parts: list[Params] = [
            self.drafter,
            self.policy,
            rule.neighbourhood,
            rule.schedule,
            rule.modulation,
            rule.verification,
        ]
        if self.sampling is not None:
            parts.append(self.sampling.dynamic_temperature)
        return sorted({module for part in parts if is_external(module := type(part).__module__)})

    def digest(self) -> str:
        """16 hex digits that identify this config; equal for equal configs, in every process and
        Python version.
        """
        return _hash(self.to_mapping())

    def is_lossless(self, sampling: Sampling | None, cols: int | None = None) -> bool:
        """Whether its images have the distribution of vanilla decoding with this sampling, whatever
        is drafted: it has the same sampling, its rule is lossless (at temperature 0: in the rule's
        greedy form), its drafter states the probs of its drafts, and it decodes in raster order.
        tests/workers/decoding/test_lossless.py checks each drafter,
        tests/search_spaces/test_lossless_rules.py the rules.

        `cols` is the number of tokens of an image row; None: not known.
        """
        temperature = 1.0 if sampling is None else sampling.temperature
        levels = self.policy.bounds.depth
        if self.sampling != sampling or not self.drafter.keeps_context(cols):
            return False
        states_probs = temperature == 0 or self.drafter.is_exact(levels)
        return states_probs and self.acceptance.is_lossless(temperature, levels)

    @property
    def shape(self) -> StepShape:
        """What the cost of a step of this config depends on, and on nothing else."""
        work: tuple[str | Params, ...] = self.acceptance.work
        if self.policy.adapts_to_rule:
            work = (self.acceptance,)
        return StepShape(self.drafter, self.policy, self.sampling, work)

    def with_sampling(self, sampling: Sampling | None) -> DecodingConfig:
        """The same config with other sampling settings."""
        return dataclasses.replace(self, sampling=sampling)

    def check_model(
        self,
        codebook_size: int,
        *,
        image_tokens: int | None = None,
        image_rows: int | None = None,
        has_preview: bool = False,
        drafters: Mapping[str, int | None] | None = None,
    ) -> None:
        """Raises ConfigError if a target does not support this config. Limits that are None are not
        checked.

        Args:
            codebook_size: number of the target's codes.
            image_tokens: tokens of an image.
            image_rows: rows of an image's token grid.
            has_preview: whether the tokens of a preview precede those of the grid.
            drafters: for each kind that the target has weights for, the levels that it can draft
                (None: any number).
        """
        kind = self.drafter.kind
        depth = self.policy.bounds.depth
        if drafters is not None and self.drafter.has_weights and kind not in drafters:
            without = (name for name, choice in DRAFTERS.items() if not choice.has_weights)
            available = ", ".join(sorted({*drafters, *without}))
            raise ConfigError(
                ("drafter",), f"the target has no {kind!r} drafter; it has {available}"
            )
        self._check_rows(image_rows == 1, has_preview)
        if image_tokens is not None and depth > image_tokens:
            raise ConfigError(
                ("tree",),
                f"{depth} levels are more than the {image_tokens} tokens of an image; lower its "
                "depth",
            )
        if (limit := (drafters or {}).get(kind)) is not None and depth > limit:
            problem = (
                f"{depth} levels are more than the {limit} that the {kind} drafter can draft; "
                "lower its depth"
            )
            raise ConfigError(("tree",), problem)
        sizes: list[tuple[tuple[str, ...], str, int]] = [
            (("tree",), "children of one node", self.policy.bounds.width)
        ]
        if (codes := self.acceptance.neighbourhood.needed_codes) is not None:
            sizes.append((("acceptance", codes.key), codes.noun, codes.number))
        if self.sampling is not None:
            sizes.append((("sampling", "top_k"), "tokens", self.sampling.top_k))
        for path, what, size in sizes:
            if size > codebook_size:
                raise ConfigError(
                    path,
                    f"{size} {what} are more than the {codebook_size} codes of the codebook; "
                    "lower it",
                )

    def _check_rows(self, has_one: bool, has_preview: bool) -> None:
        """Raises ConfigError if images of one row, or of two grids, cannot be decoded."""
        modulation = self.acceptance.modulation
        if has_one and modulation.reads_row:
            problem = (
                f"{modulation.kind!r} goes from the first row to the last, but the target's images "
                "have one; use another"
            )
            raise ConfigError(("acceptance", "modulation"), problem)
        if self.drafter.row_lag is None:
            return
        kind = self.drafter.kind
        if has_one:
            problem = (
                f"{kind!r} decodes several rows at once, but the target's images have one; use "
                "another drafter"
            )
            raise ConfigError(("drafter",), problem)
        if has_preview:
            problem = (
                f"{kind!r} decodes several rows of one grid at once, but the target's images are a "
                "preview and a grid; use another drafter"
            )
            raise ConfigError(("drafter",), problem)


def flat_types() -> dict[str, type]:
    """The type of every key that `DecodingConfig.flat` can have: int, float or str.

    Raises:
        ConfigError: kinds of a section, one of them a plugin's, disagree on a key's type.
    """
    types: dict[str, type] = {}
    for name, section in SECTIONS.items():
        with at(name):
            types |= {f"{name}.{key}": kind for key, kind in section.types().items()}
    return types


def _hash(plain: Mapping[str, Any]) -> str:
    """16 hex digits of plain data."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


# Kept, because each file name and task of a running trial needs its config's mapping.
@lru_cache(maxsize=256)
def _to_json(config: DecodingConfig) -> str:
    """The config's mapping as text, which no caller can change."""
    mapping: dict[str, Any] = {
        "drafter": {"kind": config.drafter.kind, **config.drafter.to_mapping()},
        "tree": {"policy": config.policy.kind, **config.policy.to_mapping()},
        "acceptance": config.acceptance.to_mapping(),
    }
    if config.sampling is not None:
        mapping["sampling"] = config.sampling.to_mapping()
    return json.dumps(mapping, allow_nan=False)


def _sampling(given: Mapping[str, Any], defaults: Sampling | None) -> Sampling:
    """The sampling with the given values. Raises ConfigError if others are missing."""
    missing = ", ".join(key for key in Sampling.fields() if key not in given)
    if defaults is None and missing:
        problem = (
            f"give {missing} as well, or leave the section out to sample by the target's own "
            "defaults"
        )
        raise ConfigError((), problem)
    return dataclasses.replace(defaults or Sampling(), **given)


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Keys and values of `KEY=VALUE` texts, the values read as YAML.

    Raises:
        ConfigError: no `=`, or the value is not valid YAML.
    """
    assignments = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(
                (f"--set {text}",), "write KEY=VALUE, such as --set acceptance.delta=0.2"
            )
        if value.strip():
            assignments[key.strip()] = read_document(value, f"--set {key}").data
        else:
            assignments[key.strip()] = None
    return assignments


def override(mapping: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """`mapping` (as `DecodingConfig.to_mapping` writes it) with `section` and `section.key`
    assignments applied.

    Whole sections are assigned first, as in YAML (`drafter=eagle`, `acceptance=lantern`), then
    kinds. A section whose kind changes keeps the values of keys that the new kind has. The result
    is not validated.

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
            with suppress(ConfigError):  # an unknown kind is found when the result is validated
                known = SECTIONS[section].known_keys(SECTIONS[section].kinds(sections[section]))
                sections[section] = {
                    key: value for key, value in sections[section].items() if key in known
                }
    return {name: section for name, section in sections.items() if section}


def config_keys() -> list[str]:
    """Every key that a decoding config can have, as `section.key`."""
    return list(flat_types())


def _names_kind(path: str) -> bool:
    name, _, key = path.partition(".")
    return name in SECTIONS and key in SECTIONS[name].tags
