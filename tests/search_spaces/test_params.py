"""The layer between mappings and settings: ranges, conversions, names and messages."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from search_spaces.drafters import DRAFTERS
from search_spaces.neighbourhoods import NEIGHBOURHOODS, Additive, Multiplicative, NoNeighbourhood
from search_spaces.params import ConfigError, Params, Range
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES, Adjacency, Static
from search_spaces.trial import SECTIONS, Sampling


@dataclass(frozen=True, slots=True)
class Oven(Params):
    kind: ClassVar[str] = "oven"
    heat: Annotated[float, "temperature", Range(0, 300, open_low=True)]
    trays: Annotated[int, "number of trays", Range(1)] = 1
    mode: Annotated[Literal["top", "fan"], "where the heat comes from"] = "top"
    span: Annotated[tuple[int, int], "least and largest time", Range(0, 9)] = (1, 2)
    label: Annotated[str | None, "what to call it"] = None


@pytest.mark.parametrize(
    ("span", "text", "inside", "outside"),
    [
        (Range(0, 1), "in [0, 1]", [0, 0.5, 1], [-0.1, 1.1]),
        (Range(0, 1, open_low=True), "in (0, 1]", [0.1, 1], [0, 1.1]),
        (Range(1), "at least 1", [1, 99], [0.9]),
        (Range(0, open_low=True), "greater than 0", [0.1], [0, -1]),
        (Range(high=3), "at most 3", [-9, 3], [4]),
        (Range(), "", [-9, 9], []),
    ],
)
def test_ranges(span: Range, text: str, inside: list[float], outside: list[float]) -> None:
    assert str(span) == text
    assert bool(span) == bool(text)
    assert all(value in span for value in inside)
    assert not any(value in span for value in outside)


def test_values_are_converted_so_that_equal_settings_are_equal() -> None:
    oven = Oven(heat=200, span=[3, 4])  # type: ignore[arg-type]  # as YAML gives them
    assert oven == Oven(heat=200.0, span=(3, 4))
    assert hash(oven) == hash(Oven(heat=200.0, span=(3, 4)))
    assert isinstance(oven.heat, float)
    assert oven.to_mapping() == {"heat": 200.0, "trays": 1, "mode": "top", "span": [3, 4]}
    assert Oven.from_mapping(oven.to_mapping()) == oven
    with pytest.raises(FrozenInstanceError):
        oven.heat = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heat": 0}, "heat: must be in (0, 300], got 0"),
        ({"heat": "hot"}, "heat: must be a number, got 'hot'"),
        ({"heat": None}, "heat: must be a number, got None"),
        ({"heat": True}, "heat: must be a number, got True"),
        ({"heat": float("inf")}, "heat: must be a finite number, got inf"),
        ({"heat": 9, "trays": 1.5}, "trays: must be a whole number, got 1.5"),
        ({"heat": 9, "trays": 0}, "trays: must be at least 1, got 0"),
        (
            {"heat": 9, "mode": "fam"},
            "mode: must be one of top, fan, got 'fam'; did you mean 'fan'?",
        ),
        ({"heat": 9, "mode": 3}, "mode: must be a string, got 3"),
        ({"heat": 9, "span": 3}, "span: must be a list, got 3"),
        ({"heat": 9, "span": [1, 2, 3]}, "span: must be a list of 2, got [1, 2, 3]"),
        ({"heat": 9, "span": [1, 20]}, "span: must be in [0, 9], got 20"),
        ({"heat": 9, "label": 3}, "label: must be a string, got 3"),
        ({}, "heat: missing; give the temperature (in (0, 300])"),
        (
            {"heat": 9, "tray": 3},
            "tray: unknown key; did you mean 'trays'? known keys: heat, trays, mode, span, label",
        ),
        ({"heat": 9, "zzz": 3}, "zzz: unknown key; known keys: heat, trays, mode, span, label"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Oven.from_mapping(given)
    assert str(caught.value) == message


def test_one_section_may_hold_several_choices() -> None:
    section = SECTIONS["acceptance"]
    found = section.read({"neighbourhood": "multiplicative", "k": 9, "lambda": 3, "budget": 2})
    assert found["neighbourhood"] == Multiplicative(k=9, lam=3.0)
    assert found["schedule"].budget == 2
    assert section.read(None)["neighbourhood"] == NoNeighbourhood()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"neighbourhood": "aditive"},
         "neighbourhood: must be one of none, additive, multiplicative, grouped, fuzzy, typical, or a plugin's (--plugin MODULE), "
         "got 'aditive'; did you mean 'additive'?"),
        ({"neighbourhood": None},
         "neighbourhood: must be one of none, additive, multiplicative, grouped, fuzzy, typical, or a plugin's (--plugin MODULE), "
         "got None"),
        ({"neighbourhood": "additive", "k": 3, "lambda": 2},
         "lambda: not a key of neighbourhood 'additive' but of 'multiplicative'; "
         "known keys: neighbourhood, schedule, modulation, verification, resampling, k, delta, divergence, proximity, budget"),
        ({"neighbourhood": "additive", "k": 3, "dleta": 0.1}, "dleta: unknown key; did you mean 'delta'?"),
        ([3], "must be a mapping of keys to values, got [3]"),
    ],
)  # fmt: skip
def test_refusals_of_choices(given: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SECTIONS["acceptance"].read(given)
    assert str(caught.value).startswith(message)


def test_errors_know_their_place_and_travel_between_processes() -> None:
    error = ConfigError(("delta",), "must be less").under("acceptance")
    assert (error.path, str(error)) == (("acceptance", "delta"), "acceptance.delta: must be less")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.path, copy.problem, str(copy)) == (error.path, error.problem, str(error))
    assert pickle.loads(pickle.dumps(Additive(k=3, delta=0.1))) == Additive(k=3, delta=0.1)


def test_every_field_says_what_it_is_and_its_default_fits() -> None:
    settings = [
        s for family in (NEIGHBOURHOODS, SCHEDULES, POLICIES, DRAFTERS) for s in family.values()
    ] + [Sampling]
    for setting in settings:
        for key, field in setting.fields().items():
            assert field.about
            assert not field.about.endswith(".")
            assert field.key == key
            if not field.required:
                assert field.fit(field.default) == field.default
    assert Multiplicative.fields()["lambda"].name == "lam"
    assert Static.fields()["name"].choices[:1] == ("eagle1_26",)
    assert Adjacency.fields()["alpha"].choices == ("previous", "neighbour")


def test_no_key_means_two_things_in_one_section() -> None:
    for neighbourhood in NEIGHBOURHOODS.values():
        for schedule in SCHEDULES.values():
            assert not {*neighbourhood.fields()} & {
                *schedule.fields(),
                "resampling",
                "neighbourhood",
                "schedule",
            }
