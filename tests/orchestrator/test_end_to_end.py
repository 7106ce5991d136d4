"""The command on the built-in weights: it draws what the captions say, and says what is wrong with broken weights."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from orchestrator.cli.app import main
from workers.metrics.caption_accuracy import caption_accuracy
from workers.metrics.features import load_features
from workers.models.checkpoint_files import safetensors_metadata
from workers.models.families.scenes import BUILTIN

CAPTIONS = (
    "a large red circle on a striped green background",
    "a small blue star left of a large yellow ring",
    "a large purple dotted triangle above a small white cross on a checkered brown background",
    "a large orange square at the bottom on a cloudy pink background",
)


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specfrontier", "generate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def pixels(path: Path) -> Tensor:
    """The picture as drawn, [3, 48, 48] in [0, 1]: one pixel of each enlarged square."""
    with Image.open(path) as picture:
        raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(picture.height, picture.width, 3)
    factor = raw.shape[0] // 48
    assert torch.equal(raw, raw[::factor, ::factor].repeat_interleave(factor, 0).repeat_interleave(factor, 1))
    return raw[::factor, ::factor].permute(2, 0, 1).float() / 255


@pytest.mark.slow(seconds=35)
@pytest.mark.parametrize("preset", ["vanilla", "lantern"])
def test_the_pictures_show_what_the_captions_say(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 pictures with a fixed seed; guessing every attribute blindly would be right for about one in four."""
    out = str(tmp_path)
    assert generate(monkeypatch, *CAPTIONS, "--preset", preset, "--samples", "4", "--out", out, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["target"] == "scenes"
    assert set(printed["weights"]) >= {"target.safetensors", "tokenizer.safetensors", "eagle.safetensors"}
    rows = printed["images"]
    net = load_features()
    images = torch.stack([pixels(tmp_path / row["file"]) for row in rows])
    accuracy = caption_accuracy(net, net.extract(images), [row["caption"] for row in rows])
    assert accuracy.value > 0.6
    if preset == "vanilla":
        assert printed["overall"]["mean_accepted_length"] == 1
    else:
        assert printed["overall"]["mean_accepted_length"] > 1.5
        assert all(row["mean_tree_depth"] <= 5 for row in rows)


def test_an_unknown_word_is_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(monkeypatch, CAPTIONS[0], "a large crimson circle", "--out", str(tmp_path), "--batch", "1") == 2
    error = capsys.readouterr().err
    assert "unknown word 'crimson'" in error
    assert "red, orange, yellow" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_k_beyond_the_codebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(monkeypatch, "a red ring", "--preset", "lantern", "--k", "1025", "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == "Error: --k: 1025 neighbours are more than the 1024 codes of the codebook\n"


def truncate(folder: Path) -> None:
    path = folder / "target.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def empty(folder: Path) -> None:
    (folder / "tokenizer.safetensors").write_bytes(b"")


def remove(folder: Path) -> None:
    (folder / "target.safetensors").unlink()


def swap_families(folder: Path) -> None:
    shutil.copy(folder / "features.safetensors", folder / "target.safetensors")


def poison(folder: Path) -> None:
    path = folder / "target.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("head.weight"))
    tensors[name][0, 0] = torch.nan
    save_file(tensors, path, metadata=safetensors_metadata(path))


def scribble(folder: Path) -> None:
    (folder / "target.safetensors").write_text("<html>not found</html>")


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (truncate, ("target.safetensors", "truncated")),
        (empty, ("tokenizer.safetensors",)),
        (remove, ("target.safetensors", "no such file")),
        (swap_families, ("target.safetensors", "does not describe")),
        (poison, ("target.safetensors", "NaN")),
        (scribble, ("target.safetensors", "web page")),
    ],
)
def test_broken_weights_are_named(
    damage: object,
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(BUILTIN, folder)
    assert callable(damage)
    damage(folder)
    said = ("a red ring", "--weights", str(folder), "--out", str(tmp_path / "out"))
    assert generate(monkeypatch, *said) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    for part in parts:
        assert part in error


def test_a_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ("a red ring", "--weights", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert generate(monkeypatch, *said) == 2
    assert "no such folder" in capsys.readouterr().err
