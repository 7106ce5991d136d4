"""Distances on DINOv2's features: equal to transformers, computed by a sweep next to fid, and wrong
folders.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchmetrics.image.fid import FrechetInceptionDistance
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_models import tiny_scenes
from workers.data.records import features_of, read_shard
from workers.data.reference import read_reference
from workers.data.storage import Storage
from workers.metrics.dinov2 import load_dinov2
from workers.metrics.estimate import BLOCKS
from workers.metrics.kid import kernel_distance
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN
from workers.scenes.images import render, sample_attributes

WIDTH, COUNT, REAL = 16, 48, 96
SPACE = f"""
name: dinov2
models: WEIGHTS
captions: {{source: scenes, count: {COUNT}, seed: 1}}
reference: {{source: scenes, count: {REAL}, seed: 2}}
quality: {{batch: 24, shard: 24}}
sampling: {{temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}}
objectives: [step_compression, fd_dinov2]
metrics: [step_compression, fd_dinov2, kd_dinov2, fid]
enqueue: [vanilla]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random DINOv2 of 16 features whose positions are those of 70 pixels, so that they are
    interpolated.
    """
    folder = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14
    )
    model = Dinov2Model(config)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


def test_features_equal_transformers_by_hand(folder: Path) -> None:
    images = render(sample_attributes(2, range(3)), 2, range(3))
    pictures = [
        picture.resize((256, 256), Image.Resampling.LANCZOS) for picture in squares(images, None)
    ]
    processor = BitImageProcessorPil(
        size={"height": 224, "width": 224}, resample=Image.Resampling.BICUBIC, do_center_crop=False,
        image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225],
    )  # fmt: skip
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (3, 3, 224, 224)
    with torch.no_grad():
        expected = Dinov2Model.from_pretrained(folder)(pixel_values=pixels).pooler_output
    found = load_dinov2(folder).extract(images)
    assert expected.std(0).min() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepRun:
    def models(weights: Path) -> Path:
        entry = {
            "family": "scenes",
            "folder": str(tiny_scenes(weights)),
            "metrics": {"dinov2": str(folder)},
        }
        (weights / "models.yaml").write_text(json.dumps({"tiny": entry}))
        return weights / "models.yaml"

    run = SweepRun(tmp_path_factory.mktemp("sweep"), SPACE, models=models)
    run.run_locally()
    return run


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torchmetrics: its buffer
def test_a_sweep_measures_both_distances_next_to_fid(run: SweepRun, folder: Path) -> None:
    storage = Storage(str(run.store))
    features = torch.cat([features_of(read_shard(storage, f"shards/{name}")[0], "dinov2")
                          for name in storage.names("shards")])  # fmt: skip
    real = load_dinov2(folder).extract(render(sample_attributes(2, range(REAL)), 2, range(REAL)))
    (record,) = run.records
    assert features.shape == (COUNT, WIDTH)
    library = FrechetInceptionDistance(feature=Given())
    library.update(features, real=False)
    library.update(real, real=True)
    found = record.metrics["fd_dinov2"]
    assert found.value == pytest.approx(float(library.compute()), rel=1e-3)
    assert len(found.replicates) == BLOCKS
    positions = torch.arange(COUNT) % BLOCKS
    assert record.metrics["kd_dinov2"].value == pytest.approx(
        kernel_distance(features, real, positions).value, rel=1e-3
    )
    assert record.metrics["fid"].value != pytest.approx(found.value, rel=0.01)


class Given(torch.nn.Module):
    num_features = WIDTH

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features


def test_reference_files_hold_its_features(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "real.parquet"
    models = tmp_path / "models.yaml"
    entry = {
        "family": "scenes",
        "folder": str(BUILTIN),
        "metrics": {"dinov2": str(folder)},
    }
    models.write_text(json.dumps({"tiny": entry}))
    result = specfrontier(
        "reference", "scenes", "--count", "70", "--models", f"{models}#tiny", "--out", str(out)
    )
    assert result.code == 0, result.err
    stored = read_reference(out, extractors=())
    assert stored.facts["count"] == 70
    table, _ = read_shard(Storage(str(tmp_path)), "real.parquet")
    assert features_of(table, "dinov2").shape == (70, WIDTH)


def test_a_sweep_without_the_folder_names_the_key(tmp_path: Path) -> None:
    result = specfrontier(*SweepRun(tmp_path, SPACE).arguments("--check"))
    assert result.code == 2
    assert "objectives[1]: " in result.err
    assert "metrics.dinov2" in result.err


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such folder"):
        load_dinov2(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(WeightsError, match="not dinov2"):
        load_dinov2(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightsError, match="no weights"):
        load_dinov2(tmp_path)
