"""Training of the metric nets on a handful of scenes: it learns, it is deterministic, its file
loads.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.optimisers import OneCycleConfig
from recipes.scene_nets import train_clip, train_features
from recipes.scene_set import SceneSet, amounts, corrupt, scene_set
from workers.metrics.clip_score import ClipConfig, load_clip
from workers.metrics.features import FeatureConfig, load_features
from workers.scenes.images import render, sample_attributes

NET = FeatureConfig(channels=(8, 8, 16, 16), squeeze=4, dim=16, hidden=32)
CLIP = ClipConfig(
    dim=16, heads=2, ffn_dim=16, vision_layers=1, text_layers=1, patch=16, projection=8
)
RUN = OneCycleConfig(
    steps=45, batch=32, rate=4e-3, rise=0.15, ema=0.0, save_every=15, bf16=False, seed=7
)


def losses(folder: Path, name: str) -> list[float]:
    return [
        json.loads(line)["loss"]
        for line in (folder / f"{name}.journal.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def scenes() -> SceneSet:
    return scene_set(0, 96, chunk=40)


def test_scene_set_holds_the_scenes(scenes: SceneSet) -> None:
    assert len(scenes) == 96
    assert scenes.images.dtype == torch.uint8
    rows = sample_attributes(0, range(96))
    assert torch.equal(scenes.rows, rows)
    assert (
        scenes.floats(slice(38, 42)) - render(rows[38:42], 0, range(38, 42))
    ).abs().max() <= 0.5 / 255 + 1e-6


def test_feature_net_learns_and_repeats(scenes: SceneSet, tmp_path: Path) -> None:
    def train(folder: str, seed: int = 7, steps: int = 6) -> Path:
        run = replace(RUN, seed=seed, steps=steps)
        return train_features(scenes, run, tmp_path / folder, net=NET, log=lambda line: None)

    first, again, other = train("a"), train("b"), train("c", seed=8)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    net = load_features(train("whole", steps=RUN.steps))
    curve = losses(tmp_path / "whole", "features")
    assert sum(curve[-5:]) < sum(curve[:5])
    accuracy = (net.read(net.extract(scenes.floats(slice(None)))) == scenes.rows).float().mean()
    majority = (
        torch.stack([column.bincount().max() for column in scenes.rows.T]).sum()
        / scenes.rows.numel()
    )
    assert accuracy > majority


def test_clip_learns_and_repeats(scenes: SceneSet, tmp_path: Path) -> None:
    first, again, whole = (
        train_clip(
            scenes,
            replace(RUN, batch=16, steps=steps),
            tmp_path / folder,
            net=CLIP,
            log=lambda line: None,
        )
        for folder, steps in (("a", 6), ("b", 6), ("whole", RUN.steps))
    )
    assert first.read_bytes() == again.read_bytes()
    curve = losses(tmp_path / "whole", "clip")
    assert sum(curve[-5:]) < sum(curve[:5])
    cosines = load_clip(whole).cosines(
        scenes.floats(slice(0, 2)), ["a small red ring on a smooth pink background"] * 2
    )
    assert cosines.abs().max() <= 1


@pytest.mark.parametrize("name", ["features", "clip"])
def test_an_interrupted_training_leaves_the_earlier_file(
    scenes: SceneSet, tmp_path: Path, name: str
) -> None:
    class Stopped(Exception): ...

    def stop(line: str) -> None:
        if "step 2/" in line:
            raise Stopped

    config, path = (
        replace(RUN, steps=2, batch=4, save_every=1, log_every=1),
        tmp_path / f"{name}.safetensors",
    )

    def run(**options: Any) -> None:
        if name == "features":
            train_features(scenes, config, tmp_path, net=NET, **options)
        else:
            train_clip(scenes, config, tmp_path, net=CLIP, **options)

    path.write_text("earlier")
    with pytest.raises(Stopped):
        run(log=stop)
    assert path.read_text() == "earlier"
    run(resume=True, log=lambda line: None)
    finished = path.read_bytes()
    path.unlink()
    run(resume=True, log=lambda line: None)
    assert path.read_bytes() == finished


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
