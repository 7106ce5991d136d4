"""Which setting a command line means, and the one sentence that a wrong one gets. No torch is needed for any of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from orchestrator.errors import CommandError
from orchestrator.results.overrides import Override, choose, known_keys, read_file, read_sets
from search_spaces.presets import PRESETS
from search_spaces.trial import Sampling

OWN = Sampling(temperature=0.9, top_k=50, top_p=0.95, cfg=3.0)


def chosen(preset: str, *overrides: tuple[str, Any]) -> dict[str, Any]:
    base = PRESETS[preset].to_mapping()
    said = [Override(f"--{key.rpartition('.')[2]}", key, value) for key, value in overrides]
    return choose(base, said).complete(OWN).to_mapping()


def complaint(preset: str, *overrides: tuple[str, Any]) -> str:
    with pytest.raises(CommandError) as caught:
        chosen(preset, *overrides)
    assert caught.value.code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_alone_is_itself(name: str) -> None:
    assert choose(PRESETS[name].to_mapping(), []).complete(OWN) == PRESETS[name]


def test_a_budget_of_hours_means_one_thing() -> None:
    from orchestrator.cli.launch_options import Hours
    from search_spaces.sweep_sections import Budget

    (option,) = get_args(Hours)[1:]
    words = get_args(get_type_hints(Budget, include_extras=True)["hours"])[1]
    assert words == "wall clock of one run (a resumed sweep has them anew)"
    assert option.help == f"Budget: {words}."


def test_nothing_said_is_plain_decoding() -> None:
    assert choose({}, []).complete(OWN) == PRESETS["vanilla"]


def test_single_keys_are_overridden() -> None:
    mapping = chosen("lantern", ("acceptance.delta", 0.3), ("tree.depth", 3))
    expected = PRESETS["lantern"].to_mapping()
    expected["acceptance"]["delta"] = 0.3
    expected["tree"]["depth"] = 3
    assert mapping == expected


def test_a_new_kind_keeps_what_it_knows_and_drops_the_rest() -> None:
    mapping = chosen("lantern", ("acceptance.neighbourhood", "multiplicative"), ("acceptance.lambda", 3))
    acceptance = mapping["acceptance"]
    assert acceptance["neighbourhood"] == "multiplicative"
    assert acceptance["k"] == 100
    assert acceptance["lambda"] == 3
    assert "delta" not in acceptance
    assert "divergence" not in acceptance


def test_the_order_of_options_does_not_matter() -> None:
    said = [("acceptance.lambda", 3), ("acceptance.neighbourhood", "multiplicative"), ("acceptance.k", 7)]
    assert chosen("lantern", *said) == chosen("lantern", *reversed(said))


def test_static_trees_by_short_form() -> None:
    assert chosen("eagle2", ("tree.policy", "static:eagle1_26"))["tree"] == PRESETS["eagle1"].to_mapping()["tree"]
    own = chosen("eagle1", ("tree.paths", [[0], [0, 0]]))["tree"]
    assert own["paths"] == [[0], [0, 0]]
    assert "name" not in own
    assert chosen("eagle1", ("tree.paths", [[0]]), ("tree.policy", "static"))["tree"]["paths"] == [[0]]


def test_the_depth_of_a_chain_is_its_length() -> None:
    assert chosen("speculative", ("tree.depth", 7))["tree"]["length"] == 7
    assert chosen("eagle2", ("tree.policy", "chain"), ("tree.depth", 2))["tree"] == {
        "policy": "chain",
        "length": 2,
        "children": "sampled",
    }


def test_sampling_said_in_part_is_completed_by_the_target() -> None:
    mapping = chosen("lantern", ("sampling.cfg", 5.0))
    assert mapping["sampling"] == {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "cfg": 5.0}
    assert "sampling" not in chosen("lantern")


@pytest.mark.parametrize(
    ("preset", "overrides", "parts"),
    [
        ("eagle2", [("tree.depth", 0)], ("--depth", "at least 1", "got 0")),
        ("speculative", [("tree.depth", 0)], ("--depth", "at least 1", "got 0")),
        ("lantern", [("acceptance.delta", 1.5)], ("--delta", "1.5")),
        ("lantern", [("acceptance.k", 0)], ("--k", "got 0")),
        ("lantern", [("acceptance.neighbourhood", "aditive")], ("--neighbourhood", "did you mean 'additive'")),
        ("lantern", [("acceptance.lambda", 2)], ("--lambda", "not a key of", "'multiplicative'")),
        ("lantern", [("sampling.temperature", -1)], ("--temperature", "got -1")),
        ("eagle2", [("tree.policy", "static:none_such")], ("none_such", "eagle1_26")),
        ("lantern", [("tree.policy", ["chain"])], ("--policy", "['chain']")),
        ("lantern", [("acceptance.neighbourhood", {"a": 1})], ("--neighbourhood", "{'a': 1}")),
        ("eagle1", [("tree.paths", [[0], [1, 0]])], ("orphan", "[1, 0]")),
        ("vanilla", [("tree.policy", "chain"), ("tree.depth", 3)], ("drafter", "nobody drafts")),
        ("vanilla", [("acceptance.schedule", "constant"), ("acceptance.budget", 2)], ("nothing is drafted",)),
        ("sjd", [("tree.policy", "static:eagle1_26")], ("jacobi", "chain")),
        ("cool_linear", [("acceptance.slope", 5.0)], ("--slope",)),
        ("eagle2", [("tree.dept", 3)], ("--dept", "unknown key", "did you mean 'depth'")),
        ("eagle2", [("treee.depth", 3)], ("unknown key", "tree.depth")),
    ],
)  # fmt: skip
def test_wrong_settings_get_one_sentence(preset: str, overrides: list[tuple[str, Any]], parts: tuple[str, ...]) -> None:
    text = complaint(preset, *overrides)
    assert "\n" not in text
    for part in parts:
        assert part in text


def test_set_reads_yaml_values() -> None:
    found = read_sets(["tree.paths=[[0], [0, 0]]", "acceptance.divergence=jsd", "sampling.cfg=2.5"])
    assert [(o.key, o.value) for o in found] == [
        ("tree.paths", [[0], [0, 0]]),
        ("acceptance.divergence", "jsd"),
        ("sampling.cfg", 2.5),
    ]
    for wrong in ("acceptance.delta", "acceptance.delta=[1"):
        with pytest.raises(CommandError, match="--set"):
            read_sets([wrong])


def test_every_key_of_every_preset_is_known() -> None:
    for config in PRESETS.values():
        assert config.flat().keys() <= set(known_keys())


@pytest.mark.parametrize("name", ["vanilla", "lantern_jsd", "cool_linear", "adt_tokenflock", "gsd", "medusa"])
def test_files_round_trip(name: str, tmp_path: Path) -> None:
    config = PRESETS[name].with_sampling(OWN)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_mapping()))
    assert choose(read_file(str(path)), []).complete(Sampling()) == config


def test_a_file_may_say_little(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("drafter: eagle\ntree: {policy: chain, length: 3}\nacceptance: lantern_pp\nsampling: {cfg: 2}\n")
    config = choose(read_file(str(path)), [Override("--top-k", "sampling.top_k", 9)]).complete(OWN)
    assert config.sampling == Sampling(temperature=0.9, top_k=9, top_p=0.95, cfg=2.0)
    assert config.flat()["acceptance.lambda"] == 2.0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("must be a mapping",)),
        ("- 1\n- 2\n", ("must be a mapping",)),
        ("tree: {policy: chain\n", ("line 2", "not valid YAML")),
        ("tree: {policy: chain, length: 0}\ndrafter: eagle\n", ("tree.length", "at least 1")),
        ("drafter: eagle\ntree: {policy: static, paths: [[0], [1, 0]]}\n", ("tree.paths", "orphan")),
        ("tre: {}\n", ("tre: unknown key", "did you mean 'tree'")),
        ("acceptance: {neighbourhood: additive, k: 5, delta: 0.1, lamda: 2}\n", ("acceptance.lamda", "known keys")),
        ("sampling: {cfgg: 2}\n", ("sampling.cfgg", "cfg")),
        ("!!python/object/apply:os.system ['true']\n", ("not valid YAML",)),
    ],
)
def test_wrong_files_are_named_with_their_key(text: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(CommandError) as caught:
        read_file(str(path))
    assert caught.value.code == 2
    assert "bad.yaml" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        read_file(str(tmp_path / "none.yaml"))


def test_settings_are_checked_without_torch() -> None:
    code = "import sys, orchestrator.cli.app; sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
