"""A sweep that was launched with a plugin, read by a process that was started without it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.front.front import front_of
from orchestrator.report.answer import answer
from orchestrator.store.files import read_sweep_text, with_plugins, write_sweep_text
from orchestrator.store.identity import read_identity, write_identity
from orchestrator.store.records import read_trials, trial_file, write_trial
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError
from search_spaces.plugins import load_plugins, plugin_modules
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.plugin_modules import forget_plugins, write_plugin
from tests.fakes.synthetic_sweeps import SAMPLING, write_sweep
from workers.data.checked_json import dump_checked, load_checked
from workers.data.storage import Storage
from workers.models.families.catalogue import FAMILIES

READERS = (("status",), ("pareto",), ("report",), ("sync",))
ADVICE_TO_DELETE = re.compile(r"\b(remove|delete) (it|the)\b")
SPACE = """\
name: added
captions: {source: scenes, count: 96}
objectives: [speedup, fid]
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}, acceptance: {schedule: added, budget: 1.5}}
"""


def write_sweep_of(
    module: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """A sweep with trial 3 of a plugin's schedule, as a launch with --plugin stores it; no plugin
    is loaded then.
    """
    forget_plugins(monkeypatch, module)
    load_plugins([module])
    write_sweep(folder, 8, name=folder.name, failed=(), plugins=[module])
    storage = Storage(folder)
    rule = {"schedule": kind, "budget": 1.5}
    config = DecodingConfig.from_mapping(
        {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}, "acceptance": rule}
    )
    write_trial(
        storage, replace(read_trials(storage)[3], label="", config=config.with_sampling(SAMPLING))
    )
    forget_plugins(monkeypatch, module)
    return storage


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A sweep `added`, whose plugin `added_rules` is in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    module = write_plugin(tmp_path / "added_rules.py", "added")
    return write_sweep_of(module, "added", tmp_path / "sweeps" / "added", monkeypatch)


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_commands_load_the_plugins_of_a_sweep(storage: Storage, command: tuple[str, ...]) -> None:
    assert specfrontier(*command, "added").code == 0
    assert "added_rules" in sys.modules


def test_the_python_api_loads_them_too(storage: Storage) -> None:
    config = Sweep.open("added").records[3].config
    assert config is not None
    assert config.acceptance.schedule.kind == "added"
    assert plugin_modules() == ["added_rules"], "workers that start now get it"


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_missing_plugin_is_named(storage: Storage, command: tuple[str, ...]) -> None:
    Path("added_rules.py").unlink()
    message = error_of(*command, "added", code=2 if command == ("sync",) else 1)
    for part in (
        "trials/00003.json",
        "schedule",
        "'added'",
        "added_rules",
        "--plugin",
        "PYTHONPATH",
    ):
        assert part in message
    assert not ADVICE_TO_DELETE.search(message)


def test_a_config_file_names_its_plugin(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert specfrontier("pareto", "added", "--trial", "3", "--config", "mine.yaml").code == 0
    forget_plugins(monkeypatch, "added_rules")
    message = error_of("generate", "a red circle", "--config", "mine.yaml", code=2)
    assert message.endswith(
        "; the file's comments name its plugin: specfrontier --plugin added_rules generate\n"
    )


def test_another_module_may_define_the_same(storage: Storage) -> None:
    Path("added_rules.py").rename("moved_rules.py")
    assert specfrontier("--plugin", "moved_rules", "pareto", "added").code == 0
    sys.modules.pop("moved_rules", None)


def test_a_plugin_that_no_trial_needs_is_not_imported(storage: Storage) -> None:
    (Path(storage.uri) / trial_file(3)).unlink()
    Path("added_rules.py").write_text("raise SystemError")
    assert specfrontier("pareto", "added").code == 0


@pytest.mark.parametrize("module", ["planted", "sweeps.added.planted", "inner.planted"])
def test_a_sweep_brings_no_code(
    storage: Storage, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plugins are names of modules that the user has, wherever a command is run."""
    folder = Path(storage.uri)
    for place in (folder / "planted.py", folder / "inner" / "planted.py"):
        write_plugin(place, "added")
    (folder / "inner" / "__init__.py").touch()
    identity = read_identity(storage)
    assert identity is not None
    write_identity(storage, replace(identity, plugins=(module,)))
    for working_directory in (Path.cwd(), folder):
        monkeypatch.chdir(working_directory)
        forget_plugins(monkeypatch)
        assert module in error_of("pareto", str(folder), code=1)
        assert module not in sys.modules
    forget_plugins(monkeypatch)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert module in error_of("pareto", str(folder), code=1)


@pytest.mark.parametrize("plugins", [["../rules"], ["/tmp/rules"], "rules", [3], [""]])
def test_only_names_of_modules_are_plugins(storage: Storage, plugins: object) -> None:
    path = Path(storage.uri) / "identity.json"
    path.write_bytes(dump_checked(load_checked(path.read_bytes()) | {"plugins": plugins}))
    assert "identity.json: written by another version" in error_of("pareto", "added", code=1)


def test_two_sweeps_whose_plugins_define_one_name(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may stand for one rule only, so that no trial is shown as another one."""
    module = write_plugin(Path("other_rules.py"), "added")
    write_sweep_of(module, "added", Path("sweeps/other").absolute(), monkeypatch)
    forget_plugins(monkeypatch, module, "added_rules")
    message = error_of("compare", "added", "other", code=1)
    assert "'added' is registered by both added_rules and other_rules" in message


def test_two_sweeps_with_different_plugins(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write_plugin(Path("other_rules.py"), "other")
    write_sweep_of(module, "other", Path("sweeps/other").absolute(), monkeypatch)
    forget_plugins(monkeypatch, module, "added_rules")
    assert specfrontier("compare", "added", "other").code == 0


def test_an_intact_record_is_never_to_be_removed(storage: Storage) -> None:
    path = Path(storage.uri) / trial_file(2)
    path.write_bytes(dump_checked(load_checked(path.read_bytes()) | {"new_field": 1}))
    message = error_of("pareto", "added", code=1)
    assert "new_field" in message
    assert not ADVICE_TO_DELETE.search(message)
    path.rename(path.with_name("00012.json"))
    path.with_name("00012.json").write_bytes((Path(storage.uri) / trial_file(1)).read_bytes())
    assert "remove it" in error_of("pareto", "added", code=1), "trial 1 has its own file"
    (Path(storage.uri) / trial_file(1)).unlink()
    assert "rename it" in error_of("pareto", "added", code=1)


def test_the_printed_command_reads_the_written_config(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = specfrontier(
        "pareto", "added", "--where", "number=3", "--best", "fid<=1000", "--config", "fast.yaml"
    ).out
    command = re.findall(r"\((specfrontier .*)\)", out)[-1]
    assert command == 'specfrontier --plugin added_rules generate "..." --config fast.yaml'
    forget_plugins(monkeypatch, "added_rules")
    assert "schedule" in error_of("generate", "--config", "fast.yaml", code=2)
    plugin = command.split()[1:3]
    assert "no captions" in error_of(*plugin, "generate", "--config", "fast.yaml", code=2), (
        "the config was read"
    )
    assert with_plugins("generate", DecodingConfig().plugins) == ["specfrontier", "generate"]


FAMILY = """
from dataclasses import dataclass
from typing import ClassVar
from workers.models.families.catalogue import FAMILIES, Family

@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Added(Family):
    kind: ClassVar[str] = "added"

    def load(self, device, dtype):
        raise ValueError("the plugin's family loads")
"""


def test_the_report_loads_a_family_that_no_record_names(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("added_family.py").write_text(FAMILY)
    forget_plugins(monkeypatch, "added_family")
    monkeypatch.setattr(FAMILIES, "_entries", {**FAMILIES.all()})
    Path("models.yaml").write_text("mine: {family: added}\n")
    write_sweep(
        Path("sweeps/drawn"),
        4,
        name="drawn",
        failed=(),
        shards=True,
        models={},
        plugins=["added_family"],
    )
    drawn = Storage("sweeps/drawn")
    write_sweep_text(drawn, f"{read_sweep_text(drawn)}models: {{file: models.yaml}}\n")
    assert "the plugin's family loads" in specfrontier("report", "drawn").err
    command = answer(front_of([Sweep.open("drawn")]))["commands"]["generate"]
    assert command.startswith("specfrontier --plugin added_family generate ")


def test_a_resumed_launch_loads_them(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("added.yaml").write_text(SPACE)
    assert "or a plugin's" in error_of("launch", "added.yaml", "--check", "--name", "new", code=2)
    load_plugins(["added_rules"])
    write_sweep_text(storage, SweepConfig.read("added.yaml").resolve(SAMPLING).to_yaml())
    forget_plugins(monkeypatch, "added_rules")
    launched = specfrontier("launch", "added.yaml", "--resume", "--check", "--seed", "1")
    assert "seed was 0, is 1" in launched.err, launched.err
    forget_plugins(monkeypatch, "added_rules")
    Path("added_rules.py").unlink()
    message = error_of("launch", "added.yaml", "--resume", code=2)
    assert "added.yaml:4: space.acceptance.schedule" in message
    assert "added_rules cannot be found" in message


def test_a_broken_plugin_of_a_sweep_is_named(storage: Storage) -> None:
    Path("added_rules.py").write_text("1 / 0")
    with pytest.raises(
        ConfigError, match=r"'added_rules' cannot be imported: ZeroDivisionError.*added_rules\.py"
    ):
        Sweep.open("added")
