"""Training of the metric nets on a handful of scenes: it learns, it is deterministic, its file loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from workers.metrics.clip_score import ClipConfig, load_clip
from workers.metrics.features import FeatureConfig, load_features
from workers.scenes.images import render, sample_attributes
from workers.training.scene_nets import ClipTraining, FeatureTraining, train_clip, train_features
from workers.training.scene_set import SceneSet, amounts, corrupt, scene_set

NET = FeatureConfig(channels=(8, 8, 16, 16), squeeze=4, dim=16, hidden=32)
FEATURES = FeatureTraining(net=NET, steps=45, batch=32, log_every=15, bf16=False)
CLIP = ClipTraining(
    model=ClipConfig(dim=16, heads=2, ffn_dim=16, vision_layers=1, text_layers=1, patch=16, projection=8),
    steps=45, batch=16, log_every=15, bf16=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def scenes() -> SceneSet:
    return scene_set(0, 96, chunk=40)


def test_scene_set_holds_the_scenes(scenes: SceneSet) -> None:
    assert len(scenes) == 96
    assert scenes.images.dtype == torch.uint8
    rows = sample_attributes(0, range(96))
    assert torch.equal(scenes.rows, rows)
    assert (scenes.floats(slice(38, 42)) - render(rows[38:42], 0, range(38, 42))).abs().max() <= 0.5 / 255 + 1e-6


def test_feature_net_learns_and_repeats(scenes: SceneSet, tmp_path: Path) -> None:
    lines: list[str] = []
    first = train_features(FEATURES, scenes, tmp_path / "a", 7, log=lines.append)
    again = train_features(FEATURES, scenes, tmp_path / "b", 7, log=lambda line: None)
    other = train_features(FEATURES, scenes, tmp_path / "c", 8, log=lambda line: None)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert len(lines) == 3
    assert all(re.search(r"features step \d+/45 .* \d+ s left", line) for line in lines)
    net = load_features(first)
    accuracy = (net.read(net.extract(scenes.floats(slice(None)))) == scenes.rows).float().mean()
    majority = torch.stack([column.bincount().max() for column in scenes.rows.T]).sum() / scenes.rows.numel()
    assert accuracy > majority


def test_clip_learns_and_repeats(scenes: SceneSet, tmp_path: Path) -> None:
    lines: list[str] = []
    first = train_clip(CLIP, scenes, tmp_path / "a", 7, log=lines.append)
    again = train_clip(CLIP, scenes, tmp_path / "b", 7, log=lambda line: None)
    assert first.read_bytes() == again.read_bytes()
    assert len(lines) == 3
    assert all(re.search(r"clip step \d+/45 .* \d+ s left", line) for line in lines)
    losses = [float(re.search(r"attributes ([\d.]+)", line)[1]) for line in lines]  # type: ignore[index]
    assert losses[-1] < losses[0]
    cosines = load_clip(first).cosines(scenes.floats(slice(0, 2)), ["a small red ring on a smooth pink background"] * 2)
    assert cosines.abs().max() <= 1


def test_corruptions_keep_what_they_should(scenes: SceneSet) -> None:
    images = scenes.floats(slice(0, 16))
    generator = torch.Generator().manual_seed(0)
    nothing = torch.zeros(16, 3)
    torch.testing.assert_close(corrupt(images, nothing, generator), images, rtol=0, atol=0)
    for kind in range(3):
        mean_error = []
        for size in (0.3, 1.0):
            amount = nothing.clone()
            amount[:8, kind] = size
            changed = corrupt(images, amount, generator)
            assert torch.equal(changed[8:], images[8:])
            assert torch.equal(changed, changed.clamp(0, 1))
            mean_error.append((changed[:8] - images[:8]).abs().mean())
        assert 0 < mean_error[0] < mean_error[1]
    drawn = amounts(4000, generator)
    # 60% are zero: 5 binomial deviations are 3.9 points (false alarm below 1e-5)
    assert ((drawn == 0).float().mean(0) - 0.6).abs().max() < 0.039
    assert drawn.max() < 1
