"""`pip install specfrontier` without its extra `sweep`: it decodes and answers questions about stored
sweeps, and says what the rest needs.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from orchestrator.errors import _SWEEP_MODULES, CommandError, with_sweep_libraries
from tests.fakes.missing_modules import environment_without
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[2]
INSTALL = "pip install 'specfrontier[sweep]'"
IMPORTS = """
import importlib, pkgutil, sys

for package in ("search_spaces", "workers", "specfrontier", "orchestrator.front", "orchestrator.store"):
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        importlib.import_module(module.name)
"""
DECODES = """
import specfrontier

engine = specfrontier.load_engine("sjd", device="cpu")
print(engine.draw(["a large red circle"])[0].image.size)
assert specfrontier.remeasure_speedup, "for an exported setting"
"""
PLOTS = """
import specfrontier

try:
    specfrontier.Sweep.open("demo").plot()
except specfrontier.CommandError as error:
    print(error)
try:
    specfrontier.Sweep.launch("quickstart")
except specfrontier.CommandError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("demo", "second")):
        write_sweep(tmp_path / name, 8, name=name, failed=(), seed=seed)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python without the libraries of the extra, in a folder of sweeps."""
    environment = environment_without(_SWEEP_MODULES, folder)
    environment["PYTHONPATH"] += f":{ROOT}"
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-c", "from orchestrator.cli.app import main; main()", *words)


def test_the_libraries_of_the_extra_are_those_that_are_missing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.split("[")[0].split(">")[0] for line in project["optional-dependencies"]["sweep"]}
    assert names <= _SWEEP_MODULES
    assert not {line.split(">")[0] for line in project["dependencies"]} & _SWEEP_MODULES


@pytest.mark.parametrize("code", [IMPORTS, DECODES], ids=["imports", "decodes"])
def test_the_library_needs_none_of_them(code: str, folder: Path) -> None:
    done = run(folder, "-c", code)
    assert done.returncode == 0, done.stderr


def test_questions_need_none_of_them(folder: Path) -> None:
    for words in (
        ("pareto", "demo", "--best", "fid <= 1.2 * vanilla", "--table", "front.tex"),
        ("pareto", "demo", "--json"),
        ("status", "demo"),
        ("status",),
        ("diff", "demo", "1", "2"),
        ("compare", "demo", "second"),
    ):
        done = command(folder, *words)
        assert done.returncode == 0, done.stderr
        assert INSTALL not in done.stderr
    assert (folder / "front.tex").exists()


def test_what_needs_them_names_the_extra(folder: Path) -> None:
    for words, library in (
        (("launch", "quickstart", "--check"), "ray"),
        (("predict", "quickstart"), "ray"),
        (("pareto", "demo", "--plot", "front.png"), "matplotlib"),
    ):
        done = command(folder, *words)
        assert done.returncode == 1
        assert f"Error: {library} is not installed; {INSTALL}" in " ".join(done.stderr.split())
    done = command(folder, "sync", "demo")
    assert done.returncode == 1
    assert INSTALL in done.stderr
    printed = run(folder, "-c", PLOTS).stdout.splitlines()
    assert printed == [f"{name} is not installed; {INSTALL}" for name in ("matplotlib", "ray")]


def test_other_modules_are_missing_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match="raytracer"), with_sweep_libraries():
        raise ModuleNotFoundError("No module named 'raytracer'", name="raytracer")
    with pytest.raises(CommandError, match="ray is not installed"), with_sweep_libraries():
        raise ModuleNotFoundError("No module named 'ray.train'", name="ray.train")
