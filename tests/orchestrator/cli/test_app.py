"""The command as a process: it starts quickly, says what it is, and never shows a traceback for a user's mistake."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from orchestrator.cli.app import app
from search_spaces.presets import ALIASES, CATALOGUE

HELP_SECONDS = 0.7
HEAVY = ("torch", "ray", "optuna", "mlflow", "pyarrow", "matplotlib", "transformers", "pandas", "numpy", "rich")
COMMANDS = [command.name or str(getattr(command.callback, "__name__", "")) for command in app.registered_commands]


def specfrontier(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from orchestrator.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_and_needs_nothing_heavy_for_it(command: str) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print(*sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr))\n"
        "from orchestrator.cli.app import main; main()"
    )
    words = [*([command] if command else []), "--help"]
    start = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0
    assert ran.stdout.startswith("Usage: ")
    assert ran.stderr == "\n", "modules that --help could do without"
    assert time.perf_counter() - start < 10 * HELP_SECONDS, "even on a machine that is busy otherwise"


def test_commands_show_examples() -> None:
    for command in set(COMMANDS) - {"doctor"}:
        assert "Examples:" in specfrontier(command, "--help").stdout, command


def test_help_is_quick() -> None:
    """The fastest of five: what the command needs, whatever else the machine is doing."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        specfrontier("--help")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < HELP_SECONDS


def test_version() -> None:
    assert specfrontier("--version").stdout == f"specfrontier {version('specfrontier')}\n"


def test_presets_are_listed_with_source() -> None:
    lines = specfrontier("generate", "--list-presets").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    for alias in ALIASES:
        assert any(f"(also: {alias})" in line for line in lines)


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("generate", "--set"), ("generate", "a ring", "--seed", "x")]
)
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...]) -> None:
    ran = specfrontier(*arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("Error: ") == 1
    assert "Traceback" not in ran.stderr


def test_a_mistake_in_the_setting_is_found_before_any_model_is_loaded() -> None:
    start = time.perf_counter()
    ran = specfrontier("generate", "a ring", "--preset", "eagle2", "--set", "tree.depth=0")
    assert ran.returncode == 2
    assert ran.stderr == "Error: tree.depth: must be at least 1, got 0\n"
    assert time.perf_counter() - start < 5
