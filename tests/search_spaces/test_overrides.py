"""`KEY=VALUE` assignments: parsed as YAML, applied to a decoding config."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling, config_keys, override, parse_assignments

DEFAULTS = Sampling(temperature=0.9, top_k=50, top_p=0.95, cfg=3.0)


def overridden(preset: str, **assignments: Any) -> dict[str, Any]:
    """The preset with assignments; `section__key` stands for `section.key`."""
    paths = {name.replace("__", "."): value for name, value in assignments.items()}
    mapping = override(PRESETS[preset].to_mapping(), paths)
    return DecodingConfig.from_mapping(mapping, DEFAULTS).to_mapping()


def test_without_assignments_a_preset_stays_itself() -> None:
    for name, config in PRESETS.items():
        assert DecodingConfig.from_mapping(override(config.to_mapping(), {})) == config, name
    assert DecodingConfig.from_mapping(override({}, {})) == PRESETS["vanilla"]


def test_single_keys_are_assigned() -> None:
    expected = PRESETS["lantern"].with_sampling(DEFAULTS).to_mapping()
    expected["acceptance"]["delta"] = 0.3
    expected["tree"]["depth"] = 3
    assert overridden("lantern", acceptance__delta=0.3, tree__depth=3) == expected


def test_a_new_kind_keeps_the_keys_it_has_and_drops_the_rest() -> None:
    acceptance = overridden(
        "lantern", acceptance__neighbourhood="multiplicative", acceptance__lambda=3
    )["acceptance"]
    assert acceptance["neighbourhood"] == "multiplicative"
    assert acceptance["k"] == 100
    assert acceptance["lambda"] == 3
    assert not {"delta", "divergence"} & acceptance.keys()
    assert overridden("eagle2", tree__policy="chain", tree__length=2)["tree"] == {
        "policy": "chain",
        "length": 2,
        "children": "sampled",
    }


def test_the_order_of_assignments_does_not_matter() -> None:
    assignments = {
        "acceptance__lambda": 3,
        "acceptance__neighbourhood": "multiplicative",
        "acceptance__k": 7,
    }
    assert overridden("lantern", **assignments) == overridden(
        "lantern", **dict(reversed(assignments.items()))
    )


def test_a_word_stands_for_a_section_as_in_yaml() -> None:
    assert overridden("sjd", drafter="eagle")["drafter"] == {"kind": "eagle"}, (
        "nothing of the old section is left"
    )
    assert overridden("eagle2", acceptance="lantern") == overridden("lantern")
    assert overridden("eagle2", acceptance__delta=0.3, acceptance="lantern") == overridden(
        "lantern", acceptance__delta=0.3
    )
    vanilla = {"drafter": "none", "tree": "none", "acceptance": "exact"}
    assert (
        overridden("lantern", **vanilla)
        == overridden("vanilla")
        == overridden("lantern", **dict.fromkeys(vanilla))
    )
    chain = {"policy": "chain", "length": 3, "children": "sampled"}
    assert overridden("eagle2", tree={"policy": "chain", "length": 3})["tree"] == chain


def test_sampling_keys_leave_the_others_to_the_target() -> None:
    mapping = overridden("lantern", sampling__cfg=5.0)
    assert mapping["sampling"] == {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "cfg": 5.0}
    assert overridden("lantern")["sampling"] == DEFAULTS.to_mapping()
    assert "sampling" not in override(PRESETS["lantern"].to_mapping(), {})


@pytest.mark.parametrize(
    ("preset", "path", "value", "words"),
    [
        ("eagle2", "tree.depth", 0, ("tree.depth", "in [1, 256]")),
        ("lantern", "acceptance.delta", 1.5, ("acceptance.delta", "1.5")),
        (
            "lantern",
            "acceptance.neighbourhood",
            "aditive",
            ("acceptance.neighbourhood", "'additive'"),
        ),
        ("lantern", "acceptance.neighbourhood", {"a": 1}, ("acceptance.neighbourhood", "{'a': 1}")),
        ("lantern", "acceptance.lambda", 2, ("acceptance.lambda", "'multiplicative'")),
        ("lantern", "tree.policy", ["chain"], ("tree.policy", "['chain']")),
        ("vanilla", "tree.policy", "jacobi", ("tree.policy", "jacobi")),
        ("vanilla", "acceptance.budget", 2, ("acceptance",)),
        ("sjd", "tree.policy", "adjacency", ("jacobi", "chain")),
        ("eagle2", "tree.dept", 3, ("tree.dept", "'depth'")),
        ("eagle2", "treee.depth", 3, ("treee.depth", "tree.depth")),
        ("eagle2", "drafter", "eagel", ("drafter: ", "'eagle'")),
        ("eagle2", "acceptance", "lanturn", ("acceptance: ", "'lantern'")),
        ("eagle2", "sampling", "greedy", ("sampling: ", "mapping")),
        ("eagle2", "tree.", 3, ("tree.", "unknown key")),
        ("eagle2", "depth", 3, ("depth", "tree.depth")),
    ],
)
def test_wrong_assignments_name_the_key(
    preset: str, path: str, value: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as caught:
        overridden(preset, **{path: value})
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_values_are_yaml() -> None:
    texts = [
        "tree.paths=[[0], [0, 0]]",
        "acceptance.divergence=jsd",
        "acceptance.delta=1e-3",
        "tree.name=",
    ]
    assert parse_assignments(texts) == {
        "tree.paths": [[0], [0, 0]],
        "acceptance.divergence": "jsd",
        "acceptance.delta": 0.001,
        "tree.name": None,
    }
    for wrong in ("acceptance.delta", "acceptance.delta=[1"):
        with pytest.raises(ValueError, match="--set acceptance"):
            parse_assignments([wrong])


@pytest.mark.parametrize("value", ["1:30", "0200", "1_000", "no"])
def test_ambiguous_values_are_refused(value: str) -> None:
    with pytest.raises(
        ValueError, match=f"^--set budget.hours:1: not every program reads {value} "
    ):
        parse_assignments([f"budget.hours={value}"])


def test_every_key_of_every_preset_is_a_config_key() -> None:
    for config in PRESETS.values():
        assert config.flat().keys() <= set(config_keys())
