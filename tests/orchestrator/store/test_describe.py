"""Names of settings in full, and never one for two settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.store.names import describe, family
from orchestrator.text import describe_duration
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig, Sampling

BASE = Sampling(1.0, 0, 1.0, 1.5)


def setting(**sections: Any) -> DecodingConfig:
    return DecodingConfig.from_mapping(
        {"drafter": "eagle", "tree": {"policy": "chain", "length": 4}, **sections}
    )


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DecodingConfig(), "vanilla"),
        (setting(), "eagle-chain4 exact"),
        (
            setting(acceptance={"neighbourhood": "additive", "k": 100, "delta": 0.1}),
            "eagle-chain4 additive(k100,d0.1)",
        ),
        (
            setting(
                acceptance={
                    "neighbourhood": "multiplicative",
                    "k": 10,
                    "lambda": 2,
                    "schedule": "linear",
                }
            ),
            "eagle-chain4 multiplicative(k10,l2)+linear",
        ),
        (
            setting(
                acceptance={
                    "neighbourhood": "additive",
                    "k": 9,
                    "delta": 0.5,
                    "resampling": "optimal",
                }
            ),
            "eagle-chain4 additive(k9,d0.5,optimal)",
        ),
        (CATALOGUE["sjd"].config, "jacobi(random)-chain15 exact"),
        (
            CATALOGUE["sjd_plus_published"].config,
            "jacobi(reuse,published,random,t0.5)-chain15 exact",
        ),
        (CATALOGUE["adt_vertical"].config, "eagle-adjacency(vertical) exact"),
        (CATALOGUE["medusa"].config, "medusa-static(medusa2_64,top) exact"),
        (CATALOGUE["eagle2"].config, "eagle-dynamic(d5,w10,n58) exact"),
        (CATALOGUE["cool"].config, "eagle-static(eagle1_26) exponential"),
    ],
)
def test_names_in_full(config: DecodingConfig, name: str) -> None:
    assert describe(config) == name


def test_sampling_is_named_where_it_is_not_the_baselines() -> None:
    vanilla = DecodingConfig(sampling=BASE)
    assert describe(vanilla, BASE) == "vanilla"
    assert describe(vanilla) == "vanilla T1,top_k0,top_p1,cfg1.5"
    cooler = vanilla.with_sampling(dataclasses.replace(BASE, temperature=0.9, top_k=100))
    assert describe(cooler, BASE) == "vanilla T0.9,top_k100"


def test_rounded_numbers_end_in_a_hash() -> None:
    config = setting(acceptance={"neighbourhood": "additive", "k": 100, "delta": 0.123456789})
    assert describe(config) == f"eagle-chain4 additive(k100,d0.123457)#{config.digest()[:6]}"


def test_presets_have_names_of_their_own() -> None:
    names = {describe(entry.config) for entry in CATALOGUE.values()}
    assert len(names) == len({entry.config for entry in CATALOGUE.values()})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 seconds"), (43.2, "43 seconds"), (119, "119 seconds"), (318, "5.3 minutes"), (597.5, "10 minutes"),
        (3 * 3600, "3.0 hours"), (40 * 3600, "40 hours"), (86400 * 12.4, "12 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert describe_duration(seconds) == words


def test_families() -> None:
    names = {
        name: family(CATALOGUE[name].config)
        for name in ("vanilla", "eagle2", "lantern", "cool", "gsd")
    }
    assert names == {
        "vanilla": "vanilla",
        "eagle2": "exact",
        "lantern": "additive",
        "cool": "exponential",
        "gsd": "grouped",
    }


share = st.sampled_from([0.1, 0.25, 1.0])
ranks = st.integers(1, 2)


def maps(
    kind: dict[str, str], optional: dict[str, Any] | None = None, **given: Any
) -> st.SearchStrategy[Any]:
    """Mappings with a fixed kind, strategies by key, and keys that may be left out (`lambda_` is
    lambda).
    """
    fixed: dict[str, Any] = {key: st.just(word) for key, word in kind.items()}
    return st.fixed_dictionaries(
        fixed | {key.rstrip("_"): s for key, s in given.items()}, optional=optional or {}
    )


ADJACENCY = {
    "initialisation": st.sampled_from(["vertical", "random"]),
    "numerator": st.just("tokens"),
    "alpha": st.just("neighbour"),
    "beta": share,
    "depth_range": st.just([2, 8]),
    "radius": st.just(2.0),
    "fixed_depth": st.integers(2, 3),
    "fixed_width": st.integers(4, 5),
}
PATHS: list[list[list[int]]] = [[[0]], [[0], [1]], [[0], [0, 0]]]
CLOSE = {"divergence": st.just("jsd"), "proximity": st.sampled_from(["cosine", "random"])}
trees = st.one_of(
    maps({"policy": "chain"}, {"children": st.just("top")}, length=st.integers(1, 3)),
    maps({"policy": "dynamic"}, depth=ranks, width=st.just(2), nodes=st.integers(1, 9)),
    maps({"policy": "static"}, paths=st.sampled_from(PATHS)),
    maps({"policy": "adjacency"}, ADJACENCY),
)
nothing: st.SearchStrategy[Any] = st.just({})
neighbourhoods = st.one_of(
    nothing,
    maps({"neighbourhood": "additive"}, CLOSE, k=ranks, delta=share),
    maps({"neighbourhood": "multiplicative"}, k=ranks, lambda_=st.sampled_from([1.0, 2.5])),
    maps(
        {"neighbourhood": "grouped"},
        {"below": ranks, "above": ranks, "tolerance": share, "radius": share},
    ),
)
schedules = st.one_of(
    nothing,
    maps({"schedule": "constant"}, budget=st.sampled_from([1.0, 1.1])),
    maps({"schedule": "exponential"}, {"nu": share}, budget=st.sampled_from([1.0, 1.1])),
)
rules = st.tuples(neighbourhoods, schedules, st.sampled_from([{}, {"resampling": "optimal"}])).map(
    lambda parts: {key: value for part in parts for key, value in part.items()}
)
samplings = st.builds(Sampling, share, st.integers(0, 1), share, share)
configs = st.builds(
    lambda drafter, tree, rule, sampling: DecodingConfig.from_mapping(
        {"drafter": drafter, "tree": tree, "acceptance": rule}
    ).with_sampling(sampling),
    st.sampled_from(["eagle", "independent", "medusa"]),
    trees,
    rules,
    st.one_of(st.just(BASE), samplings),
)


@settings(max_examples=200, deadline=None)
@given(configs, configs, st.sampled_from([None, BASE]))
def test_two_settings_never_share_their_name(
    a: DecodingConfig, b: DecodingConfig, baseline: Sampling | None
) -> None:
    assert (describe(a, baseline) == describe(b, baseline)) == (a == b)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_hundreds_of_settings_have_hundreds_of_names(data: st.DataObject) -> None:
    many = set(data.draw(st.lists(configs, min_size=60, max_size=150)))
    assert len({describe(config, BASE) for config in many}) == len(many)
