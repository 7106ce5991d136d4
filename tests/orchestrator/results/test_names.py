"""Short names of settings: at most 40 characters, and different ones for different settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.results.names import MAX_NAME, NO_SETTING, SettingNames
from orchestrator.results.trials import TrialRecord
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig, Sampling
from tests.orchestrator.results.test_describe import BASE, configs, setting

ADDITIVE = {"neighbourhood": "additive", "k": 100, "delta": 0.1}
DYNAMIC = {"policy": "dynamic", "depth": 5, "width": 10, "nodes": 58}
BUDGETS = {"schedule": "exponential", "budget": 1.23456, "nu": 0.1}


def name(config: DecodingConfig) -> str:
    return SettingNames(BASE).name(config)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (DecodingConfig(), "vanilla"),
        (DecodingConfig(sampling=BASE), "vanilla"),
        (DecodingConfig(sampling=Sampling(0.9, 100, 1.0, 1.5)), "vanilla sampling(T0.9,top_k100)"),
        (setting(), "eagle-chain4 exact"),
        (setting(acceptance=ADDITIVE), "eagle-chain4 additive(k100,d0.1)"),
        (setting(tree=DYNAMIC), "eagle-dynamic(d5,w10,n58) exact"),
        (setting(tree=DYNAMIC, acceptance=ADDITIVE), "eagle-dyn(d5,w10,n58) add(k100,d0.1)"),
        (setting(acceptance=BUDGETS), "eagle-chain4 exponential(b1.23,n0.1)"),
        (setting(acceptance={**ADDITIVE, "resampling": "optimal"}), "eagle-chain4 additive(k100,d0.1,optimal)"),
        (setting(tree=DYNAMIC, acceptance=ADDITIVE | BUDGETS), "eagle-dyn(d5,…) add(k100,…)+exp(b1.2,…)"),
        (setting(tree={"policy": "static", "paths": [[0], [1], [0, 0]]}), "eagle-static(n3) exact"),
        (CATALOGUE["medusa"].config, "medusa-static(medusa2_64,top) exact"),
        (CATALOGUE["sjd"].config, "jacobi-chain15 exact"),
    ],
)
def test_names(config: DecodingConfig, text: str) -> None:
    assert name(config) == text


def test_only_settings_that_would_share_a_name_have_a_hash() -> None:
    close = [setting(acceptance={**ADDITIVE, "delta": delta}) for delta in (0.1, 0.10001, 0.2)]
    names = SettingNames(BASE)
    first, second, third = map(names.name, close)
    assert first == "eagle-chain4 additive(k100,d0.1)"
    assert second == f"eagle-chain4 additive(k100,d0.1)#{close[1].digest()[:4]}"
    assert third == "eagle-chain4 additive(k100,d0.2)"
    assert names.name(close[1]) == second, "asked again"


def test_names_depend_on_the_order_of_the_trials_alone() -> None:
    close = [setting(acceptance={**ADDITIVE, "delta": delta}) for delta in (0.1, 0.10001)]
    records = [TrialRecord(number, "", "complete", config) for number, config in enumerate(close)]
    records.append(TrialRecord(2, "", "failed", None))
    early, late = SettingNames.of(records[:1], BASE), SettingNames.of(reversed(records), BASE)
    assert early.name(close[0]) == late.name(close[0])
    assert late.name(close[1]) != late.name(close[0])
    assert late.name(None) == NO_SETTING


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
