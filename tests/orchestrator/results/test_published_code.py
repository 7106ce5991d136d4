"""Presets in the flags of published code: the ones that its scripts have, and why others cannot be expressed."""

from __future__ import annotations

import pytest

from orchestrator.results.published_code import PublishedCode, published_code
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig, Sampling

LLAMAGEN, LUMINA = "llamagen-t2i-XL-256", "lumina-mgpt-768"
SAMPLING = Sampling(temperature=1.0, top_k=1000, top_p=1.0, cfg=7.5)


def codes(config: DecodingConfig, target: str = LLAMAGEN) -> dict[str, PublishedCode]:
    found = published_code(config.with_sampling(SAMPLING), target)
    assert all(bool(code.command) != bool(code.lacks) for code in found), "a command, or why there is none"
    return {code.repository.partition("/")[2]: code for code in found}


def words(command: str) -> list[str]:
    return command.replace("\\\n", " ").split()


def option(command: str, name: str) -> str:
    given = words(command)
    return given[given.index(name) + 1]


def test_lanterns_flags() -> None:
    command = codes(CATALOGUE["lantern"].config)["LANTERN"].command
    assert words(command)[:3] == ["python", "main.py", "generate_images"]
    assert option(command, "--model") == "llamagen"
    assert (option(command, "--lantern_k"), option(command, "--lantern_delta")) == ("100", "0.1")
    assert "--static_tree" not in command
    assert [option(command, name) for name in ("--temperature", "--top_k", "--top_p", "--cfg")] == [
        "1",
        "1000",
        "1",
        "7.5",
    ]
    exact = codes(CATALOGUE["eagle2"].config, "anole-7b")["LANTERN"].command
    assert option(exact, "--model") == "anole"
    assert "--lantern " not in exact
    assert "--static_tree" in codes(CATALOGUE["eagle1"].config)["LANTERN"].command
    assert option(codes(CATALOGUE["vanilla"].config)["LANTERN"].command, "--model_type") == "base"
    assert (
        option(codes(CATALOGUE["lantern"].config, "llamagen-t2i-XL-512")["LANTERN"].command, "--model") == "llamagen2"
    )


def test_a_bound_above_one_is_lambda_in_lanterns_code() -> None:
    plain = CATALOGUE["lantern_pp"].config.to_mapping() | {"tree": {"policy": "static", "name": "eagle1_26"}}
    command = codes(DecodingConfig.from_mapping(plain))["LANTERN"].command
    assert option(command, "--lantern_delta") == "2"
    assert "--static_tree" in words(command)


def test_eagles_total_counts_the_root_and_its_depth_does_not_count_the_first_level() -> None:
    command = codes(CATALOGUE["eagle3"].config)["EAGLE"].command
    for value in ("use_eagle3=True", "total_token=63", "depth=5", "top_k=8"):
        assert value in command
    assert "use_eagle3=False, total_token=59, depth=4, top_k=10" in codes(CATALOGUE["eagle2"].config)["EAGLE"].command


def test_windows() -> None:
    """SJD's window counts the token in front of the drafts: 16 for 15 drafts."""
    command = codes(CATALOGUE["sjd"].config, LUMINA)["Accelerating-T2I-AR-with-SJD"].command
    assert "max_num_new_tokens = 16" in command
    assert "multi_token_init_scheme = 'random'" in command
    assert "guidance_scale = 7.5" in command
    grouped = codes(CATALOGUE["gsd"].config, LUMINA)["GSD"].command
    assert "test_GSD.py" in grouped
    assert "p_thr = 0.15" in grouped


@pytest.mark.parametrize(
    ("preset", "target", "repository"),
    [
        ("cool", LLAMAGEN, "LANTERN"),  # no schedule
        ("cool", LLAMAGEN, "EAGLE"),
        ("lantern_jsd", LLAMAGEN, "LANTERN"),
        ("lantern_cosine", LLAMAGEN, "LANTERN"),
        ("lantern_optimal", LLAMAGEN, "LANTERN"),
        ("lantern_pp", LLAMAGEN, "LANTERN"),  # its larger tree is no flag
        ("vvs", LLAMAGEN, "LANTERN"),
        ("adt", LLAMAGEN, "LANTERN"),
        ("eagle2", "scenes", "LANTERN"),
        ("lantern", LLAMAGEN, "EAGLE"),
        ("eagle1", LLAMAGEN, "EAGLE"),
        ("scd", LUMINA, "Accelerating-T2I-AR-with-SJD"),
        ("sjd_pac", LUMINA, "Accelerating-T2I-AR-with-SJD"),
        ("sjd_block", LUMINA, "Accelerating-T2I-AR-with-SJD"),
        ("gsd", "emu3-gen", "GSD"),
    ],
)
def test_what_published_code_cannot_express(preset: str, target: str, repository: str) -> None:
    found = codes(CATALOGUE[preset].config, target)[repository]
    assert found.command == ""
    assert len(set(found.lacks)) == len(found.lacks) >= 1


def test_every_preset_has_an_answer() -> None:
    for name, entry in CATALOGUE.items():
        kind = entry.config.drafter.kind
        expected = entry.config.is_vanilla or kind in ("eagle", "eagle3", "jacobi")
        assert bool(codes(entry.config)) == expected, name
