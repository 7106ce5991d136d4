"""What a trial is: drafter x tree policy x acceptance rule x sampling, as one frozen value with a digest.

    DecodingConfig.from_mapping({
        "drafter": "eagle",
        "tree": {"policy": "dynamic", "depth": 5, "width": 8, "nodes": 32},
        "acceptance": {"neighbourhood": "additive", "k": 100, "delta": 0.1},
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 3.0},
    })

What is left out is plain: no drafter, no tree, the exact rule. Without `sampling` the target's own defaults hold.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from search_spaces.acceptance import EXACT, NEIGHBOURHOODS, RULES, AcceptanceRule, Grouped
from search_spaces.params import ConfigError, Kind, Params, Range, as_mapping, not_one_of, read, unknown_key
from search_spaces.plugins import Registry
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES, Chain, NoTree, TreePolicy

Part = TypeVar("Part")


class DrafterChoice(Params):
    """Who proposes tokens.

    implementation: "module:Class" of the drafter; imported when it is needed. Empty if nothing is drafted.
    """

    __slots__ = ()
    implementation: ClassVar[str]


DRAFTERS: Registry[type[DrafterChoice]] = Registry("drafter")


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class NoDrafter(DrafterChoice):
    """Nobody: plain autoregressive decoding."""

    kind: ClassVar[str] = "none"
    implementation: ClassVar[str] = ""


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Eagle(DrafterChoice):
    """One decoder layer on the target's features (EAGLE)."""

    kind: ClassVar[str] = "eagle"
    implementation: ClassVar[str] = "workers.drafters.eagle:EagleDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Medusa(DrafterChoice):
    """Heads on the target's last feature, one per level (Medusa)."""

    kind: ClassVar[str] = "medusa"
    implementation: ClassVar[str] = "workers.drafters.medusa:MedusaDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Independent(DrafterChoice):
    """A small autoregressive model with the target's codebook (Leviathan et al.)."""

    kind: ClassVar[str] = "independent"
    implementation: ClassVar[str] = "workers.drafters.independent:IndependentDrafter"


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Jacobi(DrafterChoice):
    """No drafter: the target's own probs of the last pass, on a partly wrong context (SJD).

    initialisation: how a position without a probs yet is filled; such a token counts as a point mass.
    redraw: after a rejection the drafts behind it are drawn anew with fresh random numbers, or with the numbers that
    belong to their position (coupled), so that a token stays where its probs did not move.
    """

    kind: ClassVar[str] = "jacobi"
    implementation: ClassVar[str] = "workers.decoding.jacobi:JacobiWindow"
    initialisation: Annotated[
        Literal["random", "repeat_left", "sample_left"], "what fills a position that has no probs yet"
    ] = "random"
    redraw: Annotated[Literal["fresh", "coupled"], "random numbers for drafts that are drawn anew"] = "fresh"


@dataclass(frozen=True, slots=True)
class Sampling(Params):
    """How the target's logits become its probs q: guidance, temperature, then top-k, then top-p.

    logits = uncond + cfg (cond - uncond); cfg 1 runs the conditional rows alone.
    """

    temperature: Annotated[float, "divisor of the logits; 0 is greedy decoding", Range(0)] = 1.0
    top_k: Annotated[int, "number of most likely tokens kept; 0 keeps all", Range(0)] = 0
    top_p: Annotated[float, "mass of the most likely tokens kept; 1 keeps all", Range(0, 1, open_low=True)] = 1.0
    cfg: Annotated[float, "scale of classifier-free guidance; 1 is none", Range(0)] = 1.0


@dataclass(frozen=True, slots=True)
class DecodingConfig:
    """One setting of the decoding algorithm. ConfigError, a ValueError, if its parts cannot go together.

    sampling None leaves the sampling to the target's defaults; the worker fills them in with `with_sampling`.
    """

    drafter: DrafterChoice = field(default_factory=NoDrafter)
    policy: TreePolicy = field(default_factory=NoTree)
    acceptance: AcceptanceRule = EXACT
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        drafter, tree = self.drafter.kind, self.policy.kind
        if isinstance(self.drafter, NoDrafter) != isinstance(self.policy, NoTree):
            if isinstance(self.policy, NoTree):
                trees = ", ".join(kind for kind in POLICIES if kind != NoTree.kind)
                raise ConfigError(("tree", "policy"), f"drafter {drafter!r} needs a tree; choose one of {trees}")
            names = ", ".join(kind for kind in DRAFTERS if kind != NoDrafter.kind)
            raise ConfigError(("drafter",), f"nobody drafts the {tree!r} tree; choose one of {names}")
        if isinstance(self.drafter, NoDrafter):
            if self.acceptance != EXACT:
                raise ConfigError(("acceptance",), "nothing is drafted, so nothing can be accepted; leave it out")
            return
        if isinstance(self.drafter, Jacobi):
            if not isinstance(self.policy, Chain):
                raise ConfigError(("tree", "policy"), f"drafter 'jacobi' keeps a window: use 'chain', not {tree!r}")
            if self.policy.children == "top":
                problem = "drafter 'jacobi' keeps the tokens that it drew: use 'sampled'"
                raise ConfigError(("tree", "children"), problem)
        try:
            self.acceptance.schedule.omegas(self.policy.max_depth)
        except ConfigError as error:
            raise error.under("acceptance") from None

    @classmethod
    def from_mapping(cls, mapping: object, *, defaults: Sampling | None = None) -> DecodingConfig:
        """Read a mapping as it comes from YAML (the module's example; `to_mapping` writes it).

        A drafter or a tree without parameters may be a word alone, and the acceptance the name of a published rule.
        `sampling` names all of its keys, unless `defaults` gives the rest: a half-named section would silently replace
        the target's own values by neutral ones. ConfigError names the key at fault, the known keys and the mend.
        """
        given = as_mapping(mapping)
        sections = ("drafter", "tree", "acceptance", "sampling")
        for key in given:
            if key not in sections:
                raise ConfigError((key,), unknown_key(key, sections))
        return cls(
            drafter=_section(given, "drafter", _read_drafter),
            policy=_section(given, "tree", _read_tree),
            acceptance=_section(given, "acceptance", _read_acceptance),
            sampling=_section(given, "sampling", lambda section: _read_sampling(section, defaults)),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain data with every parameter written out; `from_mapping` gives the same config back."""
        rule = self.acceptance
        mapping: dict[str, Any] = {
            "drafter": {"kind": self.drafter.kind, **self.drafter.to_mapping()},
            "tree": {"policy": self.policy.kind, **self.policy.to_mapping()},
            "acceptance": {
                "neighbourhood": rule.neighbourhood.kind,
                **rule.neighbourhood.to_mapping(),
                "schedule": rule.schedule.kind,
                **rule.schedule.to_mapping(),
                **rule.to_mapping(),
            },
        }
        return mapping if self.sampling is None else mapping | {"sampling": self.sampling.to_mapping()}

    def flat(self) -> dict[str, int | float | str]:
        """The same, one level deep, for tables and tracking: `acceptance.delta`, `tree.policy`. Lists are JSON text."""
        return {
            f"{section}.{key}": json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value
            for section, entries in self.to_mapping().items()
            for key, value in entries.items()
        }

    def digest(self) -> str:
        """16 hex digits that name this config: equal configs share them, in every process and version of Python."""
        canonical = json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def with_sampling(self, sampling: Sampling | None) -> DecodingConfig:
        """The same config with another sampling."""
        return dataclasses.replace(self, sampling=sampling)

    def check_model(
        self,
        codebook_size: int,
        *,
        image_tokens: int | None = None,
        drafters: Collection[str] | None = None,
        medusa_heads: int | None = None,
    ) -> None:
        """Refuse what a given target cannot serve, before anything runs: ConfigError with the key and the mend.

        drafters: kinds that the target has weights for (`none` and `jacobi` need none). What is None is not checked.
        """
        if drafters is not None and self.drafter.kind not in {*drafters, NoDrafter.kind, Jacobi.kind}:
            there = ", ".join(sorted({*drafters, NoDrafter.kind, Jacobi.kind}))
            raise ConfigError(("drafter",), f"the target has no {self.drafter.kind!r} drafter; it has {there}")
        depth = self.policy.max_depth
        if image_tokens is not None and depth > image_tokens:
            raise ConfigError(("tree",), f"{depth} levels are more than the {image_tokens} tokens of an image")
        if isinstance(self.drafter, Medusa) and medusa_heads is not None and depth > medusa_heads:
            raise ConfigError(("tree",), f"{depth} levels are more than the {medusa_heads} Medusa heads can draft")
        neighbourhood = self.acceptance.neighbourhood
        sizes: list[tuple[tuple[str, ...], str, int]] = [(("tree",), "children of one node", self.policy.max_width)]
        if neighbourhood.table is not None:
            sizes.append((("acceptance", "k"), "neighbours", neighbourhood.table[1]))
        if isinstance(neighbourhood, Grouped):
            sizes.append((("acceptance", "below"), "ranks in a window", neighbourhood.below + 1 + neighbourhood.above))
        if self.sampling is not None:
            sizes.append((("sampling", "top_k"), "tokens", self.sampling.top_k))
        for path, what, size in sizes:
            if size > codebook_size:
                raise ConfigError(path, f"{size} {what} are more than the {codebook_size} codes of the codebook")


def _section(given: Mapping[str, Any], name: str, reader: Callable[[object], Part]) -> Part:
    """Read a section; a fault's path starts with the section's name."""
    try:
        return reader(given.get(name))
    except ConfigError as error:
        raise error.under(name) from None


def _read_choice(section: object, tag: str, options: Mapping[str, type[Kind]]) -> Kind:
    """A section that is one choice: absent, a word, or a mapping with the word under `tag`."""
    if section is None or isinstance(section, str):
        section = {} if section is None else {tag: section}
    choice: Kind = read(section, {tag: options})[tag]
    return choice


def _read_drafter(section: object) -> DrafterChoice:
    return _read_choice(section, "kind", DRAFTERS)


def _read_tree(section: object) -> TreePolicy:
    return _read_choice(section, "policy", POLICIES)


def _read_acceptance(section: object) -> AcceptanceRule:
    if section is None:
        return EXACT
    if isinstance(section, str):
        if section not in RULES:
            raise ConfigError((), not_one_of(section, RULES))
        return RULES[section]
    choices: Mapping[str, Mapping[str, type[Params]]] = {"neighbourhood": NEIGHBOURHOODS, "schedule": SCHEDULES}
    return AcceptanceRule(**read(section, choices, AcceptanceRule.fields().values()))


def _read_sampling(section: object, defaults: Sampling | None) -> Sampling | None:
    if section is None:
        return None
    given, wanted = as_mapping(section), Sampling.fields()
    missing = [key for key in wanted if key not in given]
    if defaults is None and missing and not given.keys() - wanted.keys():
        names = ", ".join(missing)
        raise ConfigError((), f"give {names} as well, or leave the section out to sample by the target's own defaults")
    return Sampling.from_mapping((defaults.to_mapping() if defaults is not None else {}) | given)
