"""What a setting does, in plain sentences, and the papers that it is from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from orchestrator.store.explain import explain_alike, explain_setting, papers_of
from orchestrator.store.names import SettingNames
from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.drafters import DRAFTERS, Jacobi, JacobiRows, Rows
from search_spaces.modulations import MODULATIONS
from search_spaces.neighbourhoods import NEIGHBOURHOODS, Additive
from search_spaces.presets import CATALOGUE, preset
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.schedules import SCHEDULES, Constant
from search_spaces.temperatures import DYNAMIC_TEMPERATURES
from search_spaces.trees import POLICIES, Chain
from search_spaces.trial import DecodingConfig
from search_spaces.verification import VERIFICATIONS

REGISTRIES = (
    DRAFTERS, POLICIES, NEIGHBOURHOODS, SCHEDULES, MODULATIONS, VERIFICATIONS, DYNAMIC_TEMPERATURES,
)  # fmt: skip


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_preset_is_explained_with_its_numbers(name: str) -> None:
    config = preset(name)
    text = explain_setting(config)
    assert text.endswith(".")
    assert "{" not in text
    rule = config.acceptance
    if rule.schedule != EXACT.schedule and hasattr(rule.schedule, "budget"):
        assert f"{rule.schedule.budget:.4g} times" in text
    if isinstance(config.policy, Chain):
        assert f"chain of {config.policy.length}" in text
    assert ("exact rule." in text) == (rule == EXACT and config.drafter.has_drafts)
    assert bool(papers_of(config)) == (not config.is_vanilla)


def test_every_kind_says_what_it_does() -> None:
    for registry in REGISTRIES:
        for kind in registry.values():
            if kind.__module__.startswith("search_spaces."):
                assert kind.summary, kind


def test_numbers_of_alike_settings_are_ranges() -> None:
    settings = [
        [Additive(k=k, delta=0.2), Constant(budget)] for k, budget in ((10, 1.5), (100, 3.0))
    ]
    text = explain_alike(settings)
    assert "10 to 100 codes" in text
    assert "less than 0.2;" in text
    assert "1.5 to 3 times" in text
    assert explain_alike([[], []]) == explain_alike([[]])
    assert "exact rule" in explain_alike([[]])


def test_texts_of_alike_settings_are_listed_and_each_kind_has_a_clause() -> None:
    assert "within 0.1 to 0.4 of each other (jsd or tvd)" in explain_alike(
        [[Fuzzy(0.4, "jsd")], [Fuzzy(0.1, "tvd")]]
    )
    text = explain_alike([[Rows(lag=4)], [JacobiRows(lag=8)], [Rows(lag=6)]])
    assert text == f"{explain_alike([[Rows(lag=4)], [Rows(lag=6)]])}; or " + explain_alike(
        [[JacobiRows(lag=8)]]
    )
    assert "4 to 6 tokens" in text


def test_a_window_has_the_papers_of_its_redraw() -> None:
    papers = {redraw: Jacobi(redraw=redraw).papers for redraw in ("fresh", "coupled", "reuse")}
    assert [len(found) for found in papers.values()] == [1, 2, 2]
    assert len({found[-1] for found in papers.values()}) == 3


@dataclass(frozen=True, slots=True)
class _Halving(Constant):
    """Budgets that halve from level to level. More words."""

    kind: ClassVar[str] = "halving_slowly"


def test_a_plugin_is_explained_by_its_docstring_and_not_by_its_bases_words() -> None:
    rule = AcceptanceRule(schedule=_Halving(1.5))
    config = DecodingConfig(Jacobi(), Chain(11), rule)
    assert "Budgets that halve from level to level. " in f"{explain_setting(config)} "
    assert rule.schedule.papers == ()


def test_a_long_name_keeps_the_rules_number() -> None:
    config = DecodingConfig(Jacobi("repeat_left", "coupled"), Chain(11), AcceptanceRule())
    for budget in (1.5, 1.123456789):
        rule = AcceptanceRule(schedule=_Halving(budget))
        name = SettingNames(None).name(
            DecodingConfig(config.drafter, config.policy, rule, preset("vanilla").sampling)
        )
        assert len(name) <= 40
        assert f"b{budget:.2g}" in name, name
