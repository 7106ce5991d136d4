"""`specfrontier generate` on a tiny random model: what is written, and what every mistake is answered with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

import orchestrator.run.generation
from orchestrator.cli.app import main
from orchestrator.errors import CommandError
from orchestrator.run.generation import acceptance_map, file_name
from orchestrator.run.models import Models, pick_device
from tests.fakes.toys import toy_drafter, toy_target
from workers.decoding.engine import Engine, Result
from workers.decoding.state import Job
from workers.decoding.statistics import PHASES, ImageStatistics
from workers.models.target import Grid, Target

CAPTIONS = ("a red circle", "a blue star")
CHAIN = ("--drafter", "eagle", "--tree", "chain", "--depth", "3")


def toy_models(break_with: float | None = None) -> Models:
    target = toy_target()
    if break_with is not None:
        weights = dict(target.head.named_parameters())
        weights["weight"].data[3] = break_with
    drafters = {kind: toy_drafter(kind, target) for kind in ("eagle", "medusa", "independent")}
    return Models(
        target, {kind: drafter for kind, drafter in drafters.items() if drafter is not None}, {"toy": "0" * 64}
    )


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    models = toy_models()
    monkeypatch.setattr(orchestrator.run.generation, "load_models", lambda *_: models)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of `specfrontier generate ARGUMENTS` in this process."""
    monkeypatch.setattr(sys, "argv", ["specfrontier", "generate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.usefixtures("toy")
def test_everything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert command(monkeypatch, *CAPTIONS, *CHAIN, "--samples", "2", "--batch", "3", "--out", str(out), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "statistics.json").read_text())
    files = [row["file"] for row in printed["images"]]
    assert files[0] == "0000-0-a-red-circle.png"
    assert len(set(files)) == 4
    assert {path.name for path in out.iterdir()} == {
        *files, "contact_sheet.png", "heatmap.png", "statistics.json", "config.yaml"
    }  # fmt: skip
    for row in printed["images"]:
        with Image.open(out / row["file"]) as picture:
            assert picture.size == (384, 384)
            assert picture.text["caption"] == row["caption"]  # type: ignore[attr-defined]
        assert row["seconds"].keys() == set(PHASES)
        assert row["latency"] == pytest.approx(sum(row["seconds"].values()))
        assert 1 <= row["mean_accepted_length"] <= 4
        assert row["mean_tree_depth"] <= 3
    assert printed["preset"] is None
    assert printed["config"]["sampling"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 2.0}
    assert len(printed["digest"]) == 16
    assert printed["weights"] == {"toy": "0" * 64}
    check_overall(printed)


def check_overall(printed: dict[str, Any]) -> None:
    means, rows = printed["overall"], printed["images"]
    assert means["images"] == len(rows)
    for name in ("step_compression", "mean_tree_depth"):
        assert means[name] == pytest.approx(sum(row[name] for row in rows) / len(rows))
    assert means["mean_accepted_length"] == pytest.approx(15 * len(rows) / sum(row["target_passes"] for row in rows))
    assert means["latency"] == pytest.approx(means["wall_seconds"] / len(rows))
    assert sum(means["seconds"].values()) <= means["wall_seconds"]
    assert printed["accepted_length_by_cell"][0][0] is None
    assert all(value is not None for row in printed["accepted_length_by_cell"] for value in row[1:])


@pytest.mark.usefixtures("toy")
def test_pictures_of_the_run_before_go_and_what_is_not_ours_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(monkeypatch, *CAPTIONS, "--out", str(tmp_path)) == 0
    (tmp_path / "0007-0-mine.png").touch()
    statistics = tmp_path / "statistics.json"
    statistics.write_text(statistics.read_text().replace("0001-0-a-blue-star.png", "../outside.png"))
    (tmp_path.parent / "outside.png").touch()
    assert command(monkeypatch, "a green ring", "--out", str(tmp_path)) == 0
    pictures = {path.name for path in tmp_path.glob("0*.png")}
    assert pictures == {"0000-0-a-green-ring.png", "0001-0-a-blue-star.png", "0007-0-mine.png"}
    assert (tmp_path.parent / "outside.png").exists()


@pytest.mark.usefixtures("toy")
def test_the_written_config_draws_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    said = ("--preset", "cool", "--budget", "2", "--set", "acceptance.nu=0.2", "--temperature", "0.8", "--seed", "5")
    assert command(monkeypatch, *CAPTIONS, *said, "--out", str(first)) == 0
    config = str(first / "config.yaml")
    assert command(monkeypatch, *CAPTIONS, "--config", config, "--seed", "5", "--batch", "1", "--out", str(again)) == 0
    one, two = (json.loads((folder / "statistics.json").read_text()) for folder in (first, again))
    assert one["config"] == two["config"]
    assert one["digest"] == two["digest"]
    assert yaml.safe_load((first / "config.yaml").read_text())["acceptance"]["budget"] == 2.0
    for row in one["images"]:
        assert (first / row["file"]).read_bytes() == (again / row["file"]).read_bytes()


@pytest.mark.usefixtures("toy")
def test_captions_from_line_file_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "captions.txt"
    file.write_bytes("\ufeffa red circle\r\n\r\n  a blå star \r\n".encode())
    assert command(monkeypatch, "a ring", "--captions", str(file), "--out", str(tmp_path / "o"), "--json") == 0
    read = [row["caption"] for row in json.loads(capsys.readouterr().out)["images"]]
    assert read == ["a ring", "a red circle", "a blå star"]
    with file.open("rb") as standard_input:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": standard_input}))
        assert command(monkeypatch, "--captions", "-", "--out", str(tmp_path / "o"), "--json") == 0
    assert [row["caption"] for row in json.loads(capsys.readouterr().out)["images"]] == read[1:]


@pytest.mark.usefixtures("toy")
def test_the_summary_names_the_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, CAPTIONS[0], "--out", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1 image in" in printed.out
    assert "mean accepted length 1.00" in printed.out
    assert str(tmp_path / "contact_sheet.png") in printed.out


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        ((), 2, ("no captions",)),
        (("",), 2, ("a caption is empty",)),
        (("a ring", "--captions", "none.txt"), 2, ("none.txt", "No such file")),
        (("--captions", "empty.txt"), 2, ("no captions", "empty.txt")),
        (("--captions", "latin1.txt"), 2, ("latin1.txt", "UTF-8")),
        (("a ring", "--preset", "lantren"), 2, ("did you mean 'lantern'",)),
        (("a ring", "--preset", "lantern", "--config", "x.yaml"), 2, ("--preset and --config",)),
        (("a ring", "--config", "x.yaml"), 2, ("x.yaml", "No such file")),
        (("a ring", "--preset", "eagle2", "--depth", "0"), 2, ("--depth", "at least 1")),
        (("a ring", "--preset", "eagle2", "--depth", "deep"), 2, ("--depth", "integer")),
        (("a ring", "--preset", "lantern", "--k", "5000"), 2, ("--k", "5000", "24 codes")),
        (("a ring", *CHAIN, "--top-k", "25"), 2, ("--top-k", "25", "24 codes")),
        (("a ring", "--drafter", "medusa", "--tree", "chain", "--depth", "9"), 2, ("9", "6", "edusa")),
        (("a ring", "--drafter", "eagle", "--tree", "static", "--set", "tree.paths=[[0],[1,0]]"), 2, ("orphan",)),
        (("a ring", "--batch", "0"), 2, ("--batch", "greater than or equal to 1")),
        (("a ring", "--samples", "0"), 2, ("--samples", "greater than or equal to 1")),
        (("a ring", "--no-such-option"), 2, ("--no-such-option",)),
        (("a ring", "--out", "empty.txt/sub"), 2, ("empty.txt",)),
    ],
)
@pytest.mark.usefixtures("toy")
def test_mistakes_get_one_message(
    arguments: tuple[str, ...],
    code: int,
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "latin1.txt").write_bytes("ein blåer Kreis".encode("latin-1"))
    assert command(monkeypatch, *arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("Error: ") == 1
    assert "Traceback" not in printed.err
    for part in parts:
        assert part in printed.err


def test_a_missing_drafter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = Models(toy_target(), {}, {})
    monkeypatch.setattr(orchestrator.run.generation, "load_models", lambda *_: models)
    assert command(monkeypatch, "a ring", "--preset", "lantern", "--out", str(tmp_path)) == 2
    assert "has no 'eagle' drafter" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_fail(
    bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = toy_models(break_with=bad)
    monkeypatch.setattr(orchestrator.run.generation, "load_models", lambda *_: models)
    assert command(monkeypatch, "a ring", *CHAIN, "--out", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert "not finite" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("toy")
def test_an_interrupt_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode, calls = Target.decode, []

    def interrupted(self: Target, tokens: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(self, tokens)

    monkeypatch.setattr(Target, "decode", interrupted)
    assert command(monkeypatch, *CAPTIONS, "--batch", "1", "--out", str(tmp_path)) == 130
    assert "interrupted; 1 of 2 images are in" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.png"))) == 1


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()],
    ids=["cuda", "cpu", "python"],
)
@pytest.mark.parametrize(
    ("where", "advice"),
    [
        ((Engine, "open_batch"), "at batch 8; try --batch 4"),
        ((orchestrator.run.generation, "load_models"), "while the models were loaded"),
    ],
    ids=["drawing", "loading"],
)
def test_running_out_of_memory_says_what_to_try(
    error: Exception,
    where: tuple[object, str],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(*where, full)
    assert command(monkeypatch, *CAPTIONS, "--batch", "8", "--out", str(tmp_path)) == 1
    assert f"out of memory {advice}" in capsys.readouterr().err


def test_cells_carry_the_length_of_their_round() -> None:
    emitted = torch.tensor([3, 1, 2])
    numbers = ImageStatistics(emitted, emitted.cumsum(0) - emitted + 1, emitted, emitted, dict.fromkeys(PHASES, 0.0))
    other = torch.tensor([6])
    single = ImageStatistics(other, torch.tensor([1]), other, other, dict.fromkeys(PHASES, 0.0))
    results = [Result(Job(0, "x"), torch.zeros(7), numbers), Result(Job(1, "x"), torch.zeros(7), single)]
    assert acceptance_map(results[:1], Grid(2, 4)) == [[None, 3, 3, 3], [1, 2, 2, None]]
    assert acceptance_map(results, Grid(2, 4)) == [[None, 4.5, 4.5, 4.5], [3.5, 4, 4, None]]


@pytest.mark.parametrize(
    ("caption", "name"),
    [
        ("A  Red/Circle!", "0003-1-a-red-circle.png"),
        ("../../etc/passwd", "0003-1-etc-passwd.png"),
        ("圆", "0003-1.png"),
        ("x" * 500, f"0003-1-{'x' * 48}.png"),
    ],
)
def test_file_names_are_safe(caption: str, name: str) -> None:
    assert file_name(Job(3, caption, 1)) == name


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "cuda:99"])
def test_devices_that_are_not_here_are_refused(name: str) -> None:
    with pytest.raises(CommandError, match=f"--device {name}"):
        pick_device(name)
