"""`specfrontier generate --models FILE#ENTRY`: pictures of tiny official checkpoints, and messages of wrong entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.tiny_llamagen import write_models
from workers.loading.models_yaml import read_entry, split_entry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)


def test_captions_become_pictures(made: Path, tmp_path: Path) -> None:
    """The text-conditional entry: T5, the caption MLP, the drafter, the codec."""
    config = ("--set", "drafter.kind=eagle", "--set", "tree.policy=chain", "--set", "tree.length=2")
    words = ("--models", "models.yaml#captions", *config, "--json", "--out", str(tmp_path))
    result = specfrontier("generate", "a red ball", "a small cat", *words)
    assert result.code == 0, result.err
    statistics = result.json
    assert statistics["target"] == "llamagen-t2i-32x2-48"
    assert statistics["weights"] == read_entry(made, "captions").hashes
    assert statistics["config"]["sampling"]["cfg"] == 7.5, "the family's default"
    for row in statistics["images"]:
        with Image.open(tmp_path / row["file"]) as picture:
            assert picture.size == (384, 384)
            assert len(set(picture.convert("L").tobytes())) > 50


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--models", "models.yaml"), "has several entries; name one, models.yaml#NAME: classes, captions"),
        (("--models", "models.yaml#clases"), "did you mean 'classes'?"),
        (("--models", "models.yaml#classes"), "'a red ball'"),
        (("--models", "nowhere.yaml#classes"), "nowhere.yaml: no such file"),
    ],
)
def test_wrong_entries_are_refused(words: tuple[str, ...], part: str, tmp_path: Path) -> None:
    message = error_of("generate", "a red ball", *words, "--out", str(tmp_path), code=2)
    assert part in message
    assert message.count("\n") == 1


def test_a_missing_checkpoint_fails(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("a: {family: llamagen, transformer: x.pt, vq: y.pt, image_size: 256}\n")
    assert "models.yaml:1: a: " in error_of("generate", "7", "--models", str(path), code=1)


def test_a_file_with_the_sign_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a#b.yaml"
    assert split_entry(f"{path}#c") == (str(path), "c")
    path.write_text("x")
    assert split_entry(str(path)) == (str(path), None)
    assert split_entry("models.yaml") == ("models.yaml", None)
