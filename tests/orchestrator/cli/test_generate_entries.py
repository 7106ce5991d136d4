"""`specfrontier generate --models FILE#ENTRY`: pictures of tiny official checkpoints, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from orchestrator.cli.app import main
from tests.fakes.tiny_llamagen import write_models
from workers.loading.entry_names import split_entry
from workers.loading.manifest import hashes_of, read_entry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)


def generate(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specfrontier", "generate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_captions_become_pictures(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text-conditional entry: T5, the caption MLP, the drafter, the codec."""
    words = ("--models", "models.yaml#captions", "--drafter", "eagle", "--tree", "chain", "--depth", "2")
    code = generate(monkeypatch, "a red ball", "a small cat", *words, "--json", "--out", str(tmp_path))
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == "llamagen-t2i-32x2-48"
    assert told["weights"] == hashes_of(read_entry(made, "captions"))
    assert told["config"]["sampling"]["cfg"] == 7.5, "the family's own"
    for row in told["images"]:
        with Image.open(tmp_path / row["file"]) as picture:
            assert picture.size == (384, 384)
            assert len(set(picture.convert("L").tobytes())) > 50


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--models", "models.yaml"), 2, "has several entries; name one, models.yaml#NAME: classes, captions"),
        (("--models", "models.yaml#clases"), 2, "did you mean 'classes'?"),
        (("--models", "models.yaml#classes", "--weights", "x"), 2, "--weights and --models both"),
        (("--models", "models.yaml#classes"), 2, "'a red ball' is no class"),
        (("--models", "nowhere.yaml#classes"), 2, "nowhere.yaml: No such file"),
    ],
)
def test_what_is_refused(
    words: tuple[str, ...],
    code: int,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert generate(monkeypatch, "a red ball", *words, "--out", str(tmp_path)) == code
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1


def test_a_missing_checkpoint_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("a: {family: llamagen, transformer: x.pt, vq: y.pt, image_size: 256}\n")
    assert generate(monkeypatch, "7", "--models", str(path)) == 1
    assert "models.yaml:1: a: " in capsys.readouterr().err


def test_a_file_with_the_sign_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a#b.yaml"
    assert split_entry(f"{path}#c") == (str(path), "c")
    path.write_text("x")
    assert split_entry(str(path)) == (str(path), None)
    assert split_entry("models.yaml") == ("models.yaml", None)
    assert split_entry(None) == (None, None)
