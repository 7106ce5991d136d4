"""Every command of the documentation is parsed here: an option that no longer exists is found
wherever it stands.

Commands are also run, except in blocks with a comment above them: `needs: gpu` names what a test
lacks, `takes minutes` is too slow for a test, and `tested by: FILE::FUNCTION` names tests of the
same commands with other arguments.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import typer
from PIL import Image

from orchestrator.cli.app import app
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands_of, inline_code, shell_blocks
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.scenes.images import sample_captions

NEEDS = {"network", "gpu", "checkpoints", "cluster", "browser", "captions and images of MS-COCO"}
TOO_SLOW = {"takes minutes", "takes hours"}

# Ray and the sweep commands warn of their own imports, and a benchmark may have been imported
# before
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
    pytest.mark.usefixtures("equal_dry_runs_once"),
]
RUN_HERE = [page for page in PAGES if any(not block.mark for block in shell_blocks(page))]
MARKED = [block for page in PAGES for block in shell_blocks(page) if block.mark]


@pytest.mark.parametrize("block", MARKED, ids=lambda block: block.place)
def test_a_mark_says_why_a_command_is_not_run(block: Block) -> None:
    match block.mark:
        case "needs":
            assert set(block.detail.split(", ")) <= NEEDS
        case "tested by":
            tests = [words_of_test(name) for name in block.detail.split(", ")]
            for words in commands_of(block):
                assert any(
                    runs_page(block.page, test) or essentials(words) <= test for test in tests
                ), words
        case mark:
            assert mark in TOO_SLOW
            assert not block.detail


def test_a_test_of_another_command_is_noticed() -> None:
    test = words_of_test("tests/orchestrator/cli/test_predict.py::test_every_setting_has_a_row")
    assert essentials(["specfrontier", "predict", "quickstart", "--settings", "9"]) <= test
    assert not essentials(["specfrontier", "launch", "quickstart", "--settings", "9"]) <= test
    assert not essentials(["specfrontier", "predict", "quickstart", "--device", "cuda"]) <= test
    with pytest.raises(KeyError):
        words_of_test("tests/orchestrator/cli/test_predict.py::test_that_does_not_exist")


def subject(words: Sequence[str]) -> str:
    """What a command line is about: the command of `specfrontier`, the module, the program."""
    if Path(words[0]).name == "specfrontier":
        return next(
            word
            for index, word in enumerate(words[1:])
            if word != "--plugin" and words[index] != "--plugin"
        )
    return words[2] if words[:2] == ["python", "-m"] else words[0]


def essentials(words: Sequence[str]) -> set[str]:
    """What a test of a command line must contain: its subject and the names of its options.

    A benchmark is tested through its functions, so its options are names of parameters there.
    """
    about, options = (
        subject(words),
        {word.partition("=")[0] for word in words if word.startswith("--")},
    )
    if about.startswith("benchmarks."):
        options = {option.removeprefix("--").replace("-", "_") for option in options}
    return {about, *options}


def words_of_test(name: str) -> set[str]:
    """Words of the strings, names and imported modules of a test, FILE::FUNCTION, and of what it
    uses in its file.

    Raises:
        KeyError: the file has no such function.
    """
    path, _, function = name.partition("::")
    defined: dict[str, ast.AST] = {}
    modules: dict[str, str] = {}
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            names = (entry for entry in ast.walk(node) if isinstance(entry, ast.Name))
            defined |= {entry.id: node for entry in names if isinstance(entry.ctx, ast.Store)}
        elif isinstance(node, ast.ImportFrom):
            modules |= dict.fromkeys(
                (alias.asname or alias.name for alias in node.names), node.module or ""
            )
    words, seen = set[str](), set[ast.AST]()
    waiting = [defined[function]]
    while waiting:
        top = waiting.pop()
        seen.add(top)
        docstrings = {node.value for node in ast.walk(top) if isinstance(node, ast.Expr)}
        for part in ast.walk(top):
            match part:
                case ast.Constant(value=str(text)) if part not in docstrings:
                    words |= set(text.split())
                case ast.Name(id=used) | ast.arg(arg=used) | ast.keyword(arg=str(used)):
                    words |= {used, modules.get(used, used)}
                    waiting += (
                        [defined[used]] if used in defined and defined[used] not in seen else []
                    )
    return words


def runs_page(page: Path, test: set[str]) -> bool:
    """Whether a test runs the commands of a page as they are written there."""
    return {page.name, "commands_of"} <= test


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos and some sweeps."""
    folder = tmp_path_factory.mktemp("material")
    for number, name in enumerate(("quickstart", "mine", "theirs")):
        write_sweep(folder / "sweeps" / name, trials=16, seed=number, name=name)
    (folder / "photos").mkdir()
    for number in range(65):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(
            folder / "photos" / f"{number}.png"
        )
    return folder


@pytest.fixture(scope="module")
def fewer_rows() -> Models:
    """The built-in model for images of a quarter of their rows: test_first_images.py generates
    whole ones.
    """
    models = load_folder()
    models.target.grid = replace(models.target.grid, rows=models.target.grid.rows // 4)
    return models


@pytest.fixture
def folder(
    material: Path, fewer_rows: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where a reader runs the commands."""
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("orchestrator.cli.generation.load_entry", lambda *_: fewer_rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow(seconds=30)
@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.name)
def test_commands_run(page: Path, folder: Path) -> None:
    save_files(page, folder)
    for block in shell_blocks(page):
        for words in () if block.mark else commands_of(block):
            assert words[0] == "specfrontier", f"{block.place}: run it, or mark what it needs"
            result = specfrontier(*words[1:])
            assert result.code == 0, (block.place, words, result.err)


def save_files(page: Path, folder: Path) -> None:
    """The YAML files of a page, named by a comment or by their own `name`, and as many captions as
    they count.
    """
    counts = [
        int(count) for count in re.findall(r"captions\.txt, count: (\d+)", page.read_text("utf-8"))
    ]
    (folder / "captions.txt").write_text("\n".join(sample_captions(1, max(counts, default=3))))
    for block in blocks(page):
        named = (
            re.match(r"# (\w+\.yaml)\n|name: (\w+)\n", block.text)
            if block.language == "yaml"
            else None
        )
        if named:
            (folder / (named[1] or f"{named[2]}.yaml")).write_text(block.text, "utf-8")
            # a page's own sweep has not run yet
            shutil.rmtree(folder / "sweeps" / f"{named[2]}", ignore_errors=True)


class Parsed(Exception):
    """An argument parser has accepted a command line."""


def commands(page: Path) -> dict[str, list[str]]:
    """Place and words of all commands of a page, those benchmarks within its sentences included."""
    found: dict[str, list[str]] = {}
    for block in shell_blocks(page):
        found |= {f"{block.place} {index}": words for index, words in enumerate(commands_of(block))}
    for code in inline_code(page):
        if code.startswith("python -m "):
            found[code] = shlex.split(code)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, words in commands(page).items():
        parse(place, words, monkeypatch)


def parse(place: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a command line without running it: its options by the program's own parser, else the
    file that it names.
    """
    match words:
        case ["specfrontier" | ".venv/bin/specfrontier", *_]:
            name = subject(words)
            command: Any = typer.main.get_command(app)
            with contextlib.suppress(typer.Exit):  # of options such as --list
                command.commands[name].make_context(name, words[words.index(name) + 1 :])
        case ["python", "-m", module, *arguments] if module.startswith(("benchmarks.", "recipes")):
            parse_benchmark(module, arguments, monkeypatch)
        case ["make", *targets]:
            rules = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M)
            assert {target for target in targets if "=" not in target} <= set(rules), place
        case ["ray", "start", *arguments]:
            from ray.scripts.scripts import start

            start.make_context("start", arguments)
        case ["ray", "job", "submit", *arguments]:
            parse(place, arguments[arguments.index("--") + 1 :], monkeypatch)
        case [("sbatch" | "kubectl"), *arguments]:
            assert [word for word in arguments if (ROOT / word).is_file()], place
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), place
        case [program, *_]:
            # python: a script of somebody else's tool
            assert program in {"cp", "npm", "optuna-dashboard", "pip", "python", "tar"}, place


def parse_benchmark(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of a benchmark or recipe, by its own parser, which goes no further."""
    original = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        original(parser, arguments)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        patch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises(Parsed):
            runpy.run_module(module, run_name="__main__")
