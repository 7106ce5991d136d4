"""Which settings share a recording, and which replay cannot describe."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, Sampling
from workers.replay.replayer import recording_key

CHAIN = {"policy": "chain", "length": 3}
DYNAMIC = {"policy": "dynamic", "depth": 2, "width": 2, "nodes": 3}


def config(
    tree: dict[str, Any], drafter: str = "eagle", temperature: float = 1.0, **acceptance: Any
) -> DecodingConfig:
    mapping = {"drafter": drafter, "tree": tree, "acceptance": acceptance}
    return DecodingConfig.from_mapping(mapping).with_sampling(Sampling(temperature=temperature))


def test_rules_and_sizes_share_a_recording_but_kinds_of_children_do_not() -> None:
    longer = config(CHAIN | {"length": 5}, schedule="constant", budget=1.5)
    static = config({"policy": "static", "paths": [[0], [1]]})
    assert recording_key(config(CHAIN)) == recording_key(longer) == recording_key(static)
    others = [
        config(CHAIN | {"children": "top"}),
        config(DYNAMIC),
        config(CHAIN, "medusa"),
        config(CHAIN, "jacobi"),
        config({"policy": "adjacency"}),
        config(CHAIN, "eagle", 0.5),
    ]
    assert len({recording_key(config(CHAIN)), *map(recording_key, others)}) == 7


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        (config(CHAIN, temperature=0.0), ("sampling", "temperature")),
        (config(CHAIN, "jacobi", temperature=0.0), ("sampling", "temperature")),
        (config(CHAIN, verification="block"), ("acceptance", "verification")),
        (config({"policy": "none"}, "vertical"), ("drafter",)),
        (config({"policy": "none"}, "rows"), ("drafter",)),
        (config(CHAIN, "jacobi_rows"), ("drafter",)),
        (config({"policy": "window", "length": 4}), ("tree", "policy")),
        (config(CHAIN, verification="traversal"), ("acceptance", "verification")),
        (
            config({"policy": "branching", "length": 4, "width": 2, "depth": 1}, "jacobi"),
            ("tree", "policy"),
        ),
    ],
)
def test_what_replay_cannot_describe_is_refused(
    setting: DecodingConfig, path: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        recording_key(setting)
    assert refused.value.path == path
