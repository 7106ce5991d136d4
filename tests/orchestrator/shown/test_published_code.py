"""Presets in the flags of published code: the ones that its scripts have, and why others cannot be
expressed.
"""

from __future__ import annotations

import pytest

from orchestrator.shown.published_code import PublishedCode, published_code
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig, Sampling

LLAMAGEN, LUMINA = "llamagen-t2i-XL-256", "lumina-mgpt-768"
SAMPLING = Sampling(temperature=1.0, top_k=1000, top_p=1.0, cfg=7.5)


def codes(config: DecodingConfig, target: str = LLAMAGEN) -> dict[str, PublishedCode]:
    found = published_code(config.with_sampling(SAMPLING), target)
    assert all(bool(code.command) != bool(code.lacks) for code in found), (
        "a command, or why there is none"
    )
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
    assert (option(command, "--lantern_k"), option(command, "--lantern_delta")) == ("99", "0.1"), (
        "k counts the token"
    )
    assert "--static_tree" not in command
    sampling = [option(command, name) for name in ("--temperature", "--top_k", "--top_p", "--cfg")]
    assert sampling == ["1", "1000", "1", "7.5"]
    exact = codes(CATALOGUE["eagle2"].config, "anole-7b")["LANTERN"].command
    assert option(exact, "--model") == "anole"
    assert "--lantern " not in exact
    assert option(codes(CATALOGUE["vanilla"].config)["LANTERN"].command, "--model_type") == "base"
    larger = codes(CATALOGUE["lantern"].config, "llamagen-t2i-XL-512")["LANTERN"].command
    assert option(larger, "--model") == "llamagen2"
    none = CATALOGUE["lantern"].config.with_sampling(Sampling())
    assert int(option(published_code(none, LLAMAGEN)[0].command, "--top_k")) > 65536, (
        "its 0 is not ours"
    )


@pytest.mark.parametrize(
    ("preset", "tree"), [("eagle1", "mc_sim_7b_63"), ("lantern_pp", "naive_extend_57")]
)
def test_lanterns_static_trees_have_names(preset: str, tree: str) -> None:
    """Without a name, --static_tree is naive_extend_57; names need its experimental features."""
    command = codes(CATALOGUE[preset].config)["LANTERN"].command
    assert words(command)[0] == "USE_EXPERIMENTAL_FEATURES=1"
    assert "--static_tree" in words(command)
    assert option(command, "--tree_choices") == tree
    assert ("--lantern" in words(command)) == (preset == "lantern_pp")


@pytest.mark.parametrize(
    "policy",
    [{"policy": "static", "name": "eagle1_26"}, CATALOGUE["lantern"].config.to_mapping()["tree"]],
)
def test_a_bound_above_one_is_lambda_in_lanterns_code(policy: dict[str, object]) -> None:
    plain = CATALOGUE["lantern_pp"].config.to_mapping() | {"tree": policy}
    command = codes(DecodingConfig.from_mapping(plain))["LANTERN"].command
    assert option(command, "--lantern_delta") == "2"


def test_lanterns_code_for_lumina_has_other_trees_and_one_sampling() -> None:
    plain = CATALOGUE["lantern"].config.to_mapping()
    deeper = DecodingConfig.from_mapping(plain | {"tree": plain["tree"] | {"depth": 6}})
    own = Sampling(temperature=1.0, top_k=2000, top_p=1.0, cfg=3.0)
    (code,) = published_code(deeper.with_sampling(own), LUMINA)[:1]
    assert option(code.command, "--eagle_version") == "2", "1, the default, is static"
    for config, sampling in (
        (deeper, Sampling(top_k=1000, cfg=3.0)),
        (deeper, Sampling(temperature=0.9, top_k=2000, cfg=3.0)),
        (deeper, Sampling(top_k=2000, top_p=0.9, cfg=3.0)),
        (CATALOGUE["lantern"].config, own),
    ):
        (code,) = published_code(config.with_sampling(sampling), LUMINA)[:1]
        assert not code.command, sampling


def test_eagles_total_counts_the_root_and_its_depth_does_not_count_the_first_level() -> None:
    command = codes(CATALOGUE["eagle3"].config)["EAGLE"].command
    for value in ("use_eagle3=True", "total_token=63", "depth=5", "top_k=8"):
        assert value in command
    assert (
        "use_eagle3=False, total_token=59, depth=4, top_k=10"
        in codes(CATALOGUE["eagle2"].config)["EAGLE"].command
    )


def test_windows() -> None:
    """SJD's window counts the token in front of the drafts: 16 for 15 drafts."""
    command = codes(CATALOGUE["sjd"].config, LUMINA)["Accelerating-T2I-AR-with-SJD"].command
    assert "max_num_new_tokens = 16" in command
    assert "multi_token_init_scheme = 'random'" in command
    assert "guidance_scale = 7.5" in command
    assert "# in test_lumina_mgpt.py" in command
    emu = codes(CATALOGUE["sjd"].config, "emu3-gen")["Accelerating-T2I-AR-with-SJD"].command
    assert "classifier_free_guidance = 7.5" in emu
    plain = CATALOGUE["sjd"].config.to_mapping()
    left = DecodingConfig.from_mapping(
        plain | {"drafter": {"kind": "jacobi", "initialisation": "sample_left"}}
    )
    assert "'sample_horizon'" in codes(left, LUMINA)["Accelerating-T2I-AR-with-SJD"].command
    for sampling in (
        Sampling(temperature=0.9, top_k=1000),
        Sampling(top_p=0.9),
        Sampling(temperature=0.0),
    ):
        assert not published_code(left.with_sampling(sampling), LUMINA)[0].command
    grouped = codes(CATALOGUE["gsd"].config, LUMINA)["GSD"].command
    assert "test_GSD.py" in grouped
    assert "p_thr = 0.15" in grouped
    assert "d_thr = 0.5" not in grouped, "its distances have another scale"


@pytest.mark.parametrize(
    ("preset", "target", "repository"),
    [
        ("cool", LLAMAGEN, "LANTERN"),  # no schedule
        ("cool", LLAMAGEN, "EAGLE"),
        ("lantern_jsd", LLAMAGEN, "LANTERN"),
        ("lantern_cosine", LLAMAGEN, "LANTERN"),
        ("lantern_optimal", LLAMAGEN, "LANTERN"),
        ("sjd", "scenes", "Accelerating-T2I-AR-with-SJD"),
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
