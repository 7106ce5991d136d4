"""Short names of settings: at most 40 characters, and different ones for different settings."""

from __future__ import annotations

from typing import Any, cast

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.replay.rounding import RoundingSampler
from orchestrator.store.names import MAX_NAME, NO_SETTING, Form, SettingNames
from search_spaces.acceptance import AcceptanceRule
from search_spaces.params import Params
from search_spaces.plugins import Registry, is_external
from search_spaces.presets import CATALOGUE
from search_spaces.sweep import SweepConfig
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trial import SECTIONS, DecodingConfig, Sampling
from tests.docs.pages import ROOT
from tests.orchestrator.store.test_describe import BASE, configs, setting

ADDITIVE = {"neighbourhood": "additive", "k": 100, "delta": 0.1}
DYNAMIC = {"policy": "dynamic", "depth": 5, "width": 10, "nodes": 58}
PROPOSALS = 400  # of each space
BUDGETS = {"schedule": "exponential", "budget": 1.23456, "nu": 0.1}


def name(config: DecodingConfig) -> str:
    return SettingNames(BASE).name(config)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (DecodingConfig(), "vanilla"),
        (DecodingConfig(sampling=BASE), "vanilla"),
        (DecodingConfig(sampling=Sampling(0.9, 100, 1.0, 1.5)), "vanilla T0.9,top_k100"),
        (
            DecodingConfig(sampling=Sampling(cfg=1.5, dynamic_temperature=EntropyTemperature())),
            "vanilla entropy",
        ),
        (
            DecodingConfig(sampling=Sampling(0.9, 0, 1.0, 1.5, EntropyTemperature(scale=2.0))),
            "vanilla T0.9 entropy(a2)",
        ),
        (setting(), "eagle-chain4 exact"),
        (setting(acceptance=ADDITIVE), "eagle-chain4 additive(k100,d0.1)"),
        (setting(tree=DYNAMIC), "eagle-dynamic(d5,w10,n58) exact"),
        (setting(tree=DYNAMIC, acceptance=ADDITIVE), "eagle-dyn(d5,w10,n58) add(k100,d0.1)"),
        (setting(acceptance=BUDGETS), "eagle-chain4 exponential(b1.23456)"),
        (
            setting(acceptance={**ADDITIVE, "resampling": "optimal"}),
            "eagle-chain4 additive(k100,d0.1,optimal)",
        ),
        (setting(acceptance={"schedule": "exponential"}), "eagle-chain4 exponential"),
        (CATALOGUE["medusa"].config, "medusa-static(medusa2_64,top) exact"),
        (CATALOGUE["sjd"].config, "jacobi(random)-chain15 exact"),
        (CATALOGUE["zipar"].config, "rows"),
        (CATALOGUE["pjd_maximal"].config, "jacrows(max,marginal)-chain7 exact"),
        (CATALOGUE["sjd_plus_published"].config, "jacobi(reuse,pub)-chain15 exact#ef7169"),
    ],
)
def test_names(config: DecodingConfig, text: str) -> None:
    assert name(config) == text


def test_words_of_names_in_one_table_are_abbreviated_alike() -> None:
    narrow, wide, short = (
        setting(acceptance=ADDITIVE),
        setting(tree=DYNAMIC, acceptance=ADDITIVE),
        setting(),
    )
    names = SettingNames(BASE)
    assert (
        names.alike([narrow, short]).name(narrow)
        == name(narrow)
        == "eagle-chain4 additive(k100,d0.1)"
    )
    together = names.alike([narrow, wide])
    assert together.name(narrow) == "eagle-chain4 add(k100,d0.1)"
    assert together.name(wide) == name(wide) == "eagle-dyn(d5,w10,n58) add(k100,d0.1)"
    assert together.describe(narrow) == names.describe(narrow)
    full = SettingNames(BASE, Form.FULL)
    assert full.alike([wide]).name(wide) == full.name(wide) == names.describe(wide)


def test_a_custom_tree_has_a_hash() -> None:
    tree = setting(tree={"policy": "static", "paths": [[0], [1], [0, 0]]})
    assert name(tree) == f"eagle-static(n3) exact#{tree.digest()[:6]}"


def test_rounded_or_omitted_values_give_a_hash_whatever_was_named_before() -> None:
    few, more, many = (
        setting(acceptance={**ADDITIVE, "delta": delta}) for delta in (0.1, 0.10001, 0.1000100003)
    )
    assert name(few) == "eagle-chain4 additive(k100,d0.1)"
    assert name(more) == "eagle-chain4 additive(k100,d0.10001)"
    assert name(many) == f"eagle-chain4 additive(k100,d0.1)#{many.digest()[:6]}"
    for order in ((few, more, many), (many, more, few)):
        names = SettingNames(BASE)
        assert [names.name(config) for config in order] == [name(config) for config in order]
    assert SettingNames(BASE).name(None) == NO_SETTING


def test_the_sampling_is_omitted_only_where_all_sweeps_have_it() -> None:
    config = setting().with_sampling(BASE)
    assert SettingNames.across([BASE, BASE]).name(config) == "eagle-chain4 exact"
    together = SettingNames.across([BASE, Sampling()])
    assert together.name(config) == "eagle-chain4 exact cfg1.5"
    assert together.name(setting().with_sampling(Sampling())) == "eagle-chain4 exact"


@pytest.mark.parametrize(("space", "most"), [("quickstart", 0.02), ("joint", 0.8), ("adt", 0.8)])
def test_equal_names_mean_equal_settings(space: str, most: float) -> None:
    """most: share of names with a hash, because a name cannot hold all that is searched."""
    sweep = SweepConfig.read(space)
    study = optuna.create_study(sampler=RoundingSampler(optuna.samplers.RandomSampler(seed=1)))
    proposals = [sweep.space.suggest(study.ask(), sweep.sampling) for _ in range(PROPOSALS)]
    named = {config: SettingNames(sweep.sampling).name(config) for config in proposals}
    assert len(set(named.values())) == len(named)
    assert max(map(len, named.values())) <= MAX_NAME
    assert not any("…" in text for text in named.values())
    assert sum("#" in text for text in named.values()) <= most * len(named)
    together = SettingNames(sweep.sampling)
    assert {config: together.name(config) for config in reversed(proposals)} == named


def all_kinds() -> list[tuple[str, str, type[Params]]]:
    """The tag, the name and the class of every kind of the project's."""
    found = []
    for section in SECTIONS.values():
        for tag, options in section.tags.items():
            known = cast("Registry[type[Params]]", options).all()
            own = {kind: made for kind, made in known.items() if not is_external(made.__module__)}
            found += [(tag, kind, made) for kind, made in own.items()]
    return found


def letters_of(params: type[Params]) -> str:
    """Its keys that have a letter in names, as the documentation lists them."""
    letters = {key: field.symbol for key, field in params.fields().items()}
    return ", ".join(
        f"`{letter}` {key}" for key, letter in letters.items() if letter not in ("", key)
    )


def test_the_documentation_explains_every_symbol() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    rows = {"sampling": letters_of(Sampling)}
    for tag, kind, params in all_kinds():
        letters = letters_of(params)
        others = [other for _, other, its in all_kinds() if other == kind and letters_of(its)]
        rows[f"`{tag}: {kind}`" if len(others) > 1 else f"`{kind}`"] = letters
    for part, letters in rows.items():
        assert not letters or f"\n| {part} | {letters} |\n" in text, (part, letters)
    words = " ".join(text.split())
    owners: list[type[Params]] = [AcceptanceRule, *(params for _, _, params in all_kinds())]
    for owner in owners:
        forms = {
            kind: form
            for field in owner.fields().values()
            for kind, form in field.abbreviations.items()
        }
        assert all(f"`{short}` {word}" in words for word, short in forms.items())
        assert (
            owner is AcceptanceRule
            or owner.short == owner.kind
            or f"`{owner.short}` {owner.kind}" in words
        )


def test_no_symbol_has_two_meanings_in_a_part() -> None:
    parts: list[type[Params]] = [Sampling, *(params for _, _, params in all_kinds())]
    for params in parts:
        for kept in ("number", "is_list"):
            symbols = [field.symbol for field in params.fields().values() if getattr(field, kept)]
            assert len(set(symbols)) == len(symbols)


def test_presets_have_names_of_their_own() -> None:
    names = SettingNames(None)
    found = {names.name(entry.config) for entry in CATALOGUE.values()}
    assert len(found) == len({entry.config for entry in CATALOGUE.values()})


@settings(max_examples=60, deadline=None)
@given(st.lists(configs, min_size=1, max_size=40), st.sampled_from([None, BASE]))
def test_names_are_short_and_differ(many: list[Any], baseline: Sampling | None) -> None:
    names = SettingNames(baseline)
    found = {config: names.name(config) for config in many}
    assert len(set(found.values())) == len(found)
    assert all(len(text) <= MAX_NAME for text in found.values())
    assert all(text.isprintable() for text in found.values())
