"""The plugin that shares the tests among processes: every result arrives, also that of a process that dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    "test_passes.py": """
import os, pytest, warnings

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    yield tmp_path_factory.getbasetemp()
    (tmp_path_factory.getbasetemp() / f"torn_down_{os.getpid()}").touch()

def test_passes(folder): warnings.warn("a warning")

@pytest.mark.skip(reason="skipped")
def test_is_skipped(): ...
""",
    "test_fails.py": """
import pytest

@pytest.fixture
def broken(): raise ValueError("in a fixture")

def test_fails():
    print("printed")
    assert False

def test_has_an_error(broken): ...
""",
    "test_dies.py": """
import os

def test_passes(): ...
def test_dies(): os.kill(os.getpid(), 9)
def test_is_not_run(): ...
""",
}


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of pytest on the files, in two processes."""
    (folder / "pytest.ini").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "tests.forked_workers"]
    command += ["--workers", "2", f"--basetemp={folder / 'temporary'}", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout


def test_every_test_has_a_result(tmp_path: Path) -> None:
    code, output = run(tmp_path)
    outcomes = set(re.findall(r"^(PASSED|FAILED|ERROR) (\S+::\S+)", output, re.M))
    assert code == 1
    assert outcomes == {
        ("PASSED", "test_passes.py::test_passes"),
        ("PASSED", "test_dies.py::test_passes"),
        ("FAILED", "test_fails.py::test_fails"),
        ("ERROR", "test_fails.py::test_has_an_error"),
        ("FAILED", "test_dies.py::test_dies"),
        ("FAILED", "test_dies.py::test_is_not_run"),
    }
    assert re.search(r"3 failed, 2 passed, 1 skipped, 1 warning, 1 error in", output)
    assert re.search(r"Captured stdout call -+\nprinted\n", output)
    assert re.search(r"process \d+: ended with -9", output)
    assert len(list((tmp_path / "temporary").glob("torn_down_*"))) == 1, "fixtures of a session end in each process"


def test_it_stops_after_as_many_failures_as_allowed(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--deselect", "test_dies.py", "-x")
    assert code == 1
    assert "stopping after 1 failures" in output


def test_it_passes_where_nothing_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-k", "test_passes")
    assert code == 0, output
    assert "2 passed, 1 skipped, 4 deselected" in output
