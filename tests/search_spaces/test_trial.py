"""DecodingConfig: reading and writing, digests, and what may not be combined, in words."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import yaml

from search_spaces.acceptance import EXACT, RULES, AcceptanceRule
from search_spaces.documents import read_document
from search_spaces.drafters import Eagle, Independent, Jacobi, Medusa, NoDrafter, Rows, Vertical
from search_spaces.neighbourhoods import Additive, Multiplicative, Neighbourhood
from search_spaces.params import ConfigError
from search_spaces.presets import ALIASES, CATALOGUE, PRESETS, preset
from search_spaces.rules.grouped import Grouped
from search_spaces.schedules import Constant, Exponential, Linear
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trees import Adjacency, Chain, Dynamic, NoTree, Static
from search_spaces.trial import DecodingConfig, Sampling, override

EXAMPLE = """
drafter: eagle
tree: {policy: dynamic, depth: 5, width: 8, nodes: 32}
acceptance: {neighbourhood: additive, k: 100, delta: 0.1, divergence: tvd, proximity: l2,
             schedule: constant, budget: 1.0, resampling: paper}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}
"""
SAMPLED = {"temperature": 1, "top_k": 0, "top_p": 1, "cfg": 1}
EAGLE_CHAIN: dict[str, Any] = {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
EAGLE2 = {"drafter": "eagle", "tree": {"policy": "dynamic", "depth": 5, "width": 8, "nodes": 32}}


LEVELS = {"eagle": None, "eagle3": None, "medusa": 4, "independent": None, "vertical": None}


def test_reading_the_example() -> None:
    assert DecodingConfig.from_mapping(yaml.safe_load(EXAMPLE)) == DecodingConfig(
        Eagle(), Dynamic(5, 8, 32), AcceptanceRule(Additive(k=100, delta=0.1)), Sampling(cfg=3.0)
    )


def test_what_is_left_out_is_plain() -> None:
    assert DecodingConfig.from_mapping({}) == DecodingConfig(NoDrafter(), NoTree(), EXACT, None)
    config = DecodingConfig.from_mapping(
        {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
    )
    assert config == DecodingConfig(Eagle(), Chain(3))
    assert not config.acceptance.is_relaxed
    lantern = DecodingConfig.from_mapping({**EAGLE2, "acceptance": "lantern"})
    assert lantern.acceptance == RULES["lantern"]
    assert (
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": "adjacency"}).policy == Adjacency()
    )


CONFIGS = [
    *PRESETS.values(),
    DecodingConfig(
        Eagle(), Static(paths=((0,), (1,), (0, 0))), sampling=Sampling(0.0, 10, 0.5, 2.0)
    ),
    DecodingConfig(Medusa(), Adjacency(width_range=(2, 9), start_width=9), RULES["cool"]),
    DecodingConfig(
        Jacobi("sample_left", "coupled"),
        Chain(7),
        AcceptanceRule(Grouped(3, 2, 0.1, 1.0), Linear(1.2, 0.01)),
    ),
    DecodingConfig(
        Independent(),
        Chain(2, "top"),
        AcceptanceRule(Multiplicative(5, 2.5, "random"), Exponential(1.5, 0.2), "optimal"),
    ),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.digest())
def test_round_trips(config: DecodingConfig) -> None:
    mapping = config.to_mapping()
    assert DecodingConfig.from_mapping(mapping) == config
    assert DecodingConfig.from_mapping(yaml.safe_load(yaml.safe_dump(mapping))) == config
    assert DecodingConfig.from_mapping(mapping).digest() == config.digest()
    flat = config.flat()
    assert list(flat) == [
        f"{section}.{key}" for section, entries in mapping.items() for key in entries
    ]
    assert all(isinstance(value, int | float | str) for value in flat.values())


def test_flat_names() -> None:
    config = DecodingConfig(
        Eagle(),
        Static(paths=((0,), (1,), (0, 0))),
        AcceptanceRule(Multiplicative(5, 2)),
        Sampling(cfg=3),
    )
    assert config.flat() == {
        "drafter.kind": "eagle",
        "tree.policy": "static",
        "tree.paths": "[[0],[1],[0,0]]",
        "tree.children": "sampled",
        "acceptance.neighbourhood": "multiplicative",
        "acceptance.k": 5,
        "acceptance.lambda": 2.0,
        "acceptance.proximity": "l2",
        "acceptance.schedule": "constant",
        "acceptance.budget": 1.0,
        "acceptance.resampling": "paper",
        "sampling.temperature": 1.0,
        "sampling.top_k": 0,
        "sampling.top_p": 1.0,
        "sampling.cfg": 3.0,
    }


def test_changing_a_mapping_does_not_change_its_config() -> None:
    config = DecodingConfig(Eagle(), Static(paths=((0,), (1,), (0, 0))))
    digest, mapping = config.digest(), config.to_mapping()
    mapping["tree"]["paths"].append([9])
    mapping["drafter"]["kind"] = "medusa"
    assert config.to_mapping()["tree"]["paths"] == [[0], [1], [0, 0]]
    assert config.digest() == digest
    assert DecodingConfig.from_mapping(config.to_mapping()) == config


def test_digests_tell_settings_apart() -> None:
    assert (
        len({config.digest() for config in CONFIGS})
        == len(set(CONFIGS))
        == len(CONFIGS) - len(ALIASES)
    )
    ints = DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Constant(2)))
    floats = DecodingConfig(Eagle(), Chain(3), AcceptanceRule(schedule=Constant(2.0)))
    assert ints.digest() == floats.digest()


def test_the_default_verification_is_in_no_mapping_and_no_key() -> None:
    plain = DecodingConfig.from_mapping({**EAGLE_CHAIN, "acceptance": {"verification": "token"}})
    assert plain == DecodingConfig.from_mapping(EAGLE_CHAIN)
    assert set(plain.to_mapping()["acceptance"]) == {
        "neighbourhood",
        "schedule",
        "budget",
        "resampling",
    }
    assert "verification" not in plain.acceptance.nondefault_values()
    block = DecodingConfig.from_mapping({**EAGLE_CHAIN, "acceptance": {"verification": "block"}})
    assert block.to_mapping()["acceptance"]["verification"] == "block"
    assert block.acceptance.nondefault_values() == {"verification": {"kind": "block"}}
    assert DecodingConfig.from_mapping(block.to_mapping()) == block
    assert (
        DecodingConfig.from_mapping(
            override(plain.to_mapping(), {"acceptance.verification": "block"})
        )
        == block
    )
    joint = DecodingConfig.from_mapping(
        override(block.to_mapping(), {"acceptance.verification": "joint", "acceptance.alpha": 0.5})
    )
    assert joint.to_mapping()["acceptance"]["alpha"] == 0.5
    assert [config.is_lossless(None) for config in (plain, block, joint)] == [True, True, False]


def test_sampling_is_named_in_full_or_laid_over_the_targets() -> None:
    target = Sampling(temperature=0.9, top_k=500, cfg=4.0)
    config = DecodingConfig.from_mapping({"sampling": {"temperature": 0}}, target)
    assert config.sampling == Sampling(temperature=0.0, top_k=500, cfg=4.0)
    assert DecodingConfig.from_mapping({}, target).sampling == target
    assert DecodingConfig().with_sampling(target).sampling == target
    assert DecodingConfig().with_sampling(target).with_sampling(None) == DecodingConfig()


def test_the_default_temperature_is_in_no_mapping_and_no_key() -> None:
    plain, entropy = (
        Sampling(temperature=0.9),
        Sampling(temperature=0.9, dynamic_temperature=EntropyTemperature(2.0)),
    )
    assert set(plain.to_mapping()) == {"temperature", "top_k", "top_p", "cfg"}
    assert plain.nondefault_values() == {"temperature": 0.9}
    assert entropy.nondefault_values()["dynamic_temperature"] == {
        "kind": "entropy",
        "amplitude": 2.0,
    }
    config = DecodingConfig(sampling=entropy)
    assert config.to_mapping()["sampling"]["amplitude"] == 2.0
    assert DecodingConfig.from_mapping(config.to_mapping()) == config
    assert config.digest() != DecodingConfig(sampling=plain).digest()
    assert config.shape != DecodingConfig(sampling=plain).shape
    changed = override(config.to_mapping(), {"sampling.theta": 0.5, "sampling.temperature": 1.0})
    assert DecodingConfig.from_mapping(changed).sampling == Sampling(
        dynamic_temperature=EntropyTemperature(2.0, theta=0.5)
    )
    assert DecodingConfig.from_mapping({"sampling": {"cfg": 2.0}}, entropy).sampling == replace(
        entropy, cfg=2.0
    )
    back = {"sampling": {"dynamic_temperature": "constant"}}
    assert DecodingConfig.from_mapping(back, entropy).sampling == plain
    assert not config.is_lossless(plain)
    assert config.is_lossless(entropy)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"drafte": "eagle"},
        (
            "drafte: unknown key; did you mean 'drafter'? known keys: drafter, tree, acceptance, "
            "sampling"
        ),
    ),
    (
        {"drafter": "eagel"},
        (
            "drafter: must be one of none, eagle, eagle3, medusa, independent, jacobi, rows, "
            "jacobi_rows, vertical, or a plugin's (--plugin MODULE), "
            "got 'eagel'; did you mean 'eagle'?"
        ),
    ),
    ({"drafter": 3}, "drafter: must be a mapping of keys to values, got 3"),
    (
        {
            "drafter": {"kind": "eagle", "initialisation": "random"},
            "tree": {"policy": "chain", "length": 2},
        },
        (
            "drafter.initialisation: not a key of kind 'eagle' but of 'jacobi', 'jacobi_rows'; "
            "known keys: kind"
        ),
    ),
    (
        {"drafter": "rows", "acceptance": "lantern"},
        "acceptance: has no effect without drafts; remove it, or choose a drafter",
    ),
    ({"drafter": {"kind": "rows", "lag": 0}}, "drafter.lag: must be at least 1, got 0"),
    (
        {"drafter": "eagle"},
        (
            "tree.policy: drafter 'eagle' needs a tree; choose one of chain, static, branching, "
            "dynamic, best_first, adjacency, window"
        ),
    ),
    (
        {"tree": {"policy": "chain", "length": 2}},
        (
            "drafter: the 'chain' tree needs a drafter; choose one of eagle, eagle3, medusa, "
            "independent, jacobi, jacobi_rows"
        ),
    ),
    (
        {"acceptance": "lantern"},
        "acceptance: has no effect without drafts; remove it, or choose a drafter",
    ),
    (
        {"drafter": "jacobi", "tree": "adjacency"},
        (
            "tree.policy: drafter 'jacobi' keeps a window: use a fixed tree, such as 'chain', not "
            "'adjacency'"
        ),
    ),
    (
        {"drafter": "jacobi", "tree": {"policy": "static", "paths": [[0], [1], [1, 0]]}},
        (
            "tree.policy: drafter 'jacobi' keeps the first path, which must be as long as any, as "
            "in 'branching'"
        ),
    ),
    (
        {
            "drafter": "jacobi_rows",
            "tree": {"policy": "branching", "length": 3, "width": 2, "depth": 1},
        },
        (
            "tree.policy: drafter 'jacobi_rows' keeps a window in each row: use 'chain', not "
            "'branching'"
        ),
    ),
    (
        {
            "drafter": "jacobi",
            "tree": {"policy": "branching", "length": 2, "width": 2, "depth": 3},
        },
        "tree.depth: must be at most the length 2, got 3",
    ),
    (
        {
            "drafter": "jacobi",
            "tree": {"policy": "branching", "length": 9, "width": 16, "depth": 3},
        },
        "tree.width: 4374 nodes are more than 4096; lower it or the depth",
    ),
    (
        {"drafter": "jacobi", "tree": {"policy": "chain", "length": 3, "children": "top"}},
        "tree.children: drafter 'jacobi' keeps the tokens that it sampled: use 'sampled'",
    ),
    (
        {
            "drafter": {"kind": "jacobi", "probs": "published"},
            "tree": {"policy": "chain", "length": 3},
        },
        "drafter.probs: redraw 'fresh' has none; remove it, or use 'reuse'",
    ),
    (
        {
            "drafter": {"kind": "jacobi", "redraw": "maximal", "threshold": 0.5},
            "tree": {"policy": "chain", "length": 3},
        },
        "drafter.threshold: redraw 'maximal' has none; remove it, or use 'reuse'",
    ),
    (
        {
            "drafter": {"kind": "jacobi", "redraw": "coupled", "threshold": 2},
            "tree": {"policy": "chain", "length": 3},
        },
        "drafter.threshold: redraw 'coupled' has none; remove it, or use 'reuse'",
    ),
    (
        {
            "drafter": {"kind": "jacobi", "redraw": "reuse", "threshold": -0.1},
            "tree": {"policy": "chain", "length": 3},
        },
        "drafter.threshold: must be in [0, 1], got -0.1",
    ),
    (
        {"drafter": "eagle", "tree": {"policy": "dynamic", "dept": 3}},
        "tree.dept: unknown key; did you mean 'depth'? known keys: policy, depth, width, nodes",
    ),
    (
        {"drafter": "eagle", "tree": {"policy": "dynamic", "depth": 0, "width": 2, "nodes": 3}},
        "tree.depth: must be in [1, 256], got 0",
    ),
    (
        {"drafter": "eagle", "tree": "dynamic"},
        (
            "tree.depth: missing; give the drafted levels, one more than EAGLE-2's parameter of "
            "that name (in [1, 256])"
        ),
    ),
    (
        {"drafter": "eagle", "tree": {"policy": "static", "paths": [[0], [1, 0]]}},
        "tree.paths: node [1, 0] is an orphan: its parent [1] is not in the tree; add it",
    ),
    (
        {**EAGLE2, "acceptance": {"neighbourhood": "additive", "k": 9, "delta": 1.5}},
        "acceptance.delta: must be in [0, 1], got 1.5",
    ),
    (
        {**EAGLE2, "acceptance": {"neighbourhood": "additive", "k": 0, "delta": 0.5}},
        "acceptance.k: must be at least 1, got 0",
    ),
    (
        {**EAGLE2, "acceptance": {"neighbourhood": "multiplicative", "k": 9, "lambda": 0.5}},
        "acceptance.lambda: must be at least 1, got 0.5",
    ),
    (
        {**EAGLE2, "acceptance": {"delta": 0.5}},
        (
            "acceptance.delta: not a key of neighbourhood 'none' but of 'additive', 'typical'; "
            "known keys: neighbourhood, schedule, modulation, verification, resampling, budget"
        ),
    ),
    (
        {**EAGLE2, "acceptance": {"verification": "block"}},
        (
            "acceptance.verification: 'block' verifies chains alone; set tree.policy to chain, not "
            "'dynamic'"
        ),
    ),
    (
        {
            "drafter": {"kind": "jacobi", "redraw": "coupled"},
            "tree": {"policy": "chain", "length": 3},
            "acceptance": {"verification": "block"},
        },
        (
            "acceptance.verification: 'block' is exact only if no pass reuses the numbers of "
            "drafts; set drafter.redraw to fresh"
        ),
    ),
    (
        {"drafter": "eagle", "tree": {"policy": "best_first", "depth": 4, "nodes": 20}},
        (
            "tree.policy: 'best_first' is for drafters whose levels do not depend on each other; "
            "choose one of medusa, or the tree 'dynamic'"
        ),
    ),
    (
        {"drafter": "jacobi", "tree": {"policy": "best_first", "depth": 4, "nodes": 20}},
        (
            "tree.policy: drafter 'jacobi' keeps a window: use a fixed tree, such as 'chain', not "
            "'best_first'"
        ),
    ),
    (
        {"drafter": "medusa", "tree": {"policy": "best_first", "depth": 4, "nodes": 0}},
        "tree.nodes: must be in [1, 256], got 0",
    ),
    (
        {**EAGLE2, "acceptance": {"verification": "traversal"}},
        (
            "acceptance.verification: 'traversal' accepts no more of chosen drafts than 'token' "
            "does; use a fixed tree with children: sampled"
        ),
    ),
    (
        {
            "drafter": "medusa",
            "tree": {"policy": "static", "name": "medusa2_64", "children": "top"},
            "acceptance": {"verification": "traversal"},
        },
        (
            "acceptance.verification: 'traversal' accepts no more of chosen drafts than 'token' "
            "does; use a fixed tree with children: sampled"
        ),
    ),
    (
        {
            "drafter": "eagle",
            "tree": {"policy": "window", "length": 4},
            "acceptance": {"verification": "traversal"},
        },
        (
            "acceptance.verification: 'traversal' needs a tree that is the same in every pass, and "
            "'window' is not; set tree.policy to static or chain"
        ),
    ),
    (
        {
            "drafter": "jacobi",
            "tree": {"policy": "branching", "length": 4, "width": 2, "depth": 2},
            "acceptance": {"verification": "traversal"},
        },
        (
            "acceptance.verification: 'traversal' needs branches with drafts of their own, and "
            "those of 'jacobi' share theirs; set tree.policy to chain"
        ),
    ),
    (
        {
            "drafter": {"kind": "jacobi", "redraw": "coupled"},
            "tree": {"policy": "chain", "length": 3},
            "acceptance": {"verification": "traversal"},
        },
        (
            "acceptance.verification: 'traversal' is exact only if no pass reuses the numbers of "
            "drafts; set drafter.redraw to fresh"
        ),
    ),
    (
        {
            "drafter": "eagle",
            "tree": {"policy": "static", "name": "eagle1_26"},
            "acceptance": {"verification": "traversal", "schedule": "constant", "budget": 1.1},
        },
        (
            "acceptance.verification: 'traversal' is defined for the exact rule alone; remove the "
            "neighbourhood and the schedule's budget, or use 'token'"
        ),
    ),
    (
        {
            **EAGLE_CHAIN,
            "acceptance": {
                "verification": "block",
                "neighbourhood": "additive",
                "k": 9,
                "delta": 0.1,
            },
        },
        (
            "acceptance.verification: 'block' is defined for the exact rule alone; remove the "
            "neighbourhood and the schedule's budget, or use 'token'"
        ),
    ),
    (
        {**EAGLE_CHAIN, "acceptance": {"verification": "joint", "alpha": 0}},
        "acceptance.alpha: must be in (0, 1], got 0",
    ),
    (
        {**EAGLE_CHAIN, "acceptance": {"alpha": 0.5}},
        (
            "acceptance.alpha: not a key of verification 'token' but of 'joint'; "
            "known keys: neighbourhood, schedule, modulation, verification, resampling, budget"
        ),
    ),
    (
        {**EAGLE_CHAIN, "acceptance": {"verification": "blok"}},
        (
            "acceptance.verification: must be one of token, block, joint, uniform_skipping, "
            "dynamic_skipping, traversal, or a plugin's (--plugin MODULE), got 'blok'; did you mean 'block'?"
        ),
    ),
    (
        {**EAGLE2, "acceptance": {"resampling": "best"}},
        "acceptance.resampling: must be one of paper, optimal, got 'best'",
    ),
    (
        {**EAGLE2, "acceptance": "lanter"},
        (
            "acceptance: must be one of exact, uniform, cool, lantern, lantern_pp, grouped, got "
            "'lanter'; did you mean 'lantern'?"
        ),
    ),
    (
        {**EAGLE2, "acceptance": {"schedule": "linear", "budget": 1.0, "slope": 0.5}},
        (
            "acceptance.slope: must be less than 0.5 for a mean budget of 1 over 5 levels, got "
            "0.5: the last level's budget would be 0"
        ),
    ),
    (
        {"sampling": {"temperature": 0}},
        (
            "sampling: give top_k, top_p, cfg as well, or leave the section out to sample by the "
            "target's own defaults"
        ),
    ),
    (
        {"sampling": {"temprature": 0}},
        (
            "sampling.temprature: unknown key; did you mean 'temperature'? known keys: "
            "dynamic_temperature, temperature, top_k, top_p, cfg"
        ),
    ),
    (
        {"sampling": {"temperature": -1, "top_k": 0, "top_p": 1, "cfg": 1}},
        "sampling.temperature: must be at least 0, got -1",
    ),
    (
        {"sampling": {**SAMPLED, "dynamic_temperature": "entropy", "scale": 0}},
        "sampling.scale: must be greater than 0, got 0",
    ),
    (
        {"sampling": {**SAMPLED, "dynamic_temperature": "entropy", "amplitude": -1}},
        "sampling.amplitude: must be at least 0, got -1",
    ),
    (
        {"sampling": {**SAMPLED, "theta": 0.5}},
        (
            "sampling.theta: not a key of dynamic_temperature 'constant' but of 'entropy'; "
            "known keys: dynamic_temperature, temperature, top_k, top_p, cfg"
        ),
    ),
    (
        {"sampling": {**SAMPLED, "dynamic_temperature": "entropic"}},
        (
            "sampling.dynamic_temperature: must be one of constant, entropy, or a plugin's "
            "(--plugin MODULE), got 'entropic'; did you mean 'entropy'?"
        ),
    ),
    (
        {"sampling": {"temperature": 1, "top_k": 0, "top_p": 0, "cfg": 1}},
        "sampling.top_p: must be in (0, 1], got 0",
    ),
]


@pytest.mark.parametrize(
    ("mapping", "message"), REFUSED, ids=[message.split(":")[0] for _, message in REFUSED]
)
def test_refusals(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DecodingConfig.from_mapping(mapping)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("config", "limits", "message"),
    [
        (PRESETS["lantern"], {"codebook_size": 64},
         "acceptance.k: 100 neighbours are more than the 64 codes of the codebook; lower it"),
        (PRESETS["gsd"], {"codebook_size": 8},
         "acceptance.below: 14 ranks in a window are more than the 8 codes of the codebook; lower it"),
        (PRESETS["eagle2"], {"codebook_size": 8},
         "tree: 10 children of one node are more than the 8 codes of the codebook; lower it"),
        (PRESETS["medusa"], {"codebook_size": 64, "drafters": {"medusa": 3}},
         "tree: 4 levels are more than the 3 that the medusa drafter can draft; lower its depth"),
        (PRESETS["sjd"], {"codebook_size": 64, "image_tokens": 9},
         "tree: 15 levels are more than the 9 tokens of an image; lower its depth"),
        (PRESETS["eagle1"], {"codebook_size": 64, "drafters": {"medusa": 4}},
         "drafter: the target has no 'eagle' drafter; it has jacobi, jacobi_rows, medusa, none, rows"),
        (DecodingConfig(Vertical()), {"codebook_size": 64, "drafters": {"eagle": None}},
         "drafter: the target has no 'vertical' drafter; it has eagle, jacobi, jacobi_rows, none, rows"),
        (DecodingConfig(Rows()), {"codebook_size": 64, "has_preview": True},
         "drafter: 'rows' decodes several rows of one grid at once, but the target's images are a preview and a grid; "
         "use another drafter"),
        (PRESETS["vanilla"].with_sampling(Sampling(top_k=65)), {"codebook_size": 64},
         "sampling.top_k: 65 tokens are more than the 64 codes of the codebook; lower it"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_serve_is_refused(
    config: DecodingConfig, limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check_model(**limits)
    assert str(caught.value) == message
    config.check_model(1024, image_tokens=256, drafters=LEVELS)


def test_rules_that_are_exact_need_no_table() -> None:
    config = DecodingConfig(Eagle(), Chain(2), AcceptanceRule(Additive(k=500, delta=0)))
    assert config.acceptance.neighbourhood.table_key is None
    config.check_model(64)


# --- shapes -----------------------------------------------------------------------------------------------------------


def shaped(
    drafter: str = "eagle", tree: Any = None, cfg: float = 1.0, **acceptance: Any
) -> DecodingConfig:
    mapping = {
        "drafter": drafter,
        "tree": tree or {"policy": "chain", "length": 3},
        "acceptance": acceptance,
    }
    return DecodingConfig.from_mapping(mapping).with_sampling(Sampling(cfg=cfg))


LANTERN: dict[str, Any] = {"neighbourhood": "additive", "k": 10, "delta": 0.1}
LANTERN_PP: dict[str, Any] = {"neighbourhood": "multiplicative", "k": 10, "lambda": 2.0}
SMALL = {
    "policy": "adjacency",
    "depth_range": [1, 3],
    "width_range": [1, 2],
    "start_depth": 2,
    "start_width": 2,
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (shaped(), shaped(schedule="constant", budget=1.7)),
        (shaped(), shaped(schedule="exponential", budget=0.7, nu=0.3)),
        (shaped(**LANTERN), shaped(**LANTERN | {"k": 200, "delta": 0.4, "divergence": "jsd"})),
        (shaped(**LANTERN), shaped(**LANTERN, schedule="linear", budget=1.5)),
        (shaped(verification="joint"), shaped(verification="joint", alpha=0.5)),
        (shaped(**LANTERN), shaped(**LANTERN | {"k": 20}, resampling="optimal", budget=1.5)),
    ],
)
def test_the_rules_numbers_do_not_change_a_shape(
    first: DecodingConfig, second: DecodingConfig
) -> None:
    assert first != second
    assert first.shape == second.shape
    assert hash(first.shape) == hash(second.shape)


def test_a_rule_states_that_its_numbers_change_the_cost_of_a_step() -> None:
    class Scanning(Additive):
        kind = "scanning"

        @property
        def work(self) -> Neighbourhood:
            return self

    one, other, again = (AcceptanceRule(Scanning(k=k, delta=0.1)) for k in (10, 200, 10))
    one_shape, other_shape, same = (
        DecodingConfig(Eagle(), Chain(3), rule).shape for rule in (one, other, again)
    )
    assert one_shape != other_shape
    assert one_shape == same


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (shaped(), shaped("medusa")),
        (shaped(), shaped("jacobi")),
        (shaped("jacobi"), DecodingConfig(Jacobi(redraw="coupled"), Chain(3), EXACT, Sampling())),
        (shaped(), shaped(tree={"policy": "chain", "length": 4})),
        (shaped(), shaped(tree={"policy": "chain", "length": 3, "children": "top"})),
        (shaped(), shaped(cfg=3.0)),
        (shaped(), shaped(**LANTERN)),
        (shaped(**LANTERN), shaped(**LANTERN_PP)),
        (shaped(), shaped(verification="block")),
        (shaped(verification="block"), shaped(verification="joint")),
        (shaped(**LANTERN, resampling="optimal", budget=0.9), shaped(**LANTERN)),
        (
            shaped(**LANTERN, resampling="optimal", budget=0.9),
            shaped(**LANTERN | {"k": 20}, resampling="optimal", budget=0.9),
        ),
        (shaped(tree=SMALL, **LANTERN), shaped(tree=SMALL, **LANTERN | {"delta": 0.2})),
    ],
)
def test_what_a_step_costs_changes_its_shape(first: DecodingConfig, second: DecodingConfig) -> None:
    """At the end: a residual over every token's neighbours costs what they are; a tree may follow
    what was accepted.
    """
    assert first.shape != second.shape


# --- presets ----------------------------------------------------------------------------------------------------------


def test_presets_carry_the_papers_names() -> None:
    wanted = """vanilla speculative medusa medusa_best_first typical fsd eagle1 eagle1_58 eagle2 lantern lantern_jsd lantern_cosine lantern_random
        lantern_optimal lantern_pp lantern_pp_optimal uniform cool cool_linear adt adt_vertical adt_random
        adt_tokenflock adt_lantern eagle3 eagle3_static eagle3_chain speculative_block eagle1_traversal sjd sjd_block sjd_sv gsd
        scd scd_maximal scd_maximal_published sjd_plus sjd_plus_published sjd_maximal sjd_pac eagle_window
        zipar pjd pjd_maximal peanut vvs vvs_dynamic flashar best_lossless best_balanced"""
    assert set(PRESETS) == set(wanted.split())
    assert PRESETS["peanut"] == PRESETS["adt"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_presets_are_documented_and_serve_the_built_in_size(name: str) -> None:
    entry = CATALOGUE[name]
    assert entry.about
    assert "\n" not in entry.about
    assert entry.source
    assert entry.config.sampling is None
    assert preset(name) == entry.config
    entry.config.check_model(1024, image_tokens=256, drafters=LEVELS)


def test_the_strict_reader_takes_the_catalogue_as_well() -> None:
    text = files("search_spaces").joinpath("presets.yaml").read_text("utf-8")
    entries = read_document(text, "presets.yaml").data  # an error for a key that is given twice
    keys = {"about", "source"}
    for name, entry in entries.items():
        assert CATALOGUE[name].config == DecodingConfig.from_mapping(
            {k: v for k, v in entry.items() if k not in keys}
        )
    assert list(entries) == list(CATALOGUE)


def test_which_presets_are_lossless() -> None:
    is_relaxed = {name for name, entry in CATALOGUE.items() if entry.config.acceptance.is_relaxed}
    relaxed = {name for name in CATALOGUE if "lantern" in name} | {
        "uniform",
        "cool",
        "cool_linear",
        "gsd",
        "sjd_sv",
        "typical",
        "fsd",
    }
    relaxed |= {"vvs", "vvs_dynamic", "best_balanced"}
    assert is_relaxed == relaxed


SAMPLING, GREEDY = Sampling(cfg=3.0), Sampling(temperature=0.0, cfg=3.0)
CHAIN, DYNAMIC = (
    {"policy": "chain", "length": 4},
    {"policy": "dynamic", "depth": 5, "width": 8, "nodes": 32},
)


@pytest.mark.parametrize(
    ("given", "sampling", "lossless"),
    [
        ({}, SAMPLING, True),
        ({"drafter": "eagle", "tree": DYNAMIC}, SAMPLING, True),
        ({"drafter": "jacobi", "tree": CHAIN}, SAMPLING, True),
        ({"drafter": {"kind": "jacobi", "redraw": "maximal"}, "tree": CHAIN}, SAMPLING, True),
        ({"drafter": {"kind": "jacobi", "redraw": "reuse", "probs": "published"}, "tree": CHAIN}, SAMPLING, False),
        ({"drafter": {"kind": "jacobi", "redraw": "reuse", "probs": "published"}, "tree": CHAIN}, GREEDY, True),
        ({"drafter": "rows"}, SAMPLING, False),
        ({"drafter": "vertical"}, SAMPLING, False),
        ({"drafter": "vertical"}, GREEDY, False),
        ({"drafter": {"kind": "jacobi_rows", "redraw": "maximal"}, "tree": CHAIN}, GREEDY, False),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": {"resampling": "optimal"}}, SAMPLING, True),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": {"neighbourhood": "additive", "k": 1, "delta": 0.3}},
         SAMPLING, True),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": "lantern"}, SAMPLING, False),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": "uniform"}, SAMPLING, False),
        ({"drafter": "jacobi", "tree": CHAIN, "acceptance": "grouped"}, SAMPLING, False),
        ({"drafter": "jacobi", "tree": CHAIN, "acceptance": "grouped"}, GREEDY, True),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": "lantern"}, GREEDY, False),
        ({"drafter": "eagle", "tree": CHAIN, "acceptance": "uniform"}, GREEDY, False),
    ],
)  # fmt: skip
def test_what_is_lossless(given: dict[str, Any], sampling: Sampling, lossless: bool) -> None:
    config = DecodingConfig.from_mapping(given, sampling)
    assert config.is_lossless(sampling) is lossless
    assert not config.is_lossless(Sampling(temperature=0.9, cfg=3.0)), "another distribution"
    assert not config.is_lossless(None)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^preset: must be one of .*, got 'lanturn'; did you mean 'lantern'\?$"
    ):
        preset("lanturn")
