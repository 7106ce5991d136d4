"""The code on the pages about extensions: taken from the page, run unchanged, and compared with
what the page says.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from recipes import components
from recipes.__main__ import main as recipes_main
from recipes.evaluate import main as evaluate_main
from search_spaces import plugins
from search_spaces.drafters import DRAFTERS
from search_spaces.neighbourhoods import NEIGHBOURHOODS, NeighbourTables
from search_spaces.samplers import SAMPLERS
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES
from tests.docs.pages import commands_of, shell_blocks
from tests.fakes.command_line import specfrontier
from workers.data.captioned_images import read_folder
from workers.loading import models_yaml
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.models.families.catalogue import FAMILIES

DOCS = Path(__file__).parents[2] / "docs"


def run(page: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """The names that a page's Python leaves behind, run in an empty folder."""
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", text, flags=re.M | re.S)
    files = {
        found[1]: block for block in blocks if (found := re.match(r"# (\w+\.(?:py|yaml))\n", block))
    }
    assert len(blocks) > len(files), f"{page} has no code"
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plugins, "_loaded", {*plugins._loaded})
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, "")
    registries: tuple[plugins.Registry[Any], ...] = (
        DRAFTERS,
        FAMILIES,
        NEIGHBOURHOODS,
        POLICIES,
        SAMPLERS,
        SCHEDULES,
    )
    for registry in registries:
        registry.load()  # what is imported later would register in the copy alone
        monkeypatch.setattr(registry, "_entries", {**registry})
    module = ModuleType(page.removesuffix(".md"))
    # dataclasses look their annotations up there
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, block in files.items():
        Path(name).write_text(block, "utf-8")
        monkeypatch.setitem(sys.modules, Path(name).stem, module)  # restores its absence
        del sys.modules[Path(name).stem]
    with monkeypatch.context() as patch:
        patch.setattr(models_yaml, "load_folder", load_with_fewer_rows)
        for block in (block for block in blocks if block not in files.values()):
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, str(DOCS / page), "exec"), module.__dict__)
    return module.__dict__


def load_with_fewer_rows() -> Models:
    """The built-in model for images of two thirds of their rows: the last would show no more."""
    models = load_folder()
    models.target.grid = replace(models.target.grid, rows=models.target.grid.rows * 2 // 3)
    return models


@pytest.fixture
def names(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    return run(request.param, monkeypatch, tmp_path)


def assert_commands_run(page: str) -> None:
    """The shell commands of a page, with the files that its code has left in this folder."""
    for words in (words for block in shell_blocks(DOCS / page) for words in commands_of(block)):
        result = specfrontier(*words[1:])
        assert result.code == 0, (words, result.err)


@pytest.mark.slow
@pytest.mark.parametrize("names", ["your_own_rule.md"], indirect=True)
def test_your_own_rule(names: dict[str, Any]) -> None:
    tokens, accepted = names["tokens"], names["accepted"]
    assert all(
        torch.equal(a, b) for a, b in zip(tokens["exact"], tokens["fading, but exact"], strict=True)
    )
    assert_commands_run("your_own_rule.md")
    assert accepted["exact"] > 1.2
    for rule in ("fading", "cosine"):
        assert accepted[rule] > accepted["exact"] + 0.05, rule
    assert accepted["both"] > max(accepted["fading"], accepted["cosine"])
    fading, cosine = names["Fading"], names["Cosine"]
    assert sum(cosine(budget=1.3, swing=0.7).omegas(6)) / 6 == pytest.approx(1.3)
    r, tables = (
        torch.rand(3, 40).softmax(1),
        NeighbourTables(torch.stack([torch.randperm(40) for _ in range(40)])),
    )
    everything, _ = fading(k=5, share=0.5).all_masses(r, None, tables)
    for x in range(40):
        one = fading(k=5, share=0.5).mass(r, None, torch.full((3,), x), tables)
        torch.testing.assert_close(one.target, everything[:, x])
    with pytest.raises(ValueError, match="share"):
        fading(k=5, share=2.0)


@pytest.mark.parametrize(("file", "name"), [("neighbourhoods", "Fading"), ("schedules", "Cosine")])
def test_a_rule_of_the_page_works_inside_the_project(
    file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(
        r"^```python\n(# my_rules\.py\n.*?)^```$",
        (DOCS / "your_own_rule.md").read_text("utf-8"),
        re.M | re.S,
    )
    (source,) = (
        part for part in re.split(r"(?m)^@(?=[A-Z]+\.register)", block) if f"class {name}(" in part
    )
    text = (DOCS.parent / "search_spaces" / f"{file}.py").read_text("utf-8")
    module = ModuleType(f"search_spaces.{file}_with_{name.lower()}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(f"{text}\n\n@{source}", file, "exec"), module.__dict__)
    rule = getattr(module, name)
    assert (
        rule.from_mapping({"k": 5, "share": 0.5} if name == "Fading" else {"budget": 1.5}).exact
        is False
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", ["your_own_drafter.md"], indirect=True)
def test_your_own_drafter(names: dict[str, Any]) -> None:
    assert_commands_run("your_own_drafter.md")
    assert names["lossless"] is True
    assert names["same"] is True
    assert names["one"] == 1
    assert names["accepted_greedy"] > 1.02, "and it drafts something"
    assert all(length > 1.05 for length in names["accepted"].values())
    assert names["accepted"]["static tree"] > names["accepted"]["chain"]


@pytest.mark.parametrize(
    ("page", "file", "package", "registry", "name"),
    [
        ("your_own_drafter.md", "transition", "workers.drafters", DRAFTERS, "transition"),
        ("your_own_drafter.md", "comb", "workers.decoding", POLICIES, "comb"),
        ("your_own_target.md", "palette", "workers.models.families", FAMILIES, "palette"),
        ("your_own_sampler.md", "my_sampler", "orchestrator.run", SAMPLERS, "short"),
    ],
)
def test_a_file_of_a_page_works_inside_the_project(
    page: str,
    file: str,
    package: str,
    registry: plugins.Registry[Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Saved in the package that the page names, it is found by its name, without a plugin option or
    another edit.
    """
    (block,) = re.findall(
        rf"^```python\n(# {file}\.py\n.*?)^```$", (DOCS / page).read_text("utf-8"), re.M | re.S
    )
    (tmp_path / f"{file}.py").write_text(block, "utf-8")
    folder = importlib.import_module(package)
    registry.load()  # what is imported later would register in the copy alone
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_entries", {**registry})
    monkeypatch.setitem(sys.modules, f"{package}.{file}", folder)  # restores its absence
    del sys.modules[f"{package}.{file}"]
    assert package.replace(".", "/") in (DOCS / page).read_text("utf-8")
    entry = registry.lookup(name)
    module = entry.__module__ if isinstance(entry, type) else entry.implementation.partition(":")[0]
    assert module == f"{package}.{file}"


@pytest.mark.slow
@pytest.mark.parametrize("names", ["your_own_target.md"], indirect=True)
def test_your_own_target(names: dict[str, Any]) -> None:
    assert names["worst"] < 1e-4, "its logits are the reference's"
    assert names["lossless"] is True
    assert names["same"] is True, "transformers' own forward under the engine draws the same"
    assert names["accepted"] > 1
    assert names["picture"].shape == (1, 3, 16, 16)


@pytest.mark.parametrize("names", ["your_own_sampler.md"], indirect=True)
def test_your_own_sampler(names: dict[str, Any]) -> None:
    assert_commands_run("your_own_sampler.md")
    assert set(names["lengths"]) <= {2, 3}, "the option, not the default of 4"
    assert "short" in SAMPLERS


def unpacked_emoji(folder: Path) -> None:
    """A package with the layout of emoji-datasource-google: 5 subcategories, of which the third has
    200 pictures and is held out, and one picture of it twice.
    """
    pictures = folder / "package" / "img" / "google" / "64"
    pictures.mkdir(parents=True)
    emoji = []
    for number in range(212):
        held_out = number >= 12
        name = f"{number:04x}-fe0f.png"
        colour = 0 if number == 200 else number
        Image.new("RGBA", (8, 8), (colour, 90, 200, 255 * (number % 2))).save(pictures / name)
        emoji.append(
            {
                "name": f"SQUARE: NO. {number % 12}",
                "image": name,
                "category": "Symbols & Signs",
                "subcategory": "c-held-out" if held_out else "abde"[number % 4],
            }
        )
    (folder / "package" / "emoji.json").write_text(json.dumps(emoji), "utf-8")


@pytest.mark.slow
def test_your_own_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page's code, recipes of one step on a model of one layer, and its commands."""
    page = "your_own_images.md"
    unpacked_emoji(tmp_path)
    run(page, monkeypatch, tmp_path)
    halves = [read_folder(tmp_path / "emoji" / half) for half in ("train", "held_out")]
    assert [len(half) for half in halves] == [12, 199], "without the copy of a trained picture"
    assert halves[0].captions[0] == "square: no. 0, a, Symbols & Signs"
    small = {
        component: tuple(replace(phase, batch=2, bf16=False) for phase in phases)
        for component, phases in components._RECIPES.items()
    }
    monkeypatch.setattr(components, "_RECIPES", small)
    monkeypatch.setattr(components, "TARGET", replace(components.TARGET, n_layers=1))
    this = "tests/docs/test_examples.py::test_your_own_images"
    for block in shell_blocks(DOCS / page):
        if this in block.detail.split(", "):
            for words in commands_of(block):
                run_command(words, monkeypatch)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of the page, in this process; of recipes one step, of evaluations two images."""
    match words:
        case ["python", "-m", "recipes", *arguments]:
            recipes_main([*arguments, "--steps", "1", "--device", "cpu"])
        case ["python", "-m", "recipes.evaluate", *arguments]:
            monkeypatch.setattr(sys, "argv", ["evaluate", *arguments, "--images", "2"])
            evaluate_main()
        case ["specfrontier", *arguments]:
            result = specfrontier(*arguments)
            assert result.code == 0, (words, result.err)
        case _:
            raise AssertionError(words)


@pytest.mark.parametrize("names", ["racing.md"], indirect=True)
def test_racing(names: dict[str, Any]) -> None:
    study, stops = names["study"], names["stops"]
    assert len(study.trials) == 40
    assert 5 < len(stops) < 35
    assert names["asked"] < 0.8 * 40 * names["QUESTIONS"]
    for number, stop in stops.items():
        assert stop.rival <= number - names["PARALLEL"]
        assert (
            study.trials[number].user_attrs["stopped"].startswith(f"trial {stop.rival} is better")
        )
    assert stops.keys().isdisjoint(trial.number for trial in study.best_trials)


@pytest.mark.parametrize("names", ["samplers.md"], indirect=True)
def test_the_replay_sampler_in_a_study_of_your_own(names: dict[str, Any]) -> None:
    trials, params = names["study"].trials, names["params"]
    assert len(trials) == 12
    assert all(trial.params in params for trial in trials)
    assert len({str(trial.params) for trial in trials}) == 12
    best = max(trial.values[0] for trial in trials)
    assert best > 0.9 * max(
        (1 + p["length"] * p["delta"]) / (1 + 0.1 * p["length"]) for p in params
    )
