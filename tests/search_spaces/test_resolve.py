"""Defaults of a sweep that are filled in, and the comparison with the sweep that is resumed."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import Sampling

DEFAULTS = Sampling(temperature=1.0, top_k=0, top_p=1.0, cfg=1.5)
SPACE = """
name: open
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 4}}}
"""


def sweep(more: str = "", **changes: Any) -> SweepConfig:
    return SweepConfig.parse(SPACE + more, "open.yaml", changes)


def stored(config: SweepConfig) -> SweepConfig:
    """The sweep as the store has it."""
    return SweepConfig.parse(config.resolve(DEFAULTS).to_yaml(), "sweep.yaml")


@pytest.mark.parametrize(
    "more",
    [
        "",
        "enqueue: [lantern]",
        "enqueue: [lantern, vanilla]",
        "enqueue: [{label: plain, drafter: none}]",
        "sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}",
        (
            "enqueue: [{preset: lantern, sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: "
            "3.0}}, lantern]"
        ),
    ],
)
def test_a_resumed_sweep_equals_the_stored_one(more: str) -> None:
    config = sweep(more)
    before = stored(config)
    assert before.enqueue[0].label == "vanilla"
    assert all(entry.config.sampling for entry in before.enqueue)
    assert config.changes(before) == {}
    assert sweep(more, **{"budget.trials": 99}).changes(before) == {}


def test_another_sweep_differs_in_its_sections() -> None:
    before = stored(sweep("enqueue: [lantern]"))
    assert list(sweep().changes(before)) == ["enqueue"]
    assert sweep("enqueue: [lantern]", **{"quality.shard": 7}).changes(before) == {
        "quality.shard": (48, 7)
    }
    assert sweep("enqueue: [lantern]\nmetrics: [fid, speedup]").changes(before) == {
        "metrics": (None, ["fid", "speedup"])
    }
    other = "enqueue: [lantern]\nsampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}"
    assert "sampling.cfg" in sweep(other).changes(before)


def test_vanilla_is_reserved_for_the_baseline() -> None:
    config = sweep("enqueue: [{label: vanilla, drafter: eagle, tree: {policy: chain, length: 2}}]")
    with pytest.raises(ConfigError, match="another label"):
        config.resolve(DEFAULTS)
