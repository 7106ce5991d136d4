"""FID's Inception: equal to a layer-by-layer computation, its resizing, and metrics on its
features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fakes import metric_inputs
from tests.fakes.metric_inputs import paler_and_red
from tests.oracles.plain_inception import PlainInception
from workers.metrics.definition import FEATURES
from workers.metrics.extractors import load_extractors
from workers.metrics.frechet import Gaussian, frechet_distance
from workers.metrics.inception import InceptionFeatures, load_inception
from workers.metrics.metric import MetricInputs, ReferenceFeatures, Rows
from workers.metrics.networks import EXTRACTORS
from workers.metrics.registry import compute_metrics
from workers.models.checkpoint_files import WeightsError
from workers.models.weights import skip_init
from workers.scenes.images import render, sample_attributes

IMAGES = range(6)


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Two scenes at the network's own size."""
    images = render(sample_attributes(3, range(2)), 3, range(2))
    return torch.nn.functional.interpolate(images, 299, mode="bilinear") * 255


@pytest.fixture(scope="module")
def plain(pixels: Tensor) -> tuple[PlainInception, Tensor]:
    """The plain network and its features of `pixels`."""
    network = PlainInception()
    return network, network(pixels)


@pytest.fixture(scope="module")
def file(plain: tuple[PlainInception, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the standard file's layout."""
    path = tmp_path_factory.mktemp("weights") / "pt_inception.pth"
    torch.save(plain[0].weights, path)
    return path


@pytest.fixture(scope="module")
def inception(file: Path) -> InceptionFeatures:
    return load_inception(file)


@pytest.fixture(scope="module")
def scenes() -> Tensor:
    return render(sample_attributes(1, IMAGES), 1, IMAGES)


def test_features_equal_the_layer_by_layer_computation(
    inception: InceptionFeatures, plain: tuple[PlainInception, Tensor], pixels: Tensor
) -> None:
    expected = plain[1]
    assert expected.std(0).mean() > 0.05, "features of different images must differ"
    with torch.no_grad():
        torch.testing.assert_close(inception(pixels).double(), expected, rtol=1e-4, atol=1e-4)
    logits = expected @ plain[0].weights["fc.weight"].double().T  # without the bias
    torch.testing.assert_close(inception.class_logits(expected), logits, rtol=1e-4, atol=1e-3)


def test_the_identity_names_the_resizing(file: Path) -> None:
    meta, cpu = torch.device("meta"), torch.device("cpu")
    shapes = {
        key: load_extractors(Path("unused"), {key: str(file)}, meta)[FEATURES]
        for key in ("inception", "inception_tf")
    }
    names, hashes = zip(*(shape.identity.split("@") for shape in shapes.values()), strict=True)
    assert names == ("inception-clean256", "inception-tf256")
    assert len(set(hashes)) == 1
    for key, shape in shapes.items():
        loaded = EXTRACTORS.all()[key].load_from(file, cpu)
        assert (loaded.name, loaded.identity, loaded.width, loaded.image_size) == (
            key,
            shape.identity,
            2048,
            None,
        )


def test_images_of_any_size_are_prepared(inception: InceptionFeatures, scenes: Tensor) -> None:
    small = inception.prepare(scenes[:1])
    assert small.shape == (1, 3, 299, 299)
    assert small.max() <= 255
    assert small.min() >= 0
    flat = torch.full((1, 3, 20, 30), 0.25)  # not square: the centre is cut out
    torch.testing.assert_close(inception.prepare(flat), torch.full((1, 3, 299, 299), 64.0))
    other = skip_init(lambda: InceptionFeatures("tensorflow"))
    torch.testing.assert_close(other.prepare(flat), torch.full((1, 3, 299, 299), 64.0))
    with pytest.raises(ValueError, match=r"shape \[n, 3, H, W\]"):
        inception.prepare(torch.zeros(3, 48, 48))


def test_layouts_of_files(plain: tuple[PlainInception, Tensor], tmp_path: Path) -> None:
    """Files of newer versions load, those of other networks are refused. One zero fills each tensor
    of the files.
    """
    weights = {
        name: torch.zeros(()).expand(tensor.shape) for name, tensor in plain[0].weights.items()
    }

    def load(more: dict[str, Tensor]) -> InceptionFeatures:
        torch.save({"state_dict": weights | more}, tmp_path / "file.pth")
        return load_inception(tmp_path / "file.pth")

    assert not load({"Conv2d_1a_3x3.bn.num_batches_tracked": torch.tensor(0)}).fc.weight.any()
    with pytest.raises(
        WeightsError, match=r"file\.pth: .*fc\.weight has shape \[1000, 2048\].*Inception network"
    ):
        load({"fc.weight": torch.zeros(()).expand(1000, 2048)})  # torchvision's
    with pytest.raises(WeightsError, match="unknown to this model"):
        load({"AuxLogits.fc.weight": torch.zeros(2)})
    del weights["Mixed_7c.branch3x3_2b.conv.weight"]
    with pytest.raises(
        WeightsError, match=r"missing weights \(1\): Mixed_7c\.branch3x3_2b\.conv\.weight"
    ):
        load({})


def test_a_shift_of_colour_worsens_the_distances(
    inception: InceptionFeatures, scenes: Tensor
) -> None:
    """The real images' features are the scenes' with a little noise."""
    good, bad = inception.extract(scenes), inception.extract(paler_and_red(scenes))
    real = good + 0.02 * torch.randn(good.shape, generator=torch.Generator().manual_seed(0))
    names = ["kid", "precision", "recall", "inception_score"]
    keys = metric_inputs.keys(len(IMAGES))
    values = []
    for features in (good, bad):
        estimates, _ = compute_metrics(
            MetricInputs(
                images=Rows(keys | {FEATURES: features.half()}),
                references={FEATURES: ReferenceFeatures(real)},
                classifier=inception,
            ),
            names,
        )
        values.append({name: estimates[name].value for name in names})
    assert values[1]["kid"] > 0 > values[0]["kid"]
    for name in ("precision", "recall"):
        assert values[1][name] < values[0][name]
    assert all(1 < value["inception_score"] < len(IMAGES) for value in values)
    near, far, reference = (Gaussian.fit(features[:, :4]) for features in (good, bad, real))
    assert frechet_distance(far, reference) > 10 * frechet_distance(near, reference)


@pytest.mark.slow
def test_distances_of_a_large_width_equal_numpy() -> None:
    """By a Cholesky root instead of a symmetric one: Tr (A B)^.5 = Tr (L' B L)^.5 with A = L L'."""
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(n, 1024, generator=generator) for n in (1250, 1300))
    a = 1.1 * a.half().float() + 0.1
    x, y = a.double().numpy(), b.double().numpy()
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = np.linalg.cholesky(s)
    cross = np.sqrt(np.linalg.eigvalsh(root.T @ t @ root).clip(0)).sum()
    expected = np.square(x.mean(0) - y.mean(0)).sum() + np.trace(s) + np.trace(t) - 2 * cross
    assert frechet_distance(Gaussian.fit(a), Gaussian.fit(b)) == pytest.approx(
        float(expected), rel=1e-6
    )
