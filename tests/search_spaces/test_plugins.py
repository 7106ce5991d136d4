"""Registries, and plugins that add to them: by entry point, by module name, by environment
variable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from search_spaces import plugins
from search_spaces.neighbourhoods import NEIGHBOURHOODS
from search_spaces.params import ConfigError
from search_spaces.plugins import PLUGINS_VARIABLE, Registry, load_object, load_plugins
from search_spaces.presets import PRESETS
from search_spaces.samplers import SAMPLERS, register_sampler
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES
from search_spaces.trial import DecodingConfig, flat_types

ROOT = Path(__file__).parents[2]
PLUGIN = '''
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.neighbourhoods import NEIGHBOURHOODS, NoNeighbourhood
from search_spaces.schedules import SCHEDULES, Constant
from search_spaces.params import Range
from search_spaces.trees import POLICIES, TreeBounds, TreePolicy


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Widened(NoNeighbourhood):
    kind: ClassVar[str] = "widened"
    share: Annotated[float, "share of the neighbours' mass", Range(0, 1)]


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Steady(Constant):
    kind: ClassVar[str] = "steady"


@POLICIES.register
@dataclass(frozen=True, slots=True)
class Comb(TreePolicy):
    """One node with `teeth` children."""

    kind: ClassVar[str] = "comb"
    implementation: ClassVar[str] = f"{__name__}:draft_comb"
    teeth: Annotated[int, "children of the root", Range(1)]

    @property
    def bounds(self) -> TreeBounds:
        return TreeBounds(1, self.teeth, self.teeth)


def draft_comb():
    return "a comb"
'''
COMB = {
    "drafter": "eagle",
    "tree": {"policy": "comb", "teeth": 3},
    "acceptance": {"neighbourhood": "widened", "share": 0.5, "schedule": "steady", "budget": 1.2},
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a plugin in the working directory; what it registers goes again."""
    name = f"comb_plugin_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plugins, "_loaded", set())
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    registries: tuple[Registry[object], ...] = (NEIGHBOURHOODS, SCHEDULES, POLICIES)  # type: ignore[assignment]
    for registry in registries:
        monkeypatch.setattr(registry, "_entries", {**registry})
    monkeypatch.setitem(sys.modules, name, sys)  # restores the absence of the module
    del sys.modules[name]
    return name


def assert_comb_works(name: str) -> None:
    config = DecodingConfig.from_mapping(COMB)
    assert DecodingConfig.from_mapping(config.to_mapping()) == config
    assert config.policy.bounds.nodes == 3
    assert load_object(config.policy.implementation)() == "a comb"
    assert config.policy.implementation == f"{name}:draft_comb"
    with pytest.raises(ConfigError, match="share"):
        DecodingConfig.from_mapping(COMB | {"acceptance": {"neighbourhood": "widened", "share": 2}})


def test_a_module_named_on_the_command_line_registers_its_kinds(module: str) -> None:
    load_plugins([module])
    load_plugins([module])
    assert_comb_works(module)


def test_worker_processes_find_the_plugins_in_the_environment(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, f" {module},")
    assert_comb_works(module)  # an unknown kind loads the plugins


def test_named_modules_are_passed_on_to_later_processes(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "json")
    load_plugins([module])
    assert os.environ[PLUGINS_VARIABLE] == f"json,{module}"


def test_an_installed_package_registers_its_kinds_by_an_entry_point(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        return (
            [metadata.EntryPoint("comb", module, group)] if group == "specfrontier.plugins" else []
        )

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.syspath_prepend(Path.cwd())
    assert_comb_works(module)


@pytest.mark.parametrize(
    ("text", "reason"), [("import nothing_such", "nothing_such"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_broken_plugin_is_named(module: str, text: str, reason: str) -> None:
    Path(f"{module}.py").write_text(text)
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(ConfigError, match=rf"{module}.*{reason}"):
            load_plugins([module])


def test_two_modules_with_one_kind_are_refused(module: str) -> None:
    Path("second_comb.py").write_text(PLUGIN)
    with pytest.raises(
        ConfigError, match=rf"'widened' is registered by both {module} and second_comb"
    ):
        load_plugins([module, "second_comb"])
    sys.modules.pop("second_comb", None)


def test_a_plugin_cannot_replace_a_sampler_or_a_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAMPLERS, "_entries", {**SAMPLERS})
    with pytest.raises(
        ConfigError, match=rf"'nsga2' is registered by both search_spaces\.samplers and {__name__}"
    ):
        register_sampler("nsga2", "optuna.samplers:RandomSampler")
    for largest in (7, 8):  # a cell of a notebook runs twice
        register_sampler("again", "optuna.samplers:RandomSampler", max_seed=largest)
    assert SAMPLERS["again"].max_seed == 8
    with pytest.raises(
        ConfigError, match=rf"'lantern' is registered by both search_spaces\.presets and {__name__}"
    ):
        PRESETS.add("lantern", DecodingConfig())


def test_lookup_suggests_the_nearest_name() -> None:
    registry: Registry[int] = Registry("thing")
    registry.add("alpha", 1)
    registry.add("beta", 2)
    assert list(registry) == ["alpha", "beta"]
    assert registry.lookup("beta") == 2
    with pytest.raises(
        ConfigError, match=r"alpha, beta, or a plugin's .*, got 'alpa'; did you mean 'alpha'\?"
    ):
        registry.lookup("alpa")
    with pytest.raises(ConfigError, match=r"package\.module:Name"):
        load_object("search_spaces.trees:Nothing")


STEP = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from search_spaces.schedules import SCHEDULES, Schedule


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Step(Schedule):
    kind: ClassVar[str] = "step"
    budget: Annotated[float, "budget of the first draft position"] = 2.0

    def omegas(self, levels: int) -> tuple[float, ...]:
        return (self.budget,) + (1.0,) * (levels - 1)

    @property
    def bounds(self) -> tuple[float, float]:
        return 1.0, self.budget
"""
BOUNDS = (
    "    @property\n    def bounds(self) -> tuple[float, float]:\n        return 1.0, self.budget\n"
)


def refusal(module: str, text: str, config: object) -> str:
    """The error with which a plugin's text, or a config that uses it, is refused; it must name the
    plugin's file.
    """

    def use() -> None:
        load_plugins([module])
        flat_types()
        DecodingConfig.from_mapping(config)

    Path(f"{module}.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        use()
    message = str(caught.value)
    assert f" in {Path.cwd() / module}.py" in message
    assert "\n" not in message
    return message.replace(f" in {Path.cwd() / module}.py", "")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (BOUNDS, "", "define bounds; every schedule needs them"),
        ('    kind: ClassVar[str] = "step"\n', "", "define kind; every schedule needs them"),
        ("    @property\n", "", "bounds is a property; write @property above it"),
        (
            "@dataclass(frozen=True, slots=True)\n",
            "",
            "write @dataclass(frozen=True, slots=True) below the line",
        ),
        ("(1.0,) * (levels - 1)", "()", "omegas(4) must return 4 numbers, got 1"),
        (
            "return 1.0, self.budget",
            "return 1.0, 1.0",
            "omegas(1) has 2, which is not within bounds, (1, 1); correct",
        ),
        ("return 1.0, self.budget", "return self.budget", "omegas(1) or bounds fails: TypeError"),
        (
            "(1.0,) * (levels - 1)",
            "(1 / (levels - 1),)",
            "omegas(1) or bounds fails: ZeroDivisionError",
        ),
        ("return (self.budget,)", "return (0.0,)", "omegas(1) has 0, which is not within bounds"),
    ],
)
def test_mistakes_in_a_schedule_name_its_file_class_and_fix(
    module: str, old: str, new: str, problem: str
) -> None:
    assert STEP.count(old) == 1
    config = {
        "drafter": "eagle",
        "tree": {"policy": "chain", "length": 4},
        "acceptance": {"schedule": "step"},
    }
    assert f"class Step: {problem}" in refusal(module, STEP.replace(old, new), config)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "TreeBounds(1, self.teeth, self.teeth)",
            "(1, self.teeth, 1)",
            "class Comb: bounds must be TreeBounds",
        ),
        (
            '    implementation: ClassVar[str] = f"{__name__}:draft_comb"\n',
            "",
            "class Comb: define implementation",
        ),
        (
            'teeth: Annotated[int, "children',
            'teeth: Unknown[int, "children',
            "class Comb: name 'Unknown' is not defined",
        ),
        (
            "    share:",
            '    budget: Annotated[str, "a word"]\n    share:',
            "class Widened: the key 'budget' is str here but",
        ),
    ],
)
def test_mistakes_in_trees_and_neighbourhoods_name_their_file(
    module: str, old: str, new: str, problem: str
) -> None:
    assert PLUGIN.count(old) == 1
    assert problem in refusal(
        module, f"from __future__ import annotations\n{PLUGIN.replace(old, new)}", COMB
    )


def test_a_plugin_is_named_by_its_module_and_its_error_by_its_line(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=rf"'{module}\.py' is a file; give the module's name, {module}$"
    ):
        load_plugins([f"{module}.py"])
    Path(f"{module}.py").write_text("x = (\n")
    with pytest.raises(
        ConfigError, match=rf"SyntaxError: .*{module}\.py, line 1\); correct the module$"
    ):
        load_plugins([module])
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    with pytest.raises(
        ConfigError, match=r"'nothing_such' cannot be imported: .*; correct the name in --plugin"
    ):
        load_plugins(["nothing_such"])


def test_an_implementation_without_its_methods_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^class TreePolicy in .*trees\.py: define bounds$"):
        load_object("search_spaces.trees:TreePolicy")


def test_presets_are_read_without_plugins(tmp_path: Path) -> None:
    """A plugin may need a module of the project that is just being imported, and so may the presets:
    a worker's evaluator imports them.
    """
    (tmp_path / "early.py").write_text(
        "import search_spaces.presets\nsearch_spaces.presets.PRESETS\n"
    )
    code = "import search_spaces.presets, sys; assert 'early' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", PLUGINS_VARIABLE: "early"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
