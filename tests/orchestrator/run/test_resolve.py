"""What a sweep leaves open is filled in, and a sweep is known again by the file that it was begun with."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.run.resolve import differences, filled
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import Sampling

OWN = Sampling(temperature=1.0, top_k=0, top_p=1.0, cfg=1.5)
SPACE = """
name: open
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 4}}}
"""


def sweep(more: str = "", **changes: Any) -> SweepConfig:
    return SweepConfig.parse(SPACE + more, "open.yaml", changes)


def begun(config: SweepConfig) -> SweepConfig:
    """As the store has it when the sweep goes on."""
    return SweepConfig.parse(filled(config, OWN).to_yaml(), "sweep.yaml")


@pytest.mark.parametrize(
    "more",
    [
        "",
        "enqueue: [lantern]",
        "enqueue: [lantern, vanilla]",
        "enqueue: [{label: plain, drafter: none}]",
        "sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}",
        "enqueue: [{preset: lantern, sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}}, lantern]",
    ],
)
def test_a_sweep_is_known_again(more: str) -> None:
    config = sweep(more)
    before = begun(config)
    assert before.enqueue[0].label == "vanilla"
    assert all(entry.config.sampling for entry in before.enqueue)
    assert differences(before, config) == []
    assert differences(before, sweep(more, **{"budget.trials": 99})) == []


def test_another_sweep_is_told_by_its_sections() -> None:
    before = begun(sweep("enqueue: [lantern]"))
    assert differences(before, sweep()) == ["enqueue"]
    assert differences(before, sweep("enqueue: [lantern]", **{"quality.shard": 7})) == ["quality"]
    assert differences(before, sweep("enqueue: [lantern]\nmetrics: [fid, speedup]")) == ["metrics"]
    other = "enqueue: [lantern]\nsampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 3.0}"
    assert "sampling" in differences(before, sweep(other))


def test_vanilla_is_the_baselines_name() -> None:
    config = sweep("enqueue: [{label: vanilla, drafter: eagle, tree: {policy: chain, length: 2}}]")
    with pytest.raises(ConfigError, match="another label"):
        filled(config, OWN)
