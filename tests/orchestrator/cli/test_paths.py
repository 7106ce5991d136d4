"""Paths and URIs mean the same in every option and argument of every command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli.app import app
from orchestrator.views.mlflow_client import resolve_uri
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.object_store import object_store
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

NAMES_A_PATH = {
    "SPACE",
    "SWEEP",
    "[SWEEP]",
    "SWEEP...",
    "SWEEP N [SWEEP] N",
    "MODELS",
    "YAML",
    "FILE",
    "DIR",
    "DIR|URI",
    "URL|FILE",
    "URI",
    "JSONL",
    "TXT",
}
OTHER = {
    None,
    "NAME",
    "N",
    "H",
    "KEY=VALUE",
    "ADDRESS",
    "URL",
    "N,M",
    "DEVICE",
    "[SECONDS]",
    "METRIC",
    "FILTER",
    "LIMIT",
    "X,Y[,Z]",
    "WxH",
    "COLUMN",
    "SHARE",
    "MINUTES",
    "HOST",
    "CAPTION",
    "vanilla",
    "DRAFTER",
    "X",
    "GIB",
    "GB/S",
    "TFLOP/S",
    "FAMILY",
    "LAYOUT",
}
# What each command needs besides the path; nothing starts if the path is refused too late
NEEDED = {
    "launch": ["--check", "--trials", "2"],
    "compare": ["sweeps/mine"],
    "generate": ["a ring"],
    "export": ["--trial", "0", "--layout", "geneval"],
    "measure": ["0", "--geneval", "results.jsonl"],
    "show": ["3"],
    "diff": ["3", "5"],
    "train": ["eagle"],
    "models init": ["llamagen"],
}
ARGUMENTS = {
    "launch": ["quickstart"],
    "predict": ["quickstart"],
    "pareto": ["sweeps/mine"],
    "compare": ["sweeps/mine"],
    "report": ["sweeps/mine"],
    "time": ["sweeps/mine"],
    "ui": ["sweeps/mine"],
    "sync": ["sweeps/mine"],
    "export": ["sweeps/mine"],
    "measure": ["sweeps/mine"],
    "reference": ["scenes"],
    "train": ["--captions", "scenes"],
}
ENDINGS = {"--config": ".yaml", "--plot": ".png", "--table": ".csv", "models init --out": ".yaml"}
ENDINGS |= {
    "report --out": ".html",
    "compare --out": ".html",
    "reference --out": ".parquet",
    "compare --table": ".tex",
}


def commands(name: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    """All commands by name, as click has them."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield name.strip(), command
        return
    for word, below in command.commands.items():
        yield from commands(f"{name} {word}", below)


def parameters() -> Iterator[tuple[str, Any]]:
    for name, command in commands():
        yield from ((name, parameter) for parameter in command.params)


PLACES = [(name, found.opts[0]) for name, found in parameters() if found.metavar in NAMES_A_PATH]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder that is not the working directory, which holds a sweep."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    write_sweep(tmp_path / "work" / "sweeps" / "mine", trials=6)
    return tmp_path / "home"


def words_with(command: str, option: str, place: str) -> list[str]:
    """A command with a place in one of its options or arguments."""
    if not option.startswith("--"):
        return [*command.split(), place, *NEEDED.get(command, [])]
    needed = [word for word in NEEDED.get(command, []) if option != "--trial"]
    given = ARGUMENTS.get(command, []) if option != "--captions" else []
    return [*command.split(), *given, *needed, f"{option}={place}"]


def test_every_option_is_known_to_name_a_path_or_not() -> None:
    assert {found.metavar for _, found in parameters()} == NAMES_A_PATH | OTHER


@pytest.mark.parametrize("start", ["~nobody-here/", "$HOME/", "nowhere://bucket/"])
@pytest.mark.parametrize(("command", "option"), PLACES)
def test_a_place_that_cannot_be_is_refused(
    command: str, option: str, start: str, home: Path
) -> None:
    place = f"{start}x" + ENDINGS.get(f"{command} {option}", ENDINGS.get(option, ""))
    result = specfrontier(*words_with(command, option, place))
    assert result.code in ((1, 2) if option == "--uri" else (2,)), result.err
    assert sum(line.startswith("Error: ") for line in result.err.splitlines()) == 1
    if start != "nowhere://bucket/":
        assert place in result.err
    assert sorted(path.name for path in Path().iterdir()) == ["sweeps"], "nothing was made"
    assert [path.name for path in Path("sweeps").iterdir() if path.is_dir()] == ["mine"]


@pytest.mark.parametrize("form", ["~/", "{home}/", "file://{home}/"])
def test_files_are_written_where_the_place_says(form: str, home: Path) -> None:
    place = form.format(home=home)
    table, config, page = (f"{place}{name}" for name in ("t.csv", "c.yaml", "r.html"))
    ran = specfrontier("pareto", "mine", f"--table={table}", "--trial", "0", f"--config={config}")
    assert ran.code == 0, ran.err
    assert specfrontier("report", "mine", f"--out={page}").code == 0
    assert specfrontier("export", "mine", "--trial", "0", f"--out={place}e").code == 0
    assert specfrontier("models", "init", "llamagen", f"--out={place}m.yaml").out.startswith(
        f"{home}/m.yaml: "
    )
    made = sorted(path.name for path in home.iterdir())
    assert made == ["c.yaml", "e", "m.yaml", "r.html", "t.csv"]
    assert [path.name for path in Path().iterdir()] == ["sweeps"]
    printed = next(line for line in ran.out.splitlines() if line.startswith("config: "))
    words = shlex.split(printed.partition("(")[2].rstrip(")"))
    assert words[-2:] == ["--config", f"{home}/c.yaml"], "a shell expands no ~ in quotes"
    assert "a caption is empty" in error_of("generate", "", *words[-2:], code=2), (
        "the config was read"
    )


@pytest.mark.parametrize("form", ["~/", "file://{home}/"])
def test_files_are_read_where_the_place_says(form: str, home: Path) -> None:
    place = form.format(home=home)
    (home / "captions.txt").write_text("a ring\n\nanother\n")
    assert "line 2" in error_of("generate", "--captions", f"{place}captions.txt", code=2)
    (home / "config.yaml").write_text("tree: {depth: 0}\n")
    assert "tree" in error_of("generate", "a ring", f"--config={place}config.yaml", code=2)
    (home / "models.yaml").write_text("mine: {family: nothing}\n")
    for command in ("generate", "predict", "doctor"):
        words = [
            *([] if command == "doctor" else ["quickstart"]),
            f"--models={place}models.yaml#mine",
        ]
        assert "family" in error_of(command, *words, code=2), command
    (home / "space.yaml").write_text("name: 3\n")
    for words in (["launch", f"{place}space.yaml"], ["doctor", "--plan", f"{place}space.yaml"]):
        assert f"{home}/space.yaml:1: " in error_of(*words, code=2)
    (home / "photos").mkdir()
    assert "no images" in error_of("reference", f"{place}photos", "--out=r.parquet", code=2)
    specified = ("--set", f"captions.source={place}captions.txt")
    assert "line 2" in error_of(
        "launch", "quickstart", "--check", "--no-mlflow", *specified, code=2
    )


def test_a_config_in_a_bucket_is_written_and_read(home: Path) -> None:
    with object_store() as store:
        store.bucket("configs")
        place = store.uri("configs/c.yaml")
        assert specfrontier("pareto", "mine", "--trial", "0", "--config", place).code == 0
        assert "a caption is empty" in error_of("generate", "", "--config", place, code=2)
        missing = store.uri("configs/d.yaml")
        assert "no such file" in error_of("generate", "a ring", "--config", missing, code=2)


def test_databases_in_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(Path("sweeps", "mine"))
    assert resolve_uri(storage, "sqlite:///~/m.db") == f"sqlite:///{home}/m.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///~/e.db")
    assert resolve_uri(storage, None) == f"sqlite:///{home}/e.db"
    for other in ("http://host:5000", "sqlite:///m.db", "postgresql://u@h/~d"):
        assert resolve_uri(storage, other) == other
