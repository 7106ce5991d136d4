"""The wheel: it holds all that the project needs, and runs in an environment of its own, outside
the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.fakes.waiting import HANG_S
from tests.fakes.wheel import build_wheel, package_files

pytestmark = pytest.mark.slow(seconds=25)
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which borrows other packages from this one: not the
    project itself.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*install, "--no-index", wheel], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # its own .pth files are not read
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def run(environment: Path, folder: Path, *words: str | Path) -> str:
    """The output of a program of the environment, started in `folder`."""
    kept = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    program = environment / "bin" / words[0]
    result = subprocess.run(
        [program, *words[1:]],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_holds_every_file_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package_files(ROOT) <= names
    assert not [
        name for name in names if name.startswith(("tests", "benchmarks", "recipes", "docs"))
    ]


def test_its_commands_run_outside_the_repository(environment: Path, tmp_path: Path) -> None:
    listed = run(environment, tmp_path, "specfrontier", "launch", "--list")
    assert "papers/lantern-table2" in listed
    assert "quickstart" in run(
        environment, tmp_path, "specfrontier", "launch", "quickstart", "--check"
    )
    assert run(environment, tmp_path, "specfrontier", "--version").startswith("specfrontier ")
    assert list(tmp_path.iterdir()) == []


def test_its_python_api_draws_an_image(environment: Path, tmp_path: Path) -> None:
    code = (
        "import search_spaces, specfrontier, sys\n"
        "print(search_spaces.__file__, specfrontier.__file__, 'torch' in sys.modules, sep='\\n')\n"
        "engine = specfrontier.load_engine('vanilla', device='cpu')\n"
        "print(engine.draw(['a large red circle'])[0].image.size)\n"
    )
    *modules, has_torch, size = run(environment, tmp_path, "python", "-c", code).splitlines()
    assert all(Path(module).is_relative_to(environment) for module in modules)
    assert has_torch == "False"
    assert size.startswith("(")


def test_a_folder_of_the_projects_name_hides_no_package(tmp_path: Path) -> None:
    """In the parent folder of a clone, for example: `make venv` installs a path instead of a module
    finder.
    """
    (tmp_path / "specfrontier").mkdir()
    code = "import specfrontier; print(specfrontier.__file__)"
    command = [sys.executable, "-c", code]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()) == ROOT / "specfrontier" / "__init__.py"
