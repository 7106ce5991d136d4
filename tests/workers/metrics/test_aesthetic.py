"""The aesthetic predictor: equal to a computation by hand, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fakes import tiny_clip
from tests.fakes.metric_inputs import load_scorer, mean_score, paler_and_red
from workers.metrics.aesthetic import LinearHead, aesthetic_scores
from workers.metrics.clip_files import load_clip_folder
from workers.metrics.extractors import check_weights
from workers.metrics.networks import load_frozen
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN
from workers.scenes.images import render, sample_attributes

CAPTIONS = ("a red star", "a blue ring", "a red one")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return render(sample_attributes(2, range(3)), 2, range(3))


def head_file(path: Path, inputs: int) -> dict[str, Tensor]:
    """Random weights of the predictor: layers 0, 2, 4, 6, 7 of the published sizes."""
    generator = torch.Generator().manual_seed(3)
    widths = (inputs, 1024, 128, 64, 16, 1)
    weights: dict[str, Tensor] = {}
    for layer, fan_in, fan_out in zip((0, 2, 4, 6, 7), widths, widths[1:], strict=False):
        weights[f"layers.{layer}.weight"] = (
            torch.randn(fan_out, fan_in, generator=generator) / fan_in**0.5
        )
        weights[f"layers.{layer}.bias"] = torch.randn(fan_out, generator=generator)
    torch.save(weights, path)
    return weights


def test_aesthetic_scores_by_hand(images: Tensor, tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "l14")
    (tmp_path / "l14" / "vocab.json").unlink()  # the predictor reads no captions
    weights = head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    clip = load_clip_folder(tmp_path / "l14", texts=False)
    scorer = load_scorer(
        "aesthetic", {"aesthetic": tmp_path / "head.pth", "clip_l14": tmp_path / "l14"}
    )
    embedded = clip.embed_images(images)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))
    expected = embedded
    for layer in (0, 2, 4, 6, 7):
        expected = expected @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
    torch.testing.assert_close(scorer.score(images, CAPTIONS), expected[:, 0], rtol=1e-4, atol=1e-4)
    assert scorer.identity.startswith("laion-aesthetic@")


def test_wrong_aesthetic_files_are_refused(tmp_path: Path) -> None:
    head_file(tmp_path / "head.pth", 7)
    tiny_clip.write_clip(tmp_path / "l14")
    with pytest.raises(WeightsError, match=r"layers\.0\.weight has shape \[1024, 7\]"):
        load_scorer("aesthetic", {"aesthetic": tmp_path / "head.pth", "clip_l14": tmp_path / "l14"})


def test_a_colour_shift_lowers_the_score_of_a_head_fitted_to_the_colours(tmp_path: Path) -> None:
    """A head along the images' own mean direction replaces a trained one."""
    images = render(sample_attributes(4, range(6)), 4, range(6))
    tiny_clip.write_clip(tmp_path / "l14")
    clip = load_clip_folder(tmp_path / "l14", texts=False)
    direction = clip.embed_images(images).mean(0)
    weights = head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    for name, weight in weights.items():
        weight.zero_()
        if name.endswith("weight"):
            weight[0, 0] = 1.0
    weights["layers.0.weight"][0] = direction
    torch.save(weights, tmp_path / "head.pth")
    head = load_frozen(lambda: LinearHead(tiny_clip.SHARED), tmp_path / "head.pth")
    good, bad = (
        mean_score("aesthetic", aesthetic_scores(clip, head, x))
        for x in (images, paler_and_red(images))
    )
    assert bad.value + 3 * (good.error + bad.error) < good.value


def test_check_weights_compares_shapes_without_loading(tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "clip")
    head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    paths = {
        "clip": str(tmp_path / "clip"),
        "clip_l14": str(tmp_path / "clip"),
        "aesthetic": str(tmp_path / "head.pth"),
    }
    assert check_weights(BUILTIN, paths) == {}
    missing = check_weights(BUILTIN, paths | {"clip_l14": str(tmp_path / "nowhere")})
    assert missing.keys() == {"clip_l14", "aesthetic"}, "the head needs CLIP"
    assert missing["clip_l14"].startswith(f"{tmp_path}/nowhere: no such file")
    head_file(tmp_path / "head.pth", 7)
    torch.save(tiny_clip.open_clip_weights(), tmp_path / "hps.pt")
    weights = (tmp_path / "clip" / "model.safetensors").read_bytes()
    problems = check_weights(BUILTIN, paths | {"hpsv2": str(tmp_path / "hps.pt")})
    assert problems.keys() == {"aesthetic", "hpsv2"}
    assert check_weights(
        BUILTIN, paths | {"hpsv2": str(tmp_path / "hps.pt")}, ["fid", "hpsv2"]
    ).keys() == {"hpsv2"}
    assert "layers.0.weight has shape [1024, 7]" in problems["aesthetic"]
    (tmp_path / "clip" / "model.safetensors").write_bytes(weights[:-8])
    assert "truncated" in check_weights(BUILTIN, paths)["clip"]
