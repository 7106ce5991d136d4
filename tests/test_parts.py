"""A part of a config is one file: no other module of the product names it, and a plugin's is first class."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.results.names import SettingNames
from search_spaces import plugins
from search_spaces.drafters import DRAFTERS
from search_spaces.neighbourhoods import NEIGHBOURHOODS
from search_spaces.params import ConfigError
from search_spaces.plugins import Registry, is_external, load_plugins
from search_spaces.schedules import SCHEDULES
from search_spaces.sweep import SweepConfig
from search_spaces.trees import POLICIES, Static
from search_spaces.trial import DecodingConfig, Sampling
from tests.test_layout import sources
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.loading.models_yaml import BUILTIN_NAME, find_entry, load_on_meta
from workers.loading.shape_only import ShapeOnlyModels, add_drafter
from workers.replay.prediction_table import why_unpredictable
from workers.replay.subtrees import union_policy

REGISTRIES: tuple[Registry[Any], ...] = (DRAFTERS, NEIGHBOURHOODS, POLICIES, SCHEDULES)
#: The modules, beside those that define or implement a part, that may name one: the published rules; vanilla; the
#: kernel's own rules; what replay records for trees whose drafts depend on scores or on the rule.
MAY_NAME = {
    "search_spaces.acceptance": {"Additive", "Multiplicative", "Grouped", "Constant", "Exponential", "NoNeighbourhood"},
    "search_spaces.drafters": {"Chain"},
    "search_spaces.trial": {"Grouped", "NoDrafter", "NoTree"},
    "workers.decoding.kernels": {"Additive", "Multiplicative", "NoNeighbourhood"},
    "workers.replay.nested_trees": {"Adjacency", "Dynamic"},
    "workers.replay.replayer": {"Adjacency", "Chain"},
    "workers.replay.simulation": {"Adjacency", "Dynamic"},
    "workers.replay.subtrees": {"Adjacency", "Chain", "Dynamic", "Static"},
    "workers.replay.windows": {"Constant"},
}
PLUGIN = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.drafters import DRAFTERS, DrafterChoice
from search_spaces.neighbourhoods import NEIGHBOURHOODS, NeededCodes, NoNeighbourhood
from search_spaces.params import Range
from search_spaces.trees import POLICIES, FixedShape, StaticTree, TreeBounds, TreePolicy
from workers.drafters.eagle import EagleDrafter


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Copied(DrafterChoice):
    kind: ClassVar[str] = "copied"
    short: ClassVar[str] = "cpd"
    implementation: ClassVar[str] = f"{__name__}:CopiedDrafter"


class CopiedDrafter(EagleDrafter):
    kind = "copied"


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Widened(NoNeighbourhood):
    kind: ClassVar[str] = "widened"
    short: ClassVar[str] = "wid"
    codes: Annotated[int, "codes that it looks at", Range(1)]

    @property
    def needed_codes(self) -> NeededCodes:
        return NeededCodes("codes", "wide codes", self.codes)


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Comb(TreePolicy):
    kind: ClassVar[str] = "horizontal_comb"
    short: ClassVar[str] = "comb"
    implementation: ClassVar[str] = "workers.decoding.fixed_tree:FixedTree"
    teeth: Annotated[int, "children of the root", Range(1)]

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(1, self.teeth, self.teeth)

    @property
    def fixed(self) -> FixedShape:
        return FixedShape(StaticTree.from_paths([(rank,) for rank in range(self.teeth)]), True)
"""
SWEEP = """
name: outside
captions: {source: scenes, count: 96}
objectives: [speedup, fid]
budget: {trials: 4}
space:
  drafter: copied
  tree: {policy: horizontal_comb, teeth: {low: 2, high: 3}}
  acceptance: {neighbourhood: widened, codes: 5, schedule: exponential}
"""


def named_parts() -> Iterator[tuple[str, str]]:
    """The modules that import the class of a part of this project, and its name."""
    for registry in REGISTRIES:
        registry.load()
        for part in registry.values():
            if is_external(part.__module__):
                continue
            own = {part.__module__, getattr(part, "implementation", "").partition(":")[0]}
            for module, (_, tree) in sources().items():
                imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
                origins = {alias.name: node.module for node in imports for alias in node.names}
                if module not in own and origins.get(part.__name__) == part.__module__:
                    yield module, part.__name__


def test_no_other_module_names_a_part() -> None:
    found: dict[str, set[str]] = {}
    for module, name in named_parts():
        found.setdefault(module, set()).add(name)
    assert found == MAY_NAME


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DecodingConfig:
    """A setting with a drafter, a tree policy and a rule from one file outside of the project."""
    (tmp_path / "outside_parts.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_loaded", {*plugins._loaded})
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, "")
    for registry in REGISTRIES:
        registry.load()
        monkeypatch.setattr(registry, "_entries", {**registry})
    monkeypatch.delitem(sys.modules, "outside_parts", raising=False)
    load_plugins(["outside_parts"])
    rule = {"neighbourhood": "widened", "codes": 5, "schedule": "exponential"}
    tree = {"policy": "horizontal_comb", "teeth": 3}
    return DecodingConfig.from_mapping({"drafter": "copied", "tree": tree, "acceptance": rule}, Sampling())


def test_parts_from_outside_have_short_names(config: DecodingConfig) -> None:
    assert SettingNames(Sampling()).name(config) == "cpd-comb(teeth3) wid(codes5)+exp"


def test_replay_predicts_parts_from_outside(config: DecodingConfig) -> None:
    assert why_unpredictable(config) is None
    assert union_policy([config.policy, Static(paths=((0,), (0, 0)))]).bounds == (2, 4, 3)


def test_plans_have_parts_from_outside(config: DecodingConfig) -> None:
    models = load_on_meta(find_entry(BUILTIN_NAME), torch.float32)
    found = add_drafter(ShapeOnlyModels(Models(models.target, {}, {})), config)
    assert found is not None
    assert found.assumptions == ("the EAGLE drafter is one layer of the target's width",)
    assert footprint(found.models, config, batch=2, pictures=1).cache > 0


def test_models_limit_parts_from_outside(config: DecodingConfig) -> None:
    config.check_model(64, drafters={"copied": 1})
    with pytest.raises(ConfigError, match="5 wide codes are more than the 4 codes"):
        config.check_model(4)
    with pytest.raises(ConfigError, match="no 'copied' drafter"):
        config.check_model(64, drafters={"eagle": None})


def test_sweeps_search_parts_from_outside(config: DecodingConfig) -> None:
    (branch,) = SweepConfig.parse(SWEEP, "outside.yaml").space.branches()
    assert config in [branch.config(corner, Sampling()) for corner in branch.corners()]
