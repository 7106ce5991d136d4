"""The published methods, each as one point of the space.

Trees are the papers' own. Where a paper sweeps its relaxation, one value of its grid stands here; LANTERN's
neighbourhood is 100 codes rather than 1000, so that the settings also suit codebooks of a thousand codes. None says
anything about sampling: temperature, filters and guidance are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from search_spaces.acceptance import EXACT, RULES, AcceptanceRule, Additive
from search_spaces.params import at
from search_spaces.plugins import Registry
from search_spaces.schedules import Linear
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, DrafterChoice, Eagle, Independent, Jacobi, Medusa


@dataclass(frozen=True, slots=True)
class Preset:
    """A published setting, what it is in one line, and where it is from."""

    config: DecodingConfig
    about: str
    source: str


EAGLE1 = Static(name="eagle1_26")
EXTENDED = Static(name="lanternpp_58")
EAGLE2 = Dynamic(depth=5, width=10, nodes=58)
ADT = Adjacency()
WINDOW = Chain(length=15)  # a Jacobi window of 16 holds the last token as well

LANTERN, LANTERN_PP, UNIFORM, COOL = (RULES[name] for name in ("lantern", "lantern_pp", "uniform", "cool"))


def _lantern(neighbourhood: Additive) -> AcceptanceRule:
    return replace(LANTERN, neighbourhood=neighbourhood)


def _preset(drafter: DrafterChoice, policy: TreePolicy, rule: AcceptanceRule, about: str, source: str) -> Preset:
    return Preset(DecodingConfig(drafter, policy, rule), about, source)


CATALOGUE: Mapping[str, Preset] = MappingProxyType(
    {
        "vanilla": Preset(
            DecodingConfig(), "plain autoregressive decoding, the baseline of every speed-up", "all papers"
        ),
        "speculative": _preset(
            Independent(), Chain(length=4), EXACT,
            "a small model drafts a chain, exact acceptance",
            "Leviathan et al. 2023; Chen et al. 2023",
        ),
        "medusa": _preset(
            Medusa(), Static(name="medusa2_64", children="top"), EXACT,
            "heads draft a fixed tree of their top tokens, exact acceptance",
            "Cai et al. 2024; LANTERN, section 3",
        ),
        "eagle1": _preset(
            Eagle(), EAGLE1, EXACT,
            "EAGLE drafts the original static tree of 25 nodes, exact acceptance",
            "EAGLE (Li et al. 2024); LANTERN++, tables 3 to 5",
        ),
        "eagle1_58": _preset(
            Eagle(), EXTENDED, EXACT,
            "EAGLE drafts LANTERN++'s larger static tree, exact acceptance",
            "LANTERN++, tables 1, 2, 4 and 5",
        ),
        "eagle2": _preset(
            Eagle(), EAGLE2, EXACT,
            "EAGLE drafts a tree by cumulative confidence, exact acceptance",
            "EAGLE-2 (Li et al. 2024); LANTERN, table 2",
        ),
        "lantern": _preset(
            Eagle(), EAGLE2, LANTERN,
            "LANTERN: codebook neighbours' mass counts up to a total variation of 0.1",
            "LANTERN, table 2",
        ),
        "lantern_jsd": _preset(
            Eagle(), EAGLE2, _lantern(Additive(k=100, delta=0.07, divergence="jsd")),
            "LANTERN with the Jensen-Shannon bound that matches a total variation of 0.1",
            "LANTERN, table 3 (matched pairs 0.13 ~ 0.2, 0.2 ~ 0.3)",
        ),
        "lantern_cosine": _preset(
            Eagle(), EAGLE2, _lantern(Additive(k=100, delta=0.1, proximity="cosine")),
            "LANTERN with neighbours by cosine similarity",
            "LANTERN, table 3",
        ),
        "lantern_random": _preset(
            Eagle(), EAGLE2, _lantern(Additive(k=100, delta=0.1, proximity="random")),
            "LANTERN with random neighbours, a control",
            "LANTERN, table 3",
        ),
        "lantern_optimal": _preset(
            Eagle(), EAGLE2, replace(LANTERN, resampling="optimal"),
            "LANTERN with the least biased resampling",
            "Cool-SD, figure 4",
        ),
        "lantern_pp": _preset(
            Eagle(), EXTENDED, LANTERN_PP,
            "LANTERN++: a token and its neighbours may weigh up to twice the token, static tree",
            "LANTERN++, table 2 (lambda 2, k 10)",
        ),
        "lantern_pp_optimal": _preset(
            Eagle(), EXTENDED, replace(LANTERN_PP, resampling="optimal"),
            "LANTERN++ with the least biased resampling",
            "Cool-SD, figure 4",
        ),
        "uniform": _preset(
            Eagle(), EAGLE1, UNIFORM,
            "UniformRSD: every acceptance probability times 1.1",
            "Cool-SD, table 1",
        ),
        "cool": _preset(
            Eagle(), EAGLE1, COOL,
            "Cool-SD: a mean budget of 1.1, spent exponentially on the early drafts",
            "Cool-SD, table 1 (decay not given there)",
        ),
        "cool_linear": _preset(
            Eagle(), EAGLE1, AcceptanceRule(schedule=Linear(budget=1.1, slope=0.11)),
            "Cool-SD: a mean budget of 1.1, falling linearly over the drafts",
            "Cool-SD (slope not given there)",
        ),
        "adt": _preset(
            Eagle(), ADT, EXACT,
            "ADT-Tree (PEANUT): depth and width adapt, starting from the left neighbour's",
            "ADT-Tree, tables I and II; PEANUT, tables 1 and 2",
        ),
        "adt_vertical": _preset(
            Eagle(), replace(ADT, initialisation="vertical"), EXACT,
            "ADT-Tree starting from the upper neighbour's depth and width",
            "ADT-Tree, section IV-A, figure 8",
        ),
        "adt_random": _preset(
            Eagle(), replace(ADT, initialisation="random"), EXACT,
            "ADT-Tree starting from a random depth and width",
            "ADT-Tree, section IV-A, figure 8",
        ),
        "adt_tokenflock": _preset(
            Eagle(), replace(ADT, initialisation="tokenflock"), EXACT,
            "ADT-Tree starting from a mean over the nearby tokens",
            "ADT-Tree, table V (radius not given there)",
        ),
        "adt_lantern": _preset(
            Eagle(), ADT, _lantern(Additive(k=100, delta=0.5)),
            "ADT-Tree with LANTERN's acceptance",
            "ADT-Tree, tables I and II",
        ),
        "sjd": _preset(
            Jacobi(), WINDOW, EXACT,
            "speculative Jacobi decoding: the target drafts for itself in a window of 16",
            "SJD (Teng et al. 2024); Cool-SD, table 2",
        ),
        "gsd": _preset(
            Jacobi(), WINDOW, RULES["grouped"],
            "grouped speculative decoding: Jacobi drafts accepted as members of a group of likely, close codes",
            "GSD (So et al. 2025)",
        ),
    }
)  # fmt: skip

ALIASES: Mapping[str, str] = MappingProxyType({"peanut": "adt"})

PRESETS: Registry[DecodingConfig] = Registry("preset")
for _name in (*CATALOGUE, *ALIASES):
    PRESETS.add(_name, CATALOGUE[ALIASES.get(_name, _name)].config)


def preset(name: str) -> DecodingConfig:
    """A published setting by name. ConfigError with the nearest and the known names if there is none."""
    with at("preset"):
        return PRESETS.lookup(name)
