"""`generate` with the built-in weights: pictures match their captions, and broken weights are
named.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fakes.command_line import error_of, specfrontier
from workers.metrics.caption_accuracy import image_accuracies
from workers.metrics.features import load_features
from workers.models.checkpoint_files import safetensors_metadata
from workers.models.families.scenes import BUILTIN

CAPTIONS = (
    "a large red circle on a striped green background",
    "a small blue star left of a large yellow ring",
    "a large purple dotted triangle above a small white cross on a checkered brown background",
    "a large orange square at the bottom on a cloudy pink background",
)


def pixels(path: Path) -> Tensor:
    """The picture as drawn, [3, 48, 48] in [0, 1]: one pixel of each enlarged square."""
    with Image.open(path) as picture:
        raw = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(
            picture.height, picture.width, 3
        )
    factor = raw.shape[0] // 48
    assert torch.equal(
        raw, raw[::factor, ::factor].repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    )
    return raw[::factor, ::factor].permute(2, 0, 1).float() / 255


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(("preset", "samples"), [("vanilla", 2), ("lantern", 1)])
def test_pictures_match_their_captions(preset: str, samples: int, tmp_path: Path) -> None:
    """8 and 4 pictures with a fixed seed; blind guesses would get about one attribute in four
    right. The preset's tree of 60 nodes is cut, as a core has to pay for each.
    """
    small = ("--set", "tree.nodes=12") if preset == "lantern" else ()
    words = (
        *CAPTIONS,
        "--preset",
        preset,
        *small,
        "--samples",
        str(samples),
        "--out",
        str(tmp_path),
        "--json",
    )
    result = specfrontier("generate", *words)
    assert result.code == 0, result.err
    printed = result.json
    assert printed["target"] == "scenes"
    assert set(printed["weights"]) >= {"target", "tokenizer", "drafters.eagle"}
    rows = printed["images"]
    assert len(rows) == samples * len(CAPTIONS)
    net = load_features()
    images = torch.stack([pixels(tmp_path / row["file"]) for row in rows])
    accuracy = image_accuracies(net, net.extract(images), [row["caption"] for row in rows])
    assert accuracy.mean() > 0.6
    if preset == "vanilla":
        assert printed["overall"]["mean_accepted_length"] == 1
    else:
        assert printed["overall"]["mean_accepted_length"] > 1.5
        assert all(row["mean_tree_depth"] <= 5 for row in rows)


def test_an_unknown_word_is_refused_before_drawing(tmp_path: Path) -> None:
    message = error_of(
        "generate", CAPTIONS[0], "a large crimson circle", "--out", str(tmp_path), code=2
    )
    assert "'crimson'" in message
    assert "red, orange, yellow" in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_k_beyond_the_codebook(tmp_path: Path) -> None:
    config = ("--preset", "lantern", "--set", "acceptance.k=1025")
    message = error_of("generate", "a red ring", *config, "--out", str(tmp_path), code=2)
    assert message.startswith("Error: acceptance.k: 1025 neighbours")
    assert "1024 codes" in message


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
    damage: Callable[[Path], None], parts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(BUILTIN, folder)
    damage(folder)
    message = error_of(
        "generate", "a red ring", "--models", str(folder), "--out", str(tmp_path / "out"), code=1
    )
    assert message.startswith("Error: ")
    assert message.count("\n") == 1
    for part in parts:
        assert part in message


def test_a_missing_folder(tmp_path: Path) -> None:
    words = ("a red ring", "--models", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert "no such file or folder" in error_of("generate", *words, code=2)
