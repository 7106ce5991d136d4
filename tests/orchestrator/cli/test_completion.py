"""What the shell completes, as Typer asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.options import complete_preset, complete_space, complete_sweep
from search_spaces.sweep import describe_spaces, ready_spaces
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep


def test_names_begin_with_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweeps" / "mine", trials=2)
    (tmp_path / "my_space.yaml").touch()
    assert complete_sweep("m") == ["mine"]
    assert complete_sweep("x") == []
    assert complete_space("my") == ["my_space.yaml"]
    assert "papers/lantern-table2" in complete_space("papers/lan")
    assert complete_preset("eagle1") == ["eagle1", "eagle1_traversal", "eagle1_58"]


def test_a_shell_gets_them(tmp_path: Path) -> None:
    code = "from orchestrator.cli.app import main; main()"
    words = {
        "COMP_WORDS": "specfrontier launch quick",
        "COMP_CWORD": "2",
        "_SPECFRONTIER_COMPLETE": "complete_bash",
    }
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'specfrontier'; {code}"],
        env=os.environ | words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["quickstart"]


def test_launch_lists_the_ready_spaces() -> None:
    ran = specfrontier("launch", "--list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ready_spaces()
    assert all(len(line.split()) > 2 for line in describe_spaces().values()), "each says what it is"
