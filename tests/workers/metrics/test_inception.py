"""FID's Inception: against a layer-by-layer computation, its resizing by hand, and sweeps that are measured on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from prdc import compute_prdc
from torch import Tensor

import workers.data.reference
from search_spaces.trial import DecodingConfig
from tests.oracles.plain_inception import PlainInception
from workers.data.records import features_of, read_shard
from workers.data.shards import MeasureTask, QualityShard
from workers.evaluate import Evaluator
from workers.loading.models_yaml import folder_entry
from workers.metrics.extractors import feature_info
from workers.metrics.frechet import FeatureStatistics, frechet_distance
from workers.metrics.inception import InceptionFeatures, announce_inception, load_inception
from workers.metrics.metric import MetricInputs, Reference, Rows
from workers.metrics.registry import measure
from workers.models.checkpoint_files import WeightsError
from workers.models.weights import skip_init
from workers.runtime.specification import WorkerSpec
from workers.scenes.images import render, sample_attributes

IMAGES = range(8)


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Three scenes at the net's own size."""
    three = render(sample_attributes(3, range(3)), 3, range(3))
    return torch.nn.functional.interpolate(three, 299, mode="bilinear") * 255


@pytest.fixture(scope="module")
def plain(pixels: Tensor) -> tuple[PlainInception, Tensor]:
    """The plain net and its features of `pixels`."""
    net = PlainInception()
    return net, net(pixels)


@pytest.fixture(scope="module")
def file(plain: tuple[PlainInception, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the standard file's layout."""
    path = tmp_path_factory.mktemp("weights") / "pt_inception.pth"
    torch.save(plain[0].weights, path)
    return path


@pytest.fixture(scope="module")
def net(file: Path) -> InceptionFeatures:
    return load_inception(file)


@pytest.fixture(scope="module")
def scenes() -> Tensor:
    return render(sample_attributes(1, IMAGES), 1, IMAGES)


@pytest.fixture(scope="module")
def seen(net: InceptionFeatures, scenes: Tensor) -> Tensor:
    """Features of eight scenes."""
    return net.extract(scenes)


def test_features_equal_the_layer_by_layer_computation(
    net: InceptionFeatures, plain: tuple[PlainInception, Tensor], pixels: Tensor
) -> None:
    expected = plain[1]
    assert expected.std(0).mean() > 0.1, "features that are all alike would compare anything"
    with torch.no_grad():
        torch.testing.assert_close(net(pixels).double(), expected, rtol=1e-4, atol=1e-4)
    logits = expected @ plain[0].weights["fc.weight"].double().T  # without the bias
    torch.testing.assert_close(net.class_logits(expected), logits, rtol=1e-4, atol=1e-3)


def test_identities_tell_the_ways_of_resizing_apart(file: Path, net: InceptionFeatures) -> None:
    assert net.identity.startswith("inception-clean256@")
    assert announce_inception(file) == feature_info(Path("unused"), {"inception": str(file)})
    assert announce_inception(file).identity == net.identity
    other = feature_info(Path("unused"), {"inception_tf": str(file)})
    assert other.identity.split("@") == ["inception-tf256", net.identity.split("@")[1]]
    assert (other.width, other.takes) == (2048, None)


def test_counters_of_newer_files_are_no_hindrance(
    plain: tuple[PlainInception, Tensor], tmp_path: Path, net: InceptionFeatures
) -> None:
    counted = {
        "Conv2d_1a_3x3.bn.num_batches_tracked": torch.tensor(0),
        "Mixed_7c.branch1x1.bn.num_batches_tracked": torch.tensor(0),
    }
    torch.save({"state_dict": plain[0].weights | counted}, tmp_path / "newer.pth")
    newer = load_inception(tmp_path / "newer.pth", "tensorflow")
    assert torch.equal(newer.fc.weight, net.fc.weight)


def test_images_of_any_size_are_prepared(net: InceptionFeatures, scenes: Tensor) -> None:
    small = net.prepare(scenes[:1])
    assert small.shape == (1, 3, 299, 299)
    assert small.max() <= 255
    assert small.min() >= 0
    flat = torch.full((1, 3, 20, 30), 0.25)  # not square: its centre is taken
    torch.testing.assert_close(net.prepare(flat), torch.full((1, 3, 299, 299), 64.0))
    other = skip_init(lambda: InceptionFeatures("tensorflow"))
    torch.testing.assert_close(other.prepare(flat), torch.full((1, 3, 299, 299), 64.0))
    with pytest.raises(ValueError, match=r"shape \[n, 3, H, W\]"):
        net.prepare(torch.zeros(3, 48, 48))


def test_wrong_files_are_refused(plain: tuple[PlainInception, Tensor], file: Path, tmp_path: Path) -> None:
    weights = dict(plain[0].weights)
    (tmp_path / "cut.pth").write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match=r"cut\.pth: .*truncated"):
        load_inception(tmp_path / "cut.pth")
    with pytest.raises(WeightsError, match=r"none\.pth: no such file"):
        load_inception(tmp_path / "none.pth")
    del weights["Mixed_7c.branch3x3_2b.conv.weight"]
    torch.save(weights, tmp_path / "short.pth")
    with pytest.raises(WeightsError, match=r"short\.pth: missing weights \(1\): Mixed_7c\.branch3x3_2b\.conv\.weight"):
        load_inception(tmp_path / "short.pth")
    torch.save(plain[0].weights | {"fc.weight": torch.zeros(1000, 2048)}, tmp_path / "torchvision.pth")
    with pytest.raises(WeightsError, match=r"fc\.weight has shape \[1000, 2048\].*Inception network"):
        load_inception(tmp_path / "torchvision.pth")
    torch.save({"AuxLogits.fc.weight": torch.zeros(2)} | plain[0].weights, tmp_path / "aux.pth")
    with pytest.raises(WeightsError, match="without a place"):
        load_inception(tmp_path / "aux.pth")


def evidence(features: Tensor, real: Tensor, net: InceptionFeatures, vanilla: Tensor) -> MetricInputs:
    keys = {"caption_id": torch.arange(len(features)), "sample": torch.zeros(len(features)).long()}
    return MetricInputs(
        images=Rows(keys | {"features": features.half()}),
        baseline=Rows(keys | {"features": vanilla.half()}),
        reference=Reference(real),
        net=net,
    )


def test_a_shift_of_colour_moves_every_metric(net: InceptionFeatures, scenes: Tensor, seen: Tensor) -> None:
    """Real images are the scenes once more with a little noise; the shifted ones are much paler, and red."""
    noise = torch.randn(scenes.shape, generator=torch.Generator().manual_seed(0)) * 0.01
    real = net.extract((scenes + noise).clamp(0, 1))
    shifted = net.extract(0.3 * scenes + torch.tensor([0.7, 0.0, 0.0]).view(3, 1, 1))
    wanted = ["kid", "precision", "recall", "inception_score"]
    good, _ = measure(evidence(seen, real, net, seen), wanted)
    bad, _ = measure(evidence(shifted, real, net, seen), wanted)
    assert set(good) == set(bad) == set(wanted)
    assert bad["kid"].value > 0 > good["kid"].value
    assert bad["precision"].value < good["precision"].value
    assert bad["recall"].value < good["recall"].value
    assert bad["inception_score"].value < good["inception_score"].value
    few = [FeatureStatistics.of(rows[:, :5]) for rows in (seen, shifted, real)]  # 8 images fill 5 channels
    near, far = (frechet_distance(rows, few[2]) for rows in few[:2])
    assert far > 10 * near
    assert far == pytest.approx(numpy_distance(shifted[:, :5], real[:, :5]), rel=1e-6)
    assert near == pytest.approx(numpy_distance(seen[:, :5], real[:, :5]), rel=1e-6)


def numpy_distance(a: Tensor, b: Tensor) -> float:
    x, y = a.double().numpy(), b.double().numpy()
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
    return float(np.square(x.mean(0) - y.mean(0)).sum() + np.trace(s) + np.trace(t) - 2 * roots)


def test_a_sweep_is_measured_on_it(
    file: Path, net: InceptionFeatures, scenes: Tensor, seen: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluator draws, reads by Inception beside the scenes' net, makes the reference, and says who read it."""
    monkeypatch.setattr(workers.data.reference, "_fills", lambda *_: None)  # 2049 images would take minutes
    section = {"source": "scenes", "count": len(IMAGES), "seed": 1}
    captions = {"source": "scenes", "count": 8, "seed": 1}
    models = {**folder_entry().to_mapping(), "metrics": {"inception": str(file)}}
    sweep = Evaluator(
        WorkerSpec(store=str(tmp_path), device="cpu", captions=captions, reference=section, models=models)
    )
    assert sweep.experiment.extractors["features"] == net.identity
    assert sweep.reference is not None
    assert sweep.reference["extractor"] == net.identity
    assert {"fid", "inception_score", "caption_accuracy", "clip_score"} <= sweep.facts()["metrics"].keys()
    shard = QualityShard(DecodingConfig(sampling=sweep.models.target.sampling), 0, 8, 1, 8)
    told = sweep.quality(shard)
    assert sweep.prepare_reference()["ran"] is True
    table, meta = read_shard(sweep.storage, told["name"])
    assert meta["extractors"]["features"] == net.identity
    assert "features.scenes" not in table.column_names
    drawn = features_of(table, "inception")
    assert drawn.shape == (8, 2048)
    wanted = ("kid", "precision", "recall", "inception_score", "fid", "caption_accuracy")
    found = sweep.measure(MeasureTask(shard.config, (told["name"],), (), (), wanted))
    expected = compute_prdc(seen.double().numpy(), drawn.double().numpy(), nearest_k=3)
    assert found["metrics"]["precision"]["value"] == pytest.approx(expected["precision"])
    assert found["metrics"]["recall"]["value"] == pytest.approx(expected["recall"])
    assert {"kid", "inception_score", "caption_accuracy"} <= found["metrics"].keys()
    assert "2048" in found["skipped"]["fid"]


@pytest.mark.slow
def test_distances_of_its_width_equal_numpy() -> None:
    generator = torch.Generator().manual_seed(7)
    drawn, real = (torch.randn(n, 2048, generator=generator) for n in (2500, 2600))
    drawn = 1.1 * drawn.half().float() + 0.1
    found = frechet_distance(FeatureStatistics.of(drawn), FeatureStatistics.of(real))
    assert found == pytest.approx(numpy_distance(drawn, real), rel=1e-6)
