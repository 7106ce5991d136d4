"""The keys by which results are stored: digests of settings and keys of their shapes, frozen for 20
settings.

If one of them changes, the results in existing stores are not found: images are generated, and
passes timed, again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import DRAFTERS, DrafterChoice, Eagle, Vertical
from search_spaces.modulations import MODULATIONS
from search_spaces.neighbourhoods import NEIGHBOURHOODS, Additive
from search_spaces.plugins import is_external
from search_spaces.presets import PRESETS
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.schedules import SCHEDULES, Exponential
from search_spaces.temperatures import DYNAMIC_TEMPERATURES, DynamicTemperature, EntropyTemperature
from search_spaces.trees import POLICIES, Chain, Static
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import VERIFICATIONS

CUSTOM = {
    "vanilla, dynamic": DecodingConfig(
        sampling=Sampling(0.9, cfg=3, dynamic_temperature=EntropyTemperature(2.0))
    ),
    "vanilla, top-p": DecodingConfig(sampling=Sampling(1.0, 100, 0.95, 4.0)),
    "static, custom": DecodingConfig(
        Eagle(), Static(paths=((0,), (1,), (0, 0))), sampling=Sampling(0.0, 10, 0.5, 2.0)
    ),
    "vertical": DecodingConfig(Vertical()),
    **{
        f"cool, by {made.kind}": DecodingConfig(
            Eagle(), Chain(4), AcceptanceRule(schedule=Exponential(1.5), modulation=made)
        )
        for made in (EntropyModulation(), MarginModulation(-1.0), RowModulation(0.5, 1.5))
    },
}
KEYS = {
    "vanilla": ("8a7b3436a355e15b", "286d00768d392820"),
    "speculative_block": ("17e4016451f59fc0", "8c58fddce393aef5"),
    "eagle1_traversal": ("7e7b48cd8e1d4f62", "eb2f8556d3a96d82"),
    "medusa": ("4f148ab075f02ba1", "e1476d832f8f10d9"),
    "medusa_best_first": ("9ed7fe2fe0ee2eb4", "4b217d112a00219b"),
    "typical": ("26d8aa7f5f98bbe5", "9608a588b065b5e1"),
    "fsd": ("f8a8938bb992a143", "d3cc12b806e3d0ff"),
    "eagle2": ("24ea549951cdde5e", "b04488239654484e"),
    "eagle3": ("3f66ea48f339de73", "1cb496d1c3fbecb9"),
    "lantern": ("5a7caa873631f627", "0aaa67d2c0ea1eca"),
    "vvs": ("5b8bf30356f16e2d", "ea5bdd8ee6dce8fa"),
    "vvs_dynamic": ("d475a5c5e90327b4", "46d38a04bb548385"),
    "lantern_optimal": ("25fda7ed086df331", "0aaa67d2c0ea1eca"),
    "lantern_pp_optimal": ("e3826f16ac44755d", "00e89c9e06f3b8df"),
    "cool": ("69856d98d3d94d6d", "2f3d0b8e3acf12cf"),
    "cool_linear": ("2a1daf5237459929", "2f3d0b8e3acf12cf"),
    "adt": ("e96415dc0df10bb3", "db822d3f434695a0"),
    "adt_lantern": ("3fbb5d09781345a7", "5e922d185b78526c"),
    "gsd": ("9fdcdb50795ae6ad", "0c49ac0686e3cb7d"),
    "sjd": ("4323c267bf71de47", "7efa99fd64fca67f"),
    "sjd_sv": ("8876d8f8fbb3af54", "93fcea7dd8322259"),
    "scd_maximal_published": ("53c17be18eaf9734", "36f5588f8ff20b4a"),
    "sjd_plus": ("3487807059fcdecc", "6e13f45ca5da6a48"),
    "sjd_pac": ("d9b1c0106a517ec6", "9e246b0c08dbaf82"),
    "eagle_window": ("7d453ea9b50a7c2b", "767034efaf1dca7d"),
    "zipar": ("4ee277af0975b0ed", "42c2ff9512a9a7fb"),
    "pjd": ("cd40c4837d682807", "4ebc6b90cac6d0d6"),
    "vertical": ("beab3d8e3de9adcd", "b71b55f9cffa427e"),
    "vanilla, dynamic": ("94c85a000d7f9e3a", "85b1fd7142f25b28"),
    "vanilla, top-p": ("32fea7be382fda2a", "48cf87917708cbd3"),
    "cool, by entropy": ("81e1fc7f1fde6df5", "dbc839fd7fe24ab9"),
    "cool, by margin": ("0e53bdd486b4c7d3", "fdf98708d91e4a52"),
    "cool, by row": ("098148f93d3afade", "41181ef1416d66ef"),
    "static, custom": ("b1b4cc2ef2dc3c49", "388e9f8be3434cf9"),
}


def setting(name: str) -> DecodingConfig:
    return CUSTOM[name] if name in CUSTOM else PRESETS[name]


@pytest.mark.parametrize("name", KEYS)
def test_the_keys_of_a_setting_never_change(name: str) -> None:
    config = setting(name)
    assert (config.digest(), config.shape.key) == KEYS[name]


def test_the_frozen_settings_have_every_kind_of_every_part() -> None:
    configs = [setting(name) for name in KEYS]
    assert len(configs) >= 20
    rules = [config.acceptance for config in configs]
    samplings = [config.sampling for config in configs if config.sampling is not None]
    for registry, parts in (
        (DRAFTERS, [config.drafter for config in configs]),
        (POLICIES, [config.policy for config in configs]),
        (NEIGHBOURHOODS, [rule.neighbourhood for rule in rules]),
        (SCHEDULES, [rule.schedule for rule in rules]),
        (MODULATIONS, [rule.modulation for rule in rules]),
        (VERIFICATIONS, [rule.verification for rule in rules]),
        (DYNAMIC_TEMPERATURES, [sampling.dynamic_temperature for sampling in samplings]),
    ):
        own = {kind for kind, made in registry.items() if not is_external(made.__module__)}
        assert own == {part.kind for part in parts} & own


@dataclass(frozen=True, slots=True)
class Before(DrafterChoice):
    kind: ClassVar[str] = "grown"
    implementation: ClassVar[str] = "module:Class"
    size: Annotated[int, "a size"] = 1


@dataclass(frozen=True, slots=True)
class After(Before):
    """The same kind, with a field that a later version adds."""

    kind: ClassVar[str] = "grown"
    mode: Annotated[str | None, "a mode"] = None
    part: DynamicTemperature = EntropyTemperature()  # noqa: RUF009  # frozen


def test_a_field_that_is_added_with_a_default_changes_no_key() -> None:
    before, after = (
        DecodingConfig(drafter, Chain(3)) for drafter in (Before(size=2), After(size=2))
    )
    assert after.shape.key == before.shape.key
    assert after.shape.key != DecodingConfig(After(), Chain(3)).shape.key
    assert after.shape.key != DecodingConfig(After(size=2, mode="other"), Chain(3)).shape.key
    assert (
        after.shape.key
        != DecodingConfig(After(size=2, part=EntropyTemperature(1.0)), Chain(3)).shape.key
    )


def test_equal_settings_have_equal_keys() -> None:
    """0.0 == -0.0, whose texts differ."""
    one, other = (
        DecodingConfig(Eagle(), Chain(3), AcceptanceRule(Additive(5, delta)))
        for delta in (0.0, -0.0)
    )
    assert one == other
    assert (one.digest(), one.shape.key) == (other.digest(), other.shape.key)
