"""The command line as a whole: quick help without heavy imports, examples, version, exit codes of
wrong usage.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.cli.app import app
from orchestrator.cli.models import models
from orchestrator.store.files import write_sweep_text
from search_spaces.presets import ALIASES, CATALOGUE
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.storage import Storage

HELP_MODULES = 400  # of Python's own, typer and click about 300
HEAVY = (
    "torch",
    "ray",
    "optuna",
    "mlflow",
    "pyarrow",
    "matplotlib",
    "transformers",
    "pandas",
    "numpy",
    "rich",
    "PIL",
)
COMMANDS = [
    command.name or str(getattr(command.callback, "__name__", ""))
    for command in app.registered_commands
]
# Exit code of each command without arguments, and what it prints
BARE = {
    "": (2, "Usage: "),
    "launch": (2, "`specfrontier launch --list`"),
    "predict": (2, "`specfrontier launch --list`"),
    "status": (0, "no sweep under ./sweeps"),
    "list": (0, "no sweep under ./sweeps"),
    "show": (2, "'SWEEP'"),
    "diff": (2, "'SWEEP N [SWEEP] N'"),
    "pareto": (2, "'SWEEP...'"),
    "compare": (2, "'SWEEP...'"),
    "report": (2, "'SWEEP'"),
    "time": (2, "'SWEEP'"),
    "measure": (2, "'SWEEP'"),
    "reference": (2, "'DIR'"),
    "ui": (2, "'SWEEP'"),
    "sync": (2, "'SWEEP'"),
    "generate": (2, "no captions: give them as arguments, or with --captions FILE"),
    "export": (2, "'SWEEP'"),
    "train": (2, "'DRAFTER'"),
    "models": (2, "Usage: "),
    "models init": (2, "'FAMILY'"),
    "models pull": (2, "'MODELS'"),
}
# Runs command lines from its argument (JSON) one after the other; prints exit codes and heavy
# modules imported so far.
LIGHT = f"""
import contextlib, io, json, sys
from orchestrator.cli.app import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["specfrontier", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code
    print(json.dumps([words, code, sorted(set({HEAVY!r}) & set(sys.modules))]))
"""
# Runs each command line, which is wrong usage, with one and two threads; prints exit code and
# threads of torch.
THREADS = """
import contextlib, io, json, sys
from orchestrator.cli.app import main
for words in {commands!r}:
    for threads in (1, 2):
        sys.argv = ["specfrontier", "--plugin", "torch", *words, "--threads", str(threads)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                main()
            except SystemExit as exit_:
                code = exit_.code
        import torch
        print(json.dumps([code, threads, torch.get_num_threads()]))
"""


def test_help_and_wrong_configs_import_nothing_heavy() -> None:
    """One process for all commands: an import that one of them does stays visible for the rest."""
    helps = [["--help"], *([command, "--help"] for command in COMMANDS)]
    wrong = [
        ["generate", "a ring", "--preset", "eagle2", "--set", "tree.depth=0"],
        ["generate", "--list-presets"],
    ]
    arguments = [sys.executable, "-c", LIGHT, json.dumps([*helps, *wrong])]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=HANG_S)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert found == [[words, 2 if words == wrong[0] else 0, []] for words in [*helps, *wrong]]


def test_help_imports_few_modules() -> None:
    """Imports are nearly all of its time, and their number is the same on every machine."""
    code = "import atexit, sys; atexit.register(lambda: print(len(sys.modules), file=sys.stderr)); "
    words = [
        sys.executable,
        "-c",
        f"{code}from orchestrator.cli.app import main; main()",
        "--help",
    ]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert 0 < int(ran.stderr) < HELP_MODULES


def test_commands_show_examples() -> None:
    for command in COMMANDS:
        assert "Examples:" in specfrontier(command, "--help").out, command


@pytest.mark.parametrize("command", [(), *((command,) for command in COMMANDS)], ids="".join)
def test_h_is_help(command: tuple[str, ...]) -> None:
    short = specfrontier(*command, "-h")
    assert short.code == 0
    assert short.out == specfrontier(*command, "--help").out
    assert short.out.startswith("Usage: ")


def test_version() -> None:
    assert specfrontier("--version").out == f"specfrontier {version('specfrontier')}\n"


def test_presets_are_listed_with_source() -> None:
    lines = specfrontier("generate", "--list-presets").out.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    for alias in ALIASES:
        assert any(f"(also: {alias})" in line for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("generate", "--set"),
        ("generate", "a ring", "--seed", "x"),
        ("generate", "a ring", "--preset", "eagle2", "--set", "tree.depth=0"),
        ("--plugin", "no_such_module", "generate", "--list-presets"),
    ],
)
def test_wrong_usage_ends_with_two(arguments: tuple[str, ...]) -> None:
    assert error_of(*arguments, code=2)


@pytest.mark.parametrize("command", BARE)
def test_a_command_without_arguments_says_what_it_needs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, (code, words) = specfrontier(*command.split()), BARE[command]
    assert result.code == code
    assert words in result.out + result.err
    assert "Traceback" not in result.err
    assert not list(tmp_path.iterdir())


def test_every_command_is_tested_without_arguments() -> None:
    """`doctor` examines the machine, which tests/orchestrator/doctor does."""
    below = [
        entry.callback.__name__
        for entry in models.registered_commands
        if entry.callback is not None
    ]
    assert {*BARE, "doctor"} == {"", *COMMANDS, "models", *(f"models {name}" for name in below)}


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "doctor",
        "generate ring",
        "launch quickstart --check",
        "models init llamagen",
        "train eagle --captions scenes",
    ],
)
def test_a_deleted_working_directory_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MKL ended such processes with a line of its own."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "the working directory was deleted; change to another folder" in error_of(
        *command.split(), code=1
    )


def test_sweeps_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweeps" / "first", trials=4, budget=10)
    write_sweep(tmp_path / "sweeps" / "second", trials=3)
    write_sweep_text(Storage(tmp_path / "sweeps" / "second"), "a: [")
    (tmp_path / "sweeps" / "other").mkdir()
    lines = specfrontier("status").out.splitlines()
    assert [line.split()[0] for line in lines] == ["sweep", "first", "second"]
    assert "4 of 10" in lines[1]
    assert "sweep.yaml" in lines[2]
    first, second = specfrontier("status", "--json").json["sweeps"]
    assert (first["name"], first["finished"], first["planned"]) == ("first", 4, 10)
    assert first["launch"]["state"] == "not running"
    assert "sweep.yaml" in second["problem"]
    assert "--watch" in error_of("status", "--watch", code=2)


def test_errors_of_usage_say_what_to_write() -> None:
    assert "; write it before the command: specfrontier --plugin MODULE" in error_of(
        "launch", "quickstart", "--plugin", "my_rules", code=2
    )
    assert "`specfrontier launch --list` shows the ready spaces" in error_of("launch", code=2)


def test_an_exception_in_a_plugins_code_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_rules.py").write_text("def fail():\n    1 / 0\n")
    (tmp_path / "unfailing_rules.py").write_text(
        "import typer\n\n\ndef fail():\n    typer.echo(1 / 0)\n"
    )
    code = (
        "import sys; from orchestrator.cli import app\ndef version(name): import failing_rules; "
        "failing_rules.fail()\nfrom orchestrator.doctor import machine; machine.installed = "
        "version\nsys.argv = ['specfrontier', '--plugin', 'failing_rules', '--version'][:: 1 if "
        "len(sys.argv) < 2 else 1]\nimport os; os.environ['SPECFRONTIER_PLUGINS'] = "
        "'failing_rules'; app.main()"
    )
    monkeypatch.setenv("SPECFRONTIER_PLUGINS", "failing_rules")
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("Error: ")
    assert (
        "failing_rules.py, line 2: ZeroDivisionError: division by zero; correct the plugin"
        in ran.stderr
    )


def test_every_command_that_computes_takes_threads() -> None:
    """A plugin imports torch before the command line is read, so that OpenMP is loaded with the
    environment of then.
    """
    usage = (
        ("generate", "x", "--set", "x"),
        ("train", "nothing"),
        ("predict", "x.yaml"),
        ("launch", "x.yaml"),
    )
    commands = [*usage, ("reference", "nowhere"), ("time", "nowhere")]
    assert {
        command for command in COMMANDS if "--threads" in specfrontier(command, "--help").out
    } == {command for command, *_ in commands}
    code = THREADS.format(commands=commands)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    environment |= {"OMP_DISPLAY_ENV": "TRUE", "PYTHONPATH": os.getcwd()}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert found == [[2, count, count] for _ in commands for count in (1, 2)]


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "tested.yaml", "--check", "--out", "caf\udce9"),
        ("launch", "tested.yaml", "--out=caf\udce9"),
        ("launch", "tested.yaml", "--name", "caf\udce9"),
        ("generate", "caf\udce9"),
        ("reference", "caf\udce9"),
        ("generate", "a ring", "--out", "caf\udce9"),
        ("pareto", "sweeps/caf\udce9", "--json"),
    ],
)
def test_arguments_that_are_not_utf8_are_refused_first(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python reads bytes of another encoding, such as a terminal's."""
    monkeypatch.chdir(tmp_path)
    message = error_of(*words, code=2)
    assert "caf\\udce9': not UTF-8; rename it" in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def in_old_locale(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a locale of ASCII, which writes Cyrillic: click replaces an output of ASCII by
    one of UTF-8.
    """
    locale = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "iso8859-5:strict",
    }
    command = [sys.executable, "-c", "from orchestrator.cli.app import main; main()", *words]
    environment = os.environ | locale | {"PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=environment, capture_output=True, check=False, cwd=folder)


def test_a_locale_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    ran = in_old_locale(tmp_path, "launch", "joint", "--check", "--out", "bücher")
    assert ran.returncode == 2
    assert (
        b"not UTF-8; rename it, or set LC_ALL=C.UTF-8 (this locale's encoding is ascii)"
        in ran.stderr
    )
    assert ran.stderr.count(b"\n") == 1


def test_what_the_outputs_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    """Fronts have a plus-minus sign, which the encoding lacks."""
    write_sweep(tmp_path / "demo", trials=6, name="demo")
    ran = in_old_locale(tmp_path, "pareto", "demo")
    assert ran.returncode == 0, ran.stderr
    assert b"\\xb1" in ran.stdout
