"""A part is one file: no other module of the product names it, and one that is added, also as a
plugin, is first class.

The tests add each kind of part by really writing its file, in the tree and outside of it, and count
the files.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.doctor.gpus import GPUS
from orchestrator.doctor.plan import models_for_plan, plan
from orchestrator.run.search import Search
from orchestrator.store.names import SettingNames
from search_spaces import plugins
from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import DRAFTERS
from search_spaces.modulations import MODULATIONS
from search_spaces.neighbourhoods import NEIGHBOURHOODS
from search_spaces.params import ConfigError
from search_spaces.plugins import Registry, load_plugins
from search_spaces.samplers import SAMPLERS
from search_spaces.schedules import SCHEDULES
from search_spaces.sweep import SweepConfig
from search_spaces.trees import POLICIES, Dynamic, Static
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import VERIFICATIONS
from tests.test_layout import sources
from workers.decoding.engine import Engine
from workers.decoding.kernels import FusedRule
from workers.decoding.state import Request
from workers.loading.models_yaml import find_entry, load_folder, load_on_meta
from workers.metrics.extractors import unavailable_metrics
from workers.metrics.metric import METRICS, MetricInputs, Rows
from workers.metrics.registry import compute_metrics
from workers.models.families.catalogue import FAMILIES
from workers.models.families.scenes import BUILTIN
from workers.replay.prediction_table import why_unpredictable
from workers.replay.replayer import Replayer
from workers.replay.subtrees import union_policy

PARTS_OF_CONFIGS: tuple[Registry[Any], ...] = (
    DRAFTERS,
    NEIGHBOURHOODS,
    POLICIES,
    SCHEDULES,
    MODULATIONS,
    VERIFICATIONS,
)
REGISTRIES: tuple[Registry[Any], ...] = (*PARTS_OF_CONFIGS, FAMILIES, METRICS, SAMPLERS)
#: The modules, beside those that define or implement a part, that may name one: the published
#: rules; vanilla; the window that a drafter keeps; what traversal is on a chain; what replay records for all fixed trees, and for
#: windows; the built-in model.
MAY_NAME = {
    "search_spaces.acceptance": {
        "Additive",
        "Multiplicative",
        "Grouped",
        "Constant",
        "Exponential",
        "NoNeighbourhood",
    },
    "search_spaces.drafters": {"Chain"},
    "search_spaces.rules.traversal": {"BlockVerification"},
    "search_spaces.trial": {"NoDrafter", "NoTree"},
    "workers.decoding.redraws": {"Jacobi"},
    "workers.loading.models_yaml": {"Scenes"},
    "workers.replay.replayer": {"Chain"},
    "workers.replay.subtrees": {"Static"},
    "workers.replay.windows": {"Constant"},
}
RULE = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.neighbourhoods import NEIGHBOURHOODS, Additive, FusedBound, NeededCodes
from search_spaces.params import Range


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Widened(Additive):
    kind: ClassVar[str] = "widened"
    short: ClassVar[str] = "wid"
    codes: Annotated[int, "codes that it looks at", Range(1)] = 5

    @property
    def needed_codes(self) -> NeededCodes:
        return NeededCodes("codes", "wide codes", self.codes)

    @property
    def fused(self) -> FusedBound:
        return FusedBound("multiplicative", self.k, self.delta)
"""
SCHEDULE = """
from dataclasses import dataclass
from typing import ClassVar

from search_spaces.schedules import SCHEDULES, Constant


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Steady(Constant):
    kind: ClassVar[str] = "steady_as_before"
    short: ClassVar[str] = "stdy"
"""
MODULATION = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from search_spaces.modulations import MODULATIONS, Modulation, Nodes
from search_spaces.params import Range, Symbol


@MODULATIONS.register
@dataclass(frozen=True, slots=True)
class Surest(Modulation):
    kind: ClassVar[str] = "surest"
    short: ClassVar[str] = "sur"
    reads_probs: ClassVar[bool] = True
    share: Annotated[float, "of the largest probability", Range(0, 1), Symbol("s")] = 1.0

    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.probs.amax(1) * self.share
"""
VERIFICATION = """
from dataclasses import dataclass
from typing import ClassVar

from search_spaces.verification import VERIFICATIONS, ChainTests, Lengths, Verification


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class WholeChain(Verification):
    kind: ClassVar[str] = "whole_chain"
    short: ClassVar[str] = "whole"
    exact: ClassVar[bool] = False

    def lengths(self, tests: ChainTests) -> Lengths:
        return Lengths(tests.ratios.prod(1, keepdim=True).clamp_max(1) * tests.eligible)
"""
FIXED_TREE = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.params import Range
from search_spaces.static_trees import StaticTree
from search_spaces.trees import POLICIES, FixedShape, TreeBounds, TreePolicy


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
GROWN_TREE = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.params import Range
from search_spaces.trees import POLICIES, TreeBounds, TreePolicy, TreeSize


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Square(TreePolicy):
    kind: ClassVar[str] = "square"
    short: ClassVar[str] = "sqr"
    implementation: ClassVar[str] = "workers.decoding.dynamic_tree:DynamicTree"
    side: Annotated[int, "levels, and children of a node", Range(1)]

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(self.side, self.side**2, self.side)

    @property
    def sizes(self) -> tuple[TreeSize, ...]:
        return (TreeSize(self.side, self.side, self.side**2),)
"""
ADAPTING_TREE = """
from dataclasses import dataclass
from typing import ClassVar

from search_spaces.trees import POLICIES, Adjacency


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Nearby(Adjacency):
    kind: ClassVar[str] = "nearby"
    short: ClassVar[str] = "near"
"""
DRAFTER = """
from dataclasses import dataclass
from typing import ClassVar

from search_spaces.drafters import DRAFTERS, DrafterChoice
from workers.drafters.eagle import EagleDrafter


@DRAFTERS.register
@dataclass(frozen=True, slots=True)
class Copied(DrafterChoice):
    kind: ClassVar[str] = "copied"
    short: ClassVar[str] = "cpd"
    implementation: ClassVar[str] = f"{__name__}:CopiedDrafter"


class CopiedDrafter(EagleDrafter):
    kind = "copied"
"""
FAMILY = """
from dataclasses import dataclass
from typing import ClassVar

from workers.models.families.catalogue import FAMILIES
from workers.models.families.scenes import Scenes


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Murals(Scenes):
    kind: ClassVar[str] = "murals"
"""
METRIC = """
from workers.metrics.estimate import Estimate, block_mean
from workers.metrics.metric import MetricInputs, register_metric


@register_metric("slowest", direction="minimize", unit="passes", needs=("passes",))
def slowest(inputs: MetricInputs) -> Estimate:
    return block_mean(inputs.column("passes"), inputs.blocks)
"""
SAMPLER = """
from optuna.samplers import RandomSampler

from search_spaces.samplers import register_sampler


class Timid(RandomSampler):
    pass


register_sampler("timid", f"{__name__}:Timid")
"""
Add = Callable[[str, str], None]


def named_parts() -> Iterator[tuple[str, str]]:
    """The modules that import the class of a part of this project, and its name."""
    parts: dict[tuple[str, str], Any] = {}
    for registry in (*PARTS_OF_CONFIGS, FAMILIES):
        registry.load()
        parts |= {(part.__module__, part.__name__): part for part in registry.values()}
    for module, (_, tree) in sources().items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        for name in {
            (node.module or "", alias.name) for node in imports for alias in node.names
        } & parts.keys():
            if module != getattr(parts[name], "implementation", "").partition(":")[0]:
                yield module, name[1]


def test_no_other_module_names_a_part() -> None:
    found: dict[str, set[str]] = {}
    for module, name in named_parts():
        found.setdefault(module, set()).add(name)
    assert found == MAY_NAME


@pytest.fixture(params=["in the tree", "as a plugin"])
def add(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Add]:
    """Writes a part as one file of a package, or of another folder. Nothing else changes; all goes
    at the end.
    """
    monkeypatch.setattr(plugins, "_loaded", {*plugins._loaded})
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, "")
    for registry in REGISTRIES:
        registry.load()
        monkeypatch.setattr(registry, "_entries", {**registry})
    monkeypatch.syspath_prepend(str(tmp_path / "outside"))
    names: list[str] = []

    def add_part(text: str, package: str) -> None:
        is_plugin = request.param == "as a plugin"
        folder, name = tmp_path / ("outside" if is_plugin else "inside"), f"added_{len(names)}"
        names.append(name if is_plugin else f"{package}.{name}")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        if is_plugin:
            load_plugins([name])
        else:
            parent = importlib.import_module(package)
            monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(folder)])

    yield add_part
    assert len([*tmp_path.rglob("*.py")]) == len(names)
    for name in names:
        sys.modules.pop(name, None)


def setting(drafter: str = "eagle", tree: Any = None, acceptance: Any = "exact") -> DecodingConfig:
    tree = {"policy": "chain", "length": 2} if tree is None else tree
    return DecodingConfig.from_mapping(
        {"drafter": drafter, "tree": tree, "acceptance": acceptance}, Sampling()
    )


def sweep_of(config: DecodingConfig, **sections: Any) -> SweepConfig:
    """A sweep whose space is one setting."""
    space = {key: value for key, value in config.to_mapping().items() if key != "sampling"}
    shared = {
        "name": "added",
        "captions": {"source": "scenes", "count": 96},
        "objectives": ["speedup", "fid"],
    }
    return SweepConfig.from_mapping({**shared, "space": space, **sections})


def assert_first_class(config: DecodingConfig, name: str) -> None:
    """The setting has a short name, is in a search space, is predicted by replay, and is planned by
    the doctor.
    """
    assert SettingNames(Sampling()).name(config) == name
    sweep = sweep_of(config)
    (branch,) = sweep.space.branches()
    assert [branch.config(corner, Sampling()) for corner in branch.corners()] == [config]
    assert why_unpredictable(config) is None
    found = plan(sweep, models_for_plan(sweep), 1, GPUS[0], 2.0)
    assert found["heaviest setting"] == "the largest of the space"
    assert found["memory"]["quality"]["cache"] > 0


def test_rules(add: Add) -> None:
    add(RULE, "search_spaces.rules")
    rule = {"neighbourhood": "widened", "k": 4, "delta": 0.2}
    config = setting(acceptance=rule)
    assert_first_class(config, "eagle-chain2 widened(k4,d0.2)")
    assert FusedRule.of(config.acceptance, sampled=False) == FusedRule(3, 4, (0.2, 0.0), True, True)
    config.check_model(64)
    with pytest.raises(ConfigError, match="5 wide codes are more than the 4 codes"):
        config.check_model(4)


def test_rules_that_state_no_fused_form_run_without_the_kernel(add: Add) -> None:
    """Although a rule that it inherits from has one."""
    add(RULE[: RULE.rindex("    @property")], "search_spaces.rules")
    rule = setting(acceptance={"neighbourhood": "widened", "k": 4, "delta": 0.2}).acceptance
    assert FusedRule.of(rule, sampled=False) is None
    exact = AcceptanceRule(type(rule.neighbourhood)(k=1, delta=0.2))  # type: ignore[call-arg]
    assert FusedRule.of(exact, sampled=False) is not None


def test_schedules(add: Add) -> None:
    add(SCHEDULE, "search_spaces.rules")
    config = setting(acceptance={"schedule": "steady_as_before", "budget": 1.25})
    assert_first_class(config, "eagle-chain2 steady_as_before(b1.25)")
    longer = setting(
        tree={"policy": "static", "name": "small_7"}, acceptance=config.acceptance.to_mapping()
    )
    assert SettingNames(Sampling()).name(longer) == "eagle-stat(small_7) stdy(b1.25)"


def test_modulations(add: Add) -> None:
    add(MODULATION, "search_spaces.rules")
    config = setting(
        acceptance={"schedule": "constant", "budget": 1.25, "modulation": "surest", "share": 0.5}
    )
    assert_first_class(config, "eagle-chain2 const(b1.25)+sur(s0.5)")


def test_verifications(add: Add) -> None:
    add(VERIFICATION, "search_spaces.rules")
    config = setting(acceptance={"verification": "whole_chain"})
    assert SettingNames(Sampling()).name(config) == "eagle-chain2 whole_chain"
    assert not config.is_lossless(Sampling())
    (branch,) = sweep_of(config).space.branches()
    assert [branch.config(corner, Sampling()) for corner in branch.corners()] == [config]
    models = load_folder()
    engine = Engine(models.target, config, models.drafters["eagle"], batch_size=2)
    for result in engine.run([Request(0, "a red circle"), Request(1, "a blue square")]):
        # 2 at the end of an image alone
        assert set(result.statistics.emitted.tolist()) <= {1, 2, 3}


def test_fixed_trees(add: Add) -> None:
    add(FIXED_TREE, "workers.decoding")
    config = setting(tree={"policy": "horizontal_comb", "teeth": 3}, acceptance="lantern")
    assert_first_class(config, "eagle-comb(teeth3) add(k100,d0.1)")
    assert union_policy([config.policy, Static(paths=((0,), (0, 0)))]).bounds == (2, 4, 3)


def test_grown_trees(add: Add) -> None:
    add(GROWN_TREE, "workers.decoding")
    square = setting(tree={"policy": "square", "side": 2})
    assert_first_class(square, "eagle-square(side2) exact")
    assert union_policy([square.policy]) == union_policy([Dynamic(2, 2, 4)])


def test_trees_that_adapt(add: Add) -> None:
    add(ADAPTING_TREE, "workers.decoding")
    ranges = {
        "depth_range": [2, 3],
        "width_range": [2, 3],
        "start_depth": 2,
        "start_width": 2,
        "nodes": 6,
    }
    nearby, adjacency = (
        setting(tree={"policy": kind, **ranges}) for kind in ("nearby", "adjacency")
    )
    assert_first_class(nearby, "eagle-near(n6,d2..3,w2..3,sd2,sw2) exact")
    assert union_policy([nearby.policy]) == union_policy([adjacency.policy])


@pytest.mark.parametrize("add", ["as a plugin"], indirect=True)
def test_predictions_are_those_of_equal_trees_of_this_project(add: Add) -> None:
    add(GROWN_TREE, "")
    add(ADAPTING_TREE, "")
    ranges = {
        "depth_range": [2, 2],
        "width_range": [2, 2],
        "start_depth": 2,
        "start_width": 2,
        "nodes": 4,
    }
    trees = [
        {"policy": "square", "side": 2},
        {"policy": "dynamic", "depth": 2, "width": 2, "nodes": 4},
    ]
    trees += [{"policy": kind, **ranges} for kind in ("nearby", "adjacency")]
    models = load_folder()
    configs = [setting(tree=tree).with_sampling(models.target.sampling) for tree in trees]
    replayer = Replayer(
        models, [Request(0, "a red ring"), Request(1, "a blue ring")], batch=2, max_steps=32
    )
    replayer.record(configs)
    square, dynamic, nearby, adjacency = (replayer.predict(config) for config in configs)
    assert square == dynamic
    assert nearby == adjacency
    assert nearby.approximate


def test_drafters(add: Add) -> None:
    add(DRAFTER, "workers.drafters")
    config = setting("copied")
    assert_first_class(config, "copied-chain2 exact")
    (assumed, *_) = plan(sweep_of(config), models_for_plan(sweep_of(config)), 1, GPUS[0], 2.0)[
        "assumed"
    ]
    assert assumed == "the EAGLE drafter is one layer of the target's width"
    config.check_model(64, drafters={"copied": 1 + config.policy.bounds.depth})
    with pytest.raises(
        ConfigError, match="2 levels are more than the 1 that the copied drafter can draft"
    ):
        config.check_model(64, drafters={"copied": 1})
    with pytest.raises(ConfigError, match="no 'copied' drafter"):
        config.check_model(64, drafters={"eagle": None})


def test_families(add: Add, tmp_path: Path) -> None:
    add(FAMILY, "workers.models.families")
    (tmp_path / "models.yaml").write_text(f"wall: {{family: murals, folder: {BUILTIN}}}")
    entry = find_entry(str(tmp_path / "models.yaml"), "wall")
    assert load_on_meta(entry, torch.float32).target.vocab_size == load_folder().target.vocab_size
    sweep = sweep_of(setting(), models=str(tmp_path / "models.yaml"))
    assert plan(sweep, models_for_plan(sweep), 1, GPUS[0], 2.0)["fits"]


def test_metrics(add: Add) -> None:
    add(METRIC, "workers.metrics")
    sweep = sweep_of(
        setting(), objectives=["speedup", "slowest"], constraints=["slowest <= vanilla"]
    )
    options: Any = {
        "image_size": 48,
        "captions": ["a red ring"],
        "weights": None,
        "reference": False,
    }
    assert (
        unavailable_metrics(sorted(sweep.requested_metrics | {"slowest"}), BUILTIN, **options) == {}
    )
    rows = Rows.merge(
        [
            {
                "caption_id": torch.arange(4),
                "sample": torch.zeros(4),
                "position": torch.arange(4),
                "passes": torch.tensor([1.0, 2.0, 3.0, 6.0]),
            }
        ]
    )
    estimates, skipped = compute_metrics(MetricInputs(images=rows), ["slowest"])
    assert (estimates["slowest"].value, skipped) == (3.0, {})


def test_samplers(add: Add) -> None:
    add(SAMPLER, "orchestrator.run")
    space = {"drafter": "eagle", "tree": {"policy": "chain", "length": {"low": 2, "high": 6}}}
    sweep = sweep_of(setting(), space=space, search={"sampler": "timid", "seed": 3})
    search = Search(sweep.resolve(Sampling()), ["maximize", "minimize"])
    proposed = [search.propose(number).config for number in range(3)]
    assert all(config is not None for config in proposed)
    assert proposed[1] is not None
    assert proposed[1].policy.kind == "chain"
