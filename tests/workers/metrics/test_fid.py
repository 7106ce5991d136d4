"""The fid of the catalogue: against plain NumPy on the stored numbers, and what its error promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from tests.fakes import metric_inputs
from workers.metrics.estimate import Estimate
from workers.metrics.frechet import FrechetEstimate, distance_between
from workers.metrics.metric import MetricInputs, Reference, Rows
from workers.metrics.registry import measure


def numpy_fid(a: Tensor, b: Tensor) -> float:
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
    return float(np.square(x.mean(0) - y.mean(0)).sum() + np.trace(s) + np.trace(t) - 2 * roots)


def test_fid_drift_and_gain_equal_numpy_on_the_stored_features() -> None:
    evidence = metric_inputs.evidence()
    estimates, _ = measure(evidence, ["fid", "drift", "fid_gain"])
    trial, vanilla, real = evidence.column("features"), evidence.vanilla("features"), evidence.against().features
    assert estimates["fid"].value == pytest.approx(numpy_fid(trial, real), rel=1e-6)
    assert estimates["drift"].value == pytest.approx(numpy_fid(trial, vanilla), rel=1e-6)
    assert estimates["fid_gain"].value == pytest.approx(numpy_fid(trial, real) - numpy_fid(vanilla, real), rel=1e-6)
    assert estimates["fid_gain"].error < estimates["fid"].error  # pairs share their captions' difficulty


def test_wide_features_agree_as_well() -> None:
    generator = torch.Generator().manual_seed(3)
    features = (torch.randn(150, 64, generator=generator) * 1.2).half()
    rows = Rows({"caption_id": torch.arange(150), "sample": torch.zeros(150).long(), "features": features})
    real = torch.randn(400, 64, generator=generator).half()
    estimates, _ = measure(MetricInputs(images=rows, reference=Reference(real)), ["fid"])
    assert estimates["fid"].value == pytest.approx(numpy_fid(features, real), rel=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torchmetrics: its buffer
def test_equals_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(90, 6, generator=generator).double() * 1.2 + 0.1
    real = torch.randn(200, 6, generator=generator).double()
    net = torch.nn.Flatten()
    net.num_features = 6  # type: ignore[assignment]
    metric = FrechetInceptionDistance(feature=net, input_img_size=(6, 1, 1)).set_dtype(torch.float64)
    metric.update(features[:, :, None, None], real=False)
    metric.update(real[:, :, None, None], real=True)
    rows = Rows({"caption_id": torch.arange(90), "sample": torch.zeros(90).long(), "features": features})
    found = measure(MetricInputs(images=rows, reference=Reference(real)), ["fid"])[0]["fid"]
    assert found.value == pytest.approx(metric.compute().item(), rel=1e-6)


def test_a_block_leaves_out_whole_captions() -> None:
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    other = features + 0.3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    by_caption = distance_between(features, other, groups=torch.arange(40) // 4)
    assert by_caption == distance_between(features, other, groups=10)  # ten equal blocks are the same ten


def test_the_error_covers_at_its_rate_over_repeated_subsamples() -> None:
    """Captions of two samples each, drawn over and over from one population; nominal 95% (t, 24 degrees of freedom).

    400 repetitions: 3 deviations of the share are 3.3 points. The value is held against its own mean (it is biased at
    any n), the debiased value against the population's distance.
    """
    generator = torch.Generator().manual_seed(5)
    captions, samples, repetitions = 150, 2, 400
    shared = torch.randn(20000, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(20000, samples, 4, generator=generator, dtype=torch.float64)
    population = 1.1 * (0.8 * shared[:, None] + 0.6 * noise) + 0.15
    real = torch.randn(20000, 4, generator=generator, dtype=torch.float64)
    reference = Reference(real)
    truth = numpy_fid(population.flatten(0, 1), real)
    runs = []
    for _ in range(repetitions):
        drawn = torch.randint(20000, (captions,), generator=generator)
        rows = {
            "caption_id": torch.arange(captions).repeat_interleave(samples),
            "sample": torch.arange(samples).repeat(captions),
            "features": population[drawn].flatten(0, 1),
        }
        estimate = measure(MetricInputs(images=Rows(rows), reference=reference), ["fid"])[0]["fid"]
        assert isinstance(estimate, FrechetEstimate)
        runs.append(estimate)
    mean = float(np.mean([run.value for run in runs]))
    assert 0.915 <= share_within(runs, mean, lambda run: run.value) <= 0.983
    assert 0.915 <= share_within(runs, truth, lambda run: run.debiased) <= 0.983
    assert mean > truth


def test_fid_debiased_covers_the_limit_that_fid_misses_at_the_size_of_a_sweep() -> None:
    """192 images, 64 channels whose variances fall off as a net's do; nominal 95% (t, 24 degrees of freedom).

    300 repetitions: 3 deviations of the share are 3.8 points. The jackknife errs on the safe side here, so only the
    lower bound is held. fid itself lies so far above its limit that it never comes near it.
    """
    generator = torch.Generator().manual_seed(6)
    dim, n, repetitions = 64, 192, 300
    scale = torch.linspace(0, -2, dim, dtype=torch.float64).exp()
    turn = torch.linalg.qr(torch.eye(dim).double() + 0.02 * torch.randn(dim, dim, generator=generator).double())[0]

    def draw(count: int) -> Tensor:
        drawn: Tensor = (1.1 * scale * torch.randn(count, dim, generator=generator).double()) @ turn + 0.1
        return drawn

    reference = Reference(scale * torch.randn(4000, dim, generator=generator).double())
    truth = numpy_fid(draw(200_000), reference.features)
    keys = {"caption_id": torch.arange(n), "sample": torch.zeros(n).long()}
    drawn = [MetricInputs(images=Rows(keys | {"features": draw(n)}), reference=reference) for _ in range(repetitions)]
    runs = [measure(evidence, ["fid", "fid_debiased"])[0] for evidence in drawn]
    debiased, biased = ([run[name] for run in runs] for name in ("fid_debiased", "fid"))
    assert sum(abs(run.value - truth) <= 2.064 * run.error for run in debiased) / repetitions >= 0.912
    assert not any(abs(run.value - truth) <= 2.064 * run.error for run in biased)
    values = np.array([run.value for run in debiased])
    assert abs(values.mean() - truth) < 0.1 * abs(np.mean([run.value for run in biased]) - truth)
    assert values.std() <= np.mean([run.error for run in debiased]) <= 1.6 * values.std()
    assert all(run.n == n for run in debiased)


def share_within(runs: list[FrechetEstimate], centre: float, value: Callable[[FrechetEstimate], float]) -> float:
    return sum(abs(value(run) - centre) <= 2.064 * run.error for run in runs) / len(runs)


def test_errors_shrink_with_more_images() -> None:
    def error(captions: int) -> Estimate:
        rows = Rows(metric_inputs.columns(captions, 2, seed=2, shift=0.3))
        return measure(MetricInputs(images=rows, reference=metric_inputs.reference()), ["fid"])[0]["fid"]

    assert error(1000).error < 0.5 * error(60).error
